"""What becomes of a release, decided without a database.

A release is staged rows that have no revision yet. Publishing and undoing are a row of steps, each a transaction: it
locks the release, takes the next rows in their order, writes them as any write is written, notes in each what became of
it, and notes in the release how far it is. So a step happened as a whole or not at all, whatever dies. The next one
goes on where the last one ended, in whichever instance; and of two instances at one release one waits for the other.

A row is published only if it is at the version that its change was made for, and written back only if it is at the
version that it was published with. This is checked where writes are decided, with the heads locked. What it held before
is kept with the release, so an undo needs no history.

The steps are in :mod:`~ringcast_config_service.repository.release_steps`; here is what callers have done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
from ringcast_wire import (
    ConditionFailedError,
    InvalidInputError,
    LimitExceededError,
    ReleaseGate,
    ReleaseOutcome,
    ReleaseState,
    UnavailableError,
    limits,
    shown,
)

from ringcast_config_service.repository import mapping
from ringcast_config_service.repository.base import (
    SERVICE,
    Authorship,
    StoreRecord,
)
from ringcast_config_service.repository.packing import pack_metadata, unpack_metadata
from ringcast_config_service.repository.release_approvals import HOST, check_approved, digest_after, with_approvals
from ringcast_config_service.repository.release_checks import check_shares, check_values
from ringcast_config_service.repository.release_draw import Canary, draw, wave_ends
from ringcast_config_service.repository.release_duplicates import Compared, check_duplicates, is_still_unique
from ringcast_config_service.repository.release_pins import check_room, with_pin
from ringcast_config_service.repository.release_proofs import with_proof
from ringcast_config_service.repository.release_records import (
    LAY,
    PUBLISH,
    REMOVE,
    UNDO,
    WAVE,
    Release,
    ReleaseRow,
    StageBatch,
    StagedRow,
)
from ringcast_config_service.repository.release_transactions import (
    Ask,
    Each,
    Insert,
    Note,
    ReleaseStatements,
    Transaction,
    begin,
    check_keys,
    check_store,
    fact_of,
    locked,
    to_only_release,
    to_release,
    with_keys,
    wrong_state,
)

NAMED_CONFLICTS: Final = 10
_CONDITIONS_KNOWN_FROM: Final = 13
"""From which version of the schema on a build knows PromQL conditions; one of before would judge a gate without."""
_BUSY: Final = {ReleaseState.PUBLISHING, ReleaseState.PUBLISHED}
_DROPPABLE: Final = {ReleaseState.STAGING, ReleaseState.STAGED}


# ---- staging


def stage(sql: ReleaseStatements, store: StoreRecord, batch: StageBatch, by: Authorship) -> Transaction[Release]:
    """Stores a batch, unless it is there; the first one creates the release, the last one completes it.

    Raises:
        InvalidInputError: the release is complete, or another principal's; or the batch is not the next one, or is
            stored with other rows, or a row comes twice.
        LimitExceededError: there are too many open releases, or too many since the pinned one, or the release has too
            many rows or bytes.
    """
    yield Ask(sql.lock_store_name, (store.name,))
    found = yield Ask(sql.get_store, (store.name,))
    record = mapping.only_record(found[0] if found else None, store.name)
    if record.partition_count != store.partition_count:
        raise UnavailableError(f"store {store.name!r} was purged and created again just now: try again")
    release = yield from _staging(sql, store.name, batch, by)
    if release.author != by.author and not release.author.startswith(HOST):
        raise InvalidInputError(
            f"stage_id {shown(batch.stage_id)} is that of {release.place}, which another principal has begun",
            field="stage_id",
        )
    if batch.sequence == release.batches - 1:
        yield from _check_same(sql, release, batch)
        return (yield from with_keys(sql, release))
    if release.state is not ReleaseState.STAGING:
        raise InvalidInputError(f"stage_id {shown(batch.stage_id)} is that of {release.place}, which is complete")
    if batch.sequence != release.batches:
        raise InvalidInputError(
            f"sequence {batch.sequence} is not the next one: {release.place} has {release.batches} batches",
            field="sequence",
        )
    before = release.rows
    release = replace(
        release,
        rows=before + len(batch.rows),
        bytes=release.bytes + sum(staged.row.size for staged in batch.rows),
        batches=release.batches + 1,
        digest=digest_after(release.digest, before, batch.rows),
    )
    _check_size(release)
    if batch.rows:
        twice = f"a row comes twice in {release.place}: nothing of this batch is staged"
        rows = [*_columns(release, before, batch.rows)]
        yield Insert(sql.insert_release_rows, rows, InvalidInputError(twice, field="rows"))
    if batch.complete:
        if not release.rows:
            raise InvalidInputError("a release without rows can't be staged", field="rows")
        release = replace(release, state=ReleaseState.STAGED)
        yield Ask(sql.insert_release_keys, (release.store, release.number))
        yield from check_shares(sql, release, record.policy, "staged")
        yield Note([fact_of(Authorship(release.author, release.reason), "StageRelease", release)])
    yield Ask(sql.set_release, release.changes())
    return (yield from with_keys(sql, release))


def _staging(sql: ReleaseStatements, store: str, batch: StageBatch, by: Authorship) -> Transaction[Release]:
    """The release that a batch belongs to, locked; a new one for the first batch."""
    found = yield Ask(sql.find_stage, (store, batch.stage_id))
    if not found and batch.sequence == 0:
        ((number, pinned),) = yield Ask(sql.next_release, (store,))
        # Another call may have created it while this one waited for the number.
        found = yield Ask(sql.find_stage, (store, batch.stage_id))
        if not found:
            check_room(store, number, pinned)
            ((opened,),) = yield Ask(sql.count_open_releases, (store,))
            if opened >= limits.MAX_OPEN_RELEASES:
                raise LimitExceededError(
                    f"store {store!r} has {opened} releases that are staged or under way, the limit is "
                    f"{limits.MAX_OPEN_RELEASES}: publish or drop one",
                    field="store",
                )
            yield Ask(sql.insert_release, (store, number, batch.stage_id, by.author, by.reason))
            yield Ask(sql.forget_releases, (store, number - limits.MAX_KEPT_RELEASES))
            yield Ask(sql.forget_release_keys, (store, number - limits.MAX_KEPT_RELEASES))
            yield Ask(sql.forget_release_partitions, (store, number - limits.MAX_KEPT_RELEASES))
            yield Ask(sql.forget_release_proofs, (store,))
            yield Ask(sql.forget_approvals, (store,))
            found = yield Ask(sql.find_stage, (store, batch.stage_id))
    if not found:
        raise InvalidInputError(
            f"store {store!r} has no release with stage_id {shown(batch.stage_id)}", field="stage_id"
        )
    return to_release(found[0])


def _check_same(sql: ReleaseStatements, release: Release, batch: StageBatch) -> Transaction[None]:
    """Refuses a batch with the number of the last one that is another batch."""
    if release.work == REMOVE or not release.kept:
        raise InvalidInputError(
            f"stage_id {shown(batch.stage_id)} is that of {release.place}, which is {release.state}", field="stage_id"
        )
    before = release.rows - len(batch.rows)
    same = before >= 0 and (batch.sequence > 0 or before == 0)
    same = same and batch.complete == (release.state is not ReleaseState.STAGING)
    if same:
        place = release.store, release.number
        page = yield Ask(sql.publish_page, (*place, before, len(batch.rows), limits.MAX_RELEASE_BYTES))
        stored = [(key, row_id, value, unpack_metadata(data), base) for _, key, _, row_id, value, data, _, base in page]
        same = stored == [
            (key, row.row_id, row.value, row.metadata or None, row.condition or 0) for key, row in batch.rows
        ]
    if not same:
        raise InvalidInputError(
            f"sequence {batch.sequence} of {release.place} is staged with other rows: nothing of this batch is staged",
            field="sequence",
        )


def _check_size(release: Release) -> None:
    for what, value, most in (
        ("rows", release.rows, limits.MAX_RELEASE_ROWS),
        ("bytes", release.bytes, limits.MAX_RELEASE_BYTES),
    ):
        if value > most:
            raise LimitExceededError(f"{release.place} would have {value} {what}, the limit is {most}", field="rows")


def _columns(release: Release, before: int, rows: Iterable[StagedRow]) -> Iterable[tuple[Any, ...]]:
    for place, (key, row) in enumerate(rows, before + 1):
        metadata = pack_metadata(row.metadata)
        place_and_key = release.store, release.number, place, key
        yield (*place_and_key, row.partition, row.row_id, row.value, metadata, row.size, row.condition or 0)


# ---- what a caller changes


def check_publishable(sql: ReleaseStatements, store: str, number: int, staged_ms: int) -> Transaction[Compared]:
    """Looks at all rows of a staged release, in a snapshot: no lock is held for as long as that takes.

    ``staged_ms``: how long it may have been staged. Returns what its ids were compared with, for :func:`publish`.

    Raises:
        ConditionFailedError: a row was written since it was staged, or breaks a schema that is newer, or has an id that
            policies of the store take for that of another row; or the release is too old, or in another state.
        KeyDeletedError: one of its keys is deleted.
    """
    record = yield from check_store(sql, store)
    release = to_only_release((yield Ask(sql.get_release, (store, number))), store, number)
    if release.state in _BUSY:
        return Compared()
    if release.state is not ReleaseState.STAGED:  # it could be when it is published, and nobody had looked at its rows
        raise wrong_state(release, "published")
    if (yield Ask(sql.is_staged_long, (store, number, staged_ms))):
        raise ConditionFailedError(
            f"{release.place} can't be published: it was staged more than {staged_ms // 1000} s ago", field="number"
        )
    yield from check_keys(sql, release)
    if conflicts := (yield Ask(sql.release_conflicts, (store, number, NAMED_CONFLICTS))):
        raise _conflict(release, conflicts)
    yield from check_values(sql, release)
    return (yield from check_duplicates(sql, release, record.policy))


def publish(
    sql: ReleaseStatements,
    store: str,
    number: int,
    by: Authorship,
    waves: Sequence[int],
    partitions: Sequence[int],
    gate: ReleaseGate,
    canary: Canary,
    allowed: bool,
    compared: Compared,
) -> Transaction[Release | None]:
    """Lets a staged release be published; one that is being published, or was, stays as it is.

    ``None``: its ids have to be compared again, since another one has begun after they were, or a policy was set.

    A row that is written from :func:`check_publishable` on is skipped when its turn comes. ``partitions``: those that
    it writes to, for ``waves``. ``canary``: the first of these. ``allowed``: the external check has allowed it.

    Raises:
        ConditionFailedError: the release is in another state, or is published without waves, or in others, or has too
            few approvals.
        LimitExceededError: it changes more of a key than the policies of the store allow; or it is to be laid over, as
            another release is.
        UnavailableError: the store wants an external check, since a moment ago; or the owners of its canary were not
            asked, since it was not staged.
    """
    _, release = yield from locked(sql, store, number)
    if release.state in _BUSY:
        if waves:
            _check_rollout(release, len(partitions), waves, gate, canary.label)
        return (yield from _try_again(sql, release))
    if release.state is not ReleaseState.STAGED:
        raise wrong_state(release, "published")
    policy = yield from check_approved(sql, release)
    if policy.external_check and not allowed:
        raise UnavailableError(
            f"{release.place} can't be published: the policy external_check of its store was set just now, try again"
        )
    if canary.label and not canary.partitions and not canary.provisional:
        raise UnavailableError(f"{release.place} can't be published: it was not staged a moment ago, try again")
    yield from check_shares(sql, release, policy, "published")
    if not (yield from is_still_unique(sql, release, policy, compared)):
        return None
    if not waves:
        return (yield from begin(sql, release, ReleaseState.PUBLISHING, PUBLISH, 0, by, "PublishRelease"))
    rollout, drawn = draw(number, partitions, waves, gate, canary)
    if gate.promql:
        yield Ask(sql.raise_usable_from, (_CONDITIONS_KNOWN_FROM,))
    yield Ask(sql.clear_release_partitions, (store, number))
    yield Each(sql.insert_release_partitions, [(store, number, partition, wave) for partition, wave in drawn.items()])
    if canary.provisional:
        yield from _check_alone(sql, release)
        rollout = msgspec.structs.replace(rollout, at_gate=True)
    release = replace(release, rollout=rollout)
    work = LAY if canary.provisional else WAVE
    return (yield from begin(sql, release, ReleaseState.PUBLISHING, work, 0, by, "PublishRelease"))


def _check_alone(sql: ReleaseStatements, release: Release) -> Transaction[None]:
    """Refuses to have a release laid over beside another one: readers could not tell whose row it is that they see."""
    yield Ask(sql.lock_release_pin, (release.store,))
    for number, state in (yield Ask(sql.begun_releases, (release.store, release.number))):
        if state == ReleaseState.PUBLISHING:
            (record,) = yield Ask(sql.get_release, (release.store, number))
            if to_release(record).is_laid_over:
                raise LimitExceededError(
                    f"{release.place} can't be published with a canary: release {number} is laid over at workers, and "
                    "the limit is 1 at a time: publish, stop or undo it first",
                    field="canary",
                )


def _check_rollout(release: Release, count: int, waves: Sequence[int], gate: ReleaseGate, label: str) -> None:
    """Refuses another way to publish a release than the one that was begun; the same may be asked for again."""
    begun = release.rollout
    if begun is None:
        raise ConditionFailedError(
            f"{release.place} can't be published in waves: it is {release.state} without", field="waves"
        )
    if release.state is not ReleaseState.PUBLISHING:
        return
    if begun.canary != label:
        said, asked = (f"with the canary {each}" if each else "without a canary" for each in (begun.canary, label))
        raise ConditionFailedError(f"{release.place} is publishing {said}, not {asked}", field="canary")
    wanted = tuple(wave_ends(count, waves, begun.partitions[0] if label else 0).values())
    if begun.waves != wanted:
        said, asked = (", ".join(str(percent) for percent in each if percent) for each in (begun.waves, wanted))
        raise ConditionFailedError(f"{release.place} is publishing in waves of {said} %, not {asked} %", field="waves")
    if begun.gate != gate:
        said_gate = begun.gate
        raise ConditionFailedError(
            f"{release.place} is publishing with another gate: bake {said_gate.bake_ms} ms, refused rows at most "
            f"{said_gate.max_refused}, patience {said_gate.patience_ms} ms, {len(said_gate.promql)} PromQL conditions",
            field="gate",
        )


def undo(sql: ReleaseStatements, store: str, number: int, by: Authorship) -> Transaction[Release]:
    """Lets a release be undone that is published, or being published; one that is being undone, or was, stays as it is.

    Raises:
        ConditionFailedError: it is in another state, or what it replaced is not kept any more.
    """
    _, release = yield from locked(sql, store, number)
    if release.state in {ReleaseState.UNDOING, ReleaseState.UNDONE}:
        return (yield from _try_again(sql, release))
    if release.state not in _BUSY | {ReleaseState.STOPPED}:
        raise wrong_state(release, "undone")
    if release.work == REMOVE or not release.kept:
        raise ConditionFailedError(
            f"{release.place} can't be undone: it was published so long ago that what it replaced is not kept any more",
            field="number",
        )
    return (yield from begin(sql, release, ReleaseState.UNDOING, UNDO, release.rows + 1, by, "UndoRelease"))


def drop(sql: ReleaseStatements, store: str, number: int, by: Authorship) -> Transaction[Release]:
    """Drops a release that is not published; one that is dropped stays as it is.

    Raises:
        ConditionFailedError: it is in another state.
    """
    _, release = yield from locked(sql, store, number)
    if release.state is ReleaseState.DROPPED:
        return release
    if release.state not in _DROPPABLE:
        raise wrong_state(release, "dropped")
    return (yield from begin(sql, release, ReleaseState.DROPPED, REMOVE, 0, by, "DropRelease"))


def expire(sql: ReleaseStatements, staged_ms: int, done_ms: int) -> Transaction[Release | None]:
    """Lets the rows of one release be removed that was staged, or done, so long ago, or is done and was followed by so
    many others; ``None`` if there is none."""
    found = yield Ask(sql.old_releases, (staged_ms, done_ms, limits.MAX_KEPT_RELEASES))
    if not found:
        return None
    store, number = found[0]
    records = yield Ask(sql.lock_release, (store, number))
    yield Ask(sql.lock_release_pin, (store,))
    still = yield Ask(sql.old_releases, (staged_ms, done_ms, limits.MAX_KEPT_RELEASES))
    if (store, number) not in {tuple(record) for record in still}:
        return None  # another instance has changed it meanwhile
    release = to_only_release(records, store, number)
    state = ReleaseState.EXPIRED if release.state in _DROPPABLE else release.state
    return (yield from begin(sql, release, state, REMOVE, 0, SERVICE, "ExpireRelease"))


def _try_again(sql: ReleaseStatements, release: Release) -> Transaction[Release]:
    """Forgets why the last step failed."""
    if release.work and release.problem:
        release = replace(release, problem="")
        yield Ask(sql.set_release, release.changes())
    return release


def _conflict(release: Release, found: Sequence[Sequence[Any]]) -> ConditionFailedError:
    many = found[0][2]
    named = ", ".join(f"{key}/{shown(row_id)}" for key, row_id, _ in found)
    more = " …" if many > len(found) else ""
    rows = "1 row was" if many == 1 else f"{many} rows were"
    return ConditionFailedError(
        f"{release.place} can't be published: {rows} written since it was staged, nothing is published: {named}{more}",
        field="number",
    )


# ---- reads


def get(sql: ReleaseStatements, store: str, number: int) -> Transaction[Release]:
    """A release with its keys."""
    yield from check_store(sql, store)
    release = to_only_release((yield Ask(sql.get_release, (store, number))), store, number)
    release = yield from with_approvals(sql, (yield from with_keys(sql, release)))
    (release,) = yield from with_pin(sql, store, [release])
    return (yield from with_proof(sql, release))


def listed(sql: ReleaseStatements, store: str, before: int, limit: int) -> Transaction[list[Release]]:
    """Releases below a number, the newest first, without their keys."""
    yield from check_store(sql, store)
    found = yield Ask(sql.list_releases, (store, before, limit))
    return (yield from with_pin(sql, store, [to_release(record) for record in found]))


def rows(
    sql: ReleaseStatements, store: str, number: int, after: int, limit: int, max_bytes: int, conflicts_only: bool
) -> Transaction[list[ReleaseRow]]:
    """Rows of a release behind a place: up to ``limit``, of up to ``max_bytes`` together, and always the first."""
    yield from check_store(sql, store)
    to_only_release((yield Ask(sql.get_release, (store, number))), store, number)
    return to_rows((yield Ask(sql.release_page, (store, number, after, limit, max_bytes, conflicts_only))))


def to_rows(records: Iterable[Sequence[Any]]) -> list[ReleaseRow]:
    """From the columns of RELEASE_PAGE."""
    return [
        ReleaseRow(
            place,
            key,
            partition,
            row_id,
            value,
            unpack_metadata(metadata),
            base,
            had,
            unpack_metadata(had_metadata),
            found,
            ReleaseOutcome(outcome),
            version,
            undo_version,
        )
        for (
            place,
            key,
            partition,
            row_id,
            value,
            metadata,
            base,
            had,
            had_metadata,
            found,
            outcome,
            version,
            undo_version,
        ) in records
    ]
