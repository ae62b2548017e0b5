"""The system of record in one SQLite file."""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

from ringcast_core import row_partitions
from ringcast_service import ConfigError
from ringcast_sqlite import Database, StoreError, StoreOpenError
from ringcast_wire import FetchReply, HeadsReply, UnavailableError

from ringcast_config_service.repository import as_of as as_of_reads
from ringcast_config_service.repository import compaction, mapping, paging, writes
from ringcast_config_service.repository.base import (
    Compaction,
    Deletion,
    Expired,
    HistoryFilter,
    KeyStats,
    ListedRow,
    ListFilter,
    OutboxRecord,
    OutboxSpan,
    OutboxState,
    PoolUse,
    RefusedRecord,
    Revision,
    StoreInfo,
    StoreRecord,
    WriteRequest,
    Written,
    new_history_id,
)
from ringcast_config_service.repository.sql.statements import SCHEMA_VERSION
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.sqlite import deletions
from ringcast_config_service.repository.sqlite.compaction import SqliteSteps

T = TypeVar("T")


class SqliteRepository:
    """Embedded: no server. Several processes may use one file, but one of them writes at a time.

    An acknowledged write is on the disk. Construct, then :meth:`open`.
    """

    def __init__(self, path: Path | str, *, readers: int = 4) -> None:
        self._database = Database(path, readers=readers)
        self._name = secrets.token_hex(8)

    async def open(self) -> None:
        try:
            await self._database.open()
            version = await self._database.write(_create_schema)
        except StoreOpenError as error:
            raise ConfigError(str(error)) from error
        except StoreError as error:
            raise UnavailableError(str(error)) from error
        if version != SCHEMA_VERSION:
            raise ConfigError(
                f"database {self._database.path} has schema version {version}: this build knows {SCHEMA_VERSION}"
            )

    async def close(self) -> None:
        await self._database.close()

    async def ping(self) -> None:
        await self._read(lambda db: db.execute(Sql.PING).fetchone())

    async def check_writable(self) -> None:
        await self._write(lambda db: db.execute(Sql.PING).fetchone())  # takes the lock of a write, and changes nothing

    async def create_store(self, record: StoreRecord) -> StoreRecord:
        return await self._write(lambda db: _create_store(db, record))

    async def get_record(self, name: str) -> StoreRecord:
        return mapping.only_record(await self._read(lambda db: db.execute(Sql.GET_STORE, (name,)).fetchone()), name)

    async def get_store(self, name: str, *, include_deleted: bool = False) -> StoreInfo:
        return await self._read(lambda db: deletions.store_info(db, name, include_deleted=include_deleted))

    async def list_stores(self, *, include_deleted: bool = False) -> list[StoreInfo]:
        def work(db: sqlite3.Connection) -> list[StoreInfo]:
            stores, stats = db.execute(Sql.LIST_STORES), db.execute(Sql.KEY_STATS, ("",))
            return mapping.to_infos(stores, stats, include_deleted=include_deleted)

        return await self._read(work)

    async def update_store(self, name: str, inline_max_bytes: int) -> StoreInfo:
        return await self._write(lambda db: deletions.update_store(db, name, inline_max_bytes))

    async def delete_store(self, name: str, deletion: Deletion) -> StoreInfo:
        return await self._write(lambda db: deletions.delete_store(db, name, deletion))

    async def restore_store(self, name: str, now_ms: int) -> StoreInfo:
        return await self._write(lambda db: deletions.restore_store(db, name, now_ms))

    async def delete_key(self, store: str, key: str, deletion: Deletion) -> KeyStats:
        return await self._write(lambda db: deletions.delete_key(db, store, key, deletion))

    async def restore_key(self, store: str, key: str, now_ms: int) -> KeyStats:
        return await self._write(lambda db: deletions.restore_key(db, store, key, now_ms))

    async def clock_ms(self) -> int:
        return time.time_ns() // 1_000_000  # one file, one machine

    async def expire_deleted(self, now_ms: int) -> Expired:
        return await self._write(lambda db: deletions.expire_deleted(db, now_ms))

    async def purge_rows(self, store: str, key: str | None) -> int:
        return await self._write(lambda db: deletions.purge_rows(db, store, key))

    async def drop_store(self, name: str) -> None:
        await self._write(lambda db: deletions.drop_store(db, name))

    async def drop_key(self, store: str, key: str) -> None:
        await self._write(lambda db: deletions.drop_key(db, store, key))

    async def store_records(self) -> list[StoreRecord]:
        found = await self._read(lambda db: db.execute(Sql.LIST_STORES).fetchall())
        return [mapping.to_store(record) for record in found]

    async def write(self, requests: Sequence[WriteRequest], now_ms: int) -> Written:
        return await self._write(lambda db: _write(db, requests, now_ms))

    async def read_partition(
        self, store: str, key: str, partition: int, since: int | None, history: str = "", as_of: int | None = None
    ) -> FetchReply:
        def work(db: sqlite3.Connection) -> FetchReply:
            found = db.execute(Sql.LOCATE_PARTITION, (store, key, partition)).fetchone()
            reading = as_of_reads.Reading.of(as_of_reads.Place(store, key, partition, history, as_of), found, since)
            if reading.is_earlier:
                kept = db.execute(Sql.KEPT_REVISIONS, reading.kept_words).fetchone()
                return reading.reply(db.execute(Sql.READ_AS_OF, reading.earlier_words(*kept)))
            return reading.reply(db.execute(Sql.READ_WHOLE if reading.whole else Sql.READ_SINCE, reading.params))

        return await self._read(work)

    async def read_rows(self, store: str, key: str, row_ids: Sequence[str]) -> FetchReply:
        def work(db: sqlite3.Connection) -> FetchReply:
            count, key_id, history = mapping.located(db.execute(Sql.LOCATE, (store, key)).fetchone(), store, key)
            wanted = dict.fromkeys(zip(row_partitions(row_ids, count), row_ids, strict=True))
            heads = dict.fromkeys(sorted({partition for partition, _ in wanted}), 0)
            for partition in heads:
                found = db.execute(Sql.GET_HEAD, (key_id, partition)).fetchone()
                heads[partition] = found[0] if found else 0
            rows = (db.execute(Sql.READ_ROW, (key_id, *ref)).fetchone() for ref in wanted)
            found = mapping.within_reply(row for row in rows if row)
            return mapping.fetch_reply(history, mapping.by_partition(heads.items(), found, whole=False))

        return await self._read(work)

    async def read_full(self, store: str, key: str) -> FetchReply:
        def work(db: sqlite3.Connection) -> FetchReply:
            _, key_id, history = mapping.located(db.execute(Sql.LOCATE, (store, key)).fetchone(), store, key)
            heads = db.execute(Sql.HEADS, (key_id,)).fetchall()
            mapping.check_full_size(heads, store, key)
            rows = db.execute(Sql.READ_FULL, (key_id,))
            return mapping.fetch_reply(history, mapping.by_partition(heads, rows, whole=True))

        return await self._read(work)

    async def heads(self, store: str, key: str, at_ms: int | None = None) -> HeadsReply:
        def work(db: sqlite3.Connection) -> HeadsReply:
            count, key_id, history = mapping.located(db.execute(Sql.LOCATE, (store, key)).fetchone(), store, key)
            found = mapping.dense_heads(db.execute(Sql.HEADS, (key_id,)), count, history)
            if at_ms is None:
                return found
            as_of_reads.check_moment(at_ms, db.execute(Sql.HORIZON).fetchone()[0], store, key)
            return as_of_reads.earlier_heads(found, db.execute(Sql.REVISIONS_AT, (key_id, at_ms)))

        return await self._read(work)

    async def new_history(self, store: str, *, instead_of: str | None = None) -> str:
        return await self._write(lambda db: _new_history(db, store, instead_of))

    async def list_rows(self, store: str, key: str, query: ListFilter) -> AsyncGenerator[list[ListedRow], None]:
        async with self._pages(store, key) as (count, fetch):
            async for page in paging.list_pages(count, query, lambda params: fetch(Sql.LIST_PAGE, params)):
                yield page

    async def history(self, store: str, key: str, query: HistoryFilter) -> AsyncGenerator[list[Revision], None]:
        async with self._pages(store, key) as (count, fetch):
            async for page in paging.history_pages(count, query, lambda params: fetch(Sql.HISTORY_PAGE, params)):
                yield page

    async def outbox_spans(self) -> list[OutboxSpan]:
        spans = await self._read(lambda db: db.execute(Sql.OUTBOX_SPANS).fetchall())
        return [OutboxSpan(*span) for span in spans]

    async def outbox(self, store: str, after: int, limit: int, max_bytes: int) -> list[OutboxRecord]:
        params = (store, after, limit, max_bytes)
        records = await self._read(lambda db: db.execute(Sql.READ_OUTBOX, params).fetchall())
        return [OutboxRecord(*record) for record in records]

    async def claim_outbox(self, store: str, holder: str, lease_ms: int) -> bool:
        params = (store, holder, lease_ms)
        return bool(await self._write(lambda db: db.execute(Sql.CLAIM_OUTBOX, params).fetchall()))

    async def release_outbox(self, holder: str) -> None:
        await self._write(lambda db: db.execute(Sql.RELEASE_OUTBOX, (holder,)))

    async def refuse_event(self, event_id: int, reason: str) -> None:
        def work(db: sqlite3.Connection) -> None:
            db.execute(Sql.REFUSE_OUTBOX, (event_id, reason))
            db.execute(Sql.DELETE_OUTBOX, (event_id,))
            db.execute(Sql.FORGET_REFUSED)

        await self._write(work)

    async def refused_events(self, after: int, limit: int) -> list[RefusedRecord]:
        found = await self._read(lambda db: db.execute(Sql.READ_REFUSED, (after, limit)).fetchall())
        return [RefusedRecord(OutboxRecord(*record), reason) for *record, reason in found]

    async def delete_events(self, ids: Sequence[int]) -> None:
        params = [(number,) for number in ids]
        await self._write(lambda db: db.executemany(Sql.DELETE_OUTBOX, params))

    async def outbox_state(self) -> OutboxState:
        return OutboxState(*await self._read(lambda db: db.execute(Sql.OUTBOX_STATE).fetchone()))

    @property
    def generation(self) -> int:
        return 0  # nobody puts another file in the place of one that is open

    @property
    def write_lanes(self) -> int:
        return 1  # a file has one writer

    @property
    def retries(self) -> Mapping[str, int]:
        return {}  # one transaction at a time: there is nothing to serialise

    def pools(self) -> list[PoolUse]:
        return []

    async def forget_marks(self, older_than_ms: int, limit: int) -> int:
        return await self._write(lambda db: db.execute(Sql.FORGET_MARKS, (older_than_ms, limit)).rowcount)

    async def compact(self, tombstones_ms: int, history_ms: int, every_ms: int = 0) -> Compaction:
        return await compaction.compact(SqliteSteps(self._write, self._name), tombstones_ms, history_ms, every_ms)

    @asynccontextmanager
    async def _pages(
        self, store: str, key: str
    ) -> AsyncIterator[tuple[int, Callable[[str, tuple[object, ...]], Awaitable[list[mapping.Record]]]]]:
        """One snapshot, and how to fetch a page from it."""
        with _available():
            async with self._database.snapshot() as snapshot:
                found = await snapshot.read(lambda db: db.execute(Sql.LOCATE, (store, key)).fetchone())
                count, key_id, _ = mapping.located(found, store, key)

                async def fetch(statement: str, params: tuple[object, ...]) -> list[mapping.Record]:
                    return await snapshot.read(lambda db: db.execute(statement, (key_id, *params)).fetchall())

                yield count, fetch

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with _available():
            return await self._database.read(work)

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with _available():
            return await self._database.write(work)


