"""The steps of checking counts in PostgreSQL and CockroachDB."""

from __future__ import annotations

from ringcast_config_service.repository.counts import DUTY, CountedKey
from ringcast_config_service.repository.lead import Lead
from ringcast_config_service.repository.postgres.lead import transact_as
from ringcast_config_service.repository.postgres.session import Connection, Sessions
from ringcast_config_service.repository.sql.statements import Postgres as Sql


class PostgresCounts:
    """:class:`~ringcast_config_service.repository.counts.Steps`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def done_counts(self) -> tuple[int, int]:
        async with self._sessions.use("upkeep") as db:
            *_, done_ms, now_ms = await db.fetchrow(Sql.GET_DUTY, DUTY)
            return done_ms, now_ms

    async def note_counts(self, lead: Lead, began_ms: int) -> None:
        await transact_as(self._sessions, lead, lambda db: db.execute(Sql.DUTY_DONE, DUTY, began_ms))

    async def counted_keys(self) -> list[CountedKey]:
        async with self._sessions.use("upkeep") as db:
            return [CountedKey(*record) for record in await db.fetch(Sql.COUNTED_KEYS)]

    async def wrong_counts(self, key_id: int, first: int, last: int) -> list[int]:
        async with self._sessions.snapshot("snapshots") as db:
            return [record[0] for record in await db.fetch(Sql.WRONG_COUNTS, key_id, first, last)]

    async def recount(self, lead: Lead, store: str, key_id: int, partition: int) -> bool:
        async def work(db: Connection) -> bool:
            await db.execute(Sql.LOCK_HEADS, [key_id], [partition])
            if not await db.fetch(Sql.WRONG_COUNTS, key_id, partition, partition):
                return False
            await db.execute(Sql.RECOUNT, key_id, partition)
            await db.execute(Sql.DRAIN_BUDGET, store)
            return True

        return await transact_as(self._sessions, lead, work)
