"""How PostgreSQL and CockroachDB store what a release has staged, or has kept: its values stay in the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ringcast_config_service.repository.base import NOBODY, KeptRows, StagedRows, WriteRequest
from ringcast_config_service.repository.postgres.session import Connection
from ringcast_config_service.repository.sql.statements import Postgres as Sql
from ringcast_config_service.repository.writes import CurrentState, KeyRef, Plan, RowRef, versions_of, written_back


async def read_kept(db: Connection, kept: KeptRows, state: CurrentState) -> None:
    """Adds the rows of a release as they are now; their heads are locked."""
    for key, key_id in state.keys.items():
        for row_id, deleted, size, version in await db.fetch(Sql.KEPT_SIZES, *kept.span, key.name, key_id):
            ref = RowRef(key, row_id)
            state.versions[ref] = version
            if not deleted:
                state.live[ref] = size


async def write_back(db: Connection, plan: Plan, kept: KeptRows, key_ids: Mapping[KeyRef, int]) -> None:
    """Stores the rows of a plan, their history, and in the rows of the release what became of each."""
    ids, revisions, before = ([0] * (kept.last - kept.first + 1) for _ in range(3))
    for place, row in written_back(plan, kept):
        at = place - kept.first
        ids[at], revisions[at], before[at] = key_ids[row.key], row.version, row.prev
    by = plan.history[0].by if plan.history else NOBODY
    status = await db.execute(Sql.WRITE_BACK, *kept.span, ids, revisions, before, *by)
    assert status == f"INSERT 0 {len(plan.history)}", f"{status}: {len(plan.history)} rows were to be written back"


async def publish_rows(
    db: Connection,
    plan: Plan,
    requests: Sequence[WriteRequest],
    staged: StagedRows,
    key_ids: Mapping[KeyRef, int],
) -> None:
    """Stores the rows of a plan, their history, and in the rows of the release what became of each, and what it was."""
    by = plan.history[0].by if plan.history else NOBODY
    keys = {key.name: key_id for key, key_id in key_ids.items()}
    names = {
        place: (request.key, row.row_id)
        for request, places in zip(requests, staged.places, strict=True)
        for place, row in zip(places, request.rows, strict=True)
    }
    rows = [(place, *names[place], version) for place, version in versions_of(plan, staged.places)]
    columns = map(list, zip(*rows, strict=True)) if rows else ([], [], [], [])
    words = staged.store, staged.number, *columns, [*keys], [*keys.values()]
    status = await db.execute(Sql.PUBLISH_ROWS, *words, *by)
    assert status == f"INSERT 0 {len(plan.history)}", f"{status}: {len(plan.history)} rows were to be published"
