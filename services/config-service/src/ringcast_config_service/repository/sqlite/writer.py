"""Writes in SQLite: one transaction at a time, so that what is read stays as it is until the commit."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

from ringcast_config_service.repository import budgets, mapping, packing, touched, writes
from ringcast_config_service.repository.base import (
    KeptRows,
    OutboxRecord,
    StagedRows,
    WriteRequest,
    Written,
    ordinals_of,
)
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.sqlite.audit import add_facts
from ringcast_config_service.repository.sqlite.session import Sessions
from ringcast_config_service.repository.value_checks import EnforcedSchema, to_value_schema


class SqliteWriter:
    """:class:`~ringcast_config_service.repository.parts.RowWriter`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def write(self, requests: Sequence[WriteRequest], now_ms: int) -> Written:
        return await self._sessions.write(lambda db: write(db, requests, now_ms))

    @property
    def write_lanes(self) -> int:
        return 1  # a file has one writer


def write(
    db: sqlite3.Connection,
    requests: Sequence[WriteRequest],
    now_ms: int,
    kept: KeptRows | None = None,
    staged: StagedRows | None = None,
) -> Written:
    """What became of the requests, within a transaction. ``kept``, ``staged``: where their rows are in the database."""
    state = _read_state(db, requests, kept)
    settled = _settle(db, requests, state, now_ms)
    plan = settled.plan
    stamp_ms = int(time.time() * 1000)
    key_ids = dict(state.keys)
    for key in plan.new_keys:
        key_ids[key] = db.execute(Sql.INSERT_KEY, (*key, state.histories[key])).fetchone()[0]
        policy, schema_id = state.policies[key.store], state.schema_ids.get(key)
        if budgets.has_limits(policy) or schema_id is not None:
            fill_heads(db, key_ids[key], state.partition_counts[key], budgets.least_caps(policy))
        if schema_id is not None:
            db.execute(Sql.SET_SCHEMA, (key_ids[key], schema_id))
    db.executemany(Sql.SET_CAP, ((key_ids[ref.key], ref.partition, *caps) for ref, caps in settled.caps.items()))
    db.executemany(Sql.SET_FREE, ((store, *free) for store, free in settled.free.items()))
    db.executemany(Sql.INSERT_MARK, ((*ref, *found, stamp_ms) for ref, found in plan.recorded.items()))
    db.executemany(Sql.UPSERT_HEAD, ((key_ids[ref.key], ref.partition, *head) for ref, head in plan.heads.items()))
    if kept is not None:
        _write_back(db, plan, kept, key_ids, stamp_ms)
    else:
        if staged is not None:
            _note_published(db, plan, requests, staged, key_ids)
        _store_rows(db, plan, key_ids, stamp_ms)
    add_facts(db, plan.audit)
    events = [OutboxRecord(_inserted(db, Sql.INSERT_OUTBOX, (*event, stamp_ms)), *event) for event in plan.events]
    return Written(plan.outcomes, events)


def _store_rows(db: sqlite3.Connection, plan: writes.Plan, key_ids: dict[writes.KeyRef, int], stamp_ms: int) -> None:
    rows = plan.rows.values()
    db.executemany(Sql.UPSERT_ROW, ((*mapping.from_row(row, key_ids), row.size, stamp_ms) for row in rows))
    db.executemany(
        Sql.INSERT_HISTORY,
        (
            (*mapping.from_row(row, key_ids), row.prev, *mapping.from_authorship(row.by), stamp_ms)
            for row in plan.history
        ),
    )


def _write_back(
    db: sqlite3.Connection, plan: writes.Plan, kept: KeptRows, key_ids: dict[writes.KeyRef, int], stamp_ms: int
) -> None:
    """The same of rows that a release has kept: their values stay in the database."""
    back = writes.written_back(plan, kept)
    db.executemany(Sql.SET_UNDONE, [(kept.store, kept.number, place, row.version) for place, row in back])
    db.execute(Sql.SET_KEPT, kept.span)
    written = 0
    for key in {row.key for _, row in back}:
        words = *kept.span, key.name, key_ids[key]
        by = mapping.from_authorship(back[0][1].by)
        written += db.execute(Sql.WRITE_BACK_HISTORY, (*words, *by, stamp_ms)).rowcount
        db.execute(Sql.WRITE_BACK_ROWS, (*words, stamp_ms))
    assert written == len(back), f"{written} rows were written back, not {len(back)}"


def _note_published(
    db: sqlite3.Connection,
    plan: writes.Plan,
    requests: Sequence[WriteRequest],
    staged: StagedRows,
    key_ids: dict[writes.KeyRef, int],
) -> None:
    """Keeps what rows hold that a release is to publish, and notes what becomes of them."""
    ids = [key_ids.get(writes.KeyRef(request.store.name, request.key)) for request in requests]
    versions = writes.versions_of(plan, staged.places)
    written = {place for place, version in versions if version}
    bases = [
        (staged.store, staged.number, place, key_id)
        for key_id, places in zip(ids, staged.places, strict=True)
        for place in places
        if place in written
    ]
    db.executemany(Sql.KEEP_OLD_ROW, bases)
    outcomes = ((place, "published" if version else "skipped", version) for place, version in versions)
    db.executemany(Sql.SET_PUBLISHED, ((staged.store, staged.number, *outcome) for outcome in outcomes))


