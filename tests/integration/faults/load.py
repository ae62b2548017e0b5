"""A steady load of writes, and a ledger of what was asked for and what was acknowledged."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from ringcast.admin import ConfigServiceClient, RowWrite
from ringcast_wire import ErrorCode, RingcastError

from tests.integration.faults.arena import STORE, Arena

_ROWS_EACH: Final = 40
_LARGE: Final = 600
"""Characters of padding that make a value too large to ride in the event, so that it has to be fetched."""
_BULK_ROWS: Final = 25
_MAYBE: Final = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.INTERNAL})
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


@dataclass
class Ledger:
    """All writes, in the order in which they were begun."""

    writes: list[Write] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Answers that no fault excuses."""

    @property
    def acknowledged(self) -> int:
        """How many writes the service has promised to keep."""
        return sum(write.acknowledged for write in self.writes)

    @property
    def uncertain(self) -> int:
        """How many attempts ended without an answer."""
        return sum(write.attempts - write.acknowledged for write in self.writes)


class Load:
    """Writers that each have rows of their own, so that the order of the writes to a row is known."""

    def __init__(self, arena: Arena, *, seed: int, writers: int = 4, pause_s: float = 0.05) -> None:
        self.ledger = Ledger()
        self._arena = arena
        self._seed = seed
        self._writers = writers
        self._pause_s = pause_s
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._values = 0

    async def __aenter__(self) -> Load:
        for number in range(self._writers):
            chance = random.Random(f"{self._seed} writer {number}")
            self._tasks.append(asyncio.create_task(self._write(number, chance)))
        self._tasks.append(asyncio.create_task(self._write_in_bulk(random.Random(f"{self._seed} bulk"))))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Ends the load; each writer first gets an answer for what it is at."""
        self._stopping.set()
        if self._tasks:
            await asyncio.gather(*self._tasks)
        self._tasks = []

    async def put(self, key: str, row_id: str, chance: random.Random) -> Write:
        """Writes a row, again and again until the service has acknowledged it."""
        write = Write(key, row_id, self._value(row_id))
        await self._until_acknowledged([write], chance, lambda client: _single(client, write))
        return write

    async def _write(self, number: int, chance: random.Random) -> None:
        while not self._stopping.is_set():
            row_id = f"w{number}-{chance.randrange(_ROWS_EACH)}"
            key = chance.choice(self._arena.shape.keys)
            kind = chance.random()
            value = None if kind < 0.15 else self._value(row_id, _LARGE if kind < 0.35 else 0)
            write = Write(key, row_id, value)
            await self._until_acknowledged([write], chance, lambda client, write=write: _single(client, write))  # type: ignore[misc]
            await self._pause(chance)

    async def _write_in_bulk(self, chance: random.Random) -> None:
        while not self._stopping.is_set():
            key = chance.choice(self._arena.shape.keys)
            rows = chance.sample(range(_ROWS_EACH * 2), _BULK_ROWS)
            writes = [Write(key, f"b-{row}", self._value(f"b-{row}")) for row in rows]
            await self._until_acknowledged(writes, chance, lambda client, writes=writes: _bulk(client, writes))  # type: ignore[misc]
            await self._pause(chance, 8)

    async def _pause(self, chance: random.Random, factor: float = 1) -> None:
        try:
            async with asyncio.timeout(self._pause_s * factor * (0.5 + chance.random())):
                await self._stopping.wait()
        except TimeoutError:
            pass

    def _value(self, row_id: str, padding: int = 0) -> str:
        self._values += 1
        return f"{row_id}#{self._values}{'.' * padding}"

    async def _until_acknowledged(
        self, writes: list[Write], chance: random.Random, send: Callable[[ConfigServiceClient], Awaitable[None]]
    ) -> None:
        self.ledger.writes += writes
        while True:
            client = chance.choice(list(self._arena.clients.values()))
            for write in writes:
                write.attempts += 1
            try:
                await send(client)
            except RingcastError as error:
                if error.code not in _MAYBE:
                    if error.code is ErrorCode.UNKNOWN_KEY and all(write.value is None for write in writes):
                        return  # a delete before anybody has written to the key
                    self.ledger.refused.append(f"{error.code}: {error}")
                    return
            else:
                for write in writes:
                    write.acknowledged = True
                return
            await asyncio.sleep(0.05 + 0.2 * chance.random())


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
