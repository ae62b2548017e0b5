"""A write in PostgreSQL or CockroachDB, within a transaction: lock the heads, read, plan, store.

:mod:`~ringcast_config_service.repository.postgres.session` says why that is right while others write too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final, NamedTuple

import asyncpg
from ringcast_wire import RingcastError, UnavailableError

from ringcast_config_service.repository import budgets, mapping, touched, writes
from ringcast_config_service.repository.base import (
    KeptRows,
    OutboxRecord,
    StagedRows,
    WriteRequest,
    Written,
    ordinals_of,
)
from ringcast_config_service.repository.postgres import copying, new_rows
from ringcast_config_service.repository.postgres.audit import fact_columns
from ringcast_config_service.repository.postgres.new_row_predictor import LEAST_ROWS
from ringcast_config_service.repository.postgres.session import Connection, LostRaceError
from ringcast_config_service.repository.postgres.settling import settle, store_caps
from ringcast_config_service.repository.postgres.write_back import publish_rows, read_kept, write_back
from ringcast_config_service.repository.sql.statements import Postgres as Sql
from ringcast_config_service.repository.value_checks import EnforcedSchema, to_value_schema

_UNLIMITED: Final[list[int | None]] = [None, None]
"""The caps of a head in a store without limits."""


class StoredError(Exception):
    """A row that was taken for new may be there."""


class KnownKey(NamedTuple):
    """A key that an instance has seen in the database.

    It may be out of date: another instance gave the key a new history, or the database was restored while this instance
    ran, and its id is another key's now. :func:`_confirm` sees both.
    """

    key_id: int
    history: str
    partition_count: int


KeyIds = dict[writes.KeyRef, KnownKey]
"""The keys that an instance has seen."""


async def write(
    db: Connection,
    requests: Sequence[WriteRequest],
    now_ms: int,
    known: KeyIds,
    *,
    copies: bool,
    kept: KeptRows | None = None,
    staged: StagedRows | None = None,
) -> tuple[Written, bool]:
    """What became of the requests, and whether all was written and none of the rows stored before.

    ``kept``, ``staged``: where their rows are in the database.
    """
    state = await _locate(db, requests, known)
    await _read_heads_and_rows(db, requests, state, known, kept)
    await _read_schemas(db, requests, state)
    await _read_marks(db, requests, state)
    settled = await settle(db, requests, state, now_ms)
    plan = settled.plan
    key_ids = await _create_keys(db, plan, state)
    await store_caps(db, settled, key_ids)
    ids: Sequence[Sequence[Any]] = ()
    is_sent = kept is None and staged is None
    many = is_sent and copies and len(plan.history) >= LEAST_ROWS
    at_once = is_sent and not many and plan.heads.keys() <= state.heads.keys()
    if plan.rows and not at_once:
        await _store_heads(db, plan, key_ids, state)
    if many:
        await _store_many(db, plan, key_ids, state)
        ids = await _store_events(db, plan)
    elif kept is not None or staged is not None:
        if kept is not None:
            await write_back(db, plan, kept, key_ids)
        elif staged is not None:
            await publish_rows(db, plan, requests, staged, key_ids)
        ids = await _store_events(db, plan) if plan.rows else ()
    elif plan.rows:
        history = columns([(*mapping.from_row(row, key_ids), row.prev) for row in plan.history])
        authors = _authors(plan.history)
        events = *fact_columns(plan.audit), *columns(plan.events)
        params = (*_rows(plan.rows.values(), key_ids), *history, *authors, *events)
        if at_once:
            ids = await db.fetch(Sql.WRITE_WITH_HEADS, *_heads(plan.heads, key_ids), *params)
        else:
            ids = await db.fetch(Sql.WRITE, *params)
    await _store_marks(db, plan)
    return _written(plan, ids), not state.versions and not _refusals(plan)


async def write_new(db: Connection, requests: Sequence[WriteRequest], now_ms: int, known: KeyIds) -> Written:
    """The same for puts of rows that are not stored, which nobody looked for.

    Raises:
        StoredError: one of them may be, and nothing is to be committed: what was planned would be wrong.
    """
    state = await _locate(db, requests, known)
    await _read_heads(db, requests, state, known)
    await _read_schemas(db, requests, state)
    plan, new = await _plan_new(db, requests, state, now_ms)
    settled = await _settle_new(db, plan, state)
    key_ids = await _create_keys(db, plan, state)
    await store_caps(db, settled, key_ids)
    await _store_heads(db, plan, key_ids, state)
    try:
        if new:
            await _store_new(db, new, key_ids)
        else:
            await _store_many(db, plan, key_ids, state)
    except asyncpg.UniqueViolationError as error:
        raise StoredError from error
    await _store_marks(db, plan)
    return _written(plan, await _store_events(db, plan))


async def _store_events(db: Connection, plan: writes.Plan) -> Sequence[Sequence[Any]]:
    """The events, and what the audit log says; the ids of the events."""
    found: Sequence[Sequence[Any]] = await db.fetch(
        Sql.AUDIT_AND_EVENTS, *fact_columns(plan.audit), *columns(plan.events)
    )
    return found


async def _plan_new(
    db: Connection, requests: Sequence[WriteRequest], state: writes.CurrentState, now_ms: int
) -> tuple[writes.Plan, list[new_rows.NewRows]]:
    """The plan, and the rows where it was made column by column: otherwise they are in the plan."""
    if (planned := new_rows.plan_new(requests, state, now_ms)) is not None:
        return planned
    await _read_marks(db, requests, state)
    plan = writes.plan_writes(requests, state, now_ms)
    # A partition is too large, say, which it is not if its rows only change; or all was written before.
    if _refusals(plan) or not plan.rows:
        raise StoredError
    return plan, []


async def _settle_new(db: Connection, plan: writes.Plan, state: writes.CurrentState) -> budgets.Settled:
    """The same for rows that are all new, and a plan that is made.

    Raises:
        StoredError: it does not fit, as far as can be seen at once.
    """
    settled = budgets.Settled(plan, {}, {}, busy=False)
    for store, wanted in sorted(budgets.needs(plan, state).items()):
        found = await db.fetchrow(Sql.LOCK_BUDGET, store)
        made = budgets.grant(wanted, budgets.Budget(*found), plan, state) if found else None
        if made is None:
            raise StoredError
        settled.caps.update(made[0])
        settled.free[store] = made[1]
    return settled


def _written(plan: writes.Plan, ids: Iterable[Sequence[Any]]) -> Written:
    """``ids``: those of the outbox records, each with its event's ``msg_id``."""
    by_msg_id = {msg_id: number for number, msg_id in ids}
    return Written(plan.outcomes, [OutboxRecord(by_msg_id[event.msg_id], *event) for event in plan.events])