@contextmanager
def _available() -> Iterator[None]:
    """What the store layer raises means to a client that it may try again later."""
    try:
        yield
    except StoreError as error:
        raise UnavailableError(str(error)) from error


def _create_schema(db: sqlite3.Connection) -> int:
    """Creates what is missing and returns the schema's version; a newer schema is left alone."""
    if not db.execute(Sql.HAS_SCHEMA).fetchone()[0]:
        for statement in Sql.TABLES:
            db.execute(statement)
    return int(db.execute(Sql.GET_SCHEMA).fetchone()[0])


def _create_store(db: sqlite3.Connection, record: StoreRecord) -> StoreRecord:
    found = db.execute(Sql.GET_STORE, (record.name,)).fetchone()
    if found:
        return mapping.check_same(mapping.to_store(found), record)
    mapping.check_store_count(db.execute(Sql.COUNT_STORES).fetchone()[0], record.name)
    db.execute(Sql.INSERT_STORE, mapping.from_store(record))
    return record


def _new_history(db: sqlite3.Connection, store: str, instead_of: str | None) -> str:
    current = mapping.only_record(db.execute(Sql.GET_STORE, (store,)).fetchone(), store).history_id
    if instead_of not in (None, current):
        return current
    history = new_history_id()
    db.execute(Sql.SET_STORE_HISTORY, (store, history, current))
    key_ids = db.execute(Sql.KEY_IDS, (store,)).fetchall()
    db.executemany(Sql.SET_KEY_HISTORY, [(key_id, new_history_id()) for (key_id,) in key_ids])
    return history


