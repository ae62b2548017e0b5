"""Two runs beside each other."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.envelope import compare
from benchmarks.envelope.compare import Difference
from benchmarks.envelope.results import Case, Figure, Results, read


def verdict(before: Figure, after: Figure) -> str:
    return Difference("case", "figure", before, after).verdict


def figure(value: float, samples: Sequence[float] = (), *, smaller_is_better: bool = True) -> Figure:
    return Figure(value, "ms", samples, smaller_is_better)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (figure(10, [9.9, 10, 10.1]), figure(20, [19, 20, 21]), "worse"),
        (figure(20, [19, 20, 21]), figure(10, [9.9, 10, 10.1]), "better"),
        (figure(10, [5, 10, 15]), figure(13, [6, 13, 20]), ""),
        (figure(10, [10, 10, 10]), figure(10.1, [10.1, 10.1, 10.1]), ""),
        (figure(100, [99, 100, 101], smaller_is_better=False), figure(50, [49, 50, 51]), "worse"),
        (figure(10), figure(13), ""),
        (figure(10), figure(30), "worse"),
        (figure(10), figure(math.inf), "worse"),
        (figure(0), figure(0), ""),
        (figure(math.inf), figure(math.inf), ""),
        (figure(0), figure(3), "worse"),
    ],
)
def test_verdict(before: Figure, after: Figure, expected: str) -> None:
    assert verdict(before, after) == expected


def write_run(directory: Path, value: float) -> Path:
    results = Results(directory, quick=False, command=[])
    samples = [value * 0.99, value, value * 1.01]
    histogram = [(1.05, 3), (math.inf, 1)]
    results.add(Case("latency", "sqlite", {"rate": 1}, {"p50_ms": Figure(value, "ms", samples)}, histogram))
    results.add(Case("latency", f"only at {value}", {}, {"p50_ms": Figure(value, "ms")}))
    results.finish()
    return directory


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    about, cases = read(write_run(tmp_path, math.inf))
    assert about["complete"]
    assert cases[0].figures["p50_ms"].value == math.inf
    assert cases[0].histogram == [(1.05, 3), (math.inf, 1)]


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(write_run(tmp_path / name, value)) for name, value in (("a", 10.0), ("b", 15.0))]
    monkeypatch.setattr(sys, "argv", ["compare", *runs])
    assert compare.main() == 0
    said = capsys.readouterr().out
    assert "| latency: sqlite | p50_ms | 10 | 15 ms | 1.5 | ± 1% | worse |" in said
    assert "1 figures in both; 1 changed" in said
    assert "Caution" not in said


def test_refuses_what_is_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["compare", str(tmp_path / "none"), str(tmp_path)])
    with pytest.raises(SystemExit):
        compare.main()
    assert "none" in capsys.readouterr().err