def _refusals(plan: writes.Plan) -> bool:
    return any(isinstance(outcome, RingcastError) for outcome in plan.outcomes)


async def _create_keys(db: Connection, plan: writes.Plan, state: writes.CurrentState) -> dict[writes.KeyRef, int]:
    """Stores the keys that are new; the ids of all. Where heads tell writers something of the store they get all their
    heads, which count as there from then on."""
    key_ids = dict(state.keys)
    for key in plan.new_keys:
        key_ids[key] = await db.fetchval(Sql.INSERT_KEY, *key, state.histories[key])
        policy = state.policies[key.store]
        schema_id = state.schema_ids.get(key)
        if budgets.needs_heads(policy) or schema_id is not None:
            caps = budgets.least_caps(policy)
            await db.execute(Sql.FILL_HEADS, key_ids[key], state.partition_counts[key], *caps)
            if policy.releases_only:
                await db.execute(Sql.SET_RELEASES_ONLY, key_ids[key], True)
            if schema_id is not None:
                await db.execute(Sql.SET_SCHEMA, key_ids[key], schema_id)
            state.heads.update((ref, writes.Head()) for ref in plan.heads if ref.key == key)
    return key_ids


async def _store_heads(
    db: Connection, plan: writes.Plan, key_ids: dict[writes.KeyRef, int], state: writes.CurrentState
) -> None:
    """The heads of what is written: those that are locked, and new ones.

    Raises:
        LostRaceError: another transaction was first to write one of the new ones.
    """
    new = {ref: head for ref, head in plan.heads.items() if ref not in state.heads}
    if new and count(await db.execute(Sql.INSERT_HEADS, *_heads(new, key_ids))) < len(new):
        raise LostRaceError([(key_ids[ref.key], ref.partition) for ref in new if ref.key in state.keys])
    if len(new) < len(plan.heads):
        locked = {ref: head for ref, head in plan.heads.items() if ref in state.heads}
        await db.execute(Sql.UPSERT_HEADS, *_heads(locked, key_ids))


