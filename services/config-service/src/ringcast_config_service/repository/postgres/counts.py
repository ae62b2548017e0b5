"""The steps of checking counts in PostgreSQL and CockroachDB."""

from __future__ import annotations

from ringcast_config_service.repository.counts import DUTY, CountedKey
from ringcast_config_service.repository.postgres.session import Connection, Sessions
from ringcast_config_service.repository.sql.statements import Postgres as Sql


class PostgresCounts:
    """``holder`` names the instance."""

    def __init__(self, sessions: Sessions, holder: str) -> None:
        self._sessions = sessions
        self._holder = holder

    async def take_counts(self, lease_ms: int) -> bool:
        async with self._sessions.use("upkeep") as db:
            return await db.fetchrow(Sql.TAKE_DUTY, DUTY, self._holder, lease_ms) is not None

    async def counted_keys(self) -> list[CountedKey]:
        async with self._sessions.use("upkeep") as db:
            return [CountedKey(*record) for record in await db.fetch(Sql.COUNTED_KEYS)]

    async def wrong_counts(self, key_id: int, first: int, last: int) -> list[int]:
        async with self._sessions.snapshot("snapshots") as db:
            return [record[0] for record in await db.fetch(Sql.WRONG_COUNTS, key_id, first, last)]

    async def recount(self, store: str, key_id: int, partition: int) -> bool:
        async def work(db: Connection) -> bool:
            await db.execute(Sql.LOCK_HEADS, [key_id], [partition])
            if not await db.fetch(Sql.WRONG_COUNTS, key_id, partition, partition):
                return False
            await db.execute(Sql.RECOUNT, key_id, partition)
            await db.execute(Sql.DRAIN_BUDGET, store)
            return True

        return await self._sessions.transact(work)
