"""The stream to the agent over gRPC, on the Unix socket of the host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import grpc
import grpc.aio
from ringcast_wire import InUseError, RingcastError, UnavailableError, error_from_code, leases, names

from ringcast._coordination.agent_stream import GivenUpError

pb = leases.pb

_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),  # else a new channel inherits the pauses of the one before
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", leases.MAX_MESSAGE_BYTES),
)
_BROKEN: Final = (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError)

_Call: TypeAlias = "grpc.aio.StreamStreamCall[pb.HoldRequest, pb.HoldResponse]"


class GrpcAgentCall:
    """:class:`ringcast._coordination.agent_stream.AgentCall` over gRPC."""

    def __init__(self, call: _Call) -> None:
        self._call = call

    @classmethod
    @asynccontextmanager
    async def opened(cls, target: str) -> AsyncIterator[GrpcAgentCall]:
        """A new connection, with one stream on it."""
        async with grpc.aio.insecure_channel(target, options=_OPTIONS) as channel:
            call = leases.LeasesStub(channel).Hold()
            try:
                yield cls(call)
            finally:
                call.cancel()

    async def read(self) -> pb.HoldResponse | None:
        """The next message."""
        try:
            response = await self._call.read()
        except _BROKEN:
            raise await _error_of(self._call) from None
        return response if isinstance(response, pb.HoldResponse) else None

    async def write(self, request: pb.HoldRequest) -> None:
        """Sends a message."""
        try:
            await self._call.write(request)
        except _BROKEN:
            raise await _error_of(self._call) from None


async def _error_of(call: _Call) -> RingcastError:
    """The error that a stream ended with, as a :class:`RingcastError`."""
    call.cancel()  # does nothing to one that has ended
    code, details = await call.code(), await call.details() or ""
    if code is grpc.StatusCode.ABORTED:
        return GivenUpError(details)
    if code is grpc.StatusCode.ALREADY_EXISTS:
        return InUseError(details, field="worker_id")
    trailers = {str(key): str(value) for key, value in await call.trailing_metadata() or ()}
    if names.GRPC_ERROR_KEY in trailers:
        return error_from_code(trailers[names.GRPC_ERROR_KEY], details)
    return UnavailableError(f"the agent did not answer: {details or code.name}")
