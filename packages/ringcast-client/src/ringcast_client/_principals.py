"""The calls about principals: what the service takes a client for."""

from __future__ import annotations

from typing import Any

from ringcast_wire.grpc import pb

from ringcast_client._records import WhoAmI


class PrincipalCalls:
    """A part of the client of the config service."""

    async def who_am_i(self) -> WhoAmI:
        """What the service takes this client for, by its token, its certificate, or only its host."""
        return WhoAmI((await self._unary(self._rpc().WhoAmI, pb.WhoAmIRequest())).principal)

    def _rpc(self) -> Any:
        raise NotImplementedError

    async def _unary(self, method: Any, request: Any) -> Any:
        raise NotImplementedError
