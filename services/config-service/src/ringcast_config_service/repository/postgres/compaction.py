"""The steps of compaction in PostgreSQL and CockroachDB."""

from __future__ import annotations

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
from ringcast_config_service.repository.postgres.lead import transact_as
from ringcast_config_service.repository.postgres.session import Connection, Sessions
from ringcast_config_service.repository.postgres.write import columns, count
from ringcast_config_service.repository.sql.statements import Postgres as Sql


class PostgresSteps:
    """:class:`~ringcast_config_service.repository.compaction.Steps`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def progress(self, store: str) -> Progress:
        async with self._sessions.use("upkeep") as db:
            return Progress(*(await db.fetchrow(Sql.GET_DUTY, duty_of(DUTY, store)))[3:])

    async def retentions(self, lead: Lead) -> Retentions:
        async def work(db: Connection) -> Retentions:
            own, marks = own_retentions(await db.fetch(Sql.OWN_RETENTIONS))
            for copy in marks.copies:
                await db.execute(Sql.COPY_DUTY, *copy)
            for duty in marks.drops:
                await db.execute(Sql.DROP_DUTY, duty)
            return own

        return await transact_as(self._sessions, lead, work)

    async def done(self, lead: Lead, store: str, done_ms: int) -> None:
        await transact_as(self._sessions, lead, lambda db: db.execute(Sql.DUTY_DONE, duty_of(DUTY, store), done_ms))

    async def drop_tombstones(self, lead: Lead, store: str, first: Moment, before_ms: int) -> tuple[int, Moment | None]:
        async def work(db: Connection) -> tuple[int, Moment | None]:
            piece = (*first, before_ms, PIECE_ROWS)
            if store == ALL_OTHERS:
                found = await db.fetch(Sql.OLD_TOMBSTONES, *piece)
            else:
                found = await db.fetch(Sql.OLD_TOMBSTONES_OF_STORE, *piece, store)
            if not found:
                return 0, None
            floors: dict[tuple[int, int], int] = {}
            for key_id, partition, _, version, _ in found:
                floors[key_id, partition] = max(version, floors.get((key_id, partition), 0))
            places = sorted(floors)
            await db.execute(Sql.LOCK_HEADS, *columns(places))
            await db.execute(Sql.RAISE_FLOORS, *columns([(*place, floors[place]) for place in places]))
            dropped = count(await db.execute(Sql.DELETE_TOMBSTONES, *columns([record[:4] for record in found])))
            last = Moment(found[-1][4], found[-1][3])
            return dropped, last if len(found) == PIECE_ROWS else None

        return await transact_as(self._sessions, lead, work)

    async def drop_history(self, lead: Lead, store: str, after_ms: int, before_ms: int) -> tuple[int, int | None]:
        async def work(db: Connection) -> tuple[int, int | None]:
            end_ms = await db.fetchval(Sql.END_OF_PIECE, after_ms, before_ms, PIECE_REVISIONS)
            upto, after = next_piece(end_ms, after_ms, before_ms)
            if store == ALL_OTHERS:
                found = await db.fetch(Sql.OLD_HISTORY, after_ms, upto)
            else:
                found = await db.fetch(Sql.OLD_HISTORY_OF_STORE, after_ms, upto, store)
            gone = needless(found)
            if not gone:
                return 0, after
            await db.execute(Sql.RAISE_HORIZON, duty_of(HORIZON, store), upto)
            return count(await db.execute(Sql.DELETE_HISTORY, *columns(gone))), after

        return await transact_as(self._sessions, lead, work)
