"""Answers to ``GetConfiguration``: rows that are named, whole keys, and whole keys in pages."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, TypeAlias

import msgspec
from ringcast import InvalidInputError, LimitExceededError
from ringcast.hosting import Budget, ConfigurationItem, KeyReader, KeySelector, make_item
from ringcast_wire import PartitionRows, Row, UnknownKeyError, limits, shown

from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.opening import Opener

LIMIT: Final = "ringcast.limit"
"""Name in the metadata of a read: answer in pages of so many rows."""
AFTER: Final = "ringcast.after"
"""And what the page before gave to go on from."""
NEXT: Final = "ringcast.next"
"""Name in the metadata of an item, the last one of a page that is not the last: what to go on from."""
MAX_LIMIT: Final = 100_000
ADVICE: Final = (
    f"Read it in pages (metadata {LIMIT}), or raise max_response_bytes of the agent and the largest message that the "
    "client takes"
)
"""What to do about an answer that is too large."""
_NEXT_BYTES: Final = 2_048
"""What the metadata that leads to the next page may take."""
_PARTITIONS_AT_ONCE: Final = 8

Measure: TypeAlias = Callable[[str, ConfigurationItem], int]
"""How many bytes an item takes in the answer."""


class _Cursor(msgspec.Struct, array_like=True, frozen=True):
    """The last row that was answered."""

    key: str
    partition: int
    row_id: str


class Page(NamedTuple):
    """How a read is to be cut."""

    limit: int
    after: _Cursor | None


class Reads:
    """Reads rows, some at once; others wait their turn, as each may hold a whole key for a while."""

    def __init__(self, config: Config, reader: KeyReader, opener: Opener) -> None:
        self._opener = opener
        self._config = config
        self._reader = reader
        self._turns = asyncio.Semaphore(config.reads)
        self._waiting = 0

    async def read(self, store: str, entries: Sequence[KeySelector], *, prefixed: bool) -> dict[str, ConfigurationItem]:
        """The rows that ``entries`` name; what is not there is not among them.

        Raises:
            LimitExceededError: they are far too large for one answer, and were not all taken into memory.
            ValueSealedError: one is encrypted, and can't be opened.
        """
        named: dict[str, list[str]] = {}
        items: dict[str, ConfigurationItem] = {}
        # Rows take about as many bytes on their way as in the answer.
        budget = Budget(2 * self._config.max_response_bytes)
        async with self._turn():
            try:
                for _, key, row_id in entries:
                    if row_id is not None:
                        named.setdefault(key, []).append(row_id)
                        continue
                    for part in await self._reader.key_within(store, key, budget):
                        rows = self._live(store, key, part)
                        items.update((_name(key, row, prefixed), _item(key, part, row)) for row in rows)
                for key, row_ids in named.items():
                    for part in await self._reader.rows_within(store, key, row_ids, budget):
                        rows = self._live(store, key, part)
                        items.update((f"{key}/{row.row_id}", _item(key, part, row)) for row in rows)
            except LimitExceededError as error:
                raise LimitExceededError(f"{error}: {ADVICE}") from None
        return items

    async def page(
        self, store: str, keys: Sequence[str], page: Page, measure: Measure, *, prefixed: bool
    ) -> dict[str, ConfigurationItem]:
        """So many rows of whole keys, in the order of keys, partitions and row ids, as fit into one answer.

        Each page is of the rows as they are then. The last row of it says what to go on from if there are more.
        """
        items: dict[str, ConfigurationItem] = {}
        most_bytes, size = self._config.max_response_bytes - _NEXT_BYTES, 0
        last: tuple[str, _Cursor] | None = None
        async with self._turn():
            async for key, part, row in self._rows(store, sorted(keys), page):
                name, item = _name(key, row, prefixed), _item(key, part, row)
                size += measure(name, item)
                if last is not None and (len(items) >= page.limit or size > most_bytes):
                    items[last[0]] = _with_next(items[last[0]], last[1])
                    break
                items[name] = item
                last = name, _Cursor(key, part.partition, row.row_id)
        return items

    async def _rows(self, store: str, keys: Sequence[str], page: Page) -> AsyncIterator[tuple[str, PartitionRows, Row]]:
        after = page.after
        for key in keys:
            if after is not None and key < after.key:
                continue
            try:
                heads = await self._reader.heads(store, key)
            except UnknownKeyError:
                continue
            first = after.partition if after is not None and key == after.key else 0
            counts = heads.rows or heads.heads
            numbers = [number for number in range(first, len(heads.heads)) if counts[number]]
            while numbers:
                chunk = _chunk(numbers, counts, page.limit)
                del numbers[: len(chunk)]
                for part in await self._partitions(store, key, chunk):
                    for row in sorted(self._live(store, key, part), key=lambda row: row.row_id):
                        if after is None or (key, part.partition, row.row_id) > (
                            after.key, after.partition, after.row_id,
                        ):  # fmt: skip
                            yield key, part, row

    async def _partitions(self, store: str, key: str, numbers: Sequence[int]) -> list[PartitionRows]:
        try:
            async with asyncio.TaskGroup() as group:
                reads = [group.create_task(self._reader.partition(store, key, number)) for number in numbers]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [read.result()[0] for read in reads]

    def _live(self, store: str, key: str, part: PartitionRows) -> list[Row]:
        return [row for row in self._opener.part(store, key, part) if not row.deleted]

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        if self._waiting >= self._config.waiting_reads:
            raise LimitExceededError(f"{self._waiting} reads wait already: no more are allowed")
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turns.release()


def selectors_of(keys: Sequence[str]) -> list[KeySelector]:
    """What ``keys`` name. What can't be the name of a key or row names nothing, as any other that is not there.

    Raises:
        InvalidInputError: there are over 1,000 of them.
    """
    if len(keys) > limits.MAX_BATCH_ROWS:
        raise InvalidInputError(
            f"keys has {len(keys)} entries: at most {limits.MAX_BATCH_ROWS} are allowed", field="keys"
        )
    found = []
    for entry in dict.fromkeys(keys):
        try:
            found.append(KeySelector.parse(entry))
        except InvalidInputError:
            continue
    return found


def page_of(metadata: Mapping[str, str]) -> Page | None:
    """How the metadata of a read wants it cut, if it does.

    Raises:
        InvalidInputError: that can't be understood.
    """
    limit, after = metadata.get(LIMIT), metadata.get(AFTER)
    if limit is None and after is None:
        return None
    if limit is not None and not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MAX_LIMIT):
        raise InvalidInputError(f"{LIMIT} is {shown(limit)}: it must be 1 to {MAX_LIMIT}", field=LIMIT)
    cursor = None
    if after:
        try:
            cursor = msgspec.json.decode(base64.urlsafe_b64decode(after), type=_Cursor)
        except (msgspec.MsgspecError, binascii.Error, ValueError):
            raise InvalidInputError(f"{AFTER} {shown(after)} is not what an item gave as {NEXT}", field=AFTER) from None
    return Page(int(limit) if limit else MAX_LIMIT, cursor)


def _with_next(item: ConfigurationItem, cursor: _Cursor) -> ConfigurationItem:
    encoded = base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode()
    return ConfigurationItem(item.value, item.version, {**item.metadata, NEXT: encoded})


def _chunk(numbers: Sequence[int], counts: Sequence[int], limit: int) -> list[int]:
    """The next partitions to read at once: no more than it takes for one page."""
    chunk: list[int] = []
    rows = 0
    for number in numbers[:_PARTITIONS_AT_ONCE]:
        if chunk and rows > limit:
            break
        chunk.append(number)
        rows += counts[number]
    return chunk


def _name(key: str, row: Row, prefixed: bool) -> str:
    return f"{key}/{row.row_id}" if prefixed else row.row_id


def _item(key: str, part: PartitionRows, row: Row) -> ConfigurationItem:
    return make_item(key, part.partition, row.value, row.version, row.deleted, row.metadata)
