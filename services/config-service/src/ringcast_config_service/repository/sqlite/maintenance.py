"""Removal of what is past its retention in SQLite."""

from __future__ import annotations

import secrets

from ringcast_config_service.repository import compaction, counts
from ringcast_config_service.repository.base import Compaction
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.sqlite.compaction import SqliteSteps
from ringcast_config_service.repository.sqlite.counts import SqliteCounts
from ringcast_config_service.repository.sqlite.session import Sessions


class SqliteMaintenance:
    """:class:`~ringcast_config_service.repository.parts.RecordMaintenance`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        holder = secrets.token_hex(8)
        self._steps = SqliteSteps(sessions, holder)
        self._counts = SqliteCounts(sessions, holder)

    async def compact(self, tombstones_ms: int, history_ms: int, every_ms: int = 0) -> Compaction:
        return await compaction.compact(self._steps, tombstones_ms, history_ms, every_ms)

    async def check_counts(self, every_ms: int = 0) -> list[counts.WrongCount]:
        return await counts.check_counts(self._counts, every_ms)

    async def forget_marks(self, older_than_ms: int, limit: int) -> int:
        params = (older_than_ms, limit)
        return await self._sessions.write(lambda db: db.execute(Sql.FORGET_MARKS, params).rowcount)
