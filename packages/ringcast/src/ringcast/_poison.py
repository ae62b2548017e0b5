"""What becomes of changes whose handler has failed every time: dropped, sent to the dead letters, or held back."""

from __future__ import annotations

import asyncio
import hashlib
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec
from ringcast_wire import names

from ringcast._calls import HandlerCall
from ringcast._change import Change, PoisonPolicy
from ringcast._config import WorkerConfig
from ringcast._connection import TRANSIENT
from ringcast._log import Log
from ringcast._machine.backoff import Backoff
from ringcast._stats import Stats

MAX_BLOCKED_ROWS: Final = 1_024
"""Rows of one key that are held back at once; one more waits, and all that comes after it, until there is room."""
_LOOK_S: Final = 1.0
_ERROR_CHARS: Final = 4_096


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A change that no handler could take, as JSON on ``config.dead.<store>.<key>.<partition>``."""

    store: str
    key: str
    partition: int
    row_id: str
    version: int
    value: str | None
    deleted: bool
    metadata: dict[str, str] | None
    error: str
    worker_id: str
    tries: int
    at_ms: int
    left_out: bool = False
    """Value and metadata are too large for one message: the row is to be read from the service."""


@dataclass(frozen=True, slots=True)
class BlockedRow:
    """A row that is held back: its newest change, and what its handler last said."""

    change: Change
    error: str


@dataclass(slots=True)
class _Entry:
    change: Change
    error: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class DeadLetters(Protocol):
    """Where dead letters go."""

    async def publish(self, subject: str, body: bytes, message_id: str) -> None:
        """Returns when the stream has it; raises one of ``TRANSIENT`` otherwise."""

    @property
    def max_bytes(self) -> int:
        """How large one may be."""


class Poison:
    """The poison policy of one config key."""

    def __init__(
        self, config: WorkerConfig, stats: Stats, log: Log, letters: DeadLetters, owned: Callable[[int], bool]
    ) -> None:
        self._config = config
        self._stats = stats
        self._log = log
        self._letters = letters
        self._owned = owned
        self._nonce = secrets.token_hex(8)
        self._blocked: dict[tuple[int, str], _Entry] = {}
        self._room = asyncio.Event()

    def hold(self, change: Change) -> bool:
        """Whether the row is held back; this, its newest change, is then held in the place of the last."""
        entry = self._blocked.get((change.partition, change.row_id)) if self._blocked else None
        if entry is None:
            return False
        entry.change = change
        return True

    async def give_up(self, call: HandlerCall, error: BaseException) -> None:
        """Deals with a change for good. What it can't do now it tries until it can, or the partition is lost."""
        change = call.change
        self._stats.poisoned += 1
        facts = {"partition": change.partition, "version": change.version, "error": repr(error)}
        match self._config.poison_policy:
            case PoisonPolicy.DROP:
                self._log.error("handler failed every time: the change is dropped", **facts)
            case PoisonPolicy.DEAD_LETTER:
                self._log.error("handler failed every time: the change goes to the dead letters", **facts)
                await self._send(call, error)
            case PoisonPolicy.BLOCK:
                self._log.error("handler failed every time: the row is blocked", **facts)
                await self._block(change, error)

    def blocked(self) -> list[BlockedRow]:
        """The rows that are held back."""
        return [BlockedRow(entry.change, entry.error) for entry in list(self._blocked.values())]

    async def unblock(
        self, partition: int, row_id: str, attempt: Callable[[Change], Awaitable[BaseException | None]]
    ) -> bool:
        """Tries the newest change of a row again; returns whether the row is free now, as one never blocked is."""
        place = (partition, row_id)
        entry = self._blocked.get(place)
        if entry is None:
            return True
        async with entry.lock:
            while self._blocked.get(place) is entry:
                change = entry.change
                error = await attempt(change)
                if error is not None:
                    entry.error = repr(error)
                    return False
                if entry.change is change:  # else a newer one came meanwhile
                    self._free(place)
        return True

    async def lose(self, partitions: frozenset[int]) -> None:
        """Forgets the rows of partitions that are not ours any more; waits for a handler that has one of them."""
        for place in [place for place in self._blocked if place[0] in partitions]:
            async with self._blocked[place].lock:
                if place in self._blocked:
                    self._free(place)

    def _free(self, place: tuple[int, str]) -> None:
        del self._blocked[place]
        self._room.set()

    async def _block(self, change: Change, error: BaseException) -> None:
        while len(self._blocked) >= MAX_BLOCKED_ROWS and self._owned(change.partition):
            self._log.warning("as many rows are blocked as may be: this one waits", partition=change.partition)
            self._room.clear()
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._room.wait()
            except TimeoutError:
                continue
        if self._owned(change.partition):
            self._stats.blocked += 1
            self._blocked[(change.partition, change.row_id)] = _Entry(change, repr(error))

    async def _send(self, call: HandlerCall, error: BaseException) -> None:
        change = call.change
        subject = names.dead_subject(change.store, change.key, change.partition)
        body = self._letter(change, error)
        row = hashlib.blake2b(change.row_id.encode(), digest_size=12).hexdigest()
        # With what nobody else can know: the stream drops the second message of an id, whoever sent the first.
        message_id = f"dead.{change.store}.{change.key}.{change.partition}.{change.version}.{row}.{self._nonce}"
        backoff = Backoff(random.random, first_s=0.5)
        while not call.lost:
            try:
                await self._letters.publish(subject, body, message_id)
            except TRANSIENT as failure:
                self._stats.dead_letter_failures += 1
                self._log.warning(
                    "dead letter was not taken: trying again", partition=change.partition, error=repr(failure)
                )
                await call.pause(backoff.next_s())
            else:
                self._stats.dead_letters += 1
                return

    def _letter(self, change: Change, error: BaseException) -> bytes:
        letter = DeadLetter(
            store=change.store,
            key=change.key,
            partition=change.partition,
            row_id=change.row_id,
            version=change.version,
            value=change.value,
            deleted=change.deleted,
            metadata=change.metadata,
            error=repr(error)[:_ERROR_CHARS],
            worker_id=self._config.worker_id,
            tries=self._config.handler_tries,
            at_ms=int(time.time() * 1000),
        )
        body = msgspec.json.encode(letter)
        if len(body) > self._letters.max_bytes:
            body = msgspec.json.encode(msgspec.structs.replace(letter, value=None, metadata=None, left_out=True))
        return body