def _heads(heads: dict[writes.PartitionRef, writes.Head], key_ids: dict[writes.KeyRef, int]) -> list[list[Any]]:
    return columns([(key_ids[ref.key], ref.partition, *head) for ref, head in heads.items()])


def count(status: str) -> int:
    """The number at the end of a command's status, such as ``INSERT 0 3``."""
    return int(status.rpartition(" ")[2])


def _rows(rows: Iterable[writes.PlannedRow], key_ids: dict[writes.KeyRef, int]) -> list[list[Any]]:
    return columns([(*mapping.from_row(row, key_ids), row.size) for row in rows])


def _authors(history: Sequence[writes.PlannedRow]) -> list[list[str]]:
    """Authors and reasons for INSERT_HISTORY: one entry for all rows where they are the same, as in a bulk write."""
    first = history[0].by
    if all(row.by is first or row.by == first for row in history):
        return columns([first])
    return columns([row.by for row in history])


async def _store_many(
    db: Connection, plan: writes.Plan, key_ids: dict[writes.KeyRef, int], state: writes.CurrentState
) -> None:
    """The last state of each row, and its history. Rows that are not stored yet are copied.

    A row that is not stored can't be by the time it is copied: we have the lock of its partition's head.
    """
    stored, now_ms = state.versions, await db.fetchval(Sql.STAMP_MS)
    new = [row for ref, row in plan.rows.items() if ref not in stored] if stored else list(plan.rows.values())
    common: list[str] = []
    if stored and len(new) < LEAST_ROWS:
        await _upsert_rows(db, plan.rows.values(), key_ids)
    else:
        pieces = copying.planned_pieces(new, key_ids)
        await _copy(db, "rows", copying.ROW_COLUMNS, copying.row_lines(pieces, now_ms, common))
        if len(new) < len(plan.rows):
            await _upsert_rows(db, [row for ref, row in plan.rows.items() if ref in stored], key_ids)
    if len(common) < len(plan.history):  # otherwise each row was written once and none was stored: they are its history
        common = copying.common_columns(plan.history, key_ids)
    ends = copying.planned_ends(plan.history)
    await _copy(db, "history", copying.HISTORY_COLUMNS, copying.history_lines(ends, common, now_ms))


async def _store_new(db: Connection, new: Sequence[new_rows.NewRows], key_ids: dict[writes.KeyRef, int]) -> None:
    """Rows of which none is stored, and their history."""
    now_ms = await db.fetchval(Sql.STAMP_MS)
    common: list[str] = []
    pieces = copying.new_pieces(new, key_ids)
    await _copy(db, "rows", copying.ROW_COLUMNS, copying.row_lines(pieces, now_ms, common))
    await _copy(db, "history", copying.HISTORY_COLUMNS, copying.history_lines(copying.new_ends(new), common, now_ms))


async def _copy(db: Connection, table: str, columns: Sequence[str], lines: AsyncIterator[bytes]) -> None:
    await db.copy_to_table(table, source=lines, columns=columns, format="text")


async def _upsert_rows(db: Connection, rows: Iterable[writes.PlannedRow], key_ids: dict[writes.KeyRef, int]) -> None:
    await db.execute(Sql.UPSERT_ROWS, *_rows(rows, key_ids))


async def _locate(db: Connection, requests: Sequence[WriteRequest], known: KeyIds) -> writes.CurrentState:
    """The stores and keys that the requests name; those that are found are ``known`` from then on.

    A store in which one is not found is locked until the end of the transaction: nobody else adds keys to it.
    """
    state = writes.CurrentState(ordinals=ordinals_of(requests))
    keys = {writes.KeyRef(request.store.name, request.key) for request in requests}
    state.keys = {key: known[key].key_id for key in keys if key in known}
    state.histories = {key: known[key].history for key in state.keys}
    state.remembered = dict(state.histories)
    state.partition_counts = {key: known[key].partition_count for key in state.keys}
    state.stores = {key.store for key in state.keys}
    if unknown := sorted(keys - state.keys.keys()):
        await _find_keys(db, unknown, state, known)
        if missing := [key for key in unknown if key.store in state.stores and _is_missing(key, state)]:
            stores = sorted({key.store for key in missing})
            await db.execute(Sql.LOCK_STORES, stores)
            await _find_keys(db, missing, state, known)
            for store in stores:
                state.key_counts[store] = await db.fetchval(Sql.COUNT_KEYS, store)
                policy = state.policies[store] = mapping.to_policy(await db.fetchval(Sql.GET_POLICY, store))
                if policy.releases_only:
                    state.releases_only.add(store)
            for key in missing:
                if (schema_id := await db.fetchval(Sql.ENFORCED_SCHEMA, *key)) is not None:
                    state.schema_ids[key] = schema_id
    return state


