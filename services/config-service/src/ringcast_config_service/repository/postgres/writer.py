"""Writes in PostgreSQL and CockroachDB: the transaction that a group takes, and what is known from earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import asyncpg

from ringcast_config_service.repository.base import WriteRequest, Written
from ringcast_config_service.repository.postgres import write as writing
from ringcast_config_service.repository.postgres.history import RecordWatch
from ringcast_config_service.repository.postgres.new_row_predictor import NewRowPredictor
from ringcast_config_service.repository.postgres.session import Sessions


class PostgresWriter:
    """:class:`~ringcast_config_service.repository.parts.RowWriter`; ``watch`` refuses what was let in too early."""

    def __init__(self, sessions: Sessions, watch: RecordWatch) -> None:
        self._sessions = sessions
        self._watch = watch
        self._keys: writing.KeyIds = {}
        self.new_row_predictor = NewRowPredictor()

    def forget_keys(self) -> None:
        """The database may be another one by now: keys are looked up again."""
        self._keys.clear()

    async def write(self, requests: Sequence[WriteRequest], now_ms: int) -> Written:
        try:
            try:
                return await self._written(requests, now_ms)
            except asyncpg.ForeignKeyViolationError:  # a key that was known here is purged, or was just now its store
                self._keys.clear()
                return await self._written(requests, now_ms)
        except Exception:
            self._keys.clear()  # whatever it was, they are looked up again
            raise

    async def _written(self, requests: Sequence[WriteRequest], now_ms: int) -> Written:
        keys, copies = self._keys, self._sessions.is_postgres  # CockroachDB's COPY can't do all of this
        if guessed := copies and self.new_row_predictor.expects(requests):
            with suppress(writing.StoredError):
                return await self._sessions.transact(
                    lambda db: writing.write_new(self._watch.fresh(db, requests), requests, now_ms, keys),
                    "writes",
                )
            self.new_row_predictor.miss(requests)
        written, all_new = await self._sessions.transact(
            lambda db: writing.write(self._watch.fresh(db, requests), requests, now_ms, keys, copies=copies),
            "writes",
        )
        if not guessed:
            self.new_row_predictor.learn(requests, all_new)
        return written

    @property
    def write_lanes(self) -> int:
        return self._sessions.size("writes")