def fill_heads(db: sqlite3.Connection, key_id: int, partition_count: int, caps: writes.Caps) -> None:
    """Creates the heads of a key that are missing."""
    db.executemany(Sql.FILL_HEAD, ((key_id, partition, *caps) for partition in range(partition_count)))


def _settle(
    db: sqlite3.Connection, requests: Sequence[WriteRequest], state: writes.CurrentState, now_ms: int
) -> budgets.Settled:
    """The plan within the limits of the stores."""
    steps = budgets.plan_within(requests, state, now_ms)
    try:
        look = next(steps)
        while True:
            look = steps.send(_look(db, look))
    except StopIteration as end:
        settled: budgets.Settled = end.value
        return settled


def _look(db: sqlite3.Connection, look: budgets.Look) -> budgets.Budget | budgets.StoreUse | None:
    if look.take_back:
        db.execute(Sql.TAKE_BACK, (look.store,))
        return budgets.StoreUse(*db.execute(Sql.STORE_USE, (look.store,)).fetchone())
    found = db.execute(Sql.LOCK_BUDGET, (look.store,)).fetchone()
    return budgets.Budget(*found) if found else None


def _inserted(db: sqlite3.Connection, statement: str, params: tuple[object, ...]) -> int:
    """Inserts a row and returns its id."""
    number = db.execute(statement, params).lastrowid
    assert number is not None
    return number


def _read_state(db: sqlite3.Connection, requests: Sequence[WriteRequest], kept: KeptRows | None) -> writes.CurrentState:
    state = writes.CurrentState(ordinals=ordinals_of(requests))
    for key in {writes.KeyRef(request.store.name, request.key) for request in requests}:
        found = db.execute(Sql.LOCATE, key).fetchone()
        if found is None:
            continue
        partition_count, key_id, history, *_ = found
        is_there = state.add_key(key, key_id, history, partition_count, mapping.deleted(found, *key))
        if is_there or key in state.deleted:
            continue
        if key.store not in state.key_counts:
            state.key_counts[key.store] = db.execute(Sql.COUNT_KEYS, (key.store,)).fetchone()[0]
            state.policies[key.store] = mapping.to_policy(db.execute(Sql.GET_POLICY, (key.store,)).fetchone()[0])
        if (schema := db.execute(Sql.ENFORCED_SCHEMA, key).fetchone()) is not None:
            state.schema_ids[key] = schema[0]
    for store in {request.store.name for request in requests if not request.of_release}:
        found = db.execute(Sql.GET_POLICY, (store,)).fetchone()
        if found is not None and mapping.to_policy(found[0]).releases_only:
            state.releases_only.add(store)
    for ref in touched.touched_partitions(requests):
        if (key_id := state.keys.get(ref.key)) is not None:
            found = db.execute(Sql.GET_HEAD, (key_id, ref.partition)).fetchone()
            if found:
                *head, schema_id, cap_rows, cap_bytes = found
                state.heads[ref] = writes.Head(*head)
                if schema_id is not None:
                    state.schema_ids[ref.key] = schema_id
                if cap_rows is not None or cap_bytes is not None:
                    state.caps[ref] = writes.Caps(cap_rows, cap_bytes)
    for key in touched.unchecked_keys(requests, state):
        version, *schema = db.execute(Sql.SCHEMA_TEXT, (state.schema_ids[key],)).fetchone()
        state.schemas[key] = EnforcedSchema(f"{key.store}/{key.name}", version, to_value_schema(*schema))
    if kept is None:
        _read_rows(db, requests, state)
    else:
        _read_kept(db, kept, state)
    for mark in touched.touched_marks(requests):
        found = db.execute(Sql.READ_MARK, mark).fetchone()
        if found:
            state.recorded[mark] = writes.Recorded(*found)
    return state


def _read_rows(db: sqlite3.Connection, requests: Sequence[WriteRequest], state: writes.CurrentState) -> None:
    """Adds the rows that the requests touch."""
    statement = Sql.STORED_CONTENTS if any(request.skip_unchanged for request in requests) else Sql.STORED_SIZES
    for place, ids in touched.touched_rows(requests).items():
        if (key_id := state.keys.get(place.key)) is not None:
            found = db.execute(statement, (key_id, place.partition, packing.pack_ids(ids)))
            for row_id, deleted, version, size, *content in found:
                row = writes.RowRef(place.key, row_id)
                state.versions[row] = version
                if not deleted:
                    state.live[row] = size
                    if content:
                        state.contents[row] = writes.Content(*content)


def _read_kept(db: sqlite3.Connection, kept: KeptRows, state: writes.CurrentState) -> None:
    """The same of rows that a release has kept."""
    for key, key_id in state.keys.items():
        for row_id, deleted, version, size in db.execute(Sql.KEPT_SIZES, (*kept.span, key.name, key_id)):
            row = writes.RowRef(key, row_id)
            state.versions[row] = version
            if not deleted:
                state.live[row] = size
