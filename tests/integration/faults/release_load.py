"""The part of the load that stages releases, publishes them whole or in waves, and undoes some."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from ringcast_client import ConfigServiceClient, ReleaseInfo
from ringcast_core import row_partition
from ringcast_wire import (
    DEFAULT_GATE,
    ConditionFailedError,
    ReleaseGate,
    ReleaseState,
    RingcastError,
    UnknownKeyError,
    limits,
)
from ringcast_wire.grpc import pb

from tests.integration.faults.arena import STORE, Arena
from tests.integration.faults.release_record import AskedRelease, AskedRow

if TYPE_CHECKING:
    from tests.integration.faults.load import Load

_T = TypeVar("_T")
_OWN_ROWS: Final = 60
"""Rows of a key that releases alone write to."""
_OWN_EACH: Final = 12
_THEIR_EACH: Final = 2
"""Rows of the writers in each release: of these some are written by others before its end."""
_DELETED: Final = 0.25
_WAVES: Final = ((), (), (50, 100), (10, 50, 100))
GATE: Final = ReleaseGate(patience_ms=8_000)
"""Shorter than what some faults last: then the service undoes the release."""
OVER_S: Final = 120.0
"""How long a release may be under way."""
_UNDER_WAY: Final = frozenset({ReleaseState.PUBLISHING, ReleaseState.UNDOING})


class GoneError(Exception):
    """Nothing can be said of a release any more: the database has gone back, or it was refused."""


class Releaser:
    """Stages, publishes and undoes releases over all keys, through every service."""

    def __init__(self, load: Load, arena: Arena) -> None:
        self._load = load
        self._arena = arena

    async def one(self, chance: random.Random) -> None:
        """One small release, from the staging to its end."""
        with suppress(GoneError):
            release = await self.stage(self._some_rows(chance), chance)
            waves = chance.choice(_WAVES)
            if not await self.publish(release, chance, waves):
                return
            if waves and chance.random() < 0.2:
                await self.undo(release, chance)  # in the middle of its waves
            info = await self.ended(release, chance)
            if info.state is ReleaseState.PUBLISHED and chance.random() < 0.5:
                await self.undo(release, chance)
                await self.ended(release, chance)

    def _some_rows(self, chance: random.Random) -> dict[str, list[str]]:
        found = {}
        for key in self._arena.shape.keys:
            found[key] = [f"r-{row}" for row in chance.sample(range(_OWN_ROWS), _OWN_EACH)]
            found[key] += [f"w{writer}-{chance.randrange(40)}" for writer in chance.sample(range(4), _THEIR_EACH)]
        return found

    async def stage(self, row_ids: dict[str, list[str]], chance: random.Random) -> AskedRelease:
        """A release that changes those rows of those keys, adds the ones that are not there, and deletes some.

        Raises:
            GoneError: it could not be staged.
        """
        release = AskedRelease(f"load {secrets.token_hex(8)}", [])
        self._load.ledger.releases.append(release)
        rows: list[AskedRow] = []
        for key, ids in row_ids.items():
            live = await self._ask(release, lambda client, key=key: _live(client, key), chance)  # type: ignore[misc]
            for row_id in ids:
                value, version = live.get(row_id, (None, 0))
                gone = version and chance.random() < _DELETED
                rows.append(AskedRow(key, row_id, None if gone else self._load.value(row_id), version, value))
        partitions = self._arena.shape.partitions
        release.rows = sorted(rows, key=lambda row: (row.key, row_partition(row.row_id, partitions), row.row_id))
        starts = range(0, len(rows), limits.MAX_BATCH_ROWS)
        number = 0
        for sequence, start in enumerate(starts):
            request = pb.StageReleaseRequest(
                store=STORE,
                stage_id=f"stage-{release.name}".replace(" ", "-"),
                sequence=sequence,
                rows=map(_keyed, release.rows[start : start + limits.MAX_BATCH_ROWS]),
                complete=start == starts[-1],
                reason=release.name,
            )
            number = await self._ask(release, lambda client, request=request: _stage(client, request), chance)  # type: ignore[misc]
        release.number = number
        return release

    async def publish(
        self, release: AskedRelease, chance: random.Random, waves: Sequence[int], services: Sequence[str] = ()
    ) -> bool:
        """Has one of those services, or any, publish a release; one with a row that was written since is dropped.

        Returns whether it is being published.
        """
        release.waves = waves
        gate = GATE if waves else DEFAULT_GATE
        try:
            await self._ask(
                release,
                lambda client: client.publish_release(STORE, release.number, waves=waves, gate=gate),
                chance,
                services,
                expected=ConditionFailedError,
            )
        except ConditionFailedError:
            if (await self._look(release, chance)).state is ReleaseState.STAGED:
                await self._ask(release, lambda client: client.drop_release(STORE, release.number), chance)
                release.dropped = True
                return False
            # An attempt without an answer has begun it, and its gate has failed meanwhile.
        release.published = True
        return True

    async def undo(self, release: AskedRelease, chance: random.Random, services: Sequence[str] = ()) -> None:
        """Has one of those services, or any, undo a release."""
        await self._ask(release, lambda client: client.undo_release(STORE, release.number), chance, services)
        release.undone = True

    async def ended(self, release: AskedRelease, chance: random.Random, services: Sequence[str] = ()) -> ReleaseInfo:
        """What a release is once it is neither being published nor being undone.

        Raises:
            AssertionError: it is so for too long.
        """
        pause_s, info = 0.05, None
        try:
            async with asyncio.timeout(OVER_S):
                while info is None or info.state in _UNDER_WAY:
                    await asyncio.sleep(pause_s)
                    pause_s = min(0.5, 2 * pause_s)
                    info = await self._look(release, chance, services)
        except TimeoutError:
            raise AssertionError(f"release {release.number} is under way for {OVER_S:g} s: {info}") from None
        return info

    async def _look(self, release: AskedRelease, chance: random.Random, services: Sequence[str] = ()) -> ReleaseInfo:
        return await self._ask(release, lambda client: client.release(STORE, release.number), chance, services)

    async def _ask(
        self,
        release: AskedRelease,
        call: Callable[[ConfigServiceClient], Awaitable[_T]],
        chance: random.Random,
        services: Sequence[str] = (),
        *,
        expected: type[RingcastError] | tuple[()] = (),
    ) -> _T:
        async def send(client: ConfigServiceClient) -> _T:
            if release.taken_back:  # its number may be that of another one by now
                raise GoneError
            return await call(client)

        try:
            return await self._load.ask(send, chance, services)
        except expected:
            raise
        except RingcastError as error:
            self._load.ledger.refused.append(f"{error.code}: {error}")
            raise GoneError from error


async def _live(client: ConfigServiceClient, key: str) -> dict[str, tuple[str, int]]:
    try:
        return {row.row_id: (row.value, row.version) async for row in client.list(STORE, key)}
    except UnknownKeyError:
        return {}  # nobody has written to it yet


async def _stage(client: ConfigServiceClient, request: pb.StageReleaseRequest) -> int:
    """The client's own calls stage whole keys; here a few rows are, as by a tool of a user."""
    calls = client._calls
    reply = await calls.unary(calls.rpc.StageRelease, request, late=calls.unknown)
    return int(reply.number)


def _keyed(row: AskedRow) -> pb.KeyedWrite:
    write = pb.RowWrite(row_id=row.row_id, value=row.value or "", delete=row.value is None)
    if row.base:
        write.if_version = row.base
    else:
        write.if_absent = True
    return pb.KeyedWrite(key=row.key, row=write)


def spread(count: int, keys: Iterable[str]) -> dict[str, list[str]]:
    """The ids of so many rows of a large release, over all keys."""
    names = list(keys)
    return {key: [f"l-{row}" for row in range(index, count, len(names))] for index, key in enumerate(names)}
