"""What a kind of fault is, and what several kinds share."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import nats.errors
import nats.js.errors
from ringcast_testkit import WorkerProcess

from tests.integration.faults.arena import Arena

After = Coroutine[Any, Any, None] | None
Action = Callable[[Arena, random.Random], Coroutine[Any, Any, After]]
PAST_A_LEASE_S = (12.0, 16.0)
_TAKEN_OVER_S = 25.0
_TRIES_S = 60.0


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    ``only`` says which system it needs: "server", "cluster", or either; ``database`` which of those: "postgres",
    "sqlite", or either. ``login``: how processes log in to NATS where it can be done, "password", "token", or either.
    ``alone``: nothing else is done meanwhile. ``strategy``: "sticky" or "peer" (all the others), or either.
    ``releases``: it needs a load with releases.
    """

    name: str
    group: str
    action: Action
    only: str = ""
    database: str = ""
    login: str = ""
    alone: bool = False
    strategy: str = ""
    releases: bool = False


KINDS: dict[str, Kind] = {}


def kind(
    group: str,
    only: str = "",
    *,
    database: str = "",
    login: str = "",
    alone: bool = False,
    strategy: str = "",
    releases: bool = False,
) -> Callable[[Action], Action]:
    """Registers a fault under the name of its function."""

    def register(action: Action) -> Action:
        name = action.__name__
        KINDS[name] = Kind(name, group, action, only, database, login, alone, strategy, releases)
        return action

    return register


async def hold(arena: Arena, chance: random.Random, low_s: float, high_s: float) -> None:
    """Lets a fault last, for a time that nothing but the clock decides."""
    await asyncio.sleep(arena.shape.hold * chance.uniform(low_s, high_s))


def a_worker(arena: Arena, chance: random.Random) -> WorkerProcess:
    """One of the workers."""
    return arena.workers[chance.choice(sorted(arena.workers))]


def a_user(arena: Arena, chance: random.Random) -> str:
    """The id of a worker that logs in with a password of its own; empty where none does."""
    return chance.choice(sorted(arena.users.passwords) or [""])


async def taken_over(arena: Arena, worker_id: str) -> None:
    """Waits until the others own all that a worker owned, unless another fault keeps them from it."""
    with contextlib.suppress(AssertionError):
        await arena.mirror.wait(
            lambda: arena.mirror.taken_over(worker_id), _TAKEN_OVER_S, f"nobody took over from {worker_id}"
        )


async def on_jetstream(
    arena: Arena, work: Callable[[nats.js.JetStreamContext], Awaitable[object]], user: str = ""
) -> None:
    """Does something with JetStream, with the credential of a worker or one that may do everything, again while a fault
    of another group keeps it from answering."""
    async with asyncio.timeout(_TRIES_S):
        while True:
            try:
                async with arena.bus(user) as client:
                    await work(client.jetstream(timeout=5))
                return
            except nats.js.errors.NotFoundError:
                return  # gone already, for another reason
            except (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError):
                await asyncio.sleep(0.2)
