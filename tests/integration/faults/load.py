"""A steady load of writes, and a ledger of what was asked for and what was acknowledged."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from ringcast_client import ConfigServiceClient, RowWrite
from ringcast_testkit import PATIENCE_S
from ringcast_wire import ErrorCode, RingcastError

from tests.integration.faults.arena import STORE, Arena
from tests.integration.faults.record import Revision
from tests.integration.faults.release_load import Releaser
from tests.integration.faults.release_record import AskedRelease

_T = TypeVar("_T")
_ROWS_EACH: Final = 40
_SHARED_ROWS: Final = 12
"""Rows that every writer writes to, through whichever service it meets."""
_SHARED: Final = 0.3
_LARGE: Final = 600
"""Characters of padding that make a value too large to ride in the event, so that it has to be fetched."""
_BULK_ROWS: Final = 25
_MAYBE: Final = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.OUTCOME_UNKNOWN, ErrorCode.INTERNAL})
"""After these the write may have been stored, or may still be."""


@dataclass(slots=True)
class Write:
    """One write as its writer sees it. ``value`` is ``None`` for a delete, and otherwise no other write has it."""

    key: str
    row_id: str
    value: str | None
    attempts: int = 0
    acknowledged: bool = False
    version: int = 0
    """What the service said; 0 for a bulk write, which says none, and for a delete that found no row."""
    partition: int = 0
    begun: int = 0
    ended: int = 0
    """When it was first sent, and when it was acknowledged, in steps of the ledger's clock."""
    taken_back: bool = False
    """It was acknowledged by a database that has lost it since, by its own nature."""


