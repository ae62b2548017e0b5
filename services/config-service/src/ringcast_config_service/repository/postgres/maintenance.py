"""Removal of what is past its retention in PostgreSQL and CockroachDB."""

from __future__ import annotations

import secrets

from ringcast_config_service.repository import compaction, counts
from ringcast_config_service.repository.base import Compaction
from ringcast_config_service.repository.postgres.compaction import PostgresSteps
from ringcast_config_service.repository.postgres.counts import PostgresCounts
from ringcast_config_service.repository.postgres.session import Sessions
from ringcast_config_service.repository.postgres.write import count
from ringcast_config_service.repository.sql.statements import Postgres as Sql


class PostgresMaintenance:
    """:class:`~ringcast_config_service.repository.parts.RecordMaintenance`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        holder = secrets.token_hex(8)
        self._steps = PostgresSteps(sessions, holder)
        self._counts = PostgresCounts(sessions, holder)

    async def compact(self, tombstones_ms: int, history_ms: int, every_ms: int = 0) -> Compaction:
        return await compaction.compact(self._steps, tombstones_ms, history_ms, every_ms)

    async def check_counts(self, every_ms: int = 0) -> list[counts.WrongCount]:
        return await counts.check_counts(self._counts, every_ms)

    async def forget_marks(self, older_than_ms: int, limit: int) -> int:
        async with self._sessions.use("upkeep") as db:
            return count(await db.execute(Sql.FORGET_MARKS, older_than_ms, limit))
