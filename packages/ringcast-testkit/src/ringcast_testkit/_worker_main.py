"""The process behind :class:`ringcast_testkit.WorkerProcess`: an application that keeps what its handler was told.

It reports on standard output, one JSON object a line with ``event`` and ``at_ns`` (the machine's monotonic clock, which
all processes share): each assignment, each change that the handler was given, and when everything owned is loaded. Its
rows come from the handler and the two ownership callbacks alone, never from the worker's own memory. SIGUSR1: says all
that it holds. SIGTERM: ends in order.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from typing import Any

import ringcast

Rows = dict[str, tuple[str, int, int]]
_ROWS_A_LINE = 500
_MOST_FAILURES = 2
"""In a row, of one row: the third time its change would be given up."""


class Application:
    """What a user would write: a dictionary for each list."""

    def __init__(self, delay_s: float, fails: float) -> None:
        self.rows: dict[str, Rows] = {}
        self.moved = asyncio.Event()
        self._delay_s = delay_s
        self._fails = fails
        self._failed: Counter[tuple[str, str]] = Counter()

    async def on_change_slowly(self, change: ringcast.Change) -> None:
        """A handler that waits for something, and fails now and then. It reports that it has begun with a change."""
        report("begun", key=change.key, partition=change.partition, row_id=change.row_id, version=change.version)
        await asyncio.sleep(self._delay_s * random.uniform(0, 2))
        row = (change.key, change.row_id)
        if self._failed[row] < _MOST_FAILURES and random.random() < self._fails:
            self._failed[row] += 1
            raise RuntimeError("now and then")
        self._failed[row] = 0
        self.on_change(change)

    def on_change(self, change: ringcast.Change) -> None:
        """The handler."""
        rows = self.rows.setdefault(change.key, {})
        if change.deleted:
            rows.pop(change.row_id, None)
        else:
            rows[change.row_id] = (change.value or "", change.version, change.partition)
        report(
            "row",
            key=change.key,
            partition=change.partition,
            row_id=change.row_id,
            value=None if change.deleted else change.value,
            version=change.version,
            deleted=change.deleted,
        )

    def on_assigned(self, key: str, partitions: frozenset[int]) -> None:
        """Partitions came; their rows follow."""
        report("assigned", key=key, partitions=sorted(partitions))
        self.moved.set()

    def on_revoked(self, key: str, partitions: frozenset[int]) -> None:
        """Partitions went, and their rows with them."""
        self.rows[key] = {row_id: row for row_id, row in self.rows.get(key, {}).items() if row[2] not in partitions}
        report("revoked", key=key, partitions=sorted(partitions))
        self.moved.set()

    def dump(self) -> None:
        """Says all that is held, in lines of bearable length."""
        for key, rows in self.rows.items():
            items = list(rows.items())
            for start in range(0, len(items), _ROWS_A_LINE):
                report("dump", key=key, rows=dict(items[start : start + _ROWS_A_LINE]))
        report("dumped")


def report(event: str, **fields: Any) -> None:
    """One line, whole or not at all: it is written in one call."""
    line = json.dumps({"event": event, "at_ns": time.monotonic_ns(), **fields}) + "\n"
    data = line.encode()
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


async def report_ready(worker: ringcast.Worker, application: Application) -> None:
    """Says what is owned each time that it changed and all of it is loaded."""
    while True:
        await application.moved.wait()
        application.moved.clear()
        await worker.wait_ready()
        report("ready", owned={key: sorted(worker.owned(key)) for key in worker.config.keys})


async def main() -> None:
    settings, delay_s, fails = json.loads(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    application = Application(delay_s, fails)
    worker = ringcast.Worker(
        **settings,
        handler=application.on_change_slowly if delay_s or fails else application.on_change,
        on_assigned=application.on_assigned,
        on_revoked=application.on_revoked,
    )
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ending.set)
    loop.add_signal_handler(signal.SIGUSR1, application.dump)
    try:
        async with worker:
            reporter = asyncio.create_task(report_ready(worker, application))
            await ending.wait()
            reporter.cancel()
    except BaseException as error:
        report("failed", error=repr(error))
        raise


if __name__ == "__main__":
    asyncio.run(main())
