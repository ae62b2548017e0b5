"""The plots of a report: what a reader finds in them."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from benchmarks.envelope import plots

CURVE = [(1.0, 50), (2.0, 40), (8.0, 10)]


def texts(path: Path) -> list[str]:
    """What is written in an SVG."""
    return re.findall(r"<text[^>]*>([^<]+)</text>", path.read_text())


def colour_of(path: Path, label: str) -> str:
    """In which colour a word is written."""
    style = re.search(rf'<text style="([^"]*)"[^>]*>{label}</text>', path.read_text())
    assert style is not None
    found = re.search(r"fill: (#\w+)", style[1])
    return found[1] if found else ""


def test_each_line_has_its_name_at_its_end_and_peers_are_grey(tmp_path: Path) -> None:
    path = tmp_path / "curves.svg"
    lines = {"ringcast": CURVE, "etcd": [(bound * 2, count) for bound, count in CURVE]}
    plots.percentile_curves(path, "To all", {"100/s": lines, "500/s": lines}, peers={"etcd"})
    assert [word for word in texts(path) if word in ("ringcast", "etcd", "100/s", "500/s")].count("ringcast") == 2
    assert "legend" not in path.read_text()
    assert colour_of(path, "ringcast") == plots.COLOURS[0]
    assert colour_of(path, "etcd") == plots.GREY
    assert path.read_text().count(f"stroke: {plots.COLOURS[0]}") == 2, "one of ours in each panel"


def test_names_of_lines_that_end_together_stand_apart(tmp_path: Path) -> None:
    path = tmp_path / "growth.svg"
    plots.growth(path, "Cost", {"": {name: [(1, 5.0), (10, 50.0)] for name in ("a", "b", "c")}}, "rows", "ms")
    heights = sorted(float(y) for y in re.findall(r' y="([\d.]+)"[^>]*>[abc]</text>', path.read_text()))
    assert len(heights) == 3
    assert all(above - below > 9 for below, above in itertools.pairwise(heights)), heights


def test_a_range_within_one_decade_has_its_numbers(tmp_path: Path) -> None:
    path = tmp_path / "growth.svg"
    plots.growth(path, "Memory", {"": {"worker": [(100_000, 190.0), (300_000, 420.0)]}}, "rows", "MiB")
    assert {"100,000", "300,000", "worker", "MiB", "200"} <= set(texts(path))


def test_what_is_ours_is_in_colour_among_bars(tmp_path: Path) -> None:
    path = tmp_path / "bars.svg"
    plots.bars(path, "CPU time", {"1 partition": {"worker": 11.0, "fetch": 38.9}}, "µs", ours="worker")
    assert {"worker", "fetch", "11", "38.9", "1 partition", "µs"} <= set(texts(path))
    assert f"fill: {plots.COLOURS[0]}" in path.read_text()
    assert f"fill: {plots.GREY}" in path.read_text()


def test_the_same_figures_give_the_same_file(tmp_path: Path) -> None:
    for name in ("once.svg", "again.svg"):
        plots.percentile_curves(tmp_path / name, "Change to handler", {"sqlite": {"1/s": CURVE}})
    assert (tmp_path / "once.svg").read_bytes() == (tmp_path / "again.svg").read_bytes()
