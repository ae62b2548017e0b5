"""What the application itself does to its worker: calls that are cancelled, and a process that is forked off."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Callable

from ringcast_testkit import PATIENCE_S, Report, WorkerProcess

from tests.integration.faults.arena import Arena, off
from tests.integration.faults.fault import After, a_worker, kind
from tests.integration.faults.load import Load
from tests.integration.faults.process_faults import gone, joiner

_CANCELLED = 30
"""How many calls of handlers have to have been cancelled."""


@kind("workers")
async def calls_cancelled(arena: Arena, chance: random.Random) -> After:
    """Handlers and both callbacks of every worker raise ``CancelledError``, while a worker joins and leaves."""
    load = _load(arena)
    workers = list(arena.workers.values())
    before = len(arena.history.reports())
    for worker in workers:
        await off(worker.cancel_calls, chance.uniform(0.2, 0.6))
    joined = joiner(arena)
    await off(joined.start)
    await arena.ready(joined)
    await off(joined.cancel_calls, 0.5)
    async with asyncio.timeout(PATIENCE_S):
        while not (_met(arena, before, "cancelled") >= _CANCELLED and _met(arena, before, "callback_cancelled")):
            await load.acknowledge(5)
    for worker in (*workers, joined):
        await off(worker.cancel_calls, 0)
    return gone(arena, joined)


def _met(arena: Arena, since: int, event: str) -> int:
    return sum(report.event == event for report in arena.history.reports(since))


@kind("workers", alone=True)
async def worker_forked(arena: Arena, chance: random.Random) -> After:
    """A worker forks a child, which may not use it; then it is killed and comes back, while the child lives on with
    copies of its connections and files."""
    worker = a_worker(arena, chance)
    child = await off(worker.fork)
    end = _ends(child)
    arena.stack.callback(end)
    uses, starts = child.fields["uses"], child.fields["starts"]
    if not uses.startswith("RuntimeError") or not starts.startswith("InUseError"):
        raise AssertionError(f"a child used the worker of its parent: {uses!r}, {starts!r}")
    await _load(arena).acknowledge(20)
    await off(worker.kill)
    await off(worker.start)
    return _without(arena, worker, end)


async def _without(arena: Arena, worker: WorkerProcess, end: Callable[[], None]) -> None:
    await arena.ready(worker)
    end()


def _ends(child: Report) -> Callable[[], None]:
    """Ends a child, once."""
    alive = [child.fields["pid"]]

    def end() -> None:
        while alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(alive.pop(), signal.SIGKILL)

    return end


def _load(arena: Arena) -> Load:
    assert arena.load is not None, "it is done under load alone"
    return arena.load
