"""Who may do what: which role each call needs, and whether its principal has it. Nothing else decides that.

A role counts for one store or for all, and for one principal or for all that are let in. As long as no role is granted
to anybody every caller may do everything. What workers may do on the bus is decided by NATS, not here.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, NamedTuple

from ringcast_wire import EventLog, InvalidInputError, PermissionDeniedError, RingcastError, Role, limits, names, shown

from ringcast_config_service.caller import Caller
from ringcast_config_service.refusals import Refusals
from ringcast_config_service.repository import ALL, RoleGrant, RoleRepository

log = EventLog(logging.getLogger(__name__))

INCLUDED: Final[dict[Role, frozenset[Role]]] = {
    Role.READER: frozenset({Role.READER}),
    Role.WRITER: frozenset({Role.READER, Role.WRITER}),
    Role.APPROVER: frozenset({Role.READER, Role.APPROVER}),
    Role.ADMIN: frozenset(Role),
}
"""The roles that each role stands for. An approver is no writer: nobody approves of his own changes."""

EACH: Final = "each"
"""In place of a field: the call is for several stores, and leaves out those for which the role is missing."""


class Rule(NamedTuple):
    """The role that a call needs (``None``: none), and the field of its request that names the store."""

    role: Role | None
    store: str = "store"


RULES: Final[dict[str, Rule]] = {
    "WhoAmI": Rule(None),
    "GrantRole": Rule(Role.ADMIN),
    "RevokeRole": Rule(Role.ADMIN),
    "ListRoles": Rule(Role.ADMIN, EACH),
    "CreateStore": Rule(Role.ADMIN, "name"),
    "GetStore": Rule(Role.READER, "name"),
    "ListStores": Rule(Role.READER, EACH),
    "UpdateStore": Rule(Role.ADMIN, "name"),
    "DeleteStore": Rule(Role.ADMIN, "name"),
    "RestoreStore": Rule(Role.ADMIN, "name"),
    "DeleteKey": Rule(Role.ADMIN),
    "RestoreKey": Rule(Role.ADMIN),
    "NewHistory": Rule(Role.ADMIN, "name"),
    "Put": Rule(Role.WRITER),
    "Delete": Rule(Role.WRITER),
    "Commit": Rule(Role.WRITER),
    "Change": Rule(Role.WRITER),
    "Write": Rule(Role.WRITER),
    "Get": Rule(Role.READER),
    "List": Rule(Role.READER),
    "History": Rule(Role.READER),
    "Heads": Rule(Role.READER),
    "ListDeadLetters": Rule(Role.READER),
    "ReplayDeadLetters": Rule(Role.WRITER),
    "DiscardDeadLetters": Rule(Role.WRITER),
}
"""By the name of the RPC."""

MAX_PRINCIPAL_LENGTH: Final = 160
_RELOAD_S: Final = 2.0


class Access:
    """The roles that are granted, as this instance knows them: what another instance has changed, 2 s later.

    While the database is away those that were read last count.
    """

    def __init__(self, repository: RoleRepository, refusals: Refusals) -> None:
        self._repository = repository
        self._refusals = refusals
        self._loading = asyncio.Lock()
        self._grants: list[RoleGrant] = []
        self._roles: dict[tuple[str, str], frozenset[Role]] = {}
        self.version = 0
        """Grows whenever other roles are read than before."""

    async def load(self) -> None:
        """Reads the roles.

        Raises:
            UnavailableError: the database does not answer.
        """
        async with self._loading:  # so that an older answer does not take the place of a newer one
            before, self._grants = self._grants, await self._repository.role_grants()
            self.version += self._grants != before
            found: dict[tuple[str, str], frozenset[Role]] = {}
            for grant in self._grants:
                place = grant.principal, grant.store
                found[place] = found.get(place, frozenset()) | INCLUDED[grant.role]
            self._roles = found

    async def run(self) -> None:
        """Reads the roles again and again."""
        while True:
            await asyncio.sleep(_RELOAD_S)
            try:
                await self.load()
            except RingcastError as error:
                log.warning("roles.unreadable", error=error)

    @property
    def unrestricted(self) -> bool:
        """No role is granted to anybody: every caller may do everything."""
        return not self._grants

    def check(self, method: str, caller: Caller, request: Any) -> None:
        """Looks whether a call may go on, by one of its requests.

        Raises:
            PermissionDeniedError: the principal lacks the role; the message names principal, role and store.
        """
        rule = RULES[method]
        if rule.role is None or rule.store == EACH or not self._roles:
            return
        store = str(getattr(request, rule.store))
        if self.may(caller, rule.role, store):
            return
        self._refusals.role(method, caller, rule.role, store[: limits.MAX_NAME_LENGTH])
        has = sorted({grant.role for grant in self.roles_of(caller.principal) if grant.store in (ALL, store)})
        raise PermissionDeniedError(
            f"principal {shown(caller.principal, 200)} has no role {rule.role} for store {shown(store)}, which "
            f"{method} needs: it has {', '.join(has) or 'none'}",
            field="store",
        )

    def may(self, caller: Caller, role: Role, store: str) -> bool:
        """Whether a principal has a role for a store."""
        if not self._roles:
            return True
        places = ((principal, place) for principal in (caller.principal, ALL) for place in (store, ALL))
        return any(role in self._roles.get(place, ()) for place in places)

    def roles_of(self, principal: str) -> list[RoleGrant]:
        """The roles that count for a principal."""
        return [grant for grant in self._grants if grant.principal in (principal, ALL)]

    def list_roles(self, caller: Caller, store: str, principal: str) -> list[RoleGrant]:
        """Those of a store and of a principal, either of which may be empty for all, that the caller is admin of."""
        return [
            grant
            for grant in self._grants
            if store in ("", grant.store)
            and principal in ("", grant.principal)
            and self.may(caller, Role.ADMIN, grant.store)
        ]

    async def grant(self, principal: str, store: str, role: Role, by: Caller) -> bool:
        """Grants a role; whether it is new.

        Raises:
            PermissionDeniedError: ``by`` is no ADMIN of the store any more, as the database has it.
            InvalidInputError: a name is none, or the first role of all is not ADMIN of all stores.
            LimitExceededError: as many as may be are granted.
        """
        grant = RoleGrant(_checked_principal(principal), _checked_store(store), role, 0, by.principal)
        done = await self._repository.grant_role(grant)
        await self.load()
        if done:
            log.info("role.granted", principal=principal, store=store, role=role, by=by.principal)
        return done

    async def revoke(self, principal: str, store: str, role: Role, by: Caller) -> bool:
        """Takes a role away; whether it was there.

        Raises:
            PermissionDeniedError: ``by`` is no ADMIN of the store any more, as the database has it.
            InvalidInputError: a name is none, or it is the last ADMIN of all stores.
        """
        done = await self._repository.revoke_role(
            _checked_principal(principal), _checked_store(store), role, by.principal
        )
        await self.load()
        if done:
            log.info("role.revoked", principal=principal, store=store, role=role, by=by.principal)
        return done


def _checked_store(store: str) -> str:
    return store if store == ALL else names.check_name("store", store)


def _checked_principal(principal: str) -> str:
    """A principal, as the service names its callers."""
    if 1 <= len(principal) <= MAX_PRINCIPAL_LENGTH and principal.isprintable() and principal.strip() == principal:
        return principal
    raise InvalidInputError(
        f"principal {shown(principal)} is none: 1 to {MAX_PRINCIPAL_LENGTH} printable characters are allowed, with no "
        "space at either end (ringcast whoami prints it)",
        field="principal",
    )
