"""A process in whose event loop real code runs."""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any, Final, TypeVar

from typing_extensions import override

from tests.simulation.broker import Broker
from tests.simulation.engine import Process, Scheduler
from tests.simulation.history import History
from tests.simulation.loop import SimLoop

P = TypeVar("P", bound="SimProcess")


class SimProcess(Process):
    """Has an event loop and a connection. What becomes of it is noted in the history."""

    def __init__(self, scheduler: Scheduler, name: str, random: Random, broker: Broker, history: History) -> None:
        super().__init__(scheduler, name, random)
        self.broker = broker
        self.link = broker.link(self)
        self.loop = SimLoop(self)
        self._history = history

    def note(self, kind: str, *words: Any) -> None:
        """Adds a fact about this process to the history."""
        if self.alive:
            self._history.add(self.scheduler.now, kind, self.name, *words)

    def note_errors(self) -> None:
        """Adds what came up in its event loop and nothing took care of."""
        errors, self.loop.errors = self.loop.errors, []
        for error in errors:
            self.note("failed", error)

    # ---- life

    def start(self) -> None:
        """Begins to run."""
        self.loop.create_task(self._live())

    async def _live(self) -> None:
        try:
            await self.live()
        except Exception as error:  # noqa: BLE001  # nothing that it does not expect may end it
            self.note("failed", "".join(traceback.format_exception(error)))
        self.soon(self.crash)

    async def live(self) -> None:
        """What it does as long as it lives."""
        raise NotImplementedError

    @override
    def crash(self) -> None:
        if self.alive:
            self.note_errors()
            super().crash()
            self.link.cut()
            self.loop.end()


def current(kind: type[P]) -> P:
    """The process whose code is running.

    Raises:
        AssertionError: it is of another kind.
    """
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    assert isinstance(loop.process, kind)
    return loop.process


def clock() -> float:
    """The monotonic time of the process whose code is running, in seconds."""
    return asyncio.get_running_loop().time()


def modules_with_time(package: str) -> list[ModuleType]:
    """The modules of a package, of those that are imported, that tell the time by the module ``time``."""
    loaded = list(sys.modules.items())
    return [module for name, module in loaded if name.startswith(f"{package}.") and vars(module).get("time") is time]


LOOP_TIME: Final = SimpleNamespace(
    monotonic=clock,
    perf_counter=clock,
    time=clock,
    time_ns=lambda: int(clock() * 1e9),
    clock_gettime=lambda _clock: clock(),
)
"""Stands for the module ``time`` in the code of a process."""
