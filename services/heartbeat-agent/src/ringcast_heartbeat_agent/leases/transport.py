"""Registrations over gRPC on a Unix socket: one stream a worker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import grpc
import grpc.aio
from ringcast import InUseError, InvalidInputError, RingcastError, UnavailableError
from ringcast.hosting import HostBus
from ringcast_service import ConfigError, Context, end_call, refuse
from ringcast_wire import leases

from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.leases.exits import PidFd
from ringcast_heartbeat_agent.leases.host import HostLeases
from ringcast_heartbeat_agent.leases.socket_front import SocketFront
from ringcast_heartbeat_agent.leases.state import SocketPlace
from ringcast_heartbeat_agent.leases.streams import GivenUpError, WorkerStreams

pb = leases.pb

_SPARE_STREAMS: Final = 256
"""Streams besides the registrations that may be about to register, or to get the reason why not."""
_GONE: Final = (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError)


class LeasesServicer(leases.LeasesServicer):
    """Serves the streams of :class:`WorkerStreams` over gRPC."""

    def __init__(self, hosted: HostLeases, front: SocketFront) -> None:
        self._streams = WorkerStreams(hosted)
        self._front = front

    async def Hold(self, requests: AsyncIterator[pb.HoldRequest], context: Context) -> None:
        """One worker; see the .proto file."""
        del requests  # read through the context
        try:
            peer = self._front.peer_of(context.peer())
            if peer is None:
                gone = UnavailableError("the connection has ended")
                self._streams.refused(gone)
                raise gone
            end_of = partial(PidFd.open, peer.pid)
            await self._streams.serve(GrpcWorkerStream(context), peer.uid, end_of)
        except GivenUpError as error:
            await end_call(context, grpc.StatusCode.ABORTED, str(error))
        except RingcastError as error:
            await refuse(context, error, status=_status(error))


class GrpcWorkerStream:
    """:class:`ringcast_heartbeat_agent.leases.streams.WorkerStream` over a call of gRPC."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._begun = False

    async def read(self) -> pb.HoldRequest | None:
        """The next message. What breaks the stream ends it, once it has begun."""
        with contextlib.suppress(*(_GONE if self._begun else ())):
            request = await self._context.read()
            self._begun = True
            return request if isinstance(request, pb.HoldRequest) else None
        return None

    async def write(self, response: pb.HoldResponse) -> None:
        """Sends a message."""
        await self._context.write(response)


class LeaseServer:
    """Listens on the socket from :meth:`start` to :meth:`stop`. The lock of its place must be held all that time."""

    def __init__(self, place: SocketPlace, hosted: HostLeases, most: int) -> None:
        self._place = place
        self._front = SocketFront(place, most + _SPARE_STREAMS)
        self._server = grpc.aio.server(
            options=(("grpc.max_receive_message_length", leases.MAX_MESSAGE_BYTES), ("grpc.so_reuseport", 0)),
            maximum_concurrent_rpcs=most + _SPARE_STREAMS,
        )
        leases.add_LeasesServicer_to_server(LeasesServicer(hosted, self._front), self._server)

    async def start(self) -> None:
        """Makes the socket.

        Raises:
            ConfigError: it can't be made, or not with this group.
        """
        try:
            self._server.add_insecure_port(leases.target(str(self._front.inner)))
        except (RuntimeError, InvalidInputError) as error:
            raise ConfigError(f"lease_socket {self._place.path} can't be used: {error}") from error
        await self._server.start()
        await self._front.start()

    async def stop(self) -> None:
        """Ends all streams; the workers go on with leases of their own, or with the next agent."""
        await self._server.stop(0)
        await self._front.stop()


@asynccontextmanager
async def lease_service(config: Config, place: SocketPlace | None) -> AsyncIterator[HostLeases | None]:
    """Takes the host's lease and serves the socket; nothing if there is none.

    Raises:
        ConfigError: the socket can't be made, or NATS does not answer.
    """
    if place is None:
        yield None
        return
    async with (
        _bus(config) as bus,
        HostLeases.open(
            bus,
            place,
            config.agent_id,
            most=config.max_workers,
            most_of_user=max(1, math.floor(config.max_workers * config.client_share)),
        ) as hosted,
    ):
        server = LeaseServer(place, hosted, config.max_workers)
        try:
            await server.start()
            yield hosted
        finally:
            hosted.stop()
            await server.stop()


@asynccontextmanager
async def _bus(config: Config) -> AsyncIterator[HostBus]:
    bus = HostBus.open(
        config.agent_id,
        servers=config.nats,
        login=config.nats_login,
        jetstream_api=config.jetstream_api,
        connect_timeout_s=config.start_timeout_s,
        logger=logging.getLogger(__name__),
    )
    try:
        opened = await bus.__aenter__()
    except UnavailableError as error:
        raise ConfigError(str(error)) from error
    try:
        yield opened
    finally:
        await bus.__aexit__(None, None, None)


def _status(error: RingcastError) -> grpc.StatusCode | None:
    """What a worker goes by where the error's own status says something else to other clients."""
    if isinstance(error, InUseError):
        return grpc.StatusCode.ALREADY_EXISTS
    return grpc.StatusCode.UNAVAILABLE if isinstance(error, UnavailableError) else None
