"""How fast the disk flushes while a case is measured: no commit can be faster than that."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.envelope.results import Figure

_EVERY_S = 0.05
_PAGE = b"\0" * 4096
_PAGES = 256


@contextmanager
def flushing(directory: Path) -> Iterator[dict[str, Figure]]:
    """Writes and flushes a page 20 times a second, in a thread; the figures are there once the block is left."""
    found: dict[str, Figure] = {}
    times_ms: list[float] = []
    over = threading.Event()

    def flush() -> None:
        file = os.open(directory / "flushed", os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            while not over.wait(_EVERY_S):
                os.pwrite(file, _PAGE, len(times_ms) % _PAGES * len(_PAGE))
                began_ns = time.monotonic_ns()
                os.fsync(file)
                times_ms.append((time.monotonic_ns() - began_ns) / 1e6)
        finally:
            os.close(file)

    thread = threading.Thread(target=flush, name="disk")
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
        times_ms.sort()
        if times_ms:
            for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
                value = times_ms[min(len(times_ms) - 1, int(len(times_ms) * share))]
                found[f"the disk alone, fsync {name}"] = Figure(value, "ms")
