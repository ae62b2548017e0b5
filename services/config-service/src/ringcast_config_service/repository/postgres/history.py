"""Histories in PostgreSQL and CockroachDB, and how a record shows that may have gone back.

A failover to a standby gives the server another timeline, a restored dump is in a system with another identifier. Both
are looked at on each new connection that writes, before anything is written over it, and compared with what the record
itself says that it was written on: so the first instance that gets there begins new histories, and only once. A server
that was merely started again, maybe on the disk of an earlier day, shows no more than another start time: then the
record has to be compared with what was published (:mod:`ringcast_config_service.histories`).

Tables that are put back under a running service change none of this. So the record has a mark, which each instance
raises now and then. One that is not above what the instance has seen has gone back, and the record with it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, NamedTuple

import asyncpg
from ringcast_wire import EventLog, UnavailableError

from ringcast_config_service.repository import audit, mapping
from ringcast_config_service.repository.base import (
    SERVICE,
    Authorship,
    WriteRequest,
    history_ordinal,
    new_history_id,
)
from ringcast_config_service.repository.postgres.audit import add_facts
from ringcast_config_service.repository.postgres.session import Connection, Sessions
from ringcast_config_service.repository.sql.statements import Postgres as Sql

log = EventLog(logging.getLogger(__name__))

_MARK: Final = "mark"
_LEAP: Final = 1_000_000_000
"""How far above the mark that it remembers an instance sets it that begins new histories: so the others see a leap, and
begin none. None of them has seen a mark so high, each raises it by one."""
_UNKNOWN: Final = (
    asyncpg.UndefinedFunctionError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.FeatureNotSupportedError,
)


class Server(NamedTuple):
    """A database server. ``record``: what identifies its data, ``started_at`` its process."""

    record: str
    started_at: str


async def _new_histories(db: Connection) -> int:
    """Gives each store and its keys new histories, within a transaction; returns how many stores there are."""
    stores = [record[0] for record in await db.fetch(Sql.STORE_NAMES)]
    for store in stores:
        await _new_history(db, store, None)
    return len(stores)


async def _new_history(
    db: Connection, store: str, instead_of: str | None, by: Authorship = SERVICE, after: int = 0
) -> str:
    """Gives a store and its keys new histories, within a transaction."""
    await db.execute(Sql.LOCK_STORES, [store])
    current = mapping.only_record(await db.fetchrow(Sql.GET_STORE, store), store).history_id
    if instead_of not in (None, current):
        return current
    ordinal = max(after, history_ordinal(current)) + 1
    history = new_history_id(ordinal)
    await db.execute(Sql.SET_STORE_HISTORY, store, history, current)
    key_ids = [record[0] for record in await db.fetch(Sql.KEY_IDS, store)]
    await db.executemany(Sql.SET_KEY_HISTORY, [(key_id, new_history_id(ordinal)) for key_id in key_ids])
    await add_facts(db, [audit.fact(by, "NewHistory", store, before=current, after=history)])
    return history


class RecordWatch:
    """Looks at the server behind each new connection that writes.

    ``generation`` rises whenever the record may have gone back. A write that was let in before is refused by it.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.mark = 0
        """The highest that this instance has seen."""
        self._server: Server | None = None
        self._is_postgres = False

    async def begin(self, db: Connection, *, is_postgres: bool) -> None:
        """Takes note of the server; to be called once, when the tables are there.

        One that takes no writes now can be read all the same: it is looked at once something can be written.
        """
        self._is_postgres = is_postgres
        self._server = Server("", "")
        try:
            server = await self._read(db)
            await self._compare(db, server)
        except (UnavailableError, asyncpg.ReadOnlySQLTransactionError) as error:
            log.warning("database.not_compared", error=error)
        else:
            self._server = server

    async def look(self, db: Connection) -> None:
        """Looks at the server behind a new connection.

        Raises:
            UnavailableError: it takes no writes.
        """
        if self._server is None:
            return
        server = await self._read(db)
        if server == self._server:
            return
        if server.record != self._server.record:
            await self._compare(db, server)
        self._server = server
        self.generation += 1
        log.warning("database.restarted", generation=self.generation)

    def fresh(self, db: Connection, requests: Iterable[WriteRequest]) -> Connection:
        """The connection, if no request was let in before the server was started again.

        Raises:
            UnavailableError: one was: the record may be behind what was published.
        """
        if any(request.generation != self.generation for request in requests):
            raise UnavailableError("the database was started again: nothing was written, try again")
        return db

    async def _read(self, db: Connection) -> Server:
        try:
            return Server(*await db.fetchrow(Sql.SERVER_IDENTITY if self._is_postgres else Sql.CLUSTER_IDENTITY))
        except asyncpg.ObjectNotInPrerequisiteStateError as error:
            raise UnavailableError("the database takes no writes now, it is a standby") from error
        except _UNKNOWN as error:
            log.warning("database.identity_unknown", error=error)
            return Server("", "")

    async def _compare(self, db: Connection, server: Server) -> None:
        """Begins new histories where the record was written on another server than this."""
        if not server.record or await db.fetchval(Sql.GET_IDENTITY) == server.record:
            return
        async with db.transaction():
            await db.execute(Sql.INSERT_IDENTITY, server.record)
            before = await db.fetchval(Sql.LOCK_IDENTITY)
            if before == server.record:
                return
            stores = await _new_histories(db)
            await db.execute(Sql.SET_IDENTITY, server.record)
        self.mark = 0  # that this record is an earlier one is dealt with
        log.warning("history.began", stores=stores, reason="another_server", before=before, after=server.record)


class PostgresHistories:
    """:class:`~ringcast_config_service.repository.parts.HistoryRepository`."""

    def __init__(self, sessions: Sessions, watch: RecordWatch) -> None:
        self._sessions = sessions
        self._watch = watch

    async def new_history(
        self, store: str, *, instead_of: str | None = None, by: Authorship = SERVICE, after: int = 0
    ) -> str:
        return await self._sessions.transact(lambda db: _new_history(db, store, instead_of, by, after))

    async def look(self) -> int:
        """See :meth:`~ringcast_config_service.repository.parts.HistoryRepository.look`."""
        highest = self._watch.mark

        async def work(db: Connection) -> tuple[int, int]:
            mark = await db.fetchval(Sql.RAISE_MARK, _MARK)
            if mark > highest:
                return mark, 0
            stores = await _new_histories(db)
            await db.execute(Sql.SET_MARK, _MARK, highest + _LEAP)
            return highest + _LEAP, stores

        mark, stores = await self._sessions.transact(work)
        if stores:
            log.warning("history.began", stores=stores, reason="put_back", before=highest, after=mark)
        if highest != self._watch.mark:
            return stores  # a new connection has found another server meanwhile
        if highest and mark - highest >= _LEAP:
            self._watch.generation += 1  # what this instance or another has noticed counts for writes that were let in
        self._watch.mark = mark
        return stores

    @property
    def generation(self) -> int:
        return self._watch.generation
