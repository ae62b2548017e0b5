"""Dead letters as they stand on NATS: pages of them in either direction, and their removal.

They are read by direct gets, several messages an answer, so that reading leaves no consumer behind. A process that may
write a dead letter can write anything, so the subject and the number count, and of the body only what fits them.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.errors import APIError, NotFoundError
from ringcast_wire import DeadLetter, ProtocolError, UnavailableError, decode_dead_letter, limits, names

from ringcast_config_service.nats.calls import nats_calls
from ringcast_config_service.repository import StoreRecord

_GET: Final = "$JS.API.DIRECT.GET"
_END, _NOTHING, _NOBODY = "204", "404", "503"
_ANSWER_TIMEOUT_S: Final = 5.0
_GET_MESSAGES: Final = 500
_GET_BYTES: Final = 4 * limits.MIB
_PAGE_BYTES: Final = 2 * limits.MIB
"""What the dead letters of a page have together, unless one alone has more."""
_SCAN_BYTES: Final = 32 * limits.MIB
"""What one page searches; where nothing fits it ends with fewer dead letters, or none."""
_SCAN_MESSAGES: Final = 20_000
_REMOVE_AT_ONCE: Final = 32
_NOT_DELETED: Final = frozenset({10043, 10057})
"""Codes of a deletion that failed. What is not there is among that, with many sentences."""
_FIRST_WINDOW: Final = 256
_MOST_ERROR_CHARS: Final = 4_096
_MOST_NAME_CHARS: Final = 64
_AROUND_BYTES: Final = 256
"""What a dead letter takes beside its texts."""


class DeadLetterFilter(NamedTuple):
    """Which dead letters of a store are meant; what is empty or ``None`` does not choose."""

    key: str = ""
    partition: int | None = None
    row_id: str = ""
    group: str = ""
    worker_id: str = ""
    since_ms: int = 0

    def subject(self, store: str) -> str:
        """Where they are, as narrow as subjects can say."""
        return f"config.dead.{store}.{self.key or '*'}.{'*' if self.partition is None else self.partition}"

    def wants(self, stored: StoredLetter) -> bool:
        """Whether it is among them; what can't be read is not, if anything of its contents counts."""
        letter = stored.letter
        if stored.came_at_ms < self.since_ms:
            return False
        for wanted, found in (
            (self.row_id, letter and letter.row_id),
            (self.group, letter and letter.group),
            (self.worker_id, letter and letter.worker_id),
        ):
            if wanted and wanted != found:
                return False
        return True


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A message in the stream of dead letters. ``letter``: ``None`` if it is none, and ``unreadable`` says why."""

    number: int
    key: str
    partition: int
    came_at_ms: int
    letter: DeadLetter | None
    unreadable: str = ""

    @property
    def size(self) -> int:
        """About what it takes in an answer."""
        letter = self.letter
        if letter is None:
            return _AROUND_BYTES + len(self.unreadable)
        metadata = letter.metadata or {}
        texts = (letter.row_id, letter.value or "", letter.error, *metadata, *metadata.values())
        return _AROUND_BYTES + sum(len(text.encode()) for text in texts)

    def without_value(self, *, left_out: bool) -> StoredLetter:
        """The same without value and metadata."""
        if self.letter is None:
            return self
        left_out = left_out or self.letter.left_out
        return replace(self, letter=msgspec.structs.replace(self.letter, value=None, metadata=None, left_out=left_out))


class Page(NamedTuple):
    """Dead letters, and the number to go on from; 0: there are no more."""

    letters: list[StoredLetter]
    next: int


class DeadLetterBox:
    """The streams of dead letters."""

    def __init__(self, nc: Client, js: JetStreamContext) -> None:
        self._nc = nc
        self._js = js

    async def page(
        self,
        store: StoreRecord,
        wanted: DeadLetterFilter,
        *,
        after: int,
        limit: int,
        oldest_first: bool,
        with_values: bool,
    ) -> Page:
        """The next dead letters behind number ``after``; 0 is the beginning.

        Raises:
            UnavailableError: NATS does not answer, or does not have them.
        """
        async with asking(self._nc, store.name):
            state = (await self._js.stream_info(names.dead_stream(store.name))).state
            scan = _Scan(self._nc, store, wanted, with_values=with_values)
            if oldest_first:
                return await _upwards(scan, max(after + 1, state.first_seq), state.last_seq, limit)
            last = min(after - 1, state.last_seq) if after else state.last_seq
            return await _downwards(scan, state.first_seq, last, limit)

    async def get(self, store: StoreRecord, number: int) -> StoredLetter | None:
        """One dead letter without its value; ``None`` if it is not there any more.

        Raises:
            UnavailableError: NATS does not answer, or does not have them.
        """
        async with asking(self._nc, store.name):
            scan = _Scan(self._nc, store, DeadLetterFilter(), with_values=False)
            found = [letter async for letter in scan.read(number, number)]
        return found[0] if found else None

    async def remove(self, store: str, numbers: Iterable[int]) -> int:
        """Removes dead letters; returns how many of them were there. Those that are gone already are no error.

        Raises:
            UnavailableError: NATS does not answer; some may have been removed.
        """
        turns = asyncio.Semaphore(_REMOVE_AT_ONCE)

        async def remove_one(number: int) -> bool:
            async with turns:
                return await self._remove(names.dead_stream(store), number)

        async with asking(self._nc, store):
            done = await asyncio.gather(*map(remove_one, dict.fromkeys(numbers)), return_exceptions=True)
            for failure in done:
                if isinstance(failure, BaseException):
                    raise failure
        return sum(map(bool, done))

    async def _remove(self, stream: str, number: int) -> bool:
        try:
            return await self._js.delete_msg(stream, number)
        except APIError as error:
            if error.err_code not in _NOT_DELETED:
                raise
            try:
                await self._js.get_msg(stream, number, direct=True)
            except NotFoundError:
                return False
            raise


class _Scan:
    """Reads through a stream, and counts what that costs."""

    def __init__(self, nc: Client, store: StoreRecord, wanted: DeadLetterFilter, *, with_values: bool) -> None:
        self.wanted = wanted
        self.seen = 0
        self.oldest_ms: int | None = None
        """When the oldest of those that were read came."""
        self._nc = nc
        self._store = store
        self._subject = wanted.subject(store.name)
        self._with_values = with_values
        self._bytes = 0

    @property
    def is_spent(self) -> bool:
        """Whether one page has cost enough."""
        return self._bytes >= _SCAN_BYTES or self.seen >= _SCAN_MESSAGES

    async def read(self, first: int, last: int) -> AsyncIterator[StoredLetter]:
        """Everything on the subject between two numbers, rising."""
        while first <= last:
            messages = await self._get(first)
            for msg in messages:
                number = int((msg.headers or {})["Nats-Sequence"])
                if number > last:
                    return
                first = number + 1
                stored = self._stored(number, msg)
                self.seen += 1
                self._bytes += len(msg.data)
                self.oldest_ms = min(self.oldest_ms or stored.came_at_ms, stored.came_at_ms)
                yield stored
            if not messages:
                return

    async def _get(self, first: int) -> list[Msg]:
        """Some messages from a number on; none if there are none."""
        asked = {"seq": first, "next_by_subj": self._subject, "batch": _GET_MESSAGES, "max_bytes": _GET_BYTES}
        inbox = self._nc.new_inbox()
        answers = await self._nc.subscribe(inbox)
        found: list[Msg] = []
        try:
            stream = names.dead_stream(self._store.name)
            await self._nc.publish(f"{_GET}.{stream}", json.dumps(asked).encode(), reply=inbox)
            while True:
                msg = await answers.next_msg(timeout=_ANSWER_TIMEOUT_S)
                headers = msg.headers or {}
                match headers.get("Status"):
                    case None:
                        found.append(msg)
                    case status if status in (_END, _NOTHING):
                        return found
                    case status if status == _NOBODY:
                        raise NotFoundError
                    case status:
                        raise UnavailableError(
                            f"NATS refuses to read dead letters: {status} {headers.get('Description', '')}"
                        )
        finally:
            await answers.unsubscribe()

    def _stored(self, number: int, msg: Msg) -> StoredLetter:
        headers = msg.headers or {}
        key, partition = names.parse_dead_subject(headers["Nats-Subject"])
        came_at_ms = _unix_ms(headers["Nats-Time-Stamp"])
        try:
            letter = decode_dead_letter(msg.data, key, partition, self._store.partition_count)
        except ProtocolError as error:
            return StoredLetter(number, key, partition, came_at_ms, None, str(error)[:_MOST_ERROR_CHARS])
        stored = StoredLetter(number, key, partition, came_at_ms, _cut(letter))
        if not self._with_values:
            return stored.without_value(left_out=False)
        return stored if stored.size <= _PAGE_BYTES else stored.without_value(left_out=True)


async def _upwards(scan: _Scan, first: int, last: int, limit: int) -> Page:
    page: list[StoredLetter] = []
    total = 0
    async for stored in scan.read(first, last):
        if scan.wanted.wants(stored):
            if page and total + stored.size > _PAGE_BYTES:
                return Page(page, stored.number - 1)
            page.append(stored)
            total += stored.size
        if len(page) == limit or scan.is_spent:
            return Page(page, stored.number if stored.number < last else 0)
    return Page(page, 0)


async def _downwards(scan: _Scan, first: int, last: int, limit: int) -> Page:
    """Goes down by windows that are read upwards; they grow where little is found, as numbers may be far apart."""
    page: list[StoredLetter] = []
    left, width = _PAGE_BYTES, _FIRST_WINDOW
    while last >= first:
        low = max(first, last - width + 1)
        before, newest, full = scan.seen, deque[StoredLetter](), False
        total = 0
        async for stored in scan.read(low, last):
            if not scan.wanted.wants(stored):
                continue
            newest.append(stored)
            total += stored.size
            while len(newest) > limit - len(page) or (total > left and len(newest) + len(page) > 1):
                total -= newest.popleft().size
                full = True
        page.extend(reversed(newest))
        left -= total
        if full or len(page) == limit:
            lowest = page[-1].number
            return Page(page, lowest if lowest > first else 0)
        if scan.oldest_ms is not None and scan.oldest_ms < scan.wanted.since_ms:
            return Page(page, 0)
        if scan.is_spent:
            return Page(page, low if low > first else 0)
        last = low - 1
        width = width * 2 if scan.seen - before < _FIRST_WINDOW // 2 else _FIRST_WINDOW
    return Page(page, 0)


@asynccontextmanager
async def asking(nc: Client, store: str) -> AsyncIterator[None]:
    """Turns what NATS fails with into a sentence.

    Raises:
        UnavailableError: it does not answer, or has no dead letters of the store.
    """
    if not nc.is_connected:
        raise UnavailableError("NATS, which keeps dead letters, can't be reached: try again later")
    with nats_calls("NATS, which keeps dead letters, does not answer", ": try it later"):
        try:
            yield
        except NotFoundError as error:
            raise UnavailableError(
                f"store {store!r} has no stream of dead letters on NATS yet: try again later"
            ) from error


def _cut(letter: DeadLetter) -> DeadLetter:
    """As it may be shown, from any writer."""
    if len(letter.error) <= _MOST_ERROR_CHARS and max(len(letter.worker_id), len(letter.group)) <= _MOST_NAME_CHARS:
        return letter
    return msgspec.structs.replace(
        letter,
        error=letter.error[:_MOST_ERROR_CHARS],
        worker_id=letter.worker_id[:_MOST_NAME_CHARS],
        group=letter.group[:_MOST_NAME_CHARS],
    )


def _unix_ms(stamp: str) -> int:
    """Of ``2026-11-22T22:00:00.123456789Z``."""
    head, _, rest = stamp.rstrip("Z").partition(".")
    at = datetime.fromisoformat(head).replace(tzinfo=UTC)
    return int(at.timestamp()) * 1000 + int(f"{rest:0<3}"[:3])