def _write(db: sqlite3.Connection, requests: Sequence[WriteRequest], now_ms: int) -> Written:
    state = _read_state(db, requests)
    plan = writes.plan_writes(requests, state, now_ms)
    stamp_ms = int(time.time() * 1000)
    key_ids = dict(state.keys)
    for key in plan.new_keys:
        key_ids[key] = db.execute(Sql.INSERT_KEY, (*key, state.histories[key])).fetchone()[0]
    db.executemany(Sql.INSERT_MARK, ((*ref, *found, stamp_ms) for ref, found in plan.recorded.items()))
    db.executemany(Sql.UPSERT_HEAD, ((key_ids[ref.key], ref.partition, *head) for ref, head in plan.heads.items()))
    rows = plan.rows.values()
    db.executemany(Sql.UPSERT_ROW, ((*mapping.from_row(row, key_ids), row.size, stamp_ms) for row in rows))
    db.executemany(Sql.INSERT_HISTORY, ((*mapping.from_row(row, key_ids), row.prev, stamp_ms) for row in plan.history))
    events = [OutboxRecord(_inserted(db, Sql.INSERT_OUTBOX, (*event, stamp_ms)), *event) for event in plan.events]
    return Written(plan.outcomes, events)


def _inserted(db: sqlite3.Connection, statement: str, params: tuple[object, ...]) -> int:
    """Inserts a row and returns its id."""
    number = db.execute(statement, params).lastrowid
    assert number is not None
    return number


