"""The calls about principals and roles."""

from __future__ import annotations

from typing import Final

from ringcast_service import Context
from ringcast_wire import InvalidInputError, Role
from ringcast_wire.grpc import ROLES as ROLE_NUMBERS
from ringcast_wire.grpc import ConfigServiceServicer, pb

from ringcast_config_service.access import Access
from ringcast_config_service.grpc.callers import caller_of
from ringcast_config_service.grpc.input import answer
from ringcast_config_service.repository import RoleGrant

_ROLES: Final = {number: role for role, number in ROLE_NUMBERS.items()}


class RoleCalls(ConfigServiceServicer):
    """Says what the service takes a caller for; grants, revokes and lists roles."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def WhoAmI(self, _request: pb.WhoAmIRequest, context: Context) -> pb.WhoAmIResponse:
        caller, access = caller_of(context), self._access
        return pb.WhoAmIResponse(
            principal=caller.principal,
            roles=map(_message, access.roles_of(caller)),
            unrestricted=access.unrestricted,
            groups=caller.groups,
            expires_at_ms=int((caller.expires_at_s or 0) * 1000),
        )

    async def GrantRole(self, request: pb.GrantRoleRequest, context: Context) -> pb.GrantRoleResponse:
        async def work() -> bool:
            return await self._access.grant(request.principal, request.store, _role(request), caller_of(context))

        return pb.GrantRoleResponse(granted=await answer(context, work()))

    async def RevokeRole(self, request: pb.RevokeRoleRequest, context: Context) -> pb.RevokeRoleResponse:
        async def work() -> bool:
            return await self._access.revoke(request.principal, request.store, _role(request), caller_of(context))

        return pb.RevokeRoleResponse(revoked=await answer(context, work()))

    async def RevokeToken(self, request: pb.RevokeTokenRequest, context: Context) -> pb.RevokeTokenResponse:
        call = self._access.revoke_tokens(request.principal, request.digest, caller_of(context))
        return pb.RevokeTokenResponse(revoked=await answer(context, call))

    async def ListRoles(self, request: pb.ListRolesRequest, context: Context) -> pb.ListRolesResponse:
        found = self._access.list_roles(caller_of(context), request.store, request.principal)
        return pb.ListRolesResponse(roles=map(_message, found))


def _role(request: pb.GrantRoleRequest | pb.RevokeRoleRequest) -> Role:
    if request.role not in _ROLES:
        raise InvalidInputError(f"role {request.role} is unknown: one of {', '.join(Role)} is needed", field="role")
    return _ROLES[request.role]


def _message(grant: RoleGrant) -> pb.RoleGrant:
    return pb.RoleGrant(
        principal=grant.principal,
        store=grant.store,
        role=ROLE_NUMBERS[grant.role],
        granted_at_ms=grant.granted_at_ms,
        granted_by=grant.granted_by,
    )
