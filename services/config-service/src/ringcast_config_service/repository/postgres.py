"""The system of record in PostgreSQL or CockroachDB.

Writes are SERIALIZABLE and begin again when the database says that it could not serialise them (40001, 40P01), a
bounded number of times. Reads are one REPEATABLE READ snapshot, which nothing aborts.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

import asyncpg
from ringcast_core import row_partitions
from ringcast_wire import FetchReply, HeadsReply, PartitionRows, RingcastError, UnavailableError, limits, names

from ringcast_config_service.errors import ConfigError
from ringcast_config_service.repository import mapping, paging, postgres_write
from ringcast_config_service.repository.base import (
    Compaction,
    HistoryFilter,
    ListedRow,
    ListFilter,
    OutboxRecord,
    OutboxState,
    PoolUse,
    Revision,
    StoreInfo,
    StoreRecord,
    WriteRequest,
    Written,
    new_history_id,
)
from ringcast_config_service.repository.newness import Newness
from ringcast_config_service.repository.sql import SCHEMA_VERSION
from ringcast_config_service.repository.sql import Postgres as Sql

T = TypeVar("T")
Connection = Any  # asyncpg has no types

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 20
_FIRST_DELAY_S = 0.005
_MAX_DELAY_S = 0.25
_COMMAND_TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 5.0
_COMPACT_ROWS = 5_000
_RETRIED = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
_SCHEMA_RACES = (asyncpg.UniqueViolationError, asyncpg.DuplicateTableError, asyncpg.DuplicateObjectError, *_RETRIED)
_AWAY = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
# An instance that hangs in the middle of a write, or whose host is gone, would keep its locks for as long as the
# database does not know: nobody could write to those partitions, nor publish those events. The longest pause within
# such a transaction is the relay's, which waits 5 s for the broker.
_LOCK_HOLDERS: dict[str, Any] = {"idle_in_transaction_session_timeout": "10s"}


class PostgresRepository:
    """Connections to one database, on which any number of instances may work. Construct, then :meth:`open`.

    Fetches, long reads (:meth:`list_rows`, :meth:`history`) and writes have a pool each, so that none keeps another
    waiting. ``writes`` serve the writer, the relay, compaction and the creation of stores.
    """

    def __init__(self, url: str, *, fetches: int = 8, snapshots: int = 8, writes: int = 4) -> None:
        self._url = url
        self._sizes = (fetches, snapshots, writes)
        self._pool: Any = None
        self._long: Any = None
        self._write: Any = None
        self._copies = False
        self.newness = Newness()
        self._keys: postgres_write.KeyIds = {}
        self.retries: Counter[str] = Counter(dict.fromkeys((error.sqlstate for error in _RETRIED), 0))

    async def open(self) -> None:
        try:
            self._pool = await self._connect(self._sizes[0])
            self._long = await self._connect(self._sizes[1], idle=0)
            self._write = await self._connect(self._sizes[2], first=self._forget_keys, **_LOCK_HOLDERS)
            version = await self._create_schema()
            # CockroachDB knows COPY too, but not everything about it within a transaction.
            self._copies = "CockroachDB" not in await self._pool.fetchval(Sql.SERVER)
        except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError) as error:
            raise ConfigError(f"the database refuses the user or its password: {_said(error)}") from error
        except asyncpg.InvalidCatalogNameError as error:
            raise ConfigError(f"the database is not there: {_said(error)}") from error
        except asyncpg.InsufficientPrivilegeError as error:
            raise ConfigError(f"the database user may not create tables: {_said(error)}") from error
        except (asyncpg.ClientConfigurationError, ValueError) as error:
            raise ConfigError(f"the database address can't be used: {_said(error)}") from error
        except _AWAY as error:
            raise UnavailableError(f"the database can't be reached: {_said(error)}") from error
        if version != SCHEMA_VERSION:
            raise ConfigError(f"the database has schema version {version}: this build knows {SCHEMA_VERSION}")

    async def close(self) -> None:
        for pool in (self._long, self._pool, self._write):
            if pool is not None:
                try:
                    await asyncio.wait_for(pool.close(), 5)
                except TimeoutError:
                    pool.terminate()
        self._pool = self._long = self._write = None

    async def ping(self) -> None:
        with _available():
            async with self._use() as db:
                await db.fetchval(Sql.PING)

    async def create_store(self, record: StoreRecord) -> StoreRecord:
        async def work(db: Connection) -> StoreRecord:
            found = await db.fetchrow(Sql.GET_STORE, record.name)
            if found:
                return mapping.check_same(mapping.to_store(found), record)
            mapping.check_store_count(await db.fetchval(Sql.COUNT_STORES), record.name)
            await db.execute(Sql.INSERT_STORE, *mapping.from_store(record))
            return record

        return await self._serializable(work)

    async def get_store(self, name: str) -> StoreInfo:
        async with self._snapshot(self._pool) as db:
            stores = await db.fetch(Sql.GET_STORE, name)
            return mapping.only_store(mapping.to_infos(stores, await db.fetch(Sql.KEY_STATS, name)), name)

    async def list_stores(self) -> list[StoreInfo]:
        async with self._snapshot(self._pool) as db:
            return mapping.to_infos(await db.fetch(Sql.LIST_STORES), await db.fetch(Sql.KEY_STATS, ""))

    async def write(self, requests: Sequence[WriteRequest], now_ms: int) -> Written:
        try:
            return await self._written(requests, now_ms)
        except Exception:
            self._keys.clear()  # whatever it was, they are looked up again
            raise

    async def _written(self, requests: Sequence[WriteRequest], now_ms: int) -> Written:
        keys = self._keys
        if guessed := self._copies and self.newness.expects(requests):
            with suppress(postgres_write.StoredError):
                return await self._serializable(lambda db: postgres_write.write_new(db, requests, now_ms, keys))
            self.newness.miss(requests)
        written, all_new = await self._serializable(
            lambda db: postgres_write.write(db, requests, now_ms, keys, copies=self._copies)
        )
        if not guessed:
            self.newness.learn(requests, all_new)
        return written

    async def read_partition(
        self, store: str, key: str, partition: int, since: int | None, history: str = ""
    ) -> FetchReply:
        async with self._snapshot(self._pool) as db:
            found = await db.fetchrow(Sql.LOCATE_PARTITION, store, key, partition)
            count, key_id, current, head, floor, live_rows = mapping.located(found, store, key)
            names.check_partition(partition, count)
            after = since if history == current else None
            whole = mapping.wants_whole(after, head or 0, floor or 0, live_rows or 0)
            statement, place = (
                (Sql.READ_WHOLE, (key_id, partition)) if whole else (Sql.READ_SINCE, (key_id, partition, after))
            )
            rows = mapping.to_rows(await db.fetch(statement, *place))
            return mapping.fetch_reply(current, [PartitionRows(partition, head or 0, whole, rows)])

    async def read_rows(self, store: str, key: str, row_ids: Sequence[str]) -> FetchReply:
        async with self._snapshot(self._pool) as db:
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
        async with self._snapshot(self._pool) as db:
            _, key_id, history = mapping.located(await db.fetchrow(Sql.LOCATE, store, key), store, key)
            heads = await db.fetch(Sql.HEADS, key_id)
            mapping.check_full_size(heads, store, key)
            rows = await db.fetch(Sql.READ_FULL, key_id)
            return mapping.fetch_reply(history, mapping.by_partition(heads, rows, whole=True))

    async def heads(self, store: str, key: str) -> HeadsReply:
        async with self._snapshot(self._pool) as db:
            count, key_id, history = mapping.located(await db.fetchrow(Sql.LOCATE, store, key), store, key)
            return mapping.dense_heads(await db.fetch(Sql.HEADS, key_id), count, history)

    async def new_history(self, store: str, *, instead_of: str | None = None) -> str:
        async def work(db: Connection) -> str:
            current = mapping.only_record(await db.fetchrow(Sql.GET_STORE, store), store).history_id
            if instead_of not in (None, current):
                return current
            history = new_history_id()
            await db.execute(Sql.SET_STORE_HISTORY, store, history, current)
            key_ids = [record[0] for record in await db.fetch(Sql.KEY_IDS, store)]
            await db.executemany(Sql.SET_KEY_HISTORY, [(key_id, new_history_id()) for key_id in key_ids])
            return history

        return await self._serializable(work)

    async def list_rows(self, store: str, key: str, query: ListFilter) -> AsyncGenerator[list[ListedRow], None]:
        async with self._pages(store, key) as (count, fetch):
            async for page in paging.list_pages(count, query, lambda words: fetch(Sql.LIST_PAGE, words)):
                yield page

    async def history(self, store: str, key: str, query: HistoryFilter) -> AsyncGenerator[list[Revision], None]:
        async with self._pages(store, key) as (count, fetch):
            async for page in paging.history_pages(count, query, lambda words: fetch(Sql.HISTORY_PAGE, words)):
                yield page

    @asynccontextmanager
    async def outbox(self, after: int, limit: int) -> AsyncIterator[_OutboxBatch]:
        # Not SERIALIZABLE: the locks decide, and a relay must not make a writer begin again.
        with _available():
            async with self._use() as db, db.transaction(isolation="read_committed"):
                records = await db.fetch(Sql.TAKE_OUTBOX, after, limit)
                yield _OutboxBatch(db, [OutboxRecord(*record) for record in records])

    async def delete_events(self, ids: Sequence[int]) -> None:
        with _available():
            async with self._use() as db:
                await db.execute(Sql.DELETE_OUTBOX, list(ids))

    async def outbox_state(self) -> OutboxState:
        async with self._snapshot(self._pool) as db:
            return OutboxState(*await db.fetchrow(Sql.OUTBOX_STATE))

    def pools(self) -> list[PoolUse]:
        pools = {"fetches": self._pool, "snapshots": self._long, "writes": self._write}
        idle = {name: pool.get_idle_size() for name, pool in pools.items() if pool is not None}
        return [PoolUse(name, pools[name].get_size() - count, count) for name, count in idle.items()]

    async def compact(self, tombstones_before_ms: int, history_before_ms: int) -> Compaction:
        async with self._snapshot(self._pool) as db:
            old = await db.fetch(Sql.OLD_TOMBSTONES, tombstones_before_ms)
            places = await db.fetch(Sql.WRITTEN_PARTITIONS)
        tombstones = 0
        for place in old:  # a transaction each: writers wait for one partition at most
            tombstones += await self._serializable(lambda db, place=place: _drop_tombstones(db, place))  # type: ignore[misc]
        revisions = 0
        for key_id, partition in places:
            while dropped := await self._drop_history(key_id, partition, history_before_ms):
                revisions += dropped
        return Compaction(tombstones, revisions)

    async def _drop_history(self, key_id: int, partition: int, before_ms: int) -> int:
        with _available():
            async with self._use() as db:
                revision, found = await db.fetchrow(Sql.OLD_REVISION, key_id, partition, before_ms, _COMPACT_ROWS)
                if not found:
                    return 0
                return _count(await db.execute(Sql.DELETE_HISTORY, key_id, partition, revision, before_ms))

    async def _forget_keys(self, _: Connection) -> None:
        """A connection is new: the database may have been restored since the others were made."""
        self._keys.clear()

    async def _connect(self, size: int, *, idle: int = 1, first: Any = None, **settings: str) -> Any:
        return await asyncpg.create_pool(
            self._url,
            min_size=idle,
            max_size=size,
            timeout=_CONNECT_TIMEOUT_S,
            command_timeout=_COMMAND_TIMEOUT_S,
            reset=_leave_as_it_is,
            init=first,
            server_settings={"application_name": "ringcast-config-service", **settings},
        )

    async def _create_schema(self) -> int:
        """Creates what is missing. Several instances may do so at once: whoever loses a race looks again."""
        async with self._pool.acquire() as db:
            for attempt in range(MAX_ATTEMPTS):
                try:
                    if not await db.fetchval(Sql.HAS_SCHEMA) or not await db.fetchval(Sql.GET_SCHEMA):
                        for statement in Sql.TABLES:
                            await db.execute(statement)
                    return int(await db.fetchval(Sql.GET_SCHEMA))
                except _SCHEMA_RACES:
                    await _back_off(attempt)
        raise UnavailableError(f"the tables could not be created in {MAX_ATTEMPTS} attempts: others are creating them")

    @asynccontextmanager
    async def _use(self) -> AsyncIterator[Connection]:
        """A connection to write with."""
        if self._write is None:
            raise UnavailableError("the database is not open")
        async with self._write.acquire(timeout=_CONNECT_TIMEOUT_S) as db:
            yield db

    @asynccontextmanager
    async def _snapshot(self, pool: Any) -> AsyncIterator[Connection]:
        if pool is None:
            raise UnavailableError("the database is not open")
        with _available():
            async with (
                pool.acquire(timeout=_CONNECT_TIMEOUT_S) as db,
                db.transaction(isolation="repeatable_read", readonly=True),
            ):
                yield db

    @asynccontextmanager
    async def _pages(
        self, store: str, key: str
    ) -> AsyncIterator[tuple[int, Callable[[str, tuple[object, ...]], Awaitable[list[mapping.Record]]]]]:
        """One snapshot, and how to fetch a page from it."""
        async with self._snapshot(self._long) as db:
            count, key_id, _ = mapping.located(await db.fetchrow(Sql.LOCATE, store, key), store, key)

            async def fetch(statement: str, words: tuple[object, ...]) -> list[mapping.Record]:
                return list(await db.fetch(statement, key_id, *words))

            yield count, fetch

    async def _serializable(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Runs ``work`` in a SERIALIZABLE transaction, again while the database can't serialise it.

        ``work`` must change nothing but the database, for it may run up to 20 times.
        """
        with _available():
            async with self._use() as db:
                for attempt in range(MAX_ATTEMPTS):
                    transaction = db.transaction(isolation="serializable")
                    try:
                        await transaction.start()
                        result = await _or_roll_back(transaction, work(db))
                        with _unknown_outcome():
                            await transaction.commit()
                        return result
                    except _RETRIED as error:
                        self.retries[error.sqlstate] += 1
                        log.debug("attempt=%d sqlstate=%s: the transaction begins again", attempt + 1, error.sqlstate)
                        await _back_off(attempt)
        raise UnavailableError(
            f"the database could not serialise the write in {MAX_ATTEMPTS} attempts: nothing was written, try again"
        )


