"""The calls about principals and roles: what the service takes a client for, and who may do what."""

from __future__ import annotations

from ringcast_wire import Role
from ringcast_wire.grpc import ROLES, pb

from ringcast_client._calls.calls import Calls
from ringcast_client._common.records import RoleGrant, WhoAmI, role_grant


class PrincipalCalls:
    """A part of the client of the config service."""

    _calls: Calls

    async def who_am_i(self) -> WhoAmI:
        """The principal of this client, by its token, its certificate or its host, and its roles."""
        reply = await self._calls.unary(self._calls.rpc.WhoAmI, pb.WhoAmIRequest())
        return WhoAmI(
            reply.principal,
            tuple(map(role_grant, reply.roles)),
            reply.unrestricted,
            tuple(reply.groups),
            reply.expires_at_ms,
        )

    async def grant_role(self, principal: str, store: str, role: Role) -> bool:
        """Gives a principal a role for a store; ``*`` means every principal, or every store. False: it had it.

        Raises:
            InvalidInputError: a name is none, or the first role of all is not ADMIN of ``*``.
            PermissionDeniedError: this client is no ADMIN of the store.
            LimitExceededError: 10,000 roles are granted.
        """
        request = pb.GrantRoleRequest(principal=principal, store=store, role=ROLES[role])
        return bool((await self._calls.unary(self._calls.rpc.GrantRole, request)).granted)

    async def revoke_role(self, principal: str, store: str, role: Role) -> bool:
        """Takes a role away. False: the principal did not have it.

        Raises:
            InvalidInputError: it is the last ADMIN of ``*``.
            PermissionDeniedError: this client is no ADMIN of the store.
        """
        request = pb.RevokeRoleRequest(principal=principal, store=store, role=ROLES[role])
        return bool((await self._calls.unary(self._calls.rpc.RevokeRole, request)).revoked)

    async def list_roles(self, *, store: str = "", principal: str = "") -> list[RoleGrant]:
        """The roles for the stores that this client is ADMIN of, by store, principal and role."""
        reply = await self._calls.unary(
            self._calls.rpc.ListRoles, pb.ListRolesRequest(store=store, principal=principal)
        )
        return [role_grant(grant) for grant in reply.roles]