def _read_state(db: sqlite3.Connection, requests: Sequence[WriteRequest]) -> writes.CurrentState:
    state = writes.CurrentState()
    for key in {writes.KeyRef(request.store.name, request.key) for request in requests}:
        found = db.execute(Sql.LOCATE, key).fetchone()
        if found is None:
            continue
        state.stores.add(key.store)
        state.partition_counts[key] = found[0]
        state.histories[key] = found[2] or new_history_id()
        if (error := mapping.deleted(found, *key)) is not None:
            state.deleted[key] = error
            continue
        if found[1] is not None:
            state.keys[key] = found[1]
        elif key.store not in state.key_counts:
            state.key_counts[key.store] = db.execute(Sql.COUNT_KEYS, (key.store,)).fetchone()[0]
    for ref in writes.touched_partitions(requests):
        if (key_id := state.keys.get(ref.key)) is not None:
            found = db.execute(Sql.GET_HEAD, (key_id, ref.partition)).fetchone()
            if found:
                state.heads[ref] = writes.Head(*found)
    statement = Sql.STORED_CONTENT if any(request.skip_unchanged for request in requests) else Sql.STORED_SIZE
    for row, partition in writes.touched_rows(requests).items():
        if (key_id := state.keys.get(row.key)) is not None:
            found = db.execute(statement, (key_id, partition, row.row_id)).fetchone()
            if found:
                deleted, state.versions[row], size, *content = found
                if not deleted:
                    state.live[row] = size
                    if content:
                        state.contents[row] = writes.Content(*content)
    for mark in writes.touched_marks(requests):
        found = db.execute(Sql.READ_MARK, mark).fetchone()
        if found:
            state.recorded[mark] = writes.Recorded(*found)
    return state
