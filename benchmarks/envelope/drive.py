"""Changes at a fixed rate from one process to the callbacks of others, and what became of each."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.envelope import arrivals
from benchmarks.envelope.arrivals import Schedule
from benchmarks.envelope.disk import flushing
from benchmarks.envelope.processes import Child, CpuMeter
from benchmarks.envelope.results import Case, Figure

_START_S = 60.0
_QUIET_S = 3.0
"""After so long without anything new, what is missing is taken for lost."""
_DRAIN_S = 30.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is written: ``count`` changes at ``rate`` a second, in turn to so many ``rows``."""

    rate: float
    count: int
    rows: int
    value_bytes: int = 100

    @property
    def params(self) -> dict[str, Any]:
        """For the results."""
        return {"rate": self.rate, "changes": self.count, "rows": self.rows, "value_bytes": self.value_bytes}


def drive(
    directory: Path,
    load: Load,
    *,
    target: Mapping[str, Any],
    subscribers: Sequence[Mapping[str, Any]],
    by_all: bool,
    servers: Mapping[str, list[int]],
) -> Case:
    """One case, its scenario and name still to be filled in.

    ``subscribers`` are the targets of one process each. ``by_all``: a change is known when all of them have it.
    ``servers`` are processes whose CPU time is measured as well.
    """
    files = [directory / f"heard-{number}.npy" for number in range(len(subscribers))]
    with ExitStack() as stack:
        listeners = [
            stack.enter_context(
                Child(f"subscriber {number}", "benchmarks.envelope.subscriber", {"target": where, "file": str(file)})
            )
            for number, (where, file) in enumerate(zip(subscribers, files, strict=True))
        ]
        for listener in listeners:
            listener.wait_for("ready", _START_S)
        meter = CpuMeter({**servers, "subscribers": [listener.process.pid for listener in listeners]})
        flushes = stack.enter_context(flushing(directory))
        settings = {"target": target, "rate": load.rate, "count": load.count, "rows": load.rows}
        sender = stack.enter_context(
            Child("sender", "benchmarks.envelope.sender", {**settings, "value_bytes": load.value_bytes})
        )
        start_ns = int(sender.wait_for("started", _START_S)["start_ns"])
        sent = sender.wait_for("done", load.count / load.rate + _START_S)
        _drain(listeners, sent["written"] * (len(listeners) if by_all else 1))
        cpu_s = meter.seconds() | {"sender": round(sent["cpu_s"], 3)}
        for listener in listeners:
            listener.process.terminate()
    schedule = Schedule(start_ns, load.rate, load.count, load.rows)
    heard = [(found[0], found[1]) for found in map(np.load, files)]
    case = Case("", "", {**load.params, "subscribers": len(subscribers)})
    case.figures = _figures(schedule, heard, by_all=by_all, sent=sent, cpu_s=cpu_s) | flushes
    latencies = arrivals.latencies_ms(schedule, heard, by_all=by_all)
    case.histogram = arrivals.histogram(latencies)
    if sent["failures"]:
        case.note = f"refused: {', '.join(f'{count} {name}' for name, count in sent['failures'].items())}"
    return case


def _drain(listeners: Sequence[Child], expected: int) -> None:
    """Waits until all was heard, or nothing more comes."""
    deadline, changed_at, before = time.monotonic() + _DRAIN_S, time.monotonic(), -1
    while time.monotonic() < min(deadline, changed_at + _QUIET_S):
        counts = [(listener.said("heard") or {"count": 0})["count"] for listener in listeners]
        if sum(counts) >= expected:
            return
        if sum(counts) != before:
            before, changed_at = sum(counts), time.monotonic()
        time.sleep(_POLL_S)


def _figures(
    schedule: Schedule,
    heard: Sequence[tuple[arrivals.Ints, arrivals.Ints]],
    *,
    by_all: bool,
    sent: Mapping[str, Any],
    cpu_s: Mapping[str, float],
) -> dict[str, Figure]:
    latencies = arrivals.latencies_ms(schedule, heard, by_all=by_all)
    parts = arrivals.slices(latencies)
    figures = {
        name: Figure(value, "ms", arrivals.samples_of(parts, name))
        for name, value in arrivals.percentiles(latencies).items()
    }
    known = int(np.isfinite(latencies).sum())
    last_ns = max((int(at.max()) for _, at in heard if len(at)), default=schedule.start_ns + 1)
    figures["heard_per_s"] = Figure(known / ((last_ns - schedule.start_ns) / 1e9), "changes/s", smaller_is_better=False)
    figures["unheard"] = Figure(schedule.count - known, "changes")
    figures["sender_late_p99_ms"] = Figure(sent["late_p99_ms"], "ms")
    for name, seconds in cpu_s.items():
        figures[f"cpu_us_per_change, {name}"] = Figure(seconds / schedule.count * 1e6, "µs")
    return figures


def remove(directory: Path) -> None:
    """Takes away what a case has left."""
    for file in directory.glob("heard-*.npy"):
        with contextlib.suppress(OSError):
            file.unlink()
