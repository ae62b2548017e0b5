"""Removal of what is past its retention in SQLite."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ringcast_config_service.repository import compaction, counts
from ringcast_config_service.repository.base import Compaction
from ringcast_config_service.repository.lead import Lead
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.sqlite.compaction import SqliteSteps
from ringcast_config_service.repository.sqlite.counts import SqliteCounts
from ringcast_config_service.repository.sqlite.lead import write_as
from ringcast_config_service.repository.sqlite.session import Sessions


class SqliteMaintenance:
    """:class:`~ringcast_config_service.repository.parts.RecordMaintenance`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._steps = SqliteSteps(sessions)
        self._counts = SqliteCounts(sessions)

    async def compact(self, lead: Lead, tombstones_ms: int, history_ms: int) -> Compaction:
        return await compaction.compact(self._steps, lead, tombstones_ms, history_ms)

    def check_counts(self, lead: Lead, every_ms: int = 0) -> AsyncGenerator[counts.WrongCount, None]:
        return counts.check_counts(self._counts, lead, every_ms)

    async def forget_marks(self, lead: Lead, older_than_ms: int, limit: int) -> int:
        params = (older_than_ms, limit)
        return await write_as(self._sessions, lead, lambda db: db.execute(Sql.FORGET_MARKS, params).rowcount)
