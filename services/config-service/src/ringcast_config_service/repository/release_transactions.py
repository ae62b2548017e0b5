"""What the transactions of releases share: what they ask of the database, and how they find a release and lock it.

A transaction is a generator: it yields what it asks of the database and is sent the records that come of it.
``sqlite/releases.py`` and ``postgres/releases.py`` run them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import msgspec
from ringcast_wire import (
    ConditionFailedError,
    InvalidInputError,
    ReleaseState,
    RingcastError,
    Rollout,
)

from ringcast_config_service.repository import audit, mapping
from ringcast_config_service.repository.audit import AuditFact
from ringcast_config_service.repository.base import (
    SERVICE,
    Authorship,
    KeptRows,
    StagedRows,
    StoreRecord,
    WriteRequest,
)
from ringcast_config_service.repository.release_records import (
    UNDO,
    Release,
    ReleaseKey,
)

T = TypeVar("T")
_rollout = msgspec.json.Decoder(Rollout)


class ReleaseStatements(NamedTuple):
    """The statements that the transactions use, of one database, by their names in the ``queries.sql`` files."""

    lock_store_name: str
    lock_policy: str
    get_policy: str
    get_store: str
    raise_usable_from: str
    next_release: str
    lock_release_pin: str
    get_release_pin: str
    set_release_pin: str
    first_removed_release: str
    count_open_releases: str
    begun_releases: str
    insert_release: str
    find_stage: str
    get_release: str
    lock_release: str
    list_releases: str
    set_release: str
    is_staged_long: str
    old_releases: str
    forget_releases: str
    forget_release_keys: str
    forget_release_partitions: str
    forget_release_proofs: str
    release_revisions: str
    release_histories: str
    release_version: str
    row_releases: str
    insert_release_proof: str
    release_proofs: str
    is_proven: str
    insert_release_rows: str
    insert_release_keys: str
    release_keys: str
    release_shares: str
    release_byte_shares: str
    release_partition_shares: str
    added_ids: str
    waiting_ids: str
    deleted_ids: str
    ids_there: str
    set_release_key: str
    release_conflicts: str
    publish_page: str
    schemas_since: str
    wave_page: str
    undo_page: str
    other_undone: str
    same_again: str
    release_partitions: str
    release_key_partitions: str
    staged_page: str
    clear_release_partitions: str
    insert_release_partitions: str
    remove_release_rows: str
    release_page: str
    insert_approval: str
    delete_approval: str
    release_approvals: str
    forget_approvals: str


class Ask(NamedTuple):
    """A statement to run; its records are sent back."""

    text: str
    params: tuple[Any, ...]


class Each(NamedTuple):
    """A statement for any number of rows: SQLite runs it for each of them, PostgreSQL takes their columns at once."""

    text: str
    rows: Sequence[tuple[Any, ...]]


class Insert(NamedTuple):
    """One that inserts rows, of which there is at least one. ``twice`` is raised where one is there already."""

    text: str
    rows: Sequence[tuple[Any, ...]]
    twice: RingcastError


class Write(NamedTuple):
    """Requests to write in this transaction; what is sent back is :class:`Written`.

    ``kept``: they write back what a release has kept. ``staged``: they publish what one has staged, and what the rows
    held before is kept. What is written of either is noted in the rows of the release too.
    """

    requests: Sequence[WriteRequest]
    kept: KeptRows | None = None
    staged: StagedRows | None = None


class Note(NamedTuple):
    """Entries for the audit log."""

    facts: Sequence[AuditFact]


Transaction = Generator[Ask | Each | Insert | Write | Note, Any, T]


def locked(sql: ReleaseStatements, name: str, number: int) -> Transaction[tuple[StoreRecord, Release]]:
    store = yield from check_store(sql, name)
    return store, to_only_release((yield Ask(sql.lock_release, (name, number))), name, number)


def check_store(sql: ReleaseStatements, store: str) -> Transaction[StoreRecord]:
    found = yield Ask(sql.get_store, (store,))
    return mapping.only_record(found[0] if found else None, store)


def with_keys(sql: ReleaseStatements, release: Release) -> Transaction[Release]:
    found = yield Ask(sql.release_keys, (release.store, release.number))
    return replace(release, keys=tuple(ReleaseKey(*record[:4]) for record in found))


def check_keys(
    sql: ReleaseStatements, release: Release, keys: Sequence[str] | None = None
) -> Transaction[dict[str, int]]:
    """Refuses a release with a key that is deleted, or was purged since: one of that name is another, with revisions of
    its own. Returns the ids of those that are there.

    ``keys``: only these. The rows of a key that is purged go with it.
    """
    ids: dict[str, int] = {}
    for name, _, _, _, known, now, *deletion in (yield Ask(sql.release_keys, (release.store, release.number))):
        if keys is not None and name not in keys:
            continue
        if (deleted := mapping.to_deletion(*deletion)) is not None:
            raise mapping.key_deleted(release.store, name, deleted)
        if known is not None and known != now:
            raise ConditionFailedError(
                f"{release.place} can't go on: key {name!r} was purged since it was staged", field="number"
            )
        if now is not None:
            ids[name] = now
    return ids


def to_release(record: Sequence[Any]) -> Release:
    """From the columns of ``release_columns``."""
    release = Release(*record)
    rollout: Any = record[-2]
    state = mapping.known(ReleaseState, release.state, f"the state of release {release.number},")
    return replace(release, state=state, kept=bool(release.kept), rollout=to_rollout(rollout))


def to_rollout(text: str | None) -> Rollout | None:
    """As it is stored."""
    return None if text is None else _rollout.decode(text)


def to_only_release(records: Sequence[Sequence[Any]], store: str, number: int) -> Release:
    """The release that a look-up found.

    Raises:
        InvalidInputError: there is none.
    """
    if not records:
        raise InvalidInputError(f"store {store!r} has no release {number}", field="number")
    return to_release(records[0])


def begin(
    sql: ReleaseStatements, release: Release, state: ReleaseState, work: str, reached: int, by: Authorship, action: str
) -> Transaction[Release]:
    """Stores a new state of a release, and what is to be done with its rows from ``reached`` on."""
    release = replace(release, state=state, work=work, reached=reached, problem="")
    if by is not SERVICE:
        release = replace(release, changed_by=by.author, change_reason=by.reason)
    if work == UNDO:
        release = replace(release, skipped=0)
    yield Ask(sql.set_release, release.changes())
    yield Note([fact_of(by, action, release)])
    return release


def wrong_state(release: Release, what: str) -> ConditionFailedError:
    """A release can't be changed so."""
    return ConditionFailedError(f"{release.place} can't be {what}: it is {release.state}", field="number")


def fact_of(by: Authorship, action: str, release: Release) -> AuditFact:
    """What a principal has done with a release."""
    details: dict[str, Any] = {"number": release.number, "rows": release.rows, "bytes": release.bytes}
    if release.rollout is not None:
        details |= {"waves": release.rollout.waves, "wave": release.rollout.wave}
        if release.rollout.canary:
            details["canary"] = release.rollout.canary
        if conditions := len(release.rollout.gate.promql):
            details["promql"] = conditions  # how many: they may be as long as ten other entries, and `show` has them
    return audit.fact(by, action, release.store, **details)
