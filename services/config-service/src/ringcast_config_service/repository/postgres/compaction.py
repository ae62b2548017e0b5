"""The steps of compaction in PostgreSQL and CockroachDB."""

from __future__ import annotations

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
from ringcast_config_service.repository.postgres.session import Connection, Sessions
from ringcast_config_service.repository.postgres.write import columns, count
from ringcast_config_service.repository.sql.statements import Postgres as Sql


class PostgresSteps:
    """``holder`` names the instance."""

    def __init__(self, sessions: Sessions, holder: str) -> None:
        self._sessions = sessions
        self._holder = holder

    async def take(self, lease_ms: int) -> Duty | None:
        async def work(db: Connection) -> Duty | None:
            found = await db.fetchrow(Sql.TAKE_DUTY, DUTY, self._holder, lease_ms)
            return None if found is None else Duty(*found)

        return await self._sessions.transact(work)

    async def keep(self, duty: Duty, lease_ms: int, done_ms: int) -> None:
        await self._sessions.transact(lambda db: _check(db, duty, lease_ms, done_ms))

    async def drop_tombstones(self, duty: Duty, first: Moment, before_ms: int) -> tuple[int, Moment | None]:
        async def work(db: Connection) -> tuple[int, Moment | None]:
            await _check(db, duty)
            found = await db.fetch(Sql.OLD_TOMBSTONES, *first, before_ms, PIECE_ROWS)
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

        return await self._sessions.transact(work)

    async def drop_history(self, duty: Duty, after_ms: int, before_ms: int) -> tuple[int, int | None]:
        async def work(db: Connection) -> tuple[int, int | None]:
            await _check(db, duty)
            end_ms = await db.fetchval(Sql.END_OF_PIECE, after_ms, before_ms, PIECE_REVISIONS)
            upto, after = next_piece(end_ms, after_ms, before_ms)
            gone = needless(await db.fetch(Sql.OLD_HISTORY, after_ms, upto))
            if not gone:
                return 0, after
            await db.execute(Sql.RAISE_HORIZON, upto)
            return count(await db.execute(Sql.DELETE_HISTORY, *columns(gone))), after

        return await self._sessions.transact(work)


async def _check(db: Connection, duty: Duty, lease_ms: int = LEASE_MS, done_ms: int | None = None) -> None:
    """Fails unless the duty is still ours, and locks it to the end of the transaction."""
    done_ms = duty.done_ms if done_ms is None else done_ms
    if await db.fetchval(Sql.KEEP_DUTY, DUTY, duty.token, lease_ms, done_ms) is None:
        raise LostDutyError
