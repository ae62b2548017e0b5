"""The process behind :class:`ringcast_testkit.WorkerProcess`: an application that keeps what its handler was told.

It reports on standard output, one JSON object a line with ``event`` and ``at_ns`` (the machine's monotonic clock, which
all processes share): each assignment, each change that the handler was given, and when everything owned is loaded. Its
rows come from the handler and the two ownership callbacks alone, never from the worker's own memory. SIGUSR1: says all
that it holds. SIGTERM: ends in order. On standard input it is told to have its calls cancelled, or to fork.
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
from collections.abc import Callable
from typing import Any, Final, NoReturn

import ringcast

Rows = dict[str, tuple[str, int, int]]
_ROWS_A_LINE = 500
_MOST_FAILURES = 2
"""In a row, of one row: the third time its change would be given up."""
_CHILD_S: Final = 120
"""How long a child that was forked off lives at the most."""


class Application:
    """What a user would write: a dictionary for each list."""

    def __init__(self, delay_s: float, fails: float) -> None:
        self.rows: dict[str, Rows] = {}
        self.moved = asyncio.Event()
        self._delay_s = delay_s
        self._fails = fails
        self._failed: Counter[tuple[str, str]] = Counter()
        self.cancelled = 0.0
        """What share of the calls raises ``CancelledError``."""

    async def on_change_slowly(self, change: ringcast.Change) -> None:
        """A handler that waits for something, and fails now and then. It reports that it has begun with a change."""
        _begun(change)
        await asyncio.sleep(self._delay_s * random.uniform(0, 2))
        if self._may_fail(change, self._fails):
            raise RuntimeError("now and then")
        if self._may_fail(change, self.cancelled):
            report("cancelled", key=change.key)
            await random.choice((_cancelled_elsewhere, _cancels_itself))()
        self._take(change)

    def _may_fail(self, change: ringcast.Change, share: float) -> bool:
        row = (change.key, change.row_id)
        if not share or self._failed[row] >= _MOST_FAILURES or random.random() >= share:
            return False
        self._failed[row] += 1
        return True

    def on_change(self, change: ringcast.Change) -> None:
        """The handler."""
        if self._may_fail(change, self.cancelled):
            _begun(change)
            report("cancelled", key=change.key)
            raise asyncio.CancelledError
        self._take(change)

    def _take(self, change: ringcast.Change) -> None:
        self._failed.pop((change.key, change.row_id), None)
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
            token=change.token,
        )

    def on_assigned(self, key: str, partitions: frozenset[int]) -> None:
        """Partitions came; their rows follow."""
        report("assigned", key=key, partitions=sorted(partitions))
        self.moved.set()
        self._cancel_callback(key)

    def on_revoked(self, key: str, partitions: frozenset[int]) -> None:
        """Partitions went, and their rows with them."""
        self.rows[key] = {row_id: row for row_id, row in self.rows.get(key, {}).items() if row[2] not in partitions}
        report("revoked", key=key, partitions=sorted(partitions))
        self.moved.set()
        self._cancel_callback(key)

    def _cancel_callback(self, key: str) -> None:
        if self.cancelled:
            report("callback_cancelled", key=key)
            raise asyncio.CancelledError

    def dump(self) -> None:
        """Says all that is held, in lines of bearable length."""
        for key, rows in self.rows.items():
            items = list(rows.items())
            for start in range(0, len(items), _ROWS_A_LINE):
                report("dump", key=key, rows=dict(items[start : start + _ROWS_A_LINE]))
        report("dumped")


def _begun(change: ringcast.Change) -> None:
    report("begun", key=change.key, partition=change.partition, row_id=change.row_id, version=change.version)


async def _cancelled_elsewhere() -> None:
    """Awaits what another task has cancelled."""
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def _cancels_itself() -> None:
    """Cancels the task that it runs in."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


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


class Orders:
    """What is said on standard input, a line each: ``cancel SHARE``, ``fork``."""

    def __init__(self, application: Application, worker: ringcast.Worker, settings: dict[str, Any]) -> None:
        self._application = application
        self._worker = worker
        self._settings = settings
        self._read = b""

    def take(self) -> None:
        """Called when there is something to read."""
        data = os.read(sys.stdin.fileno(), 4096)
        if not data:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        *lines, self._read = (self._read + data).split(b"\n")
        for line in lines:
            match line.decode().split():
                case ["cancel", share]:
                    self._application.cancelled = float(share)
                case ["fork"]:
                    if os.fork() == 0:
                        self._be_a_child()

    def _be_a_child(self) -> NoReturn:
        """Never returns into what runs in the parent."""
        try:
            signal.set_wakeup_fd(-1)  # what the parent is sent
            for each in (signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM):
                signal.signal(each, signal.SIG_DFL)
            signal.alarm(_CHILD_S)
            uses = _outcome(self._worker.health)
            starts = _outcome(lambda: asyncio.run(self._starts()))
            report("child", pid=os.getpid(), uses=uses, starts=starts)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(nowhere, number)
            while True:
                signal.pause()
        finally:
            os._exit(1)

    async def _starts(self) -> None:
        async with ringcast.Worker(**self._settings):
            pass


def _outcome(attempt: Callable[[], object]) -> str:
    """What was raised, or that nothing was."""
    try:
        attempt()
    except Exception as error:  # noqa: BLE001  # whatever it is, it is what is asked for
        return f"{type(error).__name__}: {error}"
    return "done"


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
    loop.add_reader(sys.stdin.fileno(), Orders(application, worker, settings).take)
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
