"""The steps in which a release is published, written back and removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
from ringcast_wire import (
    ReleaseState,
    RingcastError,
    limits,
)

from ringcast_config_service.repository import audit
from ringcast_config_service.repository.base import (
    Authorship,
    KeptRows,
    RowWrite,
    StagedRows,
    StoreRecord,
    WriteOutcome,
    WriteRequest,
    Written,
)
from ringcast_config_service.repository.packing import unpack_metadata
from ringcast_config_service.repository.release_records import (
    PUBLISH,
    REMOVE,
    UNDO,
    WAVE,
    Release,
    Step,
)
from ringcast_config_service.repository.release_transactions import (
    Ask,
    Note,
    ReleaseStatements,
    Transaction,
    Write,
    check_keys,
    locked,
)

STEP_ROWS: Final = 2_000
"""Rows that one step publishes or writes back: heads are locked for no longer than that takes."""
STEP_BYTES: Final = 4 * limits.MIB
WAVE_ROWS: Final = 100_000
"""Rows of a release of which one step looks for those of its wave."""
REMOVED_ROWS: Final = 5_000
"""Rows of a release that one step removes."""


def step(sql: ReleaseStatements, name: str, number: int, generation: int) -> Transaction[Step]:
    """Does the next piece of what is to be done with a release of a store. ``generation``: as of :class:`WriteRequest`.

    Raises:
        RingcastError: what the write was refused with; nothing of this step is done.
    """
    store, release = yield from locked(sql, name, number)
    if release.work == PUBLISH:
        return (yield from _publish_step(sql, release, store, generation))
    if release.work == WAVE:
        return (yield from _wave_step(sql, release, store, generation))
    if release.work == UNDO:
        return (yield from _undo_step(sql, release, store, generation))
    if release.work == REMOVE:
        return (yield from _remove_step(sql, release))
    return Step(release, True)


def _publish_step(sql: ReleaseStatements, release: Release, store: StoreRecord, generation: int) -> Transaction[Step]:
    place = release.store, release.number
    page = yield Ask(sql.publish_page, (*place, release.reached, STEP_ROWS, STEP_BYTES))
    if not page:
        return (yield from finish(sql, release, ReleaseState.PUBLISHED))
    return (yield from _publish(sql, release, store, generation, page))


def _wave_step(sql: ReleaseStatements, release: Release, store: StoreRecord, generation: int) -> Transaction[Step]:
    """The next rows of the wave that is under way; once there are none, it is at its gate."""
    place, rollout = (release.store, release.number), release.rollout
    assert rollout is not None
    if rollout.at_gate:
        return Step(release, True)
    until = min(release.rows, release.reached + WAVE_ROWS)
    page = yield Ask(sql.wave_page, (*place, release.reached, STEP_ROWS, STEP_BYTES, until, rollout.wave))
    if page:
        return (yield from _publish(sql, release, store, generation, page))
    at_gate = until == release.rows
    rollout = msgspec.structs.replace(rollout, at_gate=at_gate)
    release = replace(release, reached=0 if at_gate else until, rollout=rollout, problem="")
    yield Ask(sql.set_release, release.changes())
    return Step(release, at_gate)


def _publish(
    sql: ReleaseStatements, release: Release, store: StoreRecord, generation: int, page: Sequence[Sequence[Any]]
) -> Transaction[Step]:
    """Publishes a page of rows, and keeps what they hold before."""
    place = release.store, release.number
    keys = sorted({key for _, key, *_ in page})
    yield from check_keys(sql, release, keys)
    rows = [
        (at, key, RowWrite(partition, row_id, value, unpack_metadata(metadata), size if value is not None else 0, base))
        for at, key, partition, row_id, value, metadata, size, base in page
    ]
    by_key: dict[str, list[RowWrite]] = {}
    places: dict[str, list[int]] = {}
    for at, key, write in rows:
        by_key.setdefault(key, []).append(write)
        places.setdefault(key, []).append(at)
    staged = StagedRows(*place, list(places.values()))
    written = yield Write(_requests(release, store, by_key, generation), staged=staged)
    counts = [(key, _stored(outcome)) for key, outcome in zip(by_key, _outcomes(written), strict=True)]
    for key in keys:
        yield Ask(sql.set_release_key, (*place, key))
    yield from check_keys(sql, release, keys)  # the heads are locked now: no key can be purged before the commit
    done = sum(count for _, count in counts)
    release = replace(
        release,
        reached=page[-1][0],
        published=release.published + done,
        skipped=release.skipped + len(rows) - done,
        problem="",
    )
    yield Ask(sql.set_release, release.changes())
    return Step(release, False, written.events, counts)


def _undo_step(sql: ReleaseStatements, release: Release, store: StoreRecord, generation: int) -> Transaction[Step]:
    place = release.store, release.number
    page = yield Ask(sql.undo_page, (*place, release.reached, STEP_ROWS, STEP_BYTES))
    if not page:
        return (yield from finish(sql, release, ReleaseState.UNDONE))
    keys = sorted({key for _, key, *_ in page})
    yield from check_keys(sql, release, keys)
    now: dict[int, int] = {}
    if (yield Ask(sql.other_undone, place)):
        now = dict((yield Ask(sql.same_again, (*place, release.reached, page[-1][0]))))
    places: dict[str, list[int]] = {}
    rows: dict[str, list[RowWrite]] = {}
    for at, key, partition, row_id, deletes, version, base, value, metadata, size in page:
        condition = now.get(at, version)
        if deletes:
            condition = -condition
        before = value if base else None
        write = RowWrite(partition, row_id, before, unpack_metadata(metadata), size if base else 0, condition)
        rows.setdefault(key, []).append(write)
        places.setdefault(key, []).append(at)
    kept = KeptRows(*place, page[-1][0], page[0][0], list(places.values()))
    written = yield Write(_requests(release, store, rows, generation), kept)
    counts = [(key, _stored(outcome)) for key, outcome in zip(rows, _outcomes(written), strict=True)]
    yield from check_keys(sql, release, keys)
    done = sum(count for _, count in counts)
    release = replace(
        release,
        reached=page[-1][0],
        undone=release.undone + done,
        skipped=release.skipped + len(page) - done,
        problem="",
    )
    yield Ask(sql.set_release, release.changes())
    return Step(release, False, written.events, counts)


def _remove_step(sql: ReleaseStatements, release: Release) -> Transaction[Step]:
    place = release.store, release.number
    if (yield Ask(sql.publish_page, (*place, 0, 1, STEP_BYTES))):
        yield Ask(sql.remove_release_rows, (*place, REMOVED_ROWS))
        yield Ask(sql.set_release, release.changes())
        return Step(release, False)
    release = replace(release, work="", kept=False, problem="")
    yield Ask(sql.set_release, release.changes())
    return Step(release, True)


def finish(sql: ReleaseStatements, release: Release, state: ReleaseState) -> Transaction[Step]:
    """Everything is done that was to be done with a release."""
    release = replace(release, state=state, work="", reached=0, problem="")
    yield Ask(sql.set_release, release.changes())
    by = Authorship(release.changed_by, release.change_reason)
    details: dict[str, Any] = {"number": release.number, "skipped": release.skipped}
    details |= {"undone": release.undone} if state is ReleaseState.UNDONE else {"published": release.published}
    yield Note([audit.fact(by, "FinishRelease", release.store, state=str(state), **details)])
    return Step(release, True)


def _requests(
    release: Release, store: StoreRecord, by_key: Mapping[str, Sequence[RowWrite]], generation: int
) -> list[WriteRequest]:
    reason = f"{'undo of release' if release.work == UNDO else 'release'} {release.number}"
    if release.change_reason or (release.work != UNDO and release.reason):
        reason += f": {release.change_reason or release.reason}"
    by = Authorship(release.changed_by, cut_reason(reason))
    number = 0 if release.work == UNDO else release.number
    return [
        WriteRequest(
            store, key, writes, generation=generation, skip_conflicts=True, by=by, release=number, of_release=True
        )
        for key, writes in by_key.items()
    ]


def cut_reason(reason: str) -> str:
    """As much of a reason as may be stored."""
    data = reason.encode()
    if len(data) <= limits.MAX_REASON_BYTES:
        return reason
    return data[: limits.MAX_REASON_BYTES - 3].decode(errors="ignore") + "…"


def _outcomes(written: Written) -> list[WriteOutcome]:
    """What became of each request.

    Raises:
        RingcastError: one was refused.
    """
    found = []
    for outcome in written.outcomes:
        if isinstance(outcome, RingcastError):
            raise outcome
        found.append(outcome)
    return found


def _stored(outcome: WriteOutcome) -> int:
    return outcome.written + outcome.deleted
