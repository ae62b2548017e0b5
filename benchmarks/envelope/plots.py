"""The plots of a report, as SVG with text as text: the same figures give the same file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

mpl.rcParams.update({"svg.hashsalt": "ringcast", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9})

_NINES = {"50": 2.0, "90": 10.0, "99": 100.0, "99.9": 1_000.0, "99.99": 10_000.0}
Points = Sequence[tuple[float, float]]


def percentile_curves(path: Path, title: str, histograms: Mapping[str, Sequence[tuple[float, int]]]) -> None:
    """Latency at each percentile, the far end stretched: a line that bends up there waits where the mean hides it."""
    canvas, axes = _axes(title, "percentile", "ms")
    for label, histogram in histograms.items():
        points = percentile_points(histogram)
        axes.plot([x for x, _ in points], [y for _, y in points], label=label, linewidth=1.2)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(list(_NINES.values()), list(_NINES))
    axes.minorticks_off()
    _finish(canvas, axes, path)


def percentile_points(histogram: Sequence[tuple[float, int]]) -> list[tuple[float, float]]:
    """For each class of a histogram 1 / (share of all that took so long), and its upper bound."""
    total = sum(count for _, count in histogram)
    points, seen = [], 0
    for bound, count in histogram:
        # The line ends with the last class: nothing took longer than that.
        points.append((total / max(total - seen, 1), bound))
        seen += count
    return [(x, y) for x, y in points if math.isfinite(y)]


def growth(path: Path, title: str, lines: Mapping[str, Points], x_label: str, y_label: str) -> None:
    """Cost against size, both logarithmic: proportional cost is a line of slope 1, and a bend shows where it ends."""
    canvas, axes = _axes(title, x_label, y_label)
    for label, points in lines.items():
        drawn = [(x, y) for x, y in points if math.isfinite(y) and y > 0]
        axes.plot([x for x, _ in drawn], [y for _, y in drawn], label=label, marker="o", markersize=3, linewidth=1.2)
    axes.set_xscale("log")
    axes.set_yscale("log")
    sizes = sorted({x for points in lines.values() for x, _ in points})
    axes.set_xticks(sizes, [f"{size:,.0f}" for size in sizes])
    axes.minorticks_off()
    _finish(canvas, axes, path)


def bars(path: Path, title: str, values: Mapping[str, float], unit: str) -> None:
    """One bar each, longest where it costs most."""
    canvas, axes = _axes(title, unit, "")
    labels = list(values)[::-1]
    drawn = axes.barh(labels, [values[label] for label in labels], height=0.6)
    axes.bar_label(drawn, fmt="%.3g", padding=3)
    axes.margins(x=0.15)
    _finish(canvas, axes, path)


def _axes(title: str, x_label: str, y_label: str) -> tuple[Canvas, Axes]:
    canvas = Canvas(figsize=(7, 3.6), layout="constrained")
    axes = canvas.subplots()
    axes.set_title(title)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(visible=True, which="major", alpha=0.3)
    return canvas, axes


def _finish(canvas: Canvas, axes: Axes, path: Path) -> None:
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=8)
    canvas.savefig(path, format="svg", metadata={"Date": None})
