"""Reading page by page from a snapshot, each page beginning behind the last row of the one before."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import ClassVar, Final, NamedTuple

from ringcast_wire import limits, names

from ringcast_config_service.repository import mapping
from ringcast_config_service.repository.base import HistoryFilter, ListedRow, ListFilter, Revision

PAGE_BYTES: Final = 1 * limits.MIB
"""A page of a list has about so much text, and then one more row at most: up to 3 MiB with the row before it."""
_RECORD_BYTES: Final = 32
"""About what a row has beside its text on its way out."""

Fetch = Callable[[tuple[object, ...]], Awaitable[list[mapping.Record]]]
"""Runs the statement of a page with these parameters; it ends where it has :data:`PAGE_BYTES`."""


class Pages(NamedTuple):
    """A snapshot of a key: how many partitions it has, how to run the statement of a page and any other, whose first
    parameter is the key, and which history it has."""

    partition_count: int
    fetch: Callable[[str, tuple[object, ...]], Awaitable[list[mapping.Record]]]
    ask: Callable[[str, tuple[object, ...]], Awaitable[list[mapping.Record]]]
    history: str


class PagedReads(ABC):
    """The lists of :class:`~ringcast_config_service.repository.parts.RowReader`; a database has its statements."""

    _list_page: ClassVar[str]
    _history_page: ClassVar[str]

    async def list_rows(self, store: str, key: str, query: ListFilter) -> AsyncGenerator[list[ListedRow], None]:
        async with self._pages(store, key) as pages:
            async for page in list_pages(pages.partition_count, query, partial(pages.fetch, self._list_page)):
                yield page

    async def history(self, store: str, key: str, query: HistoryFilter) -> AsyncGenerator[list[Revision], None]:
        async with self._pages(store, key) as pages:
            async for page in history_pages(pages.partition_count, query, partial(pages.fetch, self._history_page)):
                yield page

    @abstractmethod
    def _pages(self, store: str, key: str) -> AbstractAsyncContextManager[Pages]:
        """One snapshot for all pages."""


async def list_pages(partition_count: int, query: ListFilter, fetch: Fetch) -> AsyncGenerator[list[ListedRow], None]:
    """Pages of rows by partition and row id."""
    first, last = bounds(query.partition, partition_count)
    partition, row_id = query.after or (first, "")
    size, left = PageSize(), query.limit
    while True:
        asked = min(size.rows, left) if query.limit else size.rows
        found = await fetch((partition, last, row_id, query.include_deleted, asked))
        page = mapping.to_listed(found)
        if page:
            yield page
        left -= len(page)
        if size.is_last(found, asked) or (query.limit and not left):
            return
        partition, row_id = page[-1].partition, page[-1].row.row_id


async def history_pages(
    partition_count: int, query: HistoryFilter, fetch: Fetch
) -> AsyncGenerator[list[Revision], None]:
    """Pages of revisions by partition and revision."""
    first, last = bounds(query.partition, partition_count)
    partition, revision = query.after or (first, 0)
    size, left = PageSize(), query.limit
    while True:
        asked = min(size.rows, left) if query.limit else size.rows
        found = await fetch((partition, last, revision, query.since, query.row_id or "", asked, query.previous))
        page = mapping.to_revisions(found)
        if page:
            yield page
        left -= len(page)
        if size.is_last(found, asked) or (query.limit and not left):
            return
        partition, revision = page[-1].partition, page[-1].row.version


def bounded(records: Iterable[mapping.Record]) -> list[mapping.Record]:
    """The records as far as :data:`PAGE_BYTES`, and the one that passes it."""
    page, chars = [], 0
    for record in records:
        page.append(record)
        chars += _chars(record)
        if chars >= PAGE_BYTES:
            break
    return page


def _chars(record: mapping.Record) -> int:
    return sum(len(found) for found in record if isinstance(found, str))


def bounds(partition: int | None, partition_count: int) -> tuple[int, int]:
    """The first and the last partition that are read: one, or all."""
    if partition is None:
        return 0, partition_count - 1
    names.check_partition(partition, partition_count)
    return partition, partition


class PageSize:
    """How many rows the next page asks for: pages stay near 1 MiB, however large the rows are."""

    def __init__(self, first: int = 64, largest: int = 1_000, target_bytes: int = PAGE_BYTES) -> None:
        self.rows = first
        self._largest = largest
        self._target_bytes = target_bytes

    def learn(self, rows: int, size: int) -> None:
        """Takes note of a page of ``rows`` rows and ``size`` bytes."""
        if rows:
            fitting = self._target_bytes * rows // max(1, size)
            self.rows = max(1, min(self._largest, self.rows * 4, fitting))

    def is_last(self, page: list[mapping.Record], most: int) -> bool:
        """Takes note of a page of records; whether there can be none behind it."""
        chars = sum(map(_chars, page))
        self.learn(len(page), chars + _RECORD_BYTES * len(page))
        # It may have been cut at its bytes, of which a character has up to four.
        return not page or (len(page) < most and 4 * chars < PAGE_BYTES)
