"""Config services that die in the middle of publishing a release, and of undoing one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ringcast_testkit import PATIENCE_S

from tests.integration.faults.arena import Arena, off
from tests.integration.faults.fault import After, hold, kind
from tests.integration.faults.record import UNREADABLE, Fetch, opened
from tests.integration.faults.release_load import GoneError, Releaser, spread
from tests.integration.faults.release_record import AskedRelease, FoundRelease, releases_of

LARGE: Final = 4_200
"""Rows of a release that takes three transactions of 2,000 at the most."""
_TRIES: Final = 4
"""Of a release that is over before anybody has seen a part of it."""
_WAVES: Final = ((), (30, 100))


@kind("services", releases=True)
async def publisher_killed(arena: Arena, chance: random.Random) -> After:
    """SIGKILL to the service that publishes a large release, whole or in waves, once a part of it is published.

    Another instance goes on with it, or the one that is started again.
    """
    releaser = _releaser(arena)
    for _ in range(_TRIES):
        with suppress(GoneError):
            release, name = await _staged(arena, chance), chance.choice(sorted(arena.services))
            waves, least = chance.choice(_WAVES), chance.choice((0.0, 0.4))
            if not await releaser.publish(release, chance, waves, [name]):
                continue
            if await _killed(arena, chance, name, release, "publishing", least):
                return _over(arena, chance, release)
    return None


@kind("services", releases=True)
async def undoer_killed(arena: Arena, chance: random.Random) -> After:
    """SIGKILL to the service that undoes a large release, once a part of it is undone; as with ``publisher_killed``."""
    releaser = _releaser(arena)
    for _ in range(_TRIES):
        with suppress(GoneError):
            release, name = await _staged(arena, chance), chance.choice(sorted(arena.services))
            if not await releaser.publish(release, chance, ()):
                continue
            await releaser.ended(release, chance)
            await releaser.undo(release, chance, [name])
            if await _killed(arena, chance, name, release, "undoing", 0.0):
                return _over(arena, chance, release)
    return None


async def _killed(
    arena: Arena, chance: random.Random, name: str, release: AskedRelease, state: str, least: float
) -> bool:
    """Kills a service once more than that part of a release is done, and starts it again.

    Returns whether it was killed in the middle; a release that is over before anybody has seen a part of it is not.
    """

    def amid(found: FoundRelease) -> bool:
        return found.state == state and least < found.part < 1

    if not await _seen(arena, release, lambda found: not found.work or amid(found), amid):
        return False
    arena.down.add(name)
    service, others = arena.services[name], sorted(set(arena.services) - {name})
    await off(service.kill)
    # Nobody works at it now: another instance waits for 5 s.
    is_met = await _seen(arena, release, lambda _: True, amid)
    way = "_in_waves" if release.waves and state == "publishing" else ""
    arena.met[f"killed_while_{state}{way}"] += is_met
    if others and chance.random() < 0.5:
        with suppress(GoneError):
            await _releaser(arena).ended(release, chance, others)
            arena.met["release_ended_by_another"] += is_met
    else:
        await hold(arena, chance, 0, 3)
    await off(service.start)
    arena.down.discard(name)
    return is_met


async def _over(arena: Arena, chance: random.Random, release: AskedRelease) -> None:
    """Once the system has recovered: the release comes to its end."""
    with suppress(GoneError):
        await _releaser(arena).ended(release, chance)


async def _seen(
    arena: Arena,
    release: AskedRelease,
    until: Callable[[FoundRelease], bool],
    wanted: Callable[[FoundRelease], bool],
) -> bool:
    """Reads a release in the record until it is such, past the service; whether it is what is wanted then."""
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while not release.taken_back:
                with suppress(*UNREADABLE):
                    async with opened(arena.database) as fetch:
                        found = await _read(fetch, release, until)
                        return found is not None and wanted(found)
                await asyncio.sleep(0.05)  # a fault of another group is done to it
    return False


async def _read(fetch: Fetch, release: AskedRelease, until: Callable[[FoundRelease], bool]) -> FoundRelease | None:
    while True:
        found = next((each for each in await releases_of(fetch) if each.name == release.name), None)
        if found is None or until(found):
            return found
        await asyncio.sleep(0.002)


def _releaser(arena: Arena) -> Releaser:
    assert arena.load is not None, "releases are staged under load alone"
    return arena.load.releaser


async def _staged(arena: Arena, chance: random.Random) -> AskedRelease:
    return await _releaser(arena).stage(spread(LARGE, arena.shape.keys), chance)
