"""Connections and transactions of PostgreSQL and CockroachDB, and what their errors mean to a client.

How writes keep apart, on PostgreSQL. They run in READ COMMITTED, and the row of a partition's head is their lock:

- A transaction that writes rows, history or events of a partition, or removes its tombstones, has locked its head
  before, until its end. So between the lock and the commit no other changes what the plan was made from.
- What the plan is made from is as new as the locked heads. A locking read returns the newest committed head, while the
  rows that the same statement returns are those of its snapshot, which may be older if it had to wait for the lock.
  The statement therefore returns the head of the snapshot too. Rows change only together with their head's revision
  (compaction apart, which removes tombstones: a tombstone that is gone is stored again by an upsert). So where both
  heads have the same revision the rows are right, and where they differ the rows are read once more by a statement of
  its own, whose snapshot is younger than the locks. Nothing has to begin again.
- A head that is not there can't be locked. It is inserted with ``ON CONFLICT DO NOTHING``, which waits for another
  transaction that is inserting the same head. If one was there first, the plan was made from nothing where there was
  something: the transaction is rolled back, the missing heads are created with revision 0 in a transaction of their
  own, and the next attempt finds and locks all of them. So this happens once to a write, however many race with it.
- Stores and keys are counted under a lock too: of the one row of ``schema_version`` for the stores, of the row of the
  store for its keys. The next statement, with a younger snapshot, looks whether the store or key is there meanwhile.
- No deadlocks among us: stores are locked first, in order of their names; then the heads that are there, in order; then
  the budgets of stores with limits, in order (budgets.py); then heads are inserted, in order. Unused caps are taken
  back from heads that nobody has locked (SKIP LOCKED), so that nothing is waited for out of order. An insert waits only
  for other inserts, and a head that was committed meanwhile is not waited for.

SERIALIZABLE would add nothing to this but conflicts: PostgreSQL takes locks of whole pages and tables for large reads,
and writers of other stores then abort each other. CockroachDB has other rules for READ COMMITTED, and its SERIALIZABLE
has no such locks: there writes stay SERIALIZABLE and begin again on 40001.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, TypeVar

import asyncpg
from ringcast_wire import Backoff, EventLog, OutcomeUnknownError, RingcastError, UnavailableError

from ringcast_config_service.repository.base import LockedError, PoolUse
from ringcast_config_service.repository.sql.statements import Postgres as Sql

T = TypeVar("T")
Connection = Any  # asyncpg has no types

log = EventLog(logging.getLogger(__name__))

MAX_ATTEMPTS = 20
_COMMAND_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0


class LostRaceError(Exception):
    """Another transaction has written these partitions (key id, partition) for the first time, has stored an
    idempotency key, or has locked what is left of the limits of a store."""

    sqlstate: Final = "23505"
    """What an insert without ``ON CONFLICT`` would have failed with."""

    def __init__(self, places: Sequence[tuple[int, int]]) -> None:
        super().__init__(f"{len(places)} partitions")
        self.places = sorted(places)


RETRIED = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError, LostRaceError)
AWAY = (OSError, TimeoutError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError, asyncpg.InternalClientError)
_LOCKED: Final = "55P03"
_WRITING: Final = ("writes", "upkeep")
_SENTENCES: Final = {
    "25006": "the database takes no writes now, it is read-only: nothing was written",
    _LOCKED: "another transaction holds a lock that this one needs, for longer than the lock time-out: "
    "nothing was written, try again",
    "57014": "the database cancelled a statement that took too long: nothing was written, try again",
    "53100": "the disk of the database is full: nothing was written",
    "25P04": "the transaction took longer than the database allows: nothing was written, try again",
}
"""By SQLSTATE. Each of them ends the transaction, so that nothing of it stays."""
_REFUSING_CLASSES: Final = ("08", "53", "57", "58")
"""SQLSTATE classes: connection, resources, the operator's intervention, the system's own errors."""
_IDLE_TOO_LONG: Final = "25P03"
# An instance that hangs in the middle of a write, or whose host is gone, would keep its locks for as long as the
# database does not know: nobody could write to those partitions, nor publish those events. The longest pause within
# such a transaction is the relay's, which waits 5 s for the broker.
_IDLE_LIMIT: Final = "10s"


class Sessions:
    """The connections to one database, in pools, so that none of these keeps another waiting.

    ``fetches``: short reads. ``snapshots``: long reads. ``writes``: the writer's transactions. ``upkeep``: the relay,
    compaction, and the creation of stores. A write, or upkeep, that has waited for a lock for ``lock_timeout_ms`` fails
    with ``UnavailableError``.
    """

    def __init__(
        self, url: str, *, fetches: int, snapshots: int, writes: int, upkeep: int, lock_timeout_ms: int
    ) -> None:
        self._url = url
        self._sizes = {"fetches": fetches, "snapshots": snapshots, "writes": writes, "upkeep": upkeep}
        self._lock_timeout_ms = lock_timeout_ms
        self._pools: dict[str, Any] = {}
        self._isolation = "serializable"
        self.is_postgres = False
        """Not CockroachDB, which calls itself by its own name."""
        self.retries: Counter[str] = Counter(dict.fromkeys((error.sqlstate for error in RETRIED), 0))

    async def open(self, on_connect: Callable[[Connection], Awaitable[None]]) -> None:
        """Connects; ``on_connect`` is called with each new connection that writes."""
        holders: dict[str, Any] = {
            "lock_timeout": f"{self._lock_timeout_ms}ms",
            "idle_in_transaction_session_timeout": _IDLE_LIMIT,
        }
        for name in self._sizes:
            if name in _WRITING:
                self._pools[name] = await self._connect(name, init=on_connect, **holders)
            else:
                self._pools[name] = await self._connect(name, idle=0 if name == "snapshots" else 1)
        async with self._pools["fetches"].acquire() as db:
            self.is_postgres = "CockroachDB" not in await db.fetchval(Sql.SERVER)
        self._isolation = "read_committed" if self.is_postgres else "serializable"

    async def close(self) -> None:
        """Closes every connection; harmless when called again."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            try:
                await asyncio.wait_for(pool.close(), 5)
            except TimeoutError:
                pool.terminate()

    def size(self, name: str) -> int:
        """Connections that a pool may have."""
        return self._sizes[name]

    def pools(self) -> list[PoolUse]:
        idle = {name: pool.get_idle_size() for name, pool in self._pools.items()}
        return [PoolUse(name, self._pools[name].get_size() - count, count) for name, count in idle.items()]

    async def connect_again(self) -> None:
        """Gives up the connections that write, each when it is free: the address may lead to another server by now."""
        for name in _WRITING:
            if (pool := self._pools.get(name)) is not None:
                await pool.expire_connections()

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[Connection]:
        """A connection of a pool; what the database refuses is an ``UnavailableError``."""
        with available():
            pool = self._pools.get(name)
            if pool is None:
                raise UnavailableError("the database is not open")
            async with pool.acquire(timeout=CONNECT_TIMEOUT_S) as db:
                try:
                    yield db
                except asyncpg.ReadOnlySQLTransactionError:
                    await self.connect_again()
                    raise

    @asynccontextmanager
    async def snapshot(self, name: str) -> AsyncIterator[Connection]:
        """A connection whose reads all see one state of the database."""
        async with self.use(name) as db, db.transaction(isolation="repeatable_read", readonly=True):
            yield db

    async def transact(self, work: Callable[[Connection], Awaitable[T]], name: str = "upkeep") -> T:
        """Runs ``work`` in a transaction, again while another is in its way.

        ``work`` must change nothing but the database, for it may run up to 20 times.
        """
        backoff = collision_backoff()
        async with self.use(name) as db:
            for attempt in range(MAX_ATTEMPTS):
                transaction = db.transaction(isolation=self._isolation)
                try:
                    await transaction.start()
                    result = await _or_roll_back(transaction, work(db))
                    with _unknown_outcome():
                        await transaction.commit()
                    return result
                except RETRIED as error:
                    self.retries[error.sqlstate] += 1
                    log.debug("transaction.retry", attempt=attempt + 1, sqlstate=error.sqlstate)
                    await asyncio.sleep(backoff.next_s())
                    if isinstance(error, LostRaceError):
                        await _create_heads(db, error.places)
        raise UnavailableError(
            f"others were in the way of the write in each of {MAX_ATTEMPTS} attempts: nothing was written, try again"
        )

    async def _connect(self, name: str, *, idle: int = 1, init: Any = None, **settings: str) -> Any:
        return await asyncpg.create_pool(
            self._url,
            min_size=min(idle, self._sizes[name]),
            max_size=self._sizes[name],
            timeout=CONNECT_TIMEOUT_S,
            command_timeout=_COMMAND_TIMEOUT_S,
            reset=_leave_as_it_is,
            init=init,
            server_settings={"application_name": "ringcast-config-service", **settings},
        )


