"""Who may do what: which role each call needs, and whether its principal has it. Nothing else decides that.

A role counts for one store or for all, and for one principal or for all that are let in. As long as no role is granted
to anybody every caller may do everything. What workers may do on the bus is decided by NATS, not here.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ringcast_wire import EventLog, InvalidInputError, PermissionDeniedError, RingcastError, Role, limits, names, shown
from ringcast_wire.tokens import KnownToken

from ringcast_config_service.audit import AuditTrail
from ringcast_config_service.caller import Caller
from ringcast_config_service.refusals import Refusals
from ringcast_config_service.repository import ALL, AuditFact, Authorship, RoleGrant, RoleRepository
from ringcast_config_service.repository.audit import cut

log = EventLog(logging.getLogger(__name__))

INCLUDED: Final[dict[Role, frozenset[Role]]] = {
    Role.READER: frozenset({Role.READER}),
    Role.WRITER: frozenset({Role.READER, Role.WRITER}),
    Role.APPROVER: frozenset({Role.READER, Role.APPROVER}),
    Role.ADMIN: frozenset(Role) - {Role.BREAK_GLASS},
    Role.BREAK_GLASS: frozenset({Role.BREAK_GLASS}),
}
"""The roles that each role stands for. An approver is no writer: nobody approves of his own changes. Break-glass stands
for all of them in a call that gives a reason, and for nothing in others."""

EACH: Final = "each"
"""In place of a field: the call is for several stores, and leaves out those for which the role is missing."""


class Rule(NamedTuple):
    """The role that a call needs (``None``: none), and the field of its request that names the store.

    :data:`ALL` in place of a field: the call is about no store, and the role has to be for all of them. So it has where
    the field is empty.
    """

    role: Role | None
    store: str = "store"


RULES: Final[dict[str, Rule]] = {
    "WhoAmI": Rule(None),
    "GetServiceStatus": Rule(Role.ADMIN, ALL),
    "GrantRole": Rule(Role.ADMIN),
    "RevokeRole": Rule(Role.ADMIN),
    "ListRoles": Rule(Role.ADMIN, EACH),
    "RevokeToken": Rule(Role.ADMIN, ALL),
    "ListAudit": Rule(Role.ADMIN),
    "VerifyAudit": Rule(Role.ADMIN, ALL),
    "CreateStore": Rule(Role.ADMIN, "name"),
    "GetStore": Rule(Role.READER, "name"),
    "ListStores": Rule(Role.READER, EACH),
    "UpdateStore": Rule(Role.ADMIN, "name"),
    "MigrateStore": Rule(Role.ADMIN, "name"),
    "GetStorePolicy": Rule(Role.READER, "name"),
    "SetStorePolicy": Rule(Role.ADMIN, "name"),
    "RegisterSchema": Rule(Role.ADMIN),
    "CheckSchema": Rule(Role.READER),
    "SetSchemaMode": Rule(Role.ADMIN),
    "ListSchemas": Rule(Role.READER),
    "GetSchema": Rule(Role.READER),
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
    "StageRelease": Rule(Role.WRITER),
    "ListReleases": Rule(Role.READER),
    "GetRelease": Rule(Role.READER),
    "ListReleaseRows": Rule(Role.READER),
    "PublishRelease": Rule(Role.WRITER),
    "ApproveRelease": Rule(Role.APPROVER),
    "RevokeApproval": Rule(Role.APPROVER),
    "PauseRelease": Rule(Role.WRITER),
    "ResumeRelease": Rule(Role.WRITER),
    "StopRelease": Rule(Role.WRITER),
    "UndoRelease": Rule(Role.WRITER),
    "DropRelease": Rule(Role.WRITER),
    "PinRelease": Rule(Role.WRITER),
    "UnpinRelease": Rule(Role.WRITER),
    "ProveRelease": Rule(Role.READER),
    "GetReleaseCertificate": Rule(Role.READER),
    "ListRowReleases": Rule(Role.READER),
    "Get": Rule(Role.READER),
    "List": Rule(Role.READER),
    "History": Rule(Role.READER),
    "Heads": Rule(Role.READER),
    "ListAsOf": Rule(Role.READER),
    "Diff": Rule(Role.READER),
    "ListDeadLetters": Rule(Role.READER),
    "ReplayDeadLetters": Rule(Role.WRITER),
    "DiscardDeadLetters": Rule(Role.WRITER),
}
"""By the name of the RPC."""

MAX_PRINCIPAL_LENGTH: Final = 400
_RELOAD_S: Final = 2.0
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)


class TokensOfCallers(Protocol):
    """The tokens with which callers can log in, of this instance."""

    def known_tokens(self) -> Sequence[KnownToken] | None:
        """Those in its file; ``None``: it asks for none."""

    def principals_of_issuers(self) -> Sequence[str]:
        """How the principals begin whose tokens others make."""


class Access:
    """The roles that are granted, as this instance knows them: what another instance has changed, 2 s later.

    While the database is away those that were read last count.
    """

    def __init__(self, repository: RoleRepository, refusals: Refusals, audit: AuditTrail) -> None:
        self._repository = repository
        self._refusals = refusals
        self._audit = audit
        self.logins: TokensOfCallers | None = None
        """``None`` where it asks for no tokens."""
        self._revoked: frozenset[bytes] = frozenset()
        self._loading = asyncio.Lock()
        self._grants: list[RoleGrant] = []
        self._roles: dict[tuple[str, str], frozenset[Role]] = {}
        self.version = 0
        """Grows whenever other roles, or other tokens that are revoked, are read than before."""
        self.worker_tokens: Callable[[], Sequence[KnownToken]] = lambda: ()
        """Those of workers and agents, where this instance answers the auth callout."""

    async def load(self) -> None:
        """Reads the roles.

        Raises:
            UnavailableError: the database does not answer.
        """
        async with self._loading:  # so that an older answer does not take the place of a newer one
            grants, revoked = await self._repository.role_grants(), await self._repository.revoked_tokens()
            if revoked != self._revoked:
                self._revoked = revoked
                self.version += 1
            if grants != self._grants:
                self._know(grants)

    def _know(self, grants: list[RoleGrant]) -> None:
        found: dict[tuple[str, str], frozenset[Role]] = {}
        for grant in grants:
            place = grant.principal, grant.store
            found[place] = found.get(place, frozenset()) | INCLUDED[grant.role]
        self._grants, self._roles = grants, found
        self.version += 1

    async def _know_change(self, place: tuple[str, ...], stored: RoleGrant | None) -> None:
        """This instance has granted a role (``stored``), or taken one away: that counts here without a reading of all,
        whose number would make many changes slow."""
        async with self._loading:
            known = self._is_known(place)
            if known is (stored is not None):
                return
            at = bisect.bisect_left(self._grants, place, key=_place)
            self._grants[at : at + known] = [] if stored is None else [stored]
            first = bisect.bisect_left(self._grants, place[:2], key=_place)
            same = itertools.takewhile(lambda grant: _place(grant)[:2] == place[:2], self._grants[first:])
            store, principal, _ = place
            # Where it is empty the entry stays: without any, everybody may do everything.
            self._roles[principal, store] = frozenset[Role]().union(*(INCLUDED[grant.role] for grant in same))
            self.version += 1
        if not self._grants:  # the database has others, or the last one could not be taken away
            await self.load()

    def _is_known(self, place: tuple[str, ...]) -> bool:
        at = bisect.bisect_left(self._grants, place, key=_place)
        return at < len(self._grants) and _place(self._grants[at]) == place

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

    def is_revoked(self, digest: bytes) -> bool:
        """Whether a token with this digest is refused."""
        return digest in self._revoked

    def check(self, method: str, caller: Caller, request: Any) -> AuditFact | None:
        """Looks whether a call may go on, by one of its requests. It may by break-glass alone where this returns what
        :meth:`break_glass` takes.

        Raises:
            PermissionDeniedError: the principal lacks the role; the message names principal, role and store.
        """
        rule = RULES[method]
        if rule.role is None or not self._roles:
            return None
        key = str(getattr(request, "key", ""))
        if rule.store == EACH:
            return self._each(method, caller)
        store = (ALL if rule.store == ALL else str(getattr(request, rule.store))) or ALL
        if self._has(caller, rule.role, store):
            return None
        reason = caller.reason or str(getattr(request, "reason", ""))
        has_glass = self._has(caller, Role.BREAK_GLASS, store)
        if has_glass and reason:
            # A name or reason that is none is cut: the call is refused for it in a moment.
            place = cut(store), cut(key)
            return AuditFact(caller.principal, method, *place, "break-glass", cut(reason, limits.MAX_REASON_BYTES))
        self._refusals.role(method, caller, rule.role, store[: limits.MAX_NAME_LENGTH])
        self._audit.refused(method, caller, rule.role, store, key)
        if has_glass:
            raise PermissionDeniedError(
                f"principal {shown(caller.principal, 200)} has the role {Role.BREAK_GLASS} for store {shown(store)}, "
                f"which counts only in a call with a reason, and {method} came without one",
                field="reason",
            )
        has = sorted({grant.role for grant in self.roles_of(caller) if grant.store in (ALL, store)})
        raise PermissionDeniedError(
            f"principal {shown(caller.principal, 200)} has no role {rule.role} for store {shown(store)}, which "
            f"{method} needs: it has {', '.join(has) or 'none'}",
            field="store",
        )

    async def break_glass(self, fact: AuditFact) -> None:
        """A call goes on by break-glass: returns once the audit log has it.

        Raises:
            UnavailableError: the database does not answer; the call must not go on.
        """
        log.warning(
            "break_glass.used",
            principal=fact.principal,
            method=fact.action,
            store=fact.store,
            key=fact.key or None,
            reason=fact.reason,
        )
        await self._audit.add(fact)

    def may(self, caller: Caller, role: Role, store: str) -> bool:
        """Whether a caller may do what needs a role for a store."""
        if not self._roles or self._has(caller, role, store):
            return True
        return bool(caller.reason) and self._has(caller, Role.BREAK_GLASS, store)

    def _has(self, caller: Caller, role: Role, store: str) -> bool:
        roles = self._roles
        for name in (*caller.names, ALL):  # a loop, since every call comes here
            if role in roles.get((name, store), ()) or role in roles.get((name, ALL), ()):
                return True
        return False

    def _each(self, method: str, caller: Caller) -> AuditFact | None:
        """A call for several stores, some of which break-glass may show."""
        if not caller.reason or not any(grant.role is Role.BREAK_GLASS for grant in self.roles_of(caller)):
            return None
        return AuditFact(caller.principal, method, ALL, outcome="break-glass", reason=caller.reason)

    def roles_of(self, caller: Caller) -> list[RoleGrant]:
        """The roles that count for a caller: its own, those of its groups, and everybody's."""
        names = {*caller.names, ALL}
        return [grant for grant in self._grants if grant.principal in names]

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
        stored = await self._repository.grant_role(grant, by.reason, by.groups)
        if stored is None:
            if not self._is_known(_place(grant)):
                await self.load()
            return False
        if self.unrestricted:  # others may have granted roles that this instance does not know
            await self.load()
        else:
            await self._know_change(_place(grant), stored)
        log.info("role.granted", principal=principal, store=store, role=role, by=by.principal)
        return True

    async def revoke(self, principal: str, store: str, role: Role, by: Caller) -> bool:
        """Takes a role away; whether it was there.

        Raises:
            PermissionDeniedError: ``by`` is no ADMIN of the store any more, as the database has it.
            InvalidInputError: a name is none, or it is the last ADMIN of all stores.
        """
        done = await self._repository.revoke_role(
            _checked_principal(principal), _checked_store(store), role, Authorship(by.principal, by.reason), by.groups
        )
        await self._know_change((store, principal, role), None)
        if done:
            log.info("role.revoked", principal=principal, store=store, role=role, by=by.principal)
        return done

    async def revoke_tokens(self, principal: str, digest: str, by: Caller) -> int:
        """Has tokens refused from now on: those of a principal in the files, or the one with a digest.

        Returns how many were not refused before.

        Raises:
            PermissionDeniedError: ``by`` is no ADMIN of all stores any more, as the database has it.
            InvalidInputError: neither or both are given, there is no such token, or nobody who may grant roles could
                log in any more.
            LimitExceededError: as many as may be are revoked.
        """
        known = None if self.logins is None else self.logins.known_tokens()
        tokens = _chosen_tokens([*(known or []), *self.worker_tokens()], principal, digest)
        counting = None if known is None else [token for token in known if not token.has_expired]
        issuers = () if self.logins is None else self.logins.principals_of_issuers()
        done = await self._repository.revoke_tokens(
            tokens, counting, Authorship(by.principal, by.reason), by.groups, issuers
        )
        await self.load()
        for token in tokens:
            log.warning("token.revoked", principal=token.principal, digest=token.digest.hex()[:16], by=by.principal)
        return done


def _place(grant: RoleGrant) -> tuple[str, ...]:
    """What the roles are in the order of."""
    return grant.store, grant.principal, grant.role


def _chosen_tokens(known: Sequence[KnownToken], principal: str, digest: str) -> list[KnownToken]:
    if bool(principal) == bool(digest):
        raise InvalidInputError("one of principal and digest is needed", field="digest")
    if digest:
        if _DIGEST.fullmatch(digest) is None:
            raise InvalidInputError(f"digest {shown(digest)} is not 64 hexadecimal digits", field="digest")
        wanted = bytes.fromhex(digest)
        return [token for token in known if token.digest == wanted][:1] or [KnownToken("", wanted)]
    found = [token for token in known if token.principal == principal]
    if not found:
        raise InvalidInputError(
            f"principal {shown(principal)} has no token in this instance's files", field="principal"
        )
    return found


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
