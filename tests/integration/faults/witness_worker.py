"""The process behind a :class:`~ringcast_testkit.WorkerProcess` that writes its calls down, and its refreshes.

Run as a program with a directory and what is broken in it (or ``-``) before the arguments of the usual one.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final

import ringcast
from ringcast._bus.kv import NatsBucket
from ringcast._coordination.sticky.coordinator import StickyCoordinator
from ringcast._coordination.sticky.ownership import ExclusiveCall
from ringcast_testkit import _worker_main
from ringcast_wire import names

from tests.integration.faults.broken_worker import BROKEN
from tests.integration.faults.witness import Writer

_SESSIONS: Final = names.session_key("")
_numbers = itertools.count()


def witness(writer: Writer) -> None:
    """Has the worker of this process write down its refreshes and its calls."""
    _witness_refreshes(writer)
    for name in ("begin_call", "begin_last_call"):
        setattr(StickyCoordinator, name, _witnessed(writer, getattr(StickyCoordinator, name)))
    _witness_handlers(writer)


def _witness_refreshes(writer: Writer) -> None:
    put = NatsBucket.put

    async def witnessed(self: NatsBucket, key: str, value: bytes, *, last: int, among: str = "") -> int:
        sent_ns = time.monotonic_ns()
        revision = await put(self, key, value, last=last, among=among)
        if key.startswith(_SESSIONS):
            writer.write("refreshed", sent_ns, time.monotonic_ns())
        return revision

    NatsBucket.put = witnessed  # type: ignore[method-assign]


_Begin = Callable[[StickyCoordinator, str, int], ExclusiveCall | None]


def _witnessed(writer: Writer, begin: _Begin) -> _Begin:
    @wraps(begin)
    def witnessed(self: StickyCoordinator, key: str, partition: int) -> ExclusiveCall | None:
        began_ns = time.monotonic_ns()  # before it looks: a process that is halted after that has not looked too late
        call = begin(self, key, partition)
        if call is None:
            return None
        number = next(_numbers)
        writer.write("admitted", number, key, partition, call.token, began_ns)
        return _WitnessedCall(writer, call, number)

    return witnessed


class _WitnessedCall(ExclusiveCall):
    """A call whose end is written down."""

    __slots__ = ("_call", "_number", "_writer")

    def __init__(self, writer: Writer, call: ExclusiveCall, number: int) -> None:
        self.token = call.token  # type: ignore[misc]
        self._writer = writer
        self._call = call
        self._number: int | None = number

    def end(self) -> None:
        if self._number is not None:
            self._writer.write("ended", self._number, time.monotonic_ns())
            self._number = None
        self._call.end()


def _witness_handlers(writer: Writer) -> None:
    def begin(change: ringcast.Change) -> int:
        number = next(_numbers)
        writer.write("handling", number, change.key, change.partition, change.token, time.monotonic_ns())
        return number

    class Witnessed(_worker_main.Application):
        def on_change(self, change: ringcast.Change) -> None:
            number = begin(change)
            try:
                super().on_change(change)
            finally:
                writer.write("handled", number, time.monotonic_ns())

        async def on_change_slowly(self, change: ringcast.Change) -> None:
            number = begin(change)
            try:
                await super().on_change_slowly(change)
            finally:
                writer.write("handled", number, time.monotonic_ns())

    _worker_main.Application = Witnessed  # type: ignore[misc]


if __name__ == "__main__":
    directory, broken = Path(sys.argv.pop(1)), sys.argv.pop(1)
    settings: dict[str, Any] = json.loads(sys.argv[1])
    if broken != "-":
        BROKEN[broken]()
    witness(Writer(directory, settings["worker_id"]))
    asyncio.run(_worker_main.main())
