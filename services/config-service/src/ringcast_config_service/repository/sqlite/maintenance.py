"""Removal of what is past its retention in SQLite."""

from __future__ import annotations

import secrets

from ringcast_config_service.repository import compaction
from ringcast_config_service.repository.base import Compaction
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.sqlite.compaction import SqliteSteps
from ringcast_config_service.repository.sqlite.session import Sessions


class SqliteMaintenance:
    """:class:`~ringcast_config_service.repository.parts.RecordMaintenance`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._steps = SqliteSteps(sessions, secrets.token_hex(8))

    async def compact(self, tombstones_ms: int, history_ms: int, every_ms: int = 0) -> Compaction:
        return await compaction.compact(self._steps, tombstones_ms, history_ms, every_ms)

    async def forget_marks(self, older_than_ms: int, limit: int) -> int:
        params = (older_than_ms, limit)
        return await self._sessions.write(lambda db: db.execute(Sql.FORGET_MARKS, params).rowcount)
