"""The steps of checking counts in SQLite."""

from __future__ import annotations

import sqlite3

from ringcast_config_service.repository.counts import DUTY, CountedKey
from ringcast_config_service.repository.lead import Lead
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.sqlite.lead import write_as
from ringcast_config_service.repository.sqlite.session import Sessions


class SqliteCounts:
    """:class:`~ringcast_config_service.repository.counts.Steps`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def done_counts(self) -> tuple[int, int]:
        *_, done_ms, now_ms = await self._sessions.read(lambda db: db.execute(Sql.GET_DUTY, (DUTY,)).fetchone())
        return done_ms, now_ms

    async def note_counts(self, lead: Lead, began_ms: int) -> None:
        await write_as(self._sessions, lead, lambda db: db.execute(Sql.DUTY_DONE, (DUTY, began_ms)).rowcount)

    async def counted_keys(self) -> list[CountedKey]:
        found = await self._sessions.read(lambda db: db.execute(Sql.COUNTED_KEYS).fetchall())
        return [CountedKey(*record) for record in found]

    async def wrong_counts(self, key_id: int, first: int, last: int) -> list[int]:
        async with self._sessions.snapshot() as snapshot:  # on a connection of its own: it reads every row
            return await snapshot.read(lambda db: _wrong_counts(db, key_id, first, last))

    async def recount(self, lead: Lead, store: str, key_id: int, partition: int) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            if not _wrong_counts(db, key_id, partition, partition):
                return False
            db.execute(Sql.RECOUNT, (key_id, partition))
            db.execute(Sql.DRAIN_BUDGET, (store,))
            return True

        return await write_as(self._sessions, lead, work)


def _wrong_counts(db: sqlite3.Connection, key_id: int, first: int, last: int) -> list[int]:
    return [partition for (partition,) in db.execute(Sql.WRONG_COUNTS, (key_id, first, last)).fetchall()]
