"""The system of record in PostgreSQL or CockroachDB.

Writes lock what they change and begin again where that can't be (40001, 40P01), a bounded number of times; how they
keep apart stands in :mod:`~ringcast_config_service.repository.postgres.session`. Reads are one REPEATABLE READ
snapshot, which nothing aborts.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
from ringcast_core import row_partitions
from ringcast_service import ConfigError
from ringcast_wire import FetchReply, HeadsReply, UnavailableError, limits

from ringcast_config_service.repository import as_of as as_of_reads
from ringcast_config_service.repository import compaction, mapping, paging
from ringcast_config_service.repository.base import (
    DEFAULT_LOCK_TIMEOUT_MS,
    DEFAULT_WRITE_CONNECTIONS,
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
)
from ringcast_config_service.repository.postgres import history as histories
from ringcast_config_service.repository.postgres import session as sessions
from ringcast_config_service.repository.postgres import write as writing
from ringcast_config_service.repository.postgres.compaction import PostgresSteps
from ringcast_config_service.repository.postgres.deletions import PostgresDeletions, store_info
from ringcast_config_service.repository.postgres.new_row_predictor import NewRowPredictor
from ringcast_config_service.repository.postgres.session import Connection, Sessions, said
from ringcast_config_service.repository.sql.statements import SCHEMA_VERSION
from ringcast_config_service.repository.sql.statements import Postgres as Sql

_SCHEMA_RACES = (
    asyncpg.UniqueViolationError,
    asyncpg.DuplicateTableError,
    asyncpg.DuplicateObjectError,
    *sessions.RETRIED,
)


class PostgresRepository:
    """A database on which any number of instances may work. Construct, then :meth:`open`.

    Any number of tasks may call any of its methods at once. ``writes`` transactions of :meth:`write` run at a time, the
    others wait for a free connection; ``upkeep`` are the connections of the relay, of compaction and of the creation of
    stores.
    """

    def __init__(
        self,
        url: str,
        *,
        fetches: int = 8,
        snapshots: int = 8,
        writes: int = DEFAULT_WRITE_CONNECTIONS,
        upkeep: int = 4,
        lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
    ) -> None:
        self._sessions = Sessions(
            url, fetches=fetches, snapshots=snapshots, writes=writes, upkeep=upkeep, lock_timeout_ms=lock_timeout_ms
        )
        self.new_row_predictor = NewRowPredictor()
        self._keys: writing.KeyIds = {}
        self._deletions = PostgresDeletions(self._sessions)
        self._name = secrets.token_hex(8)
        self._watch = histories.RecordWatch()

    async def open(self) -> None:
        try:
            await self._sessions.open(self._on_connect)
            version = await self._create_schema()
            if version == SCHEMA_VERSION:
                async with self._sessions.use("upkeep") as db:
                    await self._watch.begin(db, is_postgres=self._sessions.is_postgres)
        except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError) as error:
            raise ConfigError(f"the database refuses the user or its password: {said(error)}") from error
        except asyncpg.InvalidCatalogNameError as error:
            raise ConfigError(f"the database is not there: {said(error)}") from error
        except asyncpg.InsufficientPrivilegeError as error:
            raise ConfigError(f"the database user may not create tables: {said(error)}") from error
        except (asyncpg.ClientConfigurationError, ValueError) as error:
            raise ConfigError(f"the database address can't be used: {said(error)}") from error
        except Exception as error:
            if not sessions.is_away(error):
                raise
            raise UnavailableError(f"the database can't be reached: {said(error)}") from error
        if version != SCHEMA_VERSION:
            raise ConfigError(f"the database has schema version {version}: this build knows {SCHEMA_VERSION}")

    async def close(self) -> None:
        await self._sessions.close()

    async def ping(self) -> None:
        async with self._sessions.use("fetches") as db:
            await db.fetchval(Sql.PING)

    async def check_writable(self) -> None:
        async with self._sessions.use("upkeep") as db:
            if await db.fetchval(Sql.IS_READ_ONLY) == "on":
                await self._sessions.connect_again()
                raise UnavailableError("the database takes no writes now, it is read-only")

    async def create_store(self, record: StoreRecord) -> StoreRecord:
        async def work(db: Connection) -> StoreRecord:
            found = await db.fetchrow(Sql.GET_STORE, record.name)
            if not found:
                await db.execute(Sql.LOCK_STORE_COUNT)
                found = await db.fetchrow(Sql.GET_STORE, record.name)
            if found:
                return mapping.check_same(mapping.to_store(found), record)
            mapping.check_store_count(await db.fetchval(Sql.COUNT_STORES), record.name)
            await db.execute(Sql.INSERT_STORE, *mapping.from_store(record))
            return record

        return await self._sessions.transact(work)

    async def get_record(self, name: str) -> StoreRecord:
        async with self._sessions.use("fetches") as db:
            return mapping.only_record(await db.fetchrow(Sql.GET_STORE, name), name)

    async def get_store(self, name: str, *, include_deleted: bool = False) -> StoreInfo:
        async with self._sessions.snapshot("fetches") as db:
            return await store_info(db, name, include_deleted=include_deleted)

    async def list_stores(self, *, include_deleted: bool = False) -> list[StoreInfo]:
        async with self._sessions.snapshot("fetches") as db:
            stores, stats = await db.fetch(Sql.LIST_STORES), await db.fetch(Sql.KEY_STATS, "")
            return mapping.to_infos(stores, stats, include_deleted=include_deleted)

    async def update_store(self, name: str, inline_max_bytes: int) -> StoreInfo:
        return await self._deletions.update_store(name, inline_max_bytes)

    async def delete_store(self, name: str, deletion: Deletion) -> StoreInfo:
        return await self._deletions.delete_store(name, deletion)

    async def restore_store(self, name: str, now_ms: int) -> StoreInfo:
        return await self._deletions.restore_store(name, now_ms)

    async def delete_key(self, store: str, key: str, deletion: Deletion) -> KeyStats:
        return await self._deletions.delete_key(store, key, deletion)

    async def restore_key(self, store: str, key: str, now_ms: int) -> KeyStats:
        return await self._deletions.restore_key(store, key, now_ms)

    async def clock_ms(self) -> int:
        async with self._sessions.use("fetches") as db:
            return int(await db.fetchval(Sql.CLOCK_MS))

    async def expire_deleted(self, now_ms: int) -> Expired:
        return await self._deletions.expire_deleted(now_ms)

    async def purge_rows(self, store: str, key: str | None) -> int:
        return await self._deletions.purge_rows(store, key)

    async def drop_store(self, name: str) -> None:
        await self._deletions.drop_store(name)

    async def drop_key(self, store: str, key: str) -> None:
        await self._deletions.drop_key(store, key)

    async def store_records(self) -> list[StoreRecord]:
        async with self._sessions.use("fetches") as db:
            return [mapping.to_store(record) for record in await db.fetch(Sql.LIST_STORES)]

    async def write(self, requests: Sequence[WriteRequest], now_ms: int) -> Written:
        try:
            try:
                return await self._written(requests, now_ms)
            except asyncpg.ForeignKeyViolationError:  # a key that was known here is purged, or was just now its store
                self._keys.clear()
                return await self._written(requests, now_ms)
        except Exception:
            self._keys.clear()  # whatever it was, they are looked up again
            raise

    async def _written(self, requests: Sequence[WriteRequest], now_ms: int) -> Written:
        keys, copies = self._keys, self._sessions.is_postgres  # CockroachDB's COPY can't do all of this
        if guessed := copies and self.new_row_predictor.expects(requests):
            with suppress(writing.StoredError):
                return await self._sessions.transact(
                    lambda db: writing.write_new(self._watch.fresh(db, requests), requests, now_ms, keys),
                    "writes",
                )
            self.new_row_predictor.miss(requests)
        written, all_new = await self._sessions.transact(
            lambda db: writing.write(self._watch.fresh(db, requests), requests, now_ms, keys, copies=copies),
            "writes",
        )
        if not guessed:
            self.new_row_predictor.learn(requests, all_new)
        return written

    async def read_partition(
        self, store: str, key: str, partition: int, since: int | None, history: str = "", as_of: int | None = None
    ) -> FetchReply:
        async with self._sessions.snapshot("fetches") as db:
            found = await db.fetchrow(Sql.LOCATE_PARTITION, store, key, partition)
            reading = as_of_reads.Reading.of(as_of_reads.Place(store, key, partition, history, as_of), found, since)
            if reading.is_earlier:
                kept = await db.fetchrow(Sql.KEPT_REVISIONS, *reading.kept_words)
                return reading.reply(await db.fetch(Sql.READ_AS_OF, *reading.earlier_words(*kept)))
            return reading.reply(await db.fetch(Sql.READ_WHOLE if reading.whole else Sql.READ_SINCE, *reading.params))

    async def read_rows(self, store: str, key: str, row_ids: Sequence[str]) -> FetchReply:
        async with self._sessions.snapshot("fetches") as db:
            count, key_id, history = mapping.located(await db.fetchrow(Sql.LOCATE, store, key), store, key)
            ids = list(dict.fromkeys(row_ids))
            partitions = list(row_partitions(ids, count))
            if len(ids) * limits.MAX_ROW_BYTES > limits.MAX_REPLY_BYTES:
                mapping.check_reply_size(await db.fetchval(Sql.SIZE_OF_ROWS, key_id, partitions, ids))
            rows = await db.fetch(Sql.READ_ROWS, key_id, partitions, ids)
            found = {head[0]: head[1] for head in await db.fetch(Sql.HEADS, key_id)}
            heads = [(partition, found.get(partition, 0)) for partition in sorted(set(partitions))]
            return mapping.fetch_reply(history, mapping.by_partition(heads, rows, whole=False))

    async def read_full(self, store: str, key: str) -> FetchReply:
        async with self._sessions.snapshot("fetches") as db:
            _, key_id, history = mapping.located(await db.fetchrow(Sql.LOCATE, store, key), store, key)
            heads = await db.fetch(Sql.HEADS, key_id)
            mapping.check_full_size(heads, store, key)
            rows = await db.fetch(Sql.READ_FULL, key_id)
            return mapping.fetch_reply(history, mapping.by_partition(heads, rows, whole=True))

    async def heads(self, store: str, key: str, at_ms: int | None = None) -> HeadsReply:
        async with self._sessions.snapshot("fetches") as db:
            count, key_id, history = mapping.located(await db.fetchrow(Sql.LOCATE, store, key), store, key)
            found = mapping.dense_heads(await db.fetch(Sql.HEADS, key_id), count, history)
            if at_ms is None:
                return found
            as_of_reads.check_moment(at_ms, await db.fetchval(Sql.HORIZON), store, key)
            return as_of_reads.earlier_heads(found, await db.fetch(Sql.REVISIONS_AT, key_id, at_ms))

    async def new_history(self, store: str, *, instead_of: str | None = None) -> str:
        return await self._sessions.transact(lambda db: histories.new_history(db, store, instead_of))

    @property
    def generation(self) -> int:
        return self._watch.generation

    async def list_rows(self, store: str, key: str, query: ListFilter) -> AsyncGenerator[list[ListedRow], None]:
        async with self._pages(store, key) as (count, fetch):
            async for page in paging.list_pages(count, query, lambda params: fetch(Sql.LIST_PAGE, params)):
                yield page

    async def history(self, store: str, key: str, query: HistoryFilter) -> AsyncGenerator[list[Revision], None]:
        async with self._pages(store, key) as (count, fetch):
            async for page in paging.history_pages(count, query, lambda params: fetch(Sql.HISTORY_PAGE, params)):
                yield page

    # The relay's statements are transactions of their own: one that it sends from would keep its locks for as long as
    # the broker takes.

    async def outbox_spans(self) -> list[OutboxSpan]:
        return [OutboxSpan(*span) for span in await self._one_statement(Sql.OUTBOX_SPANS)]

    async def outbox(self, store: str, after: int, limit: int, max_bytes: int) -> list[OutboxRecord]:
        records = await self._one_statement(Sql.READ_OUTBOX, store, after, limit, max_bytes)
        return [OutboxRecord(*record) for record in records]

    async def claim_outbox(self, store: str, holder: str, lease_ms: int) -> bool:
        return bool(await self._one_statement(Sql.CLAIM_OUTBOX, store, holder, lease_ms))

    async def release_outbox(self, holder: str) -> None:
        await self._one_statement(Sql.RELEASE_OUTBOX, holder)

    async def delete_events(self, ids: Sequence[int]) -> None:
        await self._one_statement(Sql.DELETE_OUTBOX, list(ids))

    async def refuse_event(self, event_id: int, reason: str) -> None:
        async with self._sessions.use("upkeep") as db, db.transaction(isolation="read_committed"):
            await db.execute(Sql.REFUSE_OUTBOX, event_id, reason)
            await db.execute(Sql.DELETE_OUTBOX, [event_id])
            await db.execute(Sql.FORGET_REFUSED)

    async def refused_events(self, after: int, limit: int) -> list[RefusedRecord]:
        found = await self._one_statement(Sql.READ_REFUSED, after, limit)
        return [RefusedRecord(OutboxRecord(*record), reason) for *record, reason in found]

    async def _one_statement(self, statement: str, *params: object) -> list[Any]:
        async with self._sessions.use("upkeep") as db:
            return list(await db.fetch(statement, *params))

    async def outbox_state(self) -> OutboxState:
        async with self._sessions.snapshot("fetches") as db:
            depth, age_ms = await db.fetchrow(Sql.OUTBOX_STATE)
            return OutboxState(depth, None if age_ms is None else int(time.time() * 1000) - age_ms)

    @property
    def write_lanes(self) -> int:
        return self._sessions.size("writes")

    @property
    def retries(self) -> Counter[str]:
        return self._sessions.retries

    def pools(self) -> list[PoolUse]:
        return self._sessions.pools()

    async def forget_marks(self, older_than_ms: int, limit: int) -> int:
        async with self._sessions.use("upkeep") as db:
            return writing.count(await db.execute(Sql.FORGET_MARKS, older_than_ms, limit))

    async def compact(self, tombstones_ms: int, history_ms: int, every_ms: int = 0) -> Compaction:
        steps = PostgresSteps(self._sessions, self._name)
        return await compaction.compact(steps, tombstones_ms, history_ms, every_ms)

    async def _on_connect(self, db: Connection) -> None:
        """A connection that writes is new: the database may have been restored since the others were made."""
        self._keys.clear()
        await self._watch.look(db)

    async def _create_schema(self) -> int:
        """Creates what is missing. Several instances may do so at once: whoever loses a race looks again."""
        backoff = sessions.collision_backoff()
        async with self._sessions.use("upkeep") as db:
            for _ in range(sessions.MAX_ATTEMPTS):
                try:
                    if not await db.fetchval(Sql.HAS_SCHEMA) or not await db.fetchval(Sql.GET_SCHEMA):
                        for statement in Sql.TABLES if self._sessions.is_postgres else Sql.COCKROACH_TABLES:
                            await db.execute(statement)
                    return int(await db.fetchval(Sql.GET_SCHEMA))
                except _SCHEMA_RACES:
                    await asyncio.sleep(backoff.next_s())
        raise UnavailableError(
            f"the tables could not be created in {sessions.MAX_ATTEMPTS} attempts: others are creating them"
        )

    @asynccontextmanager
    async def _pages(
        self, store: str, key: str
    ) -> AsyncIterator[tuple[int, Callable[[str, tuple[object, ...]], Awaitable[list[mapping.Record]]]]]:
        """One snapshot, and how to fetch a page from it."""
        async with self._sessions.snapshot("snapshots") as db:
            count, key_id, _ = mapping.located(await db.fetchrow(Sql.LOCATE, store, key), store, key)

            async def fetch(statement: str, params: tuple[object, ...]) -> list[mapping.Record]:
                return list(await db.fetch(statement, key_id, *params))

            yield count, fetch
