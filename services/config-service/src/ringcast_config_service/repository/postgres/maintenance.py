"""Removal of what is past its retention in PostgreSQL and CockroachDB."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ringcast_config_service.repository import compaction, counts
from ringcast_config_service.repository.base import Compaction
from ringcast_config_service.repository.lead import Lead
from ringcast_config_service.repository.postgres.compaction import PostgresSteps
from ringcast_config_service.repository.postgres.counts import PostgresCounts
from ringcast_config_service.repository.postgres.lead import transact_as
from ringcast_config_service.repository.postgres.session import Connection, Sessions
from ringcast_config_service.repository.postgres.write import count
from ringcast_config_service.repository.sql.statements import Postgres as Sql


class PostgresMaintenance:
    """:class:`~ringcast_config_service.repository.parts.RecordMaintenance`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._steps = PostgresSteps(sessions)
        self._counts = PostgresCounts(sessions)

    async def compact(self, lead: Lead, tombstones_ms: int, history_ms: int) -> Compaction:
        return await compaction.compact(self._steps, lead, tombstones_ms, history_ms)

    def check_counts(self, lead: Lead, every_ms: int = 0) -> AsyncGenerator[counts.WrongCount, None]:
        return counts.check_counts(self._counts, lead, every_ms)

    async def forget_marks(self, lead: Lead, older_than_ms: int, limit: int) -> int:
        async def work(db: Connection) -> int:
            return count(await db.execute(Sql.FORGET_MARKS, older_than_ms, limit))

        return await transact_as(self._sessions, lead, work)
