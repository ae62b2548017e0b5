"""One worker process of the demo: an application that keeps what its handler was told, and nothing else.

It reports on standard output, a JSON object a line, and obeys `dump` and `stop` on standard input. Times are those of
the machine's monotonic clock, which all its processes share.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import ringcast

Rows = dict[str, tuple[str, int, int]]  # row id → value, version, partition


class Application:
    """What a user would write: a dictionary for each list, kept by the handler."""

    def __init__(self) -> None:
        self.rows: dict[str, Rows] = {}
        self.live = False  # from then on a change is worth a line of its own
        self.ownership_changed = asyncio.Event()

    def on_change(self, change: ringcast.Change) -> None:
        """The handler: keeps the row, or forgets it."""
        at_ns = time.monotonic_ns()
        rows = self.rows.setdefault(change.key, {})
        if change.deleted:
            rows.pop(change.row_id, None)
        else:
            rows[change.row_id] = (change.value or "", change.version, change.partition)
        if self.live:
            report("heard", key=change.key, row_id=change.row_id, version=change.version, at_ns=at_ns)

    def on_assigned(self, key: str, partitions: frozenset[int]) -> None:
        """Partitions came: their rows follow through the handler."""
        self.live = False
        self.ownership_changed.set()

    def on_revoked(self, key: str, partitions: frozenset[int]) -> None:
        """Partitions went: their rows are somebody else's now."""
        kept = {row_id: row for row_id, row in self.rows.get(key, {}).items() if row[2] not in partitions}
        self.rows[key] = kept
        self.ownership_changed.set()


def report(event: str, **fields: Any) -> None:
    """One line to the demo."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


async def report_ownership(worker: ringcast.Worker, application: Application) -> None:
    """Tells what is owned each time that it changed and all of it is loaded."""
    while True:
        await application.ownership_changed.wait()
        application.ownership_changed.clear()
        await worker.wait_ready()
        application.live = True
        owned = {key: sorted(worker.owned(key)) for key in worker.config.keys}
        report("owned", owned=owned, rows={key: len(rows) for key, rows in application.rows.items()})


async def obey(application: Application) -> None:
    """Reads commands until `stop` or the end of standard input."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while (line := (await reader.readline()).decode().strip()) not in ("", "stop"):
        if line == "dump":
            for key, rows in application.rows.items():
                report("dump", key=key, rows=rows)
            report("dumped")


async def main(application: Application) -> None:
    """Runs an application with what the command line names: servers, the worker's id, a store and its keys."""
    servers, worker_id, store, *keys = sys.argv[1:]
    worker = ringcast.Worker(
        servers=servers,
        store=store,
        keys=keys,
        worker_id=worker_id,
        handler=application.on_change,
        on_assigned=application.on_assigned,
        on_revoked=application.on_revoked,
    )
    async with worker, asyncio.TaskGroup() as tasks:
        reporter = tasks.create_task(report_ownership(worker, application))
        await obey(application)
        reporter.cancel()


if __name__ == "__main__":
    asyncio.run(main(Application()))
