"""CPU time of the processes that a benchmark has started, by what they are: it hardly depends on other work."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import psutil

_KINDS: Final = (
    ("ringcast_config_service", "service"),
    ("postgres", "postgresql"),
    ("nats-server", "nats"),
    ("java", "jvm"),
    ("pyspark", "spark's python"),
)
"""What stands in a command line, and the kind."""


def cpu_seconds(postgresql: int) -> dict[str, float]:
    """Seconds so far, by kind; ``benchmark`` is this process. ``postgresql`` is the id of the server's first process.

    A process that has ended counts where its parent has waited for it.
    """
    found: defaultdict[str, float] = defaultdict(float)
    me = psutil.Process()
    for process in (*me.children(recursive=True), *_with_children(postgresql)):
        try:
            kind, times = _kind(process), process.cpu_times()
        except psutil.Error:  # it ended just now
            continue
        found[kind] += times.user + times.system
        if process.pid == postgresql:
            found[kind] += times.children_user + times.children_system
    times = me.cpu_times()
    found["benchmark"] = times.user + times.system
    return found


def us_per_row(before: Mapping[str, float], after: Mapping[str, float], rows: int) -> dict[str, float]:
    """What was used between two moments, in microseconds a row."""
    return {kind: round((after[kind] - before.get(kind, 0.0)) / rows * 1e6, 2) for kind in sorted(after)}


def _with_children(pid: int) -> list[psutil.Process]:
    """None where it is a child of ours, and counted as such."""
    server = psutil.Process(pid)
    if any(parent.pid == os.getpid() for parent in server.parents()):
        return []
    return [server, *server.children(recursive=True)]


def _kind(process: psutil.Process) -> str:
    words = " ".join(process.cmdline())
    return next((kind for mark, kind in _KINDS if mark in words), "other")
