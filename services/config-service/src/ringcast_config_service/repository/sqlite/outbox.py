"""The outbox in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from ringcast_config_service.repository.base import OutboxRecord, OutboxSpan, OutboxState, RefusedRecord
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.sqlite.session import Sessions


class SqliteOutbox:
    """:class:`~ringcast_config_service.repository.parts.OutboxRepository`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def outbox_spans(self) -> list[OutboxSpan]:
        spans = await self._sessions.read(lambda db: db.execute(Sql.OUTBOX_SPANS).fetchall())
        return [OutboxSpan(*span) for span in spans]

    async def outbox(self, store: str, after: int, limit: int, max_bytes: int) -> list[OutboxRecord]:
        params = (store, after, limit, max_bytes)
        records = await self._sessions.read(lambda db: db.execute(Sql.READ_OUTBOX, params).fetchall())
        return [OutboxRecord(*record) for record in records]

    async def claim_outbox(self, store: str, holder: str, lease_ms: int) -> bool:
        params = (store, holder, lease_ms)
        return bool(await self._sessions.write(lambda db: db.execute(Sql.CLAIM_OUTBOX, params).fetchall()))

    async def release_outbox(self, holder: str) -> None:
        await self._sessions.write(lambda db: db.execute(Sql.RELEASE_OUTBOX, (holder,)))

    async def delete_events(self, ids: Sequence[int]) -> None:
        params = [(number,) for number in ids]
        await self._sessions.write(lambda db: db.executemany(Sql.DELETE_OUTBOX, params))

    async def refuse_event(self, event_id: int, reason: str) -> None:
        def work(db: sqlite3.Connection) -> None:
            db.execute(Sql.REFUSE_OUTBOX, (event_id, reason))
            db.execute(Sql.DELETE_OUTBOX, (event_id,))
            db.execute(Sql.FORGET_REFUSED)

        await self._sessions.write(work)

    async def refused_events(self, after: int, limit: int) -> list[RefusedRecord]:
        found = await self._sessions.read(lambda db: db.execute(Sql.READ_REFUSED, (after, limit)).fetchall())
        return [RefusedRecord(OutboxRecord(*record), reason) for *record, reason in found]

    async def outbox_state(self) -> OutboxState:
        return OutboxState(*await self._sessions.read(lambda db: db.execute(Sql.OUTBOX_STATE).fetchone()))
