"""The outbox in PostgreSQL and CockroachDB.

The relay's statements are transactions of their own: one that it sends from would keep its locks for as long as the
broker takes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ringcast_config_service.repository.base import OutboxRecord, OutboxSpan, OutboxState, RefusedRecord
from ringcast_config_service.repository.postgres.session import Sessions
from ringcast_config_service.repository.sql.statements import Postgres as Sql


class PostgresOutbox:
    """:class:`~ringcast_config_service.repository.parts.OutboxRepository`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def outbox_spans(self) -> list[OutboxSpan]:
        return [OutboxSpan(*span) for span in await self._one_statement(Sql.OUTBOX_SPANS)]

    async def outbox(self, store: str, after: int, limit: int, max_bytes: int) -> list[OutboxRecord]:
        records = await self._one_statement(Sql.READ_OUTBOX, store, after, limit, max_bytes)
        return [OutboxRecord(*record) for record in records]

    async def claim_outbox(self, store: str, holder: str, lease_ms: int) -> bool:
        return bool(await self._one_statement(Sql.CLAIM_OUTBOX, store, holder, lease_ms))

    async def release_outbox(self, holder: str) -> None:
        await self._one_statement(Sql.RELEASE_OUTBOX, holder)

    async def delete_events(self, ids: Sequence[int]) -> None:
        await self._one_statement(Sql.DELETE_OUTBOX, list(ids))

    async def refuse_event(self, event_id: int, reason: str) -> None:
        async with self._sessions.use("upkeep") as db, db.transaction(isolation="read_committed"):
            await db.execute(Sql.REFUSE_OUTBOX, event_id, reason)
            await db.execute(Sql.DELETE_OUTBOX, [event_id])
            await db.execute(Sql.FORGET_REFUSED)

    async def refused_events(self, after: int, limit: int) -> list[RefusedRecord]:
        found = await self._one_statement(Sql.READ_REFUSED, after, limit)
        return [RefusedRecord(OutboxRecord(*record), reason) for *record, reason in found]

    async def outbox_state(self) -> OutboxState:
        async with self._sessions.snapshot("fetches") as db:
            depth, age_ms = await db.fetchrow(Sql.OUTBOX_STATE)
            return OutboxState(depth, None if age_ms is None else int(time.time() * 1000) - age_ms)

    async def _one_statement(self, statement: str, *params: object) -> list[Any]:
        async with self._sessions.use("upkeep") as db:
            return list(await db.fetch(statement, *params))
