"""The waves of a release: which partitions are in each, and how it goes from one to the next.

The partitions that a release writes to are put into an order by a hash of the release and each of them, behind those of
its canary if it has one. A wave is the next so many of that order. Which wave a partition is in is stored when the
release begins to be published. The release says which wave is under way: those before it are published, and none of
those behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import msgspec
from ringcast_wire import KeyCertificate, ReleaseState, Rollout

from ringcast_config_service.repository.base import SERVICE, Authorship
from ringcast_config_service.repository.packing import unpack_metadata
from ringcast_config_service.repository.release_proofs import still_holds, store_proof, with_proof
from ringcast_config_service.repository.release_records import LAY, UNDO, WAVE, Release, StagedFound, StagedPage
from ringcast_config_service.repository.release_steps import cut_reason, finish
from ringcast_config_service.repository.release_transactions import (
    Ask,
    Note,
    ReleaseStatements,
    Transaction,
    begin,
    fact_of,
    locked,
    to_only_release,
    wrong_state,
)


def partitions(sql: ReleaseStatements, store: str, number: int) -> Transaction[list[int]]:
    """The partitions that a release has rows for."""
    return [partition for (partition,) in (yield Ask(sql.release_partitions, (store, number)))]


def key_partitions(sql: ReleaseStatements, store: str, number: int) -> Transaction[dict[str, set[int]]]:
    """The partitions of each key that a release has rows for."""
    found: dict[str, set[int]] = {}
    for key, partition in (yield Ask(sql.release_key_partitions, (store, number))):
        found.setdefault(key, set()).add(partition)
    return found


def staged_rows(
    sql: ReleaseStatements,
    store: str,
    number: int,
    key: str,
    numbers: Collection[int],
    after: int,
    limit: int,
    max_bytes: int,
) -> Transaction[list[StagedFound]]:
    """Rows that a staged release has for some partitions of a key, behind a place.

    Raises:
        ConditionFailedError: it is not staged.
    """
    release = to_only_release((yield Ask(sql.get_release, (store, number))), store, number)
    if release.state is not ReleaseState.STAGED:
        raise wrong_state(release, "looked at by workers")
    return (yield from _waiting_rows(sql, release, key, numbers, after, limit, max_bytes))


def provisional_rows(
    sql: ReleaseStatements,
    store: str,
    number: int,
    key: str,
    numbers: Collection[int],
    after: int,
    limit: int,
    max_bytes: int,
) -> Transaction[StagedPage]:
    """Rows that are to be laid over, of some partitions of a key, behind a place; none once that is over.

    Raises:
        ConditionFailedError: it is published without such rows.
    """
    release = to_only_release((yield Ask(sql.get_release, (store, number))), store, number)
    if release.state is ReleaseState.PUBLISHING and not release.is_laid_over:
        raise wrong_state(release, "laid over")
    if release.state is not ReleaseState.PUBLISHING or not numbers:
        return StagedPage(release.state, [])
    rows = yield from _waiting_rows(sql, release, key, numbers, after, limit, max_bytes)
    return StagedPage(release.state, rows)


def _waiting_rows(
    sql: ReleaseStatements,
    release: Release,
    key: str,
    numbers: Collection[int],
    after: int,
    limit: int,
    max_bytes: int,
) -> Transaction[list[StagedFound]]:
    store, number = release.store, release.number
    chosen = "".join("01"[each in numbers] for each in range(max(numbers, default=-1) + 1))
    records = yield Ask(sql.staged_page, (store, number, key, after, chosen, limit, max_bytes))
    return [
        StagedFound(place, partition, row_id, value, unpack_metadata(metadata), base)
        for place, partition, row_id, value, metadata, base in records
    ]


def pause(sql: ReleaseStatements, store: str, number: int, by: Authorship) -> Transaction[Release]:
    """Has no more rows published until :func:`resume`; what is paused stays so.

    Raises:
        ConditionFailedError: it is not being published in waves.
    """
    release, rollout = yield from _under_way(sql, store, number, "paused")
    if rollout.paused:
        return release
    release = replace(release, rollout=msgspec.structs.replace(rollout, paused=True, waits_for=""))
    return (yield from begin(sql, release, release.state, "", release.reached, by, "PauseRelease"))


def resume(sql: ReleaseStatements, store: str, number: int, by: Authorship) -> Transaction[Release]:
    """Lets a release go on where it was paused; one that is not paused stays as it is.

    Raises:
        ConditionFailedError: it is not being published in waves.
    """
    release, rollout = yield from _under_way(sql, store, number, "resumed")
    if not rollout.paused:
        return release
    release = replace(release, rollout=msgspec.structs.replace(rollout, paused=False))
    work = LAY if release.is_only_laid_over else WAVE
    return (yield from begin(sql, release, release.state, work, release.reached, by, "ResumeRelease"))


def stop(sql: ReleaseStatements, store: str, number: int, by: Authorship) -> Transaction[Release]:
    """Has no more rows published; what is stopped stays so.

    Raises:
        ConditionFailedError: it is not being published in waves.
    """
    _, release = yield from locked(sql, store, number)
    if release.state is ReleaseState.STOPPED:
        return release
    release, rollout = yield from _under_way(sql, store, number, "stopped")
    release = replace(release, rollout=msgspec.structs.replace(rollout, paused=False, waits_for=""))
    return (yield from begin(sql, release, ReleaseState.STOPPED, "", 0, by, "StopRelease"))


def pass_gate(
    sql: ReleaseStatements, store: str, number: int, wave: int, proven: Sequence[KeyCertificate], instance: str
) -> Transaction[Release]:
    """Lets the next wave begin, or ends the release; nothing if it is not at the gate of this wave any more.

    The last wave is the whole release: then ``proven`` is stored with it, as long as it holds for its keys.
    """
    _, release = yield from locked(sql, store, number)
    rollout = release.rollout
    if rollout is None or not release.at_gate or rollout.wave != wave:
        return release
    yield Note([fact_of(SERVICE, "PassWave", release)])
    passed = msgspec.structs.replace(rollout, at_gate=False, waits_for="")
    if wave == len(rollout.waves):
        done = yield from finish(sql, replace(release, rollout=passed), ReleaseState.PUBLISHED)
        if proven and (yield from still_holds(sql, done.release, proven)):
            yield from store_proof(sql, done.release, proven, instance)
        return (yield from with_proof(sql, done.release))
    release = replace(release, work=WAVE, reached=0, rollout=msgspec.structs.replace(passed, wave=wave + 1))
    yield Ask(sql.set_release, release.changes())
    return release


def fail_gate(sql: ReleaseStatements, store: str, number: int, wave: int, why: str) -> Transaction[Release]:
    """Lets a release be undone, by the service; nothing if it is not at the gate of this wave any more."""
    _, release = yield from locked(sql, store, number)
    rollout = release.rollout
    if rollout is None or not release.at_gate or rollout.wave != wave:
        return release
    by = Authorship(SERVICE.author, cut_reason(f"the gate of wave {wave} failed: {why}"))
    failed = msgspec.structs.replace(rollout, at_gate=False, waits_for="", failure=why)
    release = replace(release, rollout=failed)
    yield Note([fact_of(by, "FailGate", release)])
    return (yield from begin(sql, release, ReleaseState.UNDOING, UNDO, release.rows + 1, by, "UndoRelease"))


def note_gate(sql: ReleaseStatements, store: str, number: int, wave: int, waits_for: str) -> Transaction[bool]:
    """Notes what a wave waits for at its gate; ``False``: it is not there any more."""
    _, release = yield from locked(sql, store, number)
    rollout = release.rollout
    if rollout is None or not release.at_gate or rollout.wave != wave:
        return False
    release = replace(release, rollout=msgspec.structs.replace(rollout, waits_for=waits_for), problem="")
    yield Ask(sql.set_release, release.changes())
    return True


def _under_way(sql: ReleaseStatements, store: str, number: int, what: str) -> Transaction[tuple[Release, Rollout]]:
    _, release = yield from locked(sql, store, number)
    if release.state is not ReleaseState.PUBLISHING or release.rollout is None:
        raise wrong_state(release, what)
    return release, release.rollout
