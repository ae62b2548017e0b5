"""Reading page by page from a snapshot, each page beginning behind the last row of the one before."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

from ringcast_wire import names

from ringcast_config_service.repository import mapping
from ringcast_config_service.repository.base import HistoryFilter, ListedRow, ListFilter, Revision

Fetch = Callable[[tuple[object, ...]], Awaitable[list[mapping.Record]]]
"""Runs the statement of a page with these parameters."""


async def list_pages(partition_count: int, query: ListFilter, fetch: Fetch) -> AsyncGenerator[list[ListedRow], None]:
    """Pages of rows by partition and row id."""
    first, last = _bounds(query.partition, partition_count)
    partition, row_id = query.after or (first, "")
    size, left = PageSize(), query.limit
    while True:
        asked = min(size.rows, left) if query.limit else size.rows
        page = mapping.to_listed(await fetch((partition, last, row_id, query.include_deleted, asked)))
        if page:
            yield page
        left -= len(page)
        if len(page) < asked or (query.limit and not left):
            return
        size.learn(len(page), sum(mapping.row_bytes(found.row) for found in page))
        partition, row_id = page[-1].partition, page[-1].row.row_id


async def history_pages(
    partition_count: int, query: HistoryFilter, fetch: Fetch
) -> AsyncGenerator[list[Revision], None]:
    """Pages of revisions by partition and revision."""
    first, last = _bounds(query.partition, partition_count)
    partition, revision = query.after or (first, 0)
    size, left = PageSize(), query.limit
    while True:
        asked = min(size.rows, left) if query.limit else size.rows
        params = (partition, last, revision, query.since, query.row_id or "", asked, query.previous)
        page = mapping.to_revisions(await fetch(params))
        if page:
            yield page
        left -= len(page)
        if len(page) < asked or (query.limit and not left):
            return
        size.learn(len(page), sum(map(_revision_bytes, page)))
        partition, revision = page[-1].partition, page[-1].row.version


def _revision_bytes(revision: Revision) -> int:
    rows = sum(mapping.row_bytes(row) for row in (revision.row, revision.previous) if row)
    return rows + len(revision.by.author) + len(revision.by.reason)


def _bounds(partition: int | None, partition_count: int) -> tuple[int, int]:
    if partition is None:
        return 0, partition_count - 1
    names.check_partition(partition, partition_count)
    return partition, partition


class PageSize:
    """How many rows the next page asks for: pages stay near 1 MiB, however large the rows are."""

    def __init__(self, first: int = 64, largest: int = 1_000, target_bytes: int = 1 << 20) -> None:
        self.rows = first
        self._largest = largest
        self._target_bytes = target_bytes

    def learn(self, rows: int, size: int) -> None:
        """Takes note of a page of ``rows`` rows and ``size`` bytes."""
        if rows:
            fitting = self._target_bytes * rows // max(1, size)
            self.rows = max(1, min(self._largest, self.rows * 4, fitting))