async def _find_keys(db: Connection, keys: Sequence[writes.KeyRef], state: writes.CurrentState, known: KeyIds) -> None:
    """Adds the stores and keys that are there, and which of them are deleted."""
    for record in await db.fetch(Sql.LOCATE_MANY, *columns(keys)):
        store, name, key_id, history, partition_count, *_ = record
        key = writes.KeyRef(store, name)
        if state.add_key(key, key_id, history, partition_count, mapping.deleted(record, *key)):
            known[key] = KnownKey(key_id, history, partition_count)


def _is_missing(key: writes.KeyRef, state: writes.CurrentState) -> bool:
    return key not in state.keys and key not in state.deleted


async def _confirm(db: Connection, state: writes.CurrentState, known: KeyIds) -> None:
    """Looks again for remembered keys, but for those with a head here that names the history that is remembered.

    Histories are random, so such a head is the key's own. Of a key without a head nothing has been seen yet.

    Raises:
        LostRaceError: one of them has another id, or is gone: nothing may be written by the old one.
    """
    seen = {ref.key for ref in state.heads}
    doubtful = {
        key: state.keys[key]
        for key, history in state.remembered.items()
        if key not in seen or state.histories[key] != history
    }
    if not doubtful:
        return
    for key in doubtful:
        known.pop(key, None)
        del state.keys[key]
    await _find_keys(db, sorted(doubtful), state, known)
    if any(state.keys.get(key) != key_id and key not in state.deleted for key, key_id in doubtful.items()):
        raise LostRaceError([])


async def _find_closed(db: Connection, closed: set[writes.KeyRef], state: writes.CurrentState, known: KeyIds) -> None:
    """Why keys are closed that were open when their ids were learned."""
    if not closed:
        return
    for key in closed:
        known.pop(key, None)
    await _find_keys(db, sorted(closed), state, known)
    for key in closed - state.deleted.keys():
        state.deleted[key] = UnavailableError(f"{key.store}/{key.name} is being restored: try again", field="key")


async def _read_heads(
    db: Connection, requests: Sequence[WriteRequest], state: writes.CurrentState, known: KeyIds
) -> None:
    """Adds the heads of what is touched, and locks them."""
    names_of = {key_id: key for key, key_id in state.keys.items()}
    closed: set[writes.KeyRef] = set()
    if places := _partitions(state, requests):
        for record in await db.fetch(Sql.LOCK_HEADS, *columns(places)):
            key_id, partition, *head, history, is_closed, releases_only, schema_id, cap_rows, cap_bytes = record
            key = names_of[key_id]
            ref = writes.PartitionRef(key, partition)
            state.heads[ref] = writes.Head(*head)
            state.histories[key] = history
            if cap_rows is not None or cap_bytes is not None:
                state.caps[ref] = writes.Caps(cap_rows, cap_bytes)
            _note(state, key, releases_only, schema_id)
            if is_closed:
                closed.add(key)
    await _confirm(db, state, known)
    await _find_closed(db, closed, state, known)


def _note(state: writes.CurrentState, key: writes.KeyRef, releases_only: bool | None, schema_id: int | None) -> None:
    """What a head says of its store and key."""
    if releases_only:
        state.releases_only.add(key.store)
    if schema_id is not None:
        state.schema_ids[key] = schema_id


async def _read_schemas(db: Connection, requests: Sequence[WriteRequest], state: writes.CurrentState) -> None:
    """Adds the schemas that values are to be checked against in this transaction."""
    for key in sorted(touched.unchecked_keys(requests, state)):
        version, *schema = await db.fetchrow(Sql.SCHEMA_TEXT, state.schema_ids[key])
        state.schemas[key] = EnforcedSchema(f"{key.store}/{key.name}", version, to_value_schema(*schema))