@dataclass
class Ledger:
    """All writes, in the order in which they were begun."""

    writes: list[Write] = field(default_factory=list)
    releases: list[AskedRelease] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Answers that no fault excuses."""
    limited: int = 0
    """Writes that a policy of the store refused."""
    unanswered: Counter[str] = field(default_factory=Counter)
    """Attempts after which a write may have been stored, by the code that they ended with."""
    _clock: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def now(self) -> int:
        """A number above all before: everything happens in one thread."""
        return next(self._clock)

    @property
    def acknowledged(self) -> int:
        """How many writes the service has promised to keep."""
        return sum(write.acknowledged for write in self.writes)

    @property
    def uncertain(self) -> int:
        """How many attempts ended without an answer."""
        return sum(write.attempts - write.acknowledged for write in self.writes)

    @property
    def taken_back(self) -> int:
        """How many acknowledged writes the database itself has lost."""
        return sum(write.taken_back for write in self.writes)

    def take_back(self, former: Sequence[Revision], left: Sequence[Revision]) -> None:
        """Notes which acknowledged writes were in the record that the database has gone back from, and are no more."""
        gone, kept = Landed(former), Landed(left)
        for write in self.writes:
            if write.acknowledged and not write.taken_back and write in gone and write not in kept:
                write.taken_back = True
        for release in self.releases:
            release.taken_back = True


class Landed:
    """The writes of a record, for asking whether an acknowledged one is among them where the service said."""

    def __init__(self, revisions: Sequence[Revision]) -> None:
        self.at = {(revision.key, revision.partition, revision.version): revision for revision in revisions}
        self.times = Counter((revision.key, revision.row_id, revision.value) for revision in revisions)

    def __contains__(self, write: Write) -> bool:
        if write.version:
            found = self.at.get((write.key, write.partition, write.version))
            return found is not None and (found.row_id, found.value) == (write.row_id, write.value)
        # A delete that found no row has left nothing.
        return write.value is None or bool(self.times[write.key, write.row_id, write.value])


class Load:
    """Writers with rows of their own, and rows that all of them write to, through every service at once."""

    def __init__(self, arena: Arena, *, seed: int, writers: int = 4, pause_s: float = 0.05) -> None:
        self.ledger = Ledger()
        self._arena = arena
        self._seed = seed
        self._writers = writers
        self._pause_s = pause_s
        self._stopping = asyncio.Event()
        self._going = asyncio.Event()
        self._going.set()
        self._under_way = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._answered = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._values = 0
        self.releaser = Releaser(self, arena)

    async def __aenter__(self) -> Load:
        self._arena.load = self
        for number in range(self._writers):
            chance = random.Random(f"{self._seed} writer {number}")
            self._tasks.append(asyncio.create_task(self._write(number, chance)))
        self._tasks.append(asyncio.create_task(self._write_in_bulk(random.Random(f"{self._seed} bulk"))))
        if self._arena.shape.releases:
            self._tasks.append(asyncio.create_task(self._release(random.Random(f"{self._seed} releases"))))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # a fault went wrong half-way, so there may be nothing that answers ever again
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            return
        await self.stop()

    async def stop(self) -> None:
        """Ends the load; each writer first gets an answer for what it is at."""
        self._stopping.set()
        if self._tasks:
            await asyncio.gather(*self._tasks)
        self._tasks = []

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Inside, nothing is sent, and nothing that was sent is without an answer. One at a time."""
        self._going.clear()
        try:
            await self._quiet.wait()
            yield
        finally:
            self._going.set()

    async def acknowledge(self, more: int) -> None:
        """Waits until so many more writes were acknowledged."""
        enough = self.ledger.acknowledged + more
        async with asyncio.timeout(PATIENCE_S):
            while self.ledger.acknowledged < enough:
                self._answered.clear()
                await self._answered.wait()

    async def update(self, key: str, row_ids: Sequence[str], service: str) -> int:
        """One bulk write through that service; returns how many attempts it took."""
        writes = [Write(key, row_id, self.value(row_id)) for row_id in row_ids]
        await self._until_acknowledged(writes, [service], random.Random(self._seed), lambda to: _bulk(to, writes))
        return writes[0].attempts if writes else 0

    async def put(self, key: str, row_id: str, chance: random.Random, service: str = "") -> Write:
        """Writes a row, again and again until a service, or the one that is named, has acknowledged it."""
        write = Write(key, row_id, self.value(row_id))
        await self._until_acknowledged([write], [service] if service else [], chance, lambda to: _single(to, write))
        return write

    async def _write(self, number: int, chance: random.Random) -> None:
        while not self._stopping.is_set():
            shared = chance.random() < _SHARED
            row_id = f"s-{chance.randrange(_SHARED_ROWS)}" if shared else f"w{number}-{chance.randrange(_ROWS_EACH)}"
            key = chance.choice(self._arena.shape.keys)
            kind = chance.random()
            value = None if kind < 0.15 else self.value(row_id, _LARGE if kind < 0.35 else 0)
            write = Write(key, row_id, value)
            await self._until_acknowledged([write], [], chance, lambda to, write=write: _single(to, write))  # type: ignore[misc]
            await self._pause(chance)

    async def _write_in_bulk(self, chance: random.Random) -> None:
        while not self._stopping.is_set():
            key = chance.choice(self._arena.shape.keys)
            rows = [f"b-{row}" for row in chance.sample(range(_ROWS_EACH * 2), _BULK_ROWS)]
            rows += [f"s-{row}" for row in chance.sample(range(_SHARED_ROWS), _SHARED_ROWS // 2)]
            writes = [Write(key, row_id, self.value(row_id)) for row_id in rows]
            await self._until_acknowledged(writes, [], chance, lambda to, writes=writes: _bulk(to, writes))  # type: ignore[misc]
            await self._pause(chance, 8)

    async def _release(self, chance: random.Random) -> None:
        while not self._stopping.is_set():
            await self.releaser.one(chance)
            await self._pause(chance, 8)

    async def _pause(self, chance: random.Random, factor: float = 1) -> None:
        try:
            async with asyncio.timeout(self._pause_s * factor * (0.5 + chance.random())):
                await self._stopping.wait()
        except TimeoutError:
            pass

    def value(self, row_id: str, padding: int = 0) -> str:
        """A value that no row had before."""
        self._values += 1
        return f"{row_id}#{self._values}{'.' * padding}"

    async def _until_acknowledged(
        self,
        writes: list[Write],
        services: Sequence[str],
        chance: random.Random,
        send: Callable[[ConfigServiceClient], Awaitable[None]],
    ) -> None:
        """Sends writes to one of those services, or to any, until they are acknowledged or refused for good."""
        ledger = self.ledger
        ledger.writes += writes

        async def attempt(client: ConfigServiceClient) -> None:
            for write in writes:
                write.attempts += 1
                write.begun = write.begun or ledger.now()
            await send(client)

        try:
            await self.ask(attempt, chance, services)
        except RingcastError as error:
            if error.code is ErrorCode.UNKNOWN_KEY and all(write.value is None for write in writes):
                return  # a delete before anybody has written to the key
            if self._arena.shape.policies and error.code is ErrorCode.LIMIT_EXCEEDED:
                ledger.limited += 1
                for write in writes:
                    write.attempts -= 1  # this one has surely not landed
                return
            ledger.refused.append(f"{error.code}: {error}")
            return
        for write in writes:
            write.acknowledged = True
            write.ended = ledger.now()
        self._answered.set()

    async def ask(
        self,
        send: Callable[[ConfigServiceClient], Awaitable[_T]],
        chance: random.Random,
        services: Sequence[str] = (),
    ) -> _T:
        """What one of those services, or of all, answers, asked again and again until one does.

        Raises:
            RingcastError: it was refused for good.
        """
        while True:
            await self._going.wait()
            client = self._arena.clients[chance.choice(services or sorted(self._arena.clients))]
            try:
                return await self._counted(send(client))
            except RingcastError as error:
                if error.code not in _MAYBE:
                    raise
                self.ledger.unanswered[error.code.name] += 1
            await asyncio.sleep(0.05 + 0.2 * chance.random())

    async def _counted(self, sent: Awaitable[_T]) -> _T:
        self._under_way += 1
        self._quiet.clear()
        try:
            return await sent
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._quiet.set()


async def _single(client: ConfigServiceClient, write: Write) -> None:
    if write.value is None:
        gone = await client.delete(STORE, write.key, write.row_id)
        write.partition, write.version = gone.partition, gone.version
    else:
        kept = await client.put(STORE, write.key, write.row_id, write.value)
        write.partition, write.version = kept.partition, kept.version


async def _bulk(client: ConfigServiceClient, writes: list[Write]) -> None:
    rows = [RowWrite(write.row_id, write.value or "") for write in writes]
    async for _ in client.bulk_write(STORE, writes[0].key, rows):
        pass
