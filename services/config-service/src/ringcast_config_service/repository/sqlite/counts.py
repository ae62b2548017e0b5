"""The steps of checking counts in SQLite."""

from __future__ import annotations

import sqlite3

from ringcast_config_service.repository.counts import DUTY, CountedKey
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.sqlite.session import Sessions


class SqliteCounts:
    """``holder`` names the process: several may use one file."""

    def __init__(self, sessions: Sessions, holder: str) -> None:
        self._sessions = sessions
        self._holder = holder

    async def take_counts(self, lease_ms: int) -> bool:
        params = (DUTY, self._holder, lease_ms)
        return bool(await self._sessions.write(lambda db: db.execute(Sql.TAKE_DUTY, params).fetchall()))

    async def counted_keys(self) -> list[CountedKey]:
        found = await self._sessions.read(lambda db: db.execute(Sql.COUNTED_KEYS).fetchall())
        return [CountedKey(*record) for record in found]

    async def wrong_counts(self, key_id: int, first: int, last: int) -> list[int]:
        async with self._sessions.snapshot() as snapshot:  # on a connection of its own: it reads every row
            return await snapshot.read(lambda db: _wrong_counts(db, key_id, first, last))

    async def recount(self, store: str, key_id: int, partition: int) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            if not _wrong_counts(db, key_id, partition, partition):
                return False
            db.execute(Sql.RECOUNT, (key_id, partition))
            db.execute(Sql.DRAIN_BUDGET, (store,))
            return True

        return await self._sessions.write(work)


def _wrong_counts(db: sqlite3.Connection, key_id: int, first: int, last: int) -> list[int]:
    return [partition for (partition,) in db.execute(Sql.WRONG_COUNTS, (key_id, first, last)).fetchall()]