async def _read_heads_and_rows(
    db: Connection,
    requests: Sequence[WriteRequest],
    state: writes.CurrentState,
    known: KeyIds,
    kept: KeptRows | None,
) -> None:
    """Adds the heads and rows that the requests touch."""
    if kept is not None:
        await _read_heads(db, requests, state, known)
        await read_kept(db, kept, state)
        return
    if any(request.skip_unchanged for request in requests):
        await _read_heads(db, requests, state, known)
        await _read_rows(db, requests, state)
        return
    seen: dict[writes.PartitionRef, int] = {}
    names_of = {key_id: key for key, key_id in state.keys.items()}
    if not (places := _partitions(state, requests)):
        return
    params = (*columns(places), *columns(_places(state, requests)))
    records = await db.fetch(Sql.LOCK_HEADS_AND_SIZES, *params)
    closed: set[writes.KeyRef] = set()
    for key_id, partition, row_id, deleted, number, live_rows, live_bytes, history, *flags in records:
        key = names_of[key_id]
        if row_id is None:
            place = writes.PartitionRef(key, partition)
            if deleted:
                seen[place] = number
            else:
                state.heads[place] = writes.Head(number, live_rows, live_bytes)
                state.histories[key] = history
                is_closed, releases_only, schema_id, *caps = flags
                if caps != _UNLIMITED:
                    state.caps[place] = writes.Caps(*caps)
                _note(state, key, releases_only, schema_id)
                if is_closed:
                    closed.add(key)
            continue
        ref = writes.RowRef(key, row_id)
        state.versions[ref] = live_rows
        if not deleted:
            state.live[ref] = number
    await _confirm(db, state, known)
    await _find_closed(db, closed, state, known)
    if any(head.revision != seen.get(place) for place, head in state.heads.items()):  # others wrote while we waited
        state.live.clear()
        state.versions.clear()
        await _read_rows(db, requests, state)


async def _read_rows(db: Connection, requests: Sequence[WriteRequest], state: writes.CurrentState) -> None:
    """Adds the rows that the requests touch."""
    names_of = {key_id: key for key, key_id in state.keys.items()}
    for statement, compared in ((Sql.ROW_SIZES, False), (Sql.ROW_CONTENTS, True)):
        rows = _places(state, [request for request in requests if request.skip_unchanged is compared])
        for key_id, row_id, deleted, size, version, *content in (
            await db.fetch(statement, *columns(rows)) if rows else ()
        ):
            ref = writes.RowRef(names_of[key_id], row_id)
            state.versions[ref] = version
            if not deleted:
                state.live[ref] = size
                if compared:
                    state.contents[ref] = writes.Content(*content)


async def _read_marks(db: Connection, requests: Sequence[WriteRequest], state: writes.CurrentState) -> None:
    """Adds what is known of the requests' idempotency keys.

    The heads are locked, and this is a statement of its own: an earlier transaction for the same request is seen.
    """
    if marks := touched.touched_marks(requests):
        for store, key, *found in await db.fetch(Sql.READ_MARKS, *columns(marks)):
            state.recorded[writes.MarkRef(store, key)] = writes.Recorded(*found)


async def _store_marks(db: Connection, plan: writes.Plan) -> None:
    """Stores the idempotency keys that are new.

    Raises:
        LostRaceError: another transaction, for another request, was first to store one of them.
    """
    if plan.recorded:
        marks = sorted((*ref, *found) for ref, found in plan.recorded.items())
        if count(await db.execute(Sql.INSERT_MARKS, *columns(marks))) < len(marks):
            raise LostRaceError([])


def _partitions(state: writes.CurrentState, requests: Sequence[WriteRequest]) -> list[tuple[int, int]]:
    """Where the heads stand, in the order in which everybody locks them."""
    refs = touched.touched_partitions(requests)
    return [(state.keys[ref.key], ref.partition) for ref in refs if ref.key in state.keys]


def _places(state: writes.CurrentState, requests: Sequence[WriteRequest]) -> list[tuple[int, int, str]]:
    """Where the rows of requests would stand."""
    found: list[tuple[int, int, str]] = []
    for request in requests:
        key_id = state.keys.get(writes.KeyRef(request.store.name, request.key))
        if key_id is not None:
            found += [(key_id, row.partition, row.row_id) for row in request.rows]
    return found


def columns(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Rows turned into arrays, one a column."""
    return [list(column) for column in zip(*rows, strict=True)]