async def _leave_as_it_is(_: Connection) -> None:
    """Spares the round trip of a reset when a connection goes back to its pool: nothing here sets session state."""


class _OutboxBatch:
    def __init__(self, db: Connection, records: list[OutboxRecord]) -> None:
        self.records = records
        self._db = db

    async def delete(self, ids: Sequence[int]) -> None:
        await self._db.execute(Sql.DELETE_OUTBOX, list(ids))


async def _drop_tombstones(db: Connection, place: Sequence[Any]) -> int:
    """Removes the tombstones of a partition up to a version and raises its floor to it."""
    await db.execute(Sql.RAISE_FLOOR, *place)
    return _count(await db.execute(Sql.DELETE_TOMBSTONES, *place))


def _count(status: str) -> int:
    """The number at the end of a command's status, such as ``DELETE 3``."""
    return int(status.rpartition(" ")[2])


async def _or_roll_back(transaction: Any, work: Awaitable[T]) -> T:
    try:
        return await work
    except BaseException:
        # On a dead connection there is nothing to roll back; the server has done it.
        with suppress(*_AWAY):
            await transaction.rollback()
        raise


@contextmanager
def _unknown_outcome() -> Iterator[None]:
    """A connection that breaks during COMMIT leaves open what happened; the caller must not read it as a refusal."""
    try:
        yield
    except _AWAY as error:
        raise UnavailableError(
            f"the connection to the database broke during the commit, so the write may have been stored: {_said(error)}"
        ) from error


async def _back_off(attempt: int) -> None:
    """Full jitter, so that those who collided don't collide again."""
    await asyncio.sleep(random.uniform(0, min(_MAX_DELAY_S, _FIRST_DELAY_S * 2**attempt)))  # noqa: S311


def _said(error: BaseException) -> str:
    """What the driver said, as one line; never the address, which may hold a password."""
    return " ".join((str(error) or type(error).__name__).split())


@contextmanager
def _available() -> Iterator[None]:
    """A database that is away means to a client that it may try again later."""
    try:
        yield
    except RingcastError:
        raise
    except _AWAY as error:
        raise UnavailableError(f"the database does not answer: {_said(error)}") from error
