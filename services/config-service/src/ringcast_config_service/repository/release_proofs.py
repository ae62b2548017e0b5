"""What proves a release, as it is stored: docs/releases.md says when it is proven."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
from ringcast_wire import ConditionFailedError, KeyCertificate, KeyDeletedError, ReleaseOutcome, ReleaseState

from ringcast_config_service.repository import audit
from ringcast_config_service.repository.base import SERVICE
from ringcast_config_service.repository.release_records import REMOVE, Certificate, KeyRevisions, Release, RowRelease
from ringcast_config_service.repository.release_transactions import (
    Ask,
    Note,
    ReleaseStatements,
    Transaction,
    check_keys,
    check_store,
    locked,
    to_only_release,
    to_rollout,
    with_keys,
)

_certificate = msgspec.json.Decoder(KeyCertificate)


def revisions(sql: ReleaseStatements, store: str, number: int) -> Transaction[list[KeyRevisions]]:
    """What a published release has written, by key.

    Raises:
        ConditionFailedError: its rows are removed, or it has published none.
        KeyDeletedError: one of its keys is deleted.
    """
    yield from check_store(sql, store)
    release = to_only_release((yield Ask(sql.get_release, (store, number))), store, number)
    yield from check_keys(sql, release)
    removed = release.work == REMOVE or not release.kept
    if removed or not release.published:
        why = "its rows are removed" if removed else "no row of it was published"
        raise ConditionFailedError(f"{release.place} can't be proven: {why}", field="number")
    found: dict[str, KeyRevisions] = {}
    for key, history, partition, first, last in (yield Ask(sql.release_revisions, (store, number))):
        found.setdefault(key, KeyRevisions(key, history, {})).ranges[partition] = first, last
    return list(found.values())


def version_of(sql: ReleaseStatements, store: str, number: int, key: str, row_id: str) -> Transaction[int]:
    """The version that a release has given to a row, 0 for none."""
    found = yield Ask(sql.release_version, (store, number, key, row_id))
    version: int = found[0][0] if found else 0
    return version


def of_row(sql: ReleaseStatements, store: str, key: str, row_id: str, limit: int) -> Transaction[list[RowRelease]]:
    """The newest releases that have a row, as long as their rows are kept."""
    needed = (yield from check_store(sql, store)).policy.approvals or 0
    found = yield Ask(sql.row_releases, (store, key, row_id, limit))
    return [
        RowRelease(
            number,
            ReleaseState(state),
            ReleaseOutcome(outcome),
            version,
            undo_version,
            proven_at_ms,
            wave,
            to_rollout(rollout),
            approvals,
            needed,
        )
        for number, state, outcome, version, undo_version, proven_at_ms, wave, rollout, approvals in found
    ]


def set_proven(
    sql: ReleaseStatements, store: str, number: int, keys: Sequence[KeyCertificate], instance: str
) -> Transaction[tuple[Release, Certificate]]:
    """Stores what proves a release, unless that is stored; returns what is.

    Raises:
        ConditionFailedError: it is not published, or a key has another history by now.
    """
    _, release = yield from locked(sql, store, number)
    stored = yield from certificate(sql, store, number)
    if stored is None:
        if release.state is not ReleaseState.PUBLISHED or release.work:
            raise ConditionFailedError(f"{release.place} can't be proven: it is {release.state}", field="number")
        yield from _check_holds(sql, release, keys)
        yield from store_proof(sql, release, keys, instance)
        stored = yield from certificate(sql, store, number)
    assert stored is not None
    release = yield from with_keys(sql, release)
    return (yield from with_proof(sql, release)), stored


def still_holds(sql: ReleaseStatements, release: Release, keys: Sequence[KeyCertificate]) -> Transaction[bool]:
    """Whether the keys of a release are there, and have the histories that certificates are about."""
    try:
        yield from _check_holds(sql, release, keys)
    except (ConditionFailedError, KeyDeletedError):
        return False
    return True


def _check_holds(sql: ReleaseStatements, release: Release, keys: Sequence[KeyCertificate]) -> Transaction[None]:
    yield from check_keys(sql, release)
    histories = dict((yield Ask(sql.release_histories, (release.store, release.number))))
    for key in keys:
        if histories.get(key.key) != key.history:
            raise ConditionFailedError(
                f"{release.place} can't be proven: key {key.key!r} has another history by now", field="number"
            )


def store_proof(
    sql: ReleaseStatements, release: Release, keys: Sequence[KeyCertificate], instance: str
) -> Transaction[None]:
    """Stores what proves a release that is not proven yet; ``instance`` has found it."""
    for key in keys:
        text = msgspec.json.encode(key).decode()
        yield Ask(sql.insert_release_proof, (release.store, release.stage_id, key.key, instance, text))
    yield Note([audit.fact(SERVICE, "ProveRelease", release.store, number=release.number, instance=instance)])


def certificate(sql: ReleaseStatements, store: str, number: int) -> Transaction[Certificate | None]:
    """What proves a release, if it is proven."""
    found = yield Ask(sql.release_proofs, (store, number))
    if not found:
        return None
    keys = tuple(_certificate.decode(text) for _, _, text in found)
    return Certificate(found[0][0], found[0][1], keys)


def with_proof(sql: ReleaseStatements, release: Release) -> Transaction[Release]:
    """The release with when it was proven, and by which instance."""
    found = yield Ask(sql.is_proven, (release.store, release.number))
    return replace(release, proven_at_ms=found[0][0], proven_by=found[0][1]) if found else release