async def _create_heads(db: Connection, places: Sequence[tuple[int, int]]) -> None:
    """Creates heads that nobody has written yet, for the next attempt to lock."""
    zeros = [0] * len(places)
    if not places:
        return
    try:
        await db.execute(Sql.INSERT_HEADS, *map(list, zip(*places, strict=True)), zeros, zeros, zeros)
    except RETRIED:
        log.debug("heads.busy", partitions=len(places))  # the next attempt finds what there is


async def _leave_as_it_is(_: Connection) -> None:
    """Spares the round trip of a reset when a connection goes back to its pool: nothing here sets session state."""


async def _or_roll_back(transaction: Any, work: Awaitable[T]) -> T:
    try:
        return await work
    except BaseException:
        # On a dead connection there is nothing to roll back; the server has done it.
        with suppress(*AWAY, asyncpg.PostgresError):
            await transaction.rollback()
        raise


@contextmanager
def _unknown_outcome() -> Iterator[None]:
    """A connection that breaks during COMMIT leaves open what happened; the caller must not read it as a refusal."""
    try:
        yield
    except (*AWAY, asyncpg.OperatorInterventionError) as error:
        raise OutcomeUnknownError(
            "the connection to the database broke during the commit, so the write may have been stored: "
            f"{error_line(error)}"
        ) from error


def collision_backoff() -> Backoff:
    """Full jitter, so that those who collided don't collide again."""
    return Backoff(random.random, first_s=0.005, most_s=0.25, least=0.0)


def error_line(error: BaseException) -> str:
    """What the driver said, as one line; never the address, which may hold a password."""
    return " ".join((str(error) or type(error).__name__).split())


def is_away(error: BaseException) -> bool:
    """Whether the database, or the way to it, is the reason: a client may try again later."""
    if isinstance(error, AWAY):
        return True
    state = getattr(error, "sqlstate", None) or ""
    return state in _SENTENCES or state == _IDLE_TOO_LONG or state[:2] in _REFUSING_CLASSES


@contextmanager
def available() -> Iterator[None]:
    """A database that is away, or takes no writes, means to a client that it may try again later."""
    try:
        yield
    except RingcastError:
        raise
    except Exception as error:
        if not is_away(error):
            raise
        state = getattr(error, "sqlstate", None) or ""
        sentence = _SENTENCES.get(state, "the database does not answer")
        kind = LockedError if state == _LOCKED else UnavailableError
        raise kind(f"{sentence}: {error_line(error)}") from error
