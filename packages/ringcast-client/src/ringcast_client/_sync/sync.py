"""Makes a config key equal to a list of rows: compares first, then writes what differs and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ringcast_wire import (
    InvalidInputError,
    LimitExceededError,
    UnknownKeyError,
    ValueSealedError,
    check_row,
    check_row_id,
    shown,
)
from ringcast_wire.key_ring import KEY_ID_FIELD, ListKeys

from ringcast_client._bulk.batches import InvalidRowError
from ringcast_client._common.from_thread import from_thread
from ringcast_client._common.records import RowRecord, RowWrite, sealed_row
from ringcast_client._sync.spool import Difference, Spool
from ringcast_client._sync.write import SyncWrite

if TYPE_CHECKING:
    from ringcast_client._bulk.write import Rows
    from ringcast_client._sync.service import SyncService

DEFAULT_MAX_DELETE_SHARE: Final = 0.5
DEFAULT_FIRST_ROWS: Final = 10
MAX_FIRST_ROWS: Final = 1_000
_PAGE_ROWS: Final = 1_000
_PAGE_CHARS: Final = 4 << 20


class SyncRefusedError(LimitExceededError):
    """Too many rows would be deleted: nothing was written. ``field`` is the option that would let it."""


class SyncPhase(StrEnum):
    """What a sync is doing."""

    READING = "reading"
    """The input is read and checked."""
    COMPARING = "comparing"
    """The rows that the key has are read."""
    WRITING = "writing"
    """What differs is written."""


@dataclass(frozen=True, slots=True)
class SyncProgress:
    """How many rows of a phase are done; ``total`` is ``None`` where it is not known."""

    phase: SyncPhase
    done: int
    total: int | None


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The difference between the input and the key, and whether it is written.

    ``first_added`` and so on are the first row ids of each kind, by partition and row id. ``refusal`` says why a sync
    that is not a dry run would be refused. ``conflicts``: rows of the difference that other writers changed after they
    were compared; they are left as they are.
    """

    store: str
    key: str
    rows: int
    added: int
    changed: int
    deleted: int
    unchanged: int
    first_added: tuple[str, ...]
    first_changed: tuple[str, ...]
    first_deleted: tuple[str, ...]
    refusal: str | None = None
    written: bool = False
    conflicts: int = 0
    first_conflicts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """What :meth:`ConfigServiceClient.sync` was asked for."""

    dry_run: bool = False
    max_delete_share: float = DEFAULT_MAX_DELETE_SHARE
    allow_empty: bool = False
    first_rows: int = DEFAULT_FIRST_ROWS
    reason: str = ""
    reseal: bool = False

    def __post_init__(self) -> None:
        share: object = self.max_delete_share
        if not isinstance(share, (int, float)) or isinstance(share, bool) or not 0 <= share <= 1:
            raise InvalidInputError(
                f"max_delete_share {shown(share)} is out of range: 0 to 1 is allowed", field="max_delete_share"
            )
        if not 0 <= self.first_rows <= MAX_FIRST_ROWS:
            raise InvalidInputError(
                f"first_rows {self.first_rows} is out of range: 0 to {MAX_FIRST_ROWS} is allowed", field="first_rows"
            )


