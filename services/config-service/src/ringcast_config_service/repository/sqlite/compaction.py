"""The steps of compaction in SQLite, whose clock is this process's."""

from __future__ import annotations

import sqlite3
from typing import Any

from ringcast_config_service.repository.compaction import (
    DUTY,
    LEASE_MS,
    PIECE_REVISIONS,
    PIECE_ROWS,
    Duty,
    LostDutyError,
    Moment,
    needless,
    next_piece,
)
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.sqlite.session import Sessions


class SqliteSteps:
    """``holder`` names the process: several may use one file."""

    def __init__(self, sessions: Sessions, holder: str) -> None:
        self._sessions = sessions
        self._holder = holder

    async def take(self, lease_ms: int) -> Duty | None:
        def work(db: sqlite3.Connection) -> Duty | None:
            found = db.execute(Sql.TAKE_DUTY, (DUTY, self._holder, lease_ms)).fetchone()
            return None if found is None else Duty(*found)

        return await self._sessions.write(work)

    async def keep(self, duty: Duty, lease_ms: int, done_ms: int) -> None:
        await self._sessions.write(lambda db: _check(db, duty, lease_ms, done_ms))

    async def drop_tombstones(self, duty: Duty, first: Moment, before_ms: int) -> tuple[int, Moment | None]:
        def work(db: sqlite3.Connection) -> tuple[int, Moment | None]:
            _check(db, duty)
            found: list[Any] = db.execute(Sql.OLD_TOMBSTONES, (*first, before_ms, PIECE_ROWS)).fetchall()
            db.executemany(Sql.RAISE_FLOOR, ((record[0], record[1], record[3]) for record in found))
            dropped = db.executemany(Sql.DELETE_TOMBSTONE, (record[:4] for record in found)).rowcount
            return max(0, dropped), Moment(found[-1][4], found[-1][3]) if len(found) == PIECE_ROWS else None

        return await self._sessions.write(work)

    async def drop_history(self, duty: Duty, after_ms: int, before_ms: int) -> tuple[int, int | None]:
        def work(db: sqlite3.Connection) -> tuple[int, int | None]:
            _check(db, duty)
            found = db.execute(Sql.END_OF_PIECE, (after_ms, before_ms, PIECE_REVISIONS)).fetchone()
            upto, after = next_piece(found and found[0], after_ms, before_ms)
            gone = needless(db.execute(Sql.OLD_HISTORY, (after_ms, upto)))
            if gone:
                db.execute(Sql.RAISE_HORIZON, (upto,))
            return max(0, db.executemany(Sql.DELETE_HISTORY, gone).rowcount), after

        return await self._sessions.write(work)


def _check(db: sqlite3.Connection, duty: Duty, lease_ms: int = LEASE_MS, done_ms: int | None = None) -> None:
    """Fails unless the duty is still ours."""
    done_ms = duty.done_ms if done_ms is None else done_ms
    if not db.execute(Sql.KEEP_DUTY, (DUTY, duty.token, lease_ms, done_ms)).fetchall():
        raise LostDutyError
