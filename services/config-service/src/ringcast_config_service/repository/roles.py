"""Which roles may be granted and revoked, decided without a database: from those that are granted, under a lock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ringcast_wire import InvalidInputError, LimitExceededError, PermissionDeniedError, Role, shown
from ringcast_wire.tokens import KnownToken

from ringcast_config_service.repository.audit import AuditFact, fact
from ringcast_config_service.repository.base import ALL, Authorship, RoleGrant
from ringcast_config_service.repository.mapping import Record

MAX_GRANTS: Final = 10_000
MAX_REVOKED_TOKENS: Final = 10_000

GRANTING: Final = (Role.ADMIN, Role.BREAK_GLASS)
"""The roles with which others are granted and revoked."""


class Granted(NamedTuple):
    """What is granted, as far as a change of the roles of one store has to know it."""

    total: int
    """How many roles there are, of all stores."""
    roles: Sequence[RoleGrant]
    """At least those of :data:`GRANTING` for the store and for all, and those that the principal has for the store."""


def to_grants(records: Iterable[Record]) -> list[RoleGrant]:
    """From the columns of ROLE_GRANTS, without the roles that only a newer build knows: they allow nothing here."""
    known = {role.value: role for role in Role}
    found = [record for record in records if record[2] in known]
    return [RoleGrant(principal, store, known[role], at_ms, by) for principal, store, role, at_ms, by in found]


def to_digests(records: Iterable[Record]) -> frozenset[bytes]:
    """From the column of REVOKED_TOKENS."""
    return frozenset(bytes.fromhex(record[0]) for record in records)


def may_grant(granted: Granted, new: RoleGrant, reason: str = "", groups: Sequence[str] = ()) -> bool:
    """Whether the role is to be stored: false where it is there.

    Raises:
        PermissionDeniedError: some are granted, and none lets :attr:`RoleGrant.granted_by`, or one of its groups, grant
            this one.
        InvalidInputError: it is the first, and does not let its principal grant others.
        LimitExceededError: there are too many.
    """
    check_admin(granted, Authorship(new.granted_by, reason), new.store, groups)
    if any(grant[:3] == new[:3] for grant in granted.roles):
        return False
    if not granted.total and not _is_admin_of_all(new):
        raise InvalidInputError(
            f"the first role has to be {Role.ADMIN} of the store {ALL!r}, or nobody could grant another", field="role"
        )
    if granted.total >= MAX_GRANTS:
        raise LimitExceededError(f"{granted.total} roles are granted, the limit is {MAX_GRANTS}", field="role")
    return True


def may_revoke(
    granted: Granted, principal: str, store: str, role: Role, by: Authorship, groups: Sequence[str] = ()
) -> bool:
    """Whether there is such a role.

    Raises:
        PermissionDeniedError: some are granted, and none lets ``by``, or one of its groups, revoke this one.
        InvalidInputError: it is the last one that lets anybody grant others for all stores.
    """
    check_admin(granted, by, store, groups)
    found = [grant for grant in granted.roles if grant[:3] == (principal, store, role)]
    if found and [grant for grant in granted.roles if _is_admin_of_all(grant)] == found:
        raise InvalidInputError(
            f"{principal!r} is the last {Role.ADMIN} of the store {ALL!r}: make another principal one before",
            field="role",
        )
    return bool(found)


def check_admin(granted: Granted, by: Authorship, store: str, groups: Sequence[str] = ()) -> None:
    """An instance may not know yet that ``by`` is no admin any more, or that roles are granted at all.

    Raises:
        PermissionDeniedError: neither it nor one of its groups may.
    """
    roles = GRANTING if by.reason else (Role.ADMIN,)
    names = {by.author, *groups, ALL}
    if granted.total and not any(
        grant.role in roles and grant.principal in names and grant.store in (store, ALL) for grant in granted.roles
    ):
        raise PermissionDeniedError(
            f"principal {shown(by.author, 200)} has no role {Role.ADMIN} for store {shown(store)}, or not any more",
            field="store",
        )


def revocable(
    granted: Granted,
    revoked: frozenset[bytes],
    tokens: Sequence[KnownToken],
    known: Sequence[KnownToken] | None,
    by: Authorship,
    groups: Sequence[str] = (),
    issuers: Sequence[str] = (),
) -> list[KnownToken]:
    """Those of the tokens that are not revoked yet. ``known``: those in the service's file, ``None`` where it asks for
    none; ``issuers``: how the principals begin whose tokens are not in the file.

    Raises:
        PermissionDeniedError: roles are granted, and ``by`` has none for this.
        InvalidInputError: nobody could grant a role any more, or call at all.
        LimitExceededError: too many are revoked.
    """
    check_admin(granted, by, ALL, groups)
    new = [token for token in dict.fromkeys(tokens) if token.digest not in revoked]
    if len(revoked) + len(new) > MAX_REVOKED_TOKENS:
        raise LimitExceededError(
            f"{len(revoked)} tokens are revoked, the limit is {MAX_REVOKED_TOKENS}: {len(new)} more can't be",
            field="digest",
        )
    if new and not _can_still_grant(granted, revoked | {token.digest for token in new}, known, issuers):
        raise InvalidInputError(
            f"no {Role.ADMIN} of the store {ALL!r} could log in without this token of {new[0].principal!r}: make "
            "another token or another admin before",
            field="digest",
        )
    return new


def _can_still_grant(
    granted: Granted,
    revoked: frozenset[bytes],
    known: Sequence[KnownToken] | None,
    issuers: Sequence[str],
) -> bool:
    """Whether a principal that may grant roles can log in."""
    if known is None:
        return True
    admins = {grant.principal for grant in granted.roles if _is_admin_of_all(grant)} or {ALL}
    left = {token.principal for token in known if token.digest not in revoked}
    if ALL in admins:
        return bool(left or issuers)
    return not admins.isdisjoint(left) or any(admin.startswith(tuple(issuers)) for admin in admins)


def granted_fact(grant: RoleGrant, reason: str) -> AuditFact:
    """What the audit log says of a role that was granted."""
    by = Authorship(grant.granted_by, reason)
    return fact(by, "GrantRole", grant.store, role=grant.role, principal=grant.principal)


def revoked_fact(principal: str, store: str, role: Role, by: Authorship) -> AuditFact:
    """The same of one that was taken away."""
    return fact(by, "RevokeRole", store, role=role, principal=principal)


def tokens_fact(tokens: Sequence[KnownToken], by: Authorship) -> AuditFact:
    """The same of tokens: whose they are, and the first digits of their digests, which let nobody in."""
    principals = sorted({token.principal for token in tokens})[:_NAMED]
    digests = [token.digest.hex()[:_DIGITS] for token in tokens[:_NAMED]]
    return fact(by, "RevokeToken", ALL, tokens=len(tokens), principals=principals, digests=digests)


_NAMED: Final = 8
_DIGITS: Final = 16


def _is_admin_of_all(grant: RoleGrant) -> bool:
    return (grant.store, grant.role) == (ALL, Role.ADMIN)