class Sync:
    """One sync of one key. Rows are compared as they are stored: ``keys`` seal the input, and ``client`` has none."""

    def __init__(
        self,
        client: SyncService,
        store: str,
        key: str,
        options: SyncOptions,
        on_progress: Callable[[SyncProgress], None],
        keys: ListKeys | None = None,
    ) -> None:
        self._keys = keys
        self._client = client
        self._store = store
        self._key = key
        self._options = options
        self._on_progress = on_progress

    async def run(self, rows: Rows) -> SyncResult:
        """Compares, and unless it is a dry run writes.

        Raises:
            SyncRefusedError: too many rows would be deleted.
        """
        async with self.compared(rows) as (spool, difference, result):
            if self._options.dry_run:
                return result
            conflicts, first_conflicts = await self._write(spool, difference)
            return replace(result, written=True, conflicts=conflicts, first_conflicts=tuple(first_conflicts))

    @asynccontextmanager
    async def compared(self, rows: Rows) -> AsyncIterator[tuple[Spool, Difference, SyncResult]]:
        """What differs, with the spool that has it, as long as the context lasts.

        Raises:
            SyncRefusedError: too many rows would be deleted, and it is no dry run.
        """
        info = await self._client.get_store(self._store)
        stored = next((key.rows for key in info.keys if key.name == self._key), 0)
        spool = Spool(info.partition_count)
        try:
            await self._read(spool, rows)
            await asyncio.to_thread(spool.sort)
            await self._compare(spool, stored)
            difference = await asyncio.to_thread(spool.difference)
            refusal = self._refusal(difference)
            if refusal is not None and not self._options.dry_run:
                raise refusal
            yield spool, difference, await asyncio.to_thread(self._result, spool, difference, refusal)
        finally:
            spool.close()

    async def _read(self, spool: Spool, rows: Rows) -> None:
        async with aclosing(_Input(spool, self._keys).take(rows)) as counts:
            async for done in counts:
                self._on_progress(SyncProgress(SyncPhase.READING, done, None))

    async def _compare(self, spool: Spool, stored: int) -> None:
        page: list[RowRecord] = []
        done = size = 0
        try:
            async with aclosing(self._client.list(self._store, self._key)) as listed:
                async for row in listed:
                    page.append(row)
                    size += len(row.value)
                    if len(page) >= _PAGE_ROWS or size >= _PAGE_CHARS:
                        await asyncio.to_thread(self._add_current, spool, page)
                        done += len(page)
                        page, size = [], 0
                        self._on_progress(SyncProgress(SyncPhase.COMPARING, done, max(done, stored)))
        except UnknownKeyError:
            return  # nothing was ever written to it: the first row creates it
        await asyncio.to_thread(self._add_current, spool, page)

    def _add_current(self, spool: Spool, page: list[RowRecord]) -> None:
        if (keys := self._keys) is not None and not self._options.reseal:
            page = [_with_active_key(row, keys) for row in page]
        spool.add_current(page)

    async def _write(self, spool: Spool, difference: Difference) -> tuple[int, list[str]]:
        """Returns how many rows other writers have changed meanwhile, and the first of them."""
        if not difference.writes:
            return 0, []
        await asyncio.to_thread(spool.plan)

        def on_done(done: int) -> None:
            self._on_progress(SyncProgress(SyncPhase.WRITING, done, difference.writes))

        on_done(0)
        write = SyncWrite(
            self._client, self._store, self._key, spool, on_done, self._options.first_rows, self._options.reason
        )
        await write.run()
        return write.conflicts, write.first_conflicts

    def _refusal(self, difference: Difference) -> SyncRefusedError | None:
        where = f"{self._store}/{self._key}"
        if difference.deleted and not difference.wanted:
            if self._options.allow_empty:
                return None
            return SyncRefusedError(
                f"the input has no rows, so that all {difference.current} rows of {where} would be deleted; "
                "allow_empty permits that",
                field="allow_empty",
            )
        if difference.deleted > self._options.max_delete_share * difference.current:
            return SyncRefusedError(
                f"{difference.deleted} of {difference.current} rows of {where} would be deleted, "
                f"max_delete_share {self._options.max_delete_share:g} allows "
                f"{int(self._options.max_delete_share * difference.current)} to be deleted",
                field="max_delete_share",
            )
        return None

    def _result(self, spool: Spool, difference: Difference, refusal: SyncRefusedError | None) -> SyncResult:
        added, changed, deleted = spool.first(self._options.first_rows)
        return SyncResult(
            self._store,
            self._key,
            difference.wanted,
            difference.added,
            difference.changed,
            difference.deleted,
            difference.unchanged,
            added,
            changed,
            deleted,
            None if refusal is None else str(refusal),
        )


def _with_active_key(row: RowRecord, keys: ListKeys) -> RowRecord:
    """A sealed row as it would be with the active key, so that one of another key is the same if its value is."""
    if KEY_ID_FIELD not in row.metadata or keys.is_current(row.metadata):
        return row
    try:
        value, metadata = keys.seal(row.row_id, *keys.open(row.row_id, row.value, row.metadata))
    except (ValueSealedError, InvalidInputError):
        return row  # it differs from the input, which takes its place
    return replace(row, value=value, metadata=dict(metadata or {}))


def _check_no_condition(row: RowWrite) -> None:
    if row.if_absent or row.if_version is not None:
        field = "if_absent" if row.if_absent else "if_version"
        raise InvalidInputError(
            f"row {shown(row.row_id)} has a condition ({field}): a sync compares the rows itself", field=field
        )


class _Input:
    """Checks the rows of the input one by one and puts them into the spool page by page."""

    def __init__(self, spool: Spool, keys: ListKeys | None) -> None:
        self._spool = spool
        self._keys = keys
        self._page: list[RowWrite] = []
        self._chars = 0
        self.rows = 0

    @property
    def full(self) -> bool:
        return len(self._page) >= _PAGE_ROWS or self._chars >= _PAGE_CHARS

    def add(self, row: RowWrite) -> None:
        """Takes a row.

        Raises:
            InvalidRowError: it breaks a rule.
        """
        try:
            if row.delete:
                check_row_id(row.row_id)
            else:
                row = sealed_row(row, self._keys)
                check_row(row.row_id, row.value, row.metadata)
            _check_no_condition(row)
        except InvalidInputError as error:
            raise InvalidRowError(str(error), index=self.rows, field=error.field) from error
        self._page.append(row)
        self._chars += len(row.value)
        self.rows += 1

    def flush(self) -> int:
        """Stores the page; returns how many rows were taken."""
        self._spool.add_wanted(self._page)
        self._page, self._chars = [], 0
        return self.rows

    async def take(self, rows: Rows) -> AsyncGenerator[int, None]:
        """Takes everything; yields how many rows were taken. A plain iterable is read in a thread."""
        if not isinstance(rows, AsyncIterable):
            async with aclosing(from_thread(self._take(rows))) as counts:
                async for count in counts:
                    yield count
            return
        async for row in rows:
            self.add(row)
            if self.full:
                yield await asyncio.to_thread(self.flush)
        yield await asyncio.to_thread(self.flush)

    def _take(self, rows: Iterable[RowWrite]) -> Iterator[int]:
        for row in rows:
            self.add(row)
            if self.full:
                yield self.flush()
        yield self.flush()
