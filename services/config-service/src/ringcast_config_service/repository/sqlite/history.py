"""Histories in SQLite."""

from __future__ import annotations

import sqlite3

from ringcast_config_service.repository import audit, mapping
from ringcast_config_service.repository.base import SERVICE, Authorship, history_ordinal, new_history_id
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.sqlite.audit import add_facts
from ringcast_config_service.repository.sqlite.session import Sessions


class SqliteHistories:
    """:class:`~ringcast_config_service.repository.parts.HistoryRepository`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def new_history(
        self, store: str, *, instead_of: str | None = None, by: Authorship = SERVICE, after: int = 0
    ) -> str:
        def work(db: sqlite3.Connection) -> str:
            current = mapping.only_record(db.execute(Sql.GET_STORE, (store,)).fetchone(), store).history_id
            if instead_of not in (None, current):
                return current
            ordinal = max(after, history_ordinal(current)) + 1
            history = new_history_id(ordinal)
            db.execute(Sql.SET_STORE_HISTORY, (store, history, current))
            key_ids = db.execute(Sql.KEY_IDS, (store,)).fetchall()
            db.executemany(Sql.SET_KEY_HISTORY, [(key_id, new_history_id(ordinal)) for (key_id,) in key_ids])
            add_facts(db, [audit.fact(by, "NewHistory", store, before=current, after=history)])
            return history

        return await self._sessions.write(work)

    async def look(self) -> int:
        """See :meth:`~ringcast_config_service.repository.parts.HistoryRepository.look`."""
        return 0

    @property
    def generation(self) -> int:
        return 0  # nobody puts another file in the place of one that is open
