"""Reads of a key as it was, and of what differs between two states of it, page by page in either database.

A state is a revision for each partition, of one history. What a row held at a revision is what it holds now, if it was
not written since; otherwise what it held before its first write since. So a state is exact as long as the history has
every write since, and is refused where it has not.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import ClassVar, Final, NamedTuple

from ringcast_wire import HeadsReply

from ringcast_config_service.repository import mapping
from ringcast_config_service.repository.as_of import Place
from ringcast_config_service.repository.base import Difference, ListedRow, ListFilter
from ringcast_config_service.repository.paging import PagedReads, Pages, PageSize, bounds

_FIRST_ROWS: Final = 64
_MOST_ROWS: Final = 10_000
"""Rows of a page, if their text is short: each page of an earlier state looks at all writes since."""


class StateStatements(NamedTuple):
    """Those of a database, by their names in ``queries.sql``."""

    heads: str
    horizon: str
    kept_between: str
    list_page: str
    as_of_page: str
    changes_page: str


class StateReads(PagedReads):
    """The reads of states of :class:`~ringcast_config_service.repository.parts.RowReader`."""

    _state_statements: ClassVar[StateStatements]

    async def rows_as_of(
        self, store: str, key: str, then: HeadsReply, query: ListFilter
    ) -> AsyncGenerator[list[ListedRow], None]:
        async with self._pages(store, key) as pages:
            snapshot = await _Snapshot.of(pages, self._state_statements, store, key, [then])
            first, last = bounds(query.partition, pages.partition_count)
            first, row_id = query.after or (first, "")
            left = query.limit
            for start, end, revision in _stretches(then.heads, snapshot.heads, first, last):
                behind = row_id if start == first else ""
                async for page in snapshot.rows(start, end, revision, behind, _page_size(left)):
                    yield page[: left or None]
                    if query.limit and (left := left - len(page)) <= 0:
                        return

    async def differences(
        self, store: str, key: str, before: HeadsReply, after: HeadsReply, query: ListFilter
    ) -> AsyncGenerator[list[Difference], None]:
        async with self._pages(store, key) as pages:
            snapshot = await _Snapshot.of(pages, self._state_statements, store, key, [before, after])
            first, last = bounds(query.partition, pages.partition_count)
            first, row_id = query.after or (first, "")
            left = query.limit
            for partition in range(first, last + 1):
                was, now = before.heads[partition], after.heads[partition]
                if was == now:
                    continue
                behind = row_id if partition == first else ""
                async for page in snapshot.differences(partition, min(was, now), max(was, now), behind):
                    found = page if was < now else [one._replace(before=one.after, after=one.before) for one in page]
                    yield found[: left or None]
                    if query.limit and (left := left - len(page)) <= 0:
                        return


class _Snapshot:
    """One snapshot of a key, in which states of it are read."""

    def __init__(
        self, pages: Pages, sql: StateStatements, store: str, key: str, heads: Sequence[int], horizon_ms: int
    ) -> None:
        self._pages = pages
        self._sql = sql
        self._place = store, key
        self.heads = heads
        self._horizon_ms = horizon_ms

    @classmethod
    async def of(
        cls, pages: Pages, sql: StateStatements, store: str, key: str, states: Sequence[HeadsReply]
    ) -> _Snapshot:
        """Looks whether the states can be of the key as it is.

        Raises:
            RevisionGoneError: they are of another history.
            InvalidInputError: they have revisions that the key does not have yet.
        """
        now = mapping.dense_heads(await pages.ask(sql.heads, ()), pages.partition_count, pages.history)
        for state in states:
            for partition, head in enumerate(now.heads):
                place = Place(store, key, partition, state.history, state.heads[partition])
                place.revision(head, pages.history)
        ((horizon_ms,),) = await pages.ask(sql.horizon, ())
        return cls(pages, sql, store, key, now.heads, horizon_ms)

    async def rows(
        self, start: int, end: int, revision: int | None, row_id: str, size: PageSize
    ) -> AsyncGenerator[list[ListedRow], None]:
        """Live rows of the partitions ``start`` to ``end`` as they are, or of the partition ``start`` at a revision,
        behind the row ``row_id`` of the first one."""
        if revision is not None:
            await self._check_kept(start, revision, self.heads[start])
        partition = start
        while True:
            if revision is None:
                found = await self._pages.fetch(self._sql.list_page, (partition, end, row_id, False, size.rows))
            else:
                words = partition, revision, row_id, self._horizon_ms, size.rows
                found = await self._pages.fetch(self._sql.as_of_page, words)
                self._at(partition, revision).check_values(record[1:] for record in found)
            if page := mapping.to_listed(found):
                yield page
            if size.is_last(found, size.rows):
                return
            partition, row_id = page[-1].partition, page[-1].row.row_id

    async def differences(
        self, partition: int, low: int, high: int, row_id: str
    ) -> AsyncGenerator[list[Difference], None]:
        """What the later of two revisions of a partition has that the other has not, behind the row ``row_id``."""
        if not low:  # the partition was empty, whatever the history still has
            revision = None if high == self.heads[partition] else high
            async for rows in self.rows(partition, partition, revision, row_id, _page_size()):
                yield [Difference(partition, row.row_id, None, row) for _, row in rows]
            return
        await self._check_kept(partition, low, high)
        size = _page_size()
        while True:
            words = partition, low, high, row_id, self._horizon_ms, size.rows
            found = await self._pages.fetch(self._sql.changes_page, words)
            if any(gone for *_, gone in found):
                raise self._at(partition, low).gone()
            if page := mapping.to_differences(partition, found):
                yield page
            if size.is_last(found, size.rows):
                return
            row_id = found[-1][0]

    async def _check_kept(self, partition: int, low: int, high: int) -> None:
        """Looks whether the history has every revision above ``low`` and up to ``high``."""
        if low:
            ((kept,),) = await self._pages.ask(self._sql.kept_between, (partition, low, high))
            self._at(partition, low).check_kept(kept, high)

    def _at(self, partition: int, revision: int) -> Place:
        return Place(*self._place, partition, self._pages.history, revision)


def _page_size(limit: int = 0) -> PageSize:
    """For a list of so many rows; 0 is no limit."""
    return PageSize(min(_FIRST_ROWS, limit or _FIRST_ROWS), min(_MOST_ROWS, limit or _MOST_ROWS))


def _stretches(then: Sequence[int], now: Sequence[int], first: int, last: int) -> Iterator[tuple[int, int, int | None]]:
    """How partitions are read: those beside each other that are as they were together, ``None``, and each of the others
    at its revision. Those that were empty are left out."""
    start = first
    while start <= last:
        end = start
        if then[start] == now[start]:
            while end < last and then[end + 1] == now[end + 1]:
                end += 1
            yield start, end, None
        elif then[start]:
            yield start, start, then[start]
        start = end + 1
