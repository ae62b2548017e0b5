"""The steps of compaction in SQLite, whose clock is this process's."""

from __future__ import annotations

import sqlite3
from typing import Any

from ringcast_config_service.repository.compaction import (
    ALL_OTHERS,
    DUTY,
    HORIZON,
    PIECE_REVISIONS,
    PIECE_ROWS,
    Moment,
    Progress,
    Retentions,
    duty_of,
    needless,
    next_piece,
    own_retentions,
)
from ringcast_config_service.repository.lead import Lead
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.sqlite.lead import write_as
from ringcast_config_service.repository.sqlite.session import Sessions


class SqliteSteps:
    """:class:`~ringcast_config_service.repository.compaction.Steps`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def progress(self, store: str) -> Progress:
        params = (duty_of(DUTY, store),)
        found = await self._sessions.read(lambda db: db.execute(Sql.GET_DUTY, params).fetchone())
        return Progress(*found[3:])

    async def retentions(self, lead: Lead) -> Retentions:
        def work(db: sqlite3.Connection) -> Retentions:
            own, marks = own_retentions(db.execute(Sql.OWN_RETENTIONS).fetchall())
            db.executemany(Sql.COPY_DUTY, marks.copies)
            db.executemany(Sql.DROP_DUTY, ((duty,) for duty in marks.drops))
            return own

        return await write_as(self._sessions, lead, work)

    async def done(self, lead: Lead, store: str, done_ms: int) -> None:
        params = (duty_of(DUTY, store), done_ms)
        await write_as(self._sessions, lead, lambda db: db.execute(Sql.DUTY_DONE, params).rowcount)

    async def drop_tombstones(self, lead: Lead, store: str, first: Moment, before_ms: int) -> tuple[int, Moment | None]:
        def work(db: sqlite3.Connection) -> tuple[int, Moment | None]:
            piece = (*first, before_ms, PIECE_ROWS)
            if store == ALL_OTHERS:
                found: list[Any] = db.execute(Sql.OLD_TOMBSTONES, piece).fetchall()
            else:
                found = db.execute(Sql.OLD_TOMBSTONES_OF_STORE, (*piece, store)).fetchall()
            db.executemany(Sql.RAISE_FLOOR, ((record[0], record[1], record[3]) for record in found))
            dropped = db.executemany(Sql.DELETE_TOMBSTONE, (record[:4] for record in found)).rowcount
            return max(0, dropped), Moment(found[-1][4], found[-1][3]) if len(found) == PIECE_ROWS else None

        return await write_as(self._sessions, lead, work)

    async def drop_history(self, lead: Lead, store: str, after_ms: int, before_ms: int) -> tuple[int, int | None]:
        def work(db: sqlite3.Connection) -> tuple[int, int | None]:
            found = db.execute(Sql.END_OF_PIECE, (after_ms, before_ms, PIECE_REVISIONS)).fetchone()
            upto, after = next_piece(found and found[0], after_ms, before_ms)
            if store == ALL_OTHERS:
                old = db.execute(Sql.OLD_HISTORY, (after_ms, upto))
            else:
                old = db.execute(Sql.OLD_HISTORY_OF_STORE, (after_ms, upto, store))
            gone = needless(old)
            if gone:
                db.execute(Sql.RAISE_HORIZON, (duty_of(HORIZON, store), upto))
            return max(0, db.executemany(Sql.DELETE_HISTORY, gone).rowcount), after

        return await write_as(self._sessions, lead, work)
