"""Which roles may be granted and revoked, decided without a database: from all that are granted, under a lock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ringcast_wire import InvalidInputError, LimitExceededError, PermissionDeniedError, Role, shown

from ringcast_config_service.repository.base import ALL, RoleGrant
from ringcast_config_service.repository.mapping import Record

MAX_GRANTS: Final = 10_000


def to_grants(records: Iterable[Record]) -> list[RoleGrant]:
    """From the columns of ROLE_GRANTS."""
    return [RoleGrant(principal, store, Role(role), at_ms, by) for principal, store, role, at_ms, by in records]


def may_grant(granted: Sequence[RoleGrant], new: RoleGrant) -> bool:
    """Whether the role is to be stored: false where it is there.

    Raises:
        PermissionDeniedError: some are granted, and none lets :attr:`RoleGrant.granted_by` grant this one.
        InvalidInputError: it is the first, and does not let its principal grant others.
        LimitExceededError: there are too many.
    """
    _check_admin(granted, new.granted_by, new.store)
    if any(grant[:3] == new[:3] for grant in granted):
        return False
    if not granted and not _is_admin_of_all(new):
        raise InvalidInputError(
            f"the first role has to be {Role.ADMIN} of the store {ALL!r}, or nobody could grant another", field="role"
        )
    if len(granted) >= MAX_GRANTS:
        raise LimitExceededError(f"{len(granted)} roles are granted, the limit is {MAX_GRANTS}", field="role")
    return True


def may_revoke(granted: Sequence[RoleGrant], principal: str, store: str, role: Role, by: str) -> bool:
    """Whether there is such a role.

    Raises:
        PermissionDeniedError: some are granted, and none lets ``by`` revoke this one.
        InvalidInputError: it is the last one that lets anybody grant others for all stores.
    """
    _check_admin(granted, by, store)
    found = [grant for grant in granted if grant[:3] == (principal, store, role)]
    if found and [grant for grant in granted if _is_admin_of_all(grant)] == found:
        raise InvalidInputError(
            f"{principal!r} is the last {Role.ADMIN} of the store {ALL!r}: make another principal one before",
            field="role",
        )
    return bool(found)


def _check_admin(granted: Sequence[RoleGrant], by: str, store: str) -> None:
    """An instance may not know yet that ``by`` is no admin any more, or that roles are granted at all."""
    if granted and not any(
        grant.role is Role.ADMIN and grant.principal in (by, ALL) and grant.store in (store, ALL) for grant in granted
    ):
        raise PermissionDeniedError(
            f"principal {shown(by, 200)} has no role {Role.ADMIN} for store {shown(store)}, or not any more",
            field="store",
        )


def _is_admin_of_all(grant: RoleGrant) -> bool:
    return (grant.store, grant.role) == (ALL, Role.ADMIN)
