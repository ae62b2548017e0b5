"""The plots of a report, as SVG with text as text: the same figures give the same file.

What is ours is in colour, peers are grey, and each line has its name at its end instead of in a legend. A plot has
panels with the same axes, so that each has few lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogLocator

mpl.rcParams.update({"svg.hashsalt": "ringcast", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9})

GREY: Final = "#8a8a8a"
COLOURS: Final = ("#0b62a8", "#d1570a", "#2c7d3f", "#8b3fa8", "#a5651b")
"""Of our lines in a panel: dark blue, orange, green, violet, brown, which the colour-blind tell apart too."""
_NINES = {"50": 2.0, "90": 10.0, "99": 100.0, "99.9": 1_000.0, "99.99": 10_000.0}
_LINE_HEIGHT: Final = 10.0
"""Of a name at the end of a line, in points."""
Points = Sequence[tuple[float, float]]
Histogram = Sequence[tuple[float, int]]
End = tuple[float, str, str]
"""Of a line: its last value, its name and its colour."""


def percentile_curves(
    path: Path, title: str, panels: Mapping[str, Mapping[str, Histogram]], *, peers: Collection[str] = ()
) -> None:
    """Latency at each percentile, the far end stretched: a line that bends up there waits where the mean hides it.

    Args:
        path: of the SVG.
        title: of all panels.
        panels: the histograms of each by the names of their lines; a panel has its own name above it.
        peers: which lines are of others, and grey.
    """
    points = {
        name: {label: percentile_points(histogram) for label, histogram in lines.items()}
        for name, lines in panels.items()
    }

    def scales(axes: Axes) -> None:
        axes.set_xticks(list(_NINES.values()), list(_NINES))

    _lines(path, title, points, ("percentile", "ms"), scales, peers)


def percentile_points(histogram: Histogram) -> list[tuple[float, float]]:
    """For each class of a histogram 1 / (share of all that took so long), and its upper bound."""
    total = sum(count for _, count in histogram)
    points, seen = [], 0
    for bound, count in histogram:
        # The line ends with the last class: nothing took longer than that.
        points.append((total / max(total - seen, 1), bound))
        seen += count
    return [(x, y) for x, y in points if math.isfinite(y)]


def growth(path: Path, title: str, panels: Mapping[str, Mapping[str, Points]], x_label: str, y_label: str) -> None:
    """Cost against size, both logarithmic: proportional cost is a line of slope 1, and a bend shows where it ends."""
    drawn = {
        name: {label: [(x, y) for x, y in points if math.isfinite(y) and y > 0] for label, points in lines.items()}
        for name, lines in panels.items()
    }
    sizes = sorted({x for lines in panels.values() for points in lines.values() for x, _ in points})

    def scales(axes: Axes) -> None:
        axes.set_xticks(sizes, [f"{size:,.0f}" for size in sizes])

    _lines(path, title, drawn, (x_label, y_label), scales, marker="o", markersize=3)


def bars(path: Path, title: str, panels: Mapping[str, Mapping[str, float]], unit: str, *, ours: str) -> None:
    """One bar each, and a panel for each case: what is ours in colour, what it is held against in grey."""
    canvas, every_axes = _canvas(title, len(panels), (7, 1.2 + 0.2 * max(map(len, panels.values()), default=1)))
    for axes, (name, values) in zip(every_axes, panels.items(), strict=True):
        labels = list(values)[::-1]
        colours = [COLOURS[0] if label == ours else GREY for label in labels]
        drawn = axes.barh(labels, [values[label] for label in labels], height=0.6, color=colours)
        axes.bar_label(drawn, fmt="%.3g", padding=3)
        axes.margins(x=0.25)
        axes.set_title(name, fontsize=9)
        axes.set_xlabel(unit)
    _save(canvas, path)


def _lines(
    path: Path,
    title: str,
    panels: Mapping[str, Mapping[str, Points]],
    labels: tuple[str, str],
    scales: Callable[[Axes], None],
    peers: Collection[str] = (),
    **style: Any,
) -> None:
    canvas, every_axes = _canvas(title, len(panels), (7, 3.6))
    ends: list[list[End]] = []
    for axes, (name, lines) in zip(every_axes, panels.items(), strict=True):
        colours = cycle(COLOURS)
        ends.append([])
        for label, points in lines.items():
            if not points:
                continue
            is_ours = label not in peers
            colour = next(colours) if is_ours else GREY
            style["zorder"], style["linewidth"] = (3, 1.6) if is_ours else (2, 1.0)
            axes.plot([x for x, _ in points], [y for _, y in points], color=colour, **style)
            ends[-1].append((points[-1][1], label, colour))
        axes.set_xscale("log")
        axes.set_yscale("log")
        scales(axes)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.set_title(name, fontsize=9)
        axes.set_xlabel(labels[0])
    every_axes[0].set_ylabel(labels[1])
    canvas.draw_without_rendering()  # the ends of the lines are where the layout puts them
    for axes, found in zip(every_axes, ends, strict=True):
        _name_lines(axes, found, 72 / canvas.dpi)
    _save(canvas, path)


def _name_lines(axes: Axes, ends: Sequence[End], points_a_pixel: float) -> None:
    """Writes the name of each line at its end, the names of ends that are close one above the other."""
    below = -math.inf
    for y, label, colour in sorted(ends):
        height = float(axes.transData.transform([1.0, y])[1]) * points_a_pixel
        below = max(height, below + _LINE_HEIGHT)
        axes.annotate(
            label,
            (1, y),
            xycoords=axes.get_yaxis_transform(),
            xytext=(4, below - height),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=8,
        )


def _canvas(title: str, panels: int, size: tuple[float, float]) -> tuple[Canvas, list[Axes]]:
    canvas = Canvas(figsize=size, layout="constrained")
    canvas.suptitle(title, fontsize=10)
    return canvas, list(canvas.subplots(1, max(panels, 1), sharey=True, squeeze=False)[0])


def _save(canvas: Canvas, path: Path) -> None:
    canvas.savefig(path, format="svg", metadata={"Date": None})
