"""The approvals of a release: four eyes on exactly what is staged.

What is staged does not change any more, and its digest says what it is: of each row the key, the id, the value, the
metadata, and the version that the change was made for. An approval names the digest, and counts for nothing else. Both
are locked with the release, so two approvals, or one and the beginning of the publishing, come one after the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import msgspec
from ringcast_wire import (
    NO_POLICY,
    ConditionFailedError,
    LimitExceededError,
    PermissionDeniedError,
    ReleaseState,
    StorePolicy,
    limits,
    shown,
)

from ringcast_config_service.repository import audit, mapping
from ringcast_config_service.repository.base import Authorship
from ringcast_config_service.repository.release_records import Approval, Release, StagedRow
from ringcast_config_service.repository.release_transactions import (
    Ask,
    Note,
    ReleaseStatements,
    Transaction,
    locked,
    wrong_state,
)

HOST: Final = "host:"
"""Begins the name of a client without a credential, which may come from another address with its next call."""
_json = msgspec.json.Encoder()


def digest_after(digest: str | None, before: int, rows: Iterable[StagedRow]) -> str | None:
    """The digest of ``before`` rows that are staged, and of those that follow; it is the same however they come in
    batches. ``None`` where the one of those before is not known: an older build has staged some."""
    if not before:
        count, chain = 0, hashlib.sha256().digest()
    elif digest is not None and _counted(digest) == before:
        count, chain = before, bytes.fromhex(digest.partition("-")[2])
    else:
        return None
    for key, row in rows:
        metadata = sorted((row.metadata or {}).items())
        chain = hashlib.sha256(chain + _json.encode((key, row.row_id, row.value, metadata, row.condition))).digest()
        count += 1
    return f"{count}-{chain.hex()}"


def has_whole_digest(release: Release) -> bool:
    """Whether the digest is of all rows: none of them was staged by an older build."""
    return release.digest is not None and _counted(release.digest) == release.rows


def _counted(digest: str) -> int:
    return int(digest.partition("-")[0])


def approve(sql: ReleaseStatements, store: str, number: int, by: Authorship, digest: str) -> Transaction[Release]:
    """Notes that a principal approves a staged release; the same again changes nothing.

    ``digest``: of what it approves; empty: of what is staged.

    Raises:
        ConditionFailedError: the release is in another state, or has another digest, or none.
        PermissionDeniedError: the principal has staged it, or there is no credential that tells the two apart.
        LimitExceededError: as many as may be have approved it.
    """
    _, release = yield from locked(sql, store, number)
    if release.state is not ReleaseState.STAGED:
        raise wrong_state(release, "approved")
    _check_approver(release, by)
    if not has_whole_digest(release):
        raise ConditionFailedError(
            f"{release.place} can't be approved: an older build of the service has staged it, without a digest: stage "
            "it again",
            field="number",
        )
    if digest not in ("", release.digest):
        raise ConditionFailedError(
            f"{release.place} has the digest {release.digest}, not {shown(digest)}: look at it again", field="digest"
        )
    release = yield from with_approvals(sql, release)
    if all(found.principal != by.author for found in release.approvals):
        if len(release.approvals) >= limits.MAX_APPROVALS:
            raise LimitExceededError(
                f"{release.place} has {len(release.approvals)} approvals, the limit is {limits.MAX_APPROVALS}",
                field="number",
            )
        yield Ask(sql.insert_approval, (store, release.stage_id, by.author, release.digest, by.reason))
        yield Note([audit.fact(by, "ApproveRelease", store, number=number, digest=release.digest)])
    return (yield from with_approvals(sql, release))


def _check_approver(release: Release, by: Authorship) -> None:
    place = release.place
    if by.author.startswith(HOST):
        raise PermissionDeniedError(
            f"{place} can't be approved by a client without a credential, since that does not say who it is",
            field="number",
        )
    if release.author.startswith(HOST):
        raise PermissionDeniedError(
            f"{place} can't be approved: it was staged without a credential, so nobody is known to be another one than "
            "its author: stage it again with one",
            field="number",
        )
    if release.author == by.author:
        raise PermissionDeniedError(
            f"{place} was staged by {shown(by.author, 200)}, and has to be approved by another principal",
            field="number",
        )


def revoke(sql: ReleaseStatements, store: str, number: int, by: Authorship) -> Transaction[Release]:
    """Takes the approval of a principal back; nothing if there is none.

    Raises:
        ConditionFailedError: the release is not staged any more.
    """
    _, release = yield from locked(sql, store, number)
    if release.state is not ReleaseState.STAGED:
        raise ConditionFailedError(
            f"an approval of {release.place} can't be revoked: it is {release.state}", field="number"
        )
    if (yield Ask(sql.delete_approval, (store, release.stage_id, by.author))):
        yield Note([audit.fact(by, "RevokeApproval", store, number=number, digest=release.digest)])
    return (yield from with_approvals(sql, release))


def with_approvals(sql: ReleaseStatements, release: Release) -> Transaction[Release]:
    """The release with its approvals, the first first, and how many its store wants."""
    return (yield from _with_approvals(sql, release, (yield from _policy(sql, release.store))))


def _with_approvals(sql: ReleaseStatements, release: Release, policy: StorePolicy) -> Transaction[Release]:
    found = yield Ask(sql.release_approvals, (release.store, release.number))
    needed = policy.approvals or 0
    return replace(release, approvals=tuple(Approval(*each) for each in found), approvals_needed=needed)


def check_approved(sql: ReleaseStatements, release: Release) -> Transaction[StorePolicy]:
    """Refuses to publish a staged release as long as its store wants more approvals. The policies are locked, so they
    are those that count; they are returned.

    Raises:
        ConditionFailedError: it has too few.
    """
    yield Ask(sql.lock_policy, (release.store,))
    policy = yield from _policy(sql, release.store)
    release = yield from _with_approvals(sql, release, policy)
    has, needed = len(release.approvals), release.approvals_needed
    if has < needed:
        by = f" (of {', '.join(shown(found.principal, 200) for found in release.approvals)})" if has else ""
        raise ConditionFailedError(
            f"{release.place} can't be published: the policy approvals of its store wants {needed}, and it has "
            f"{has}{by}: other principals than its author have to approve it (ringcast release approve)",
            field="approvals",
        )
    return policy


def _policy(sql: ReleaseStatements, store: str) -> Transaction[StorePolicy]:
    found = yield Ask(sql.get_policy, (store,))
    return mapping.to_policy(found[0][0]) if found else NO_POLICY
