"""Registrations over gRPC on a Unix socket: one stream a worker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import grpc
import grpc.aio
from ringcast import InUseError, InvalidInputError, LimitExceededError, RingcastError, UnavailableError
from ringcast.hosting import HostBus
from ringcast_service import ConfigError, Context, end_call, refuse
from ringcast_wire import EventLog, leases, limits, names

from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.leases.host import HostLeases
from ringcast_heartbeat_agent.leases.registry import SILENCE_S, RegisteredWorker, Registration
from ringcast_heartbeat_agent.leases.socket_front import SocketFront
from ringcast_heartbeat_agent.leases.state import SocketPlace

log = EventLog(logging.getLogger(__name__))

pb = leases.pb

PING_S: Final = 1.0
_MAX_INCARNATION: Final = 64
_SILENT_STREAMS: Final = 16
"""Streams of one user that may be about to register."""
_SPARE_STREAMS: Final = 256
"""Streams besides the registrations that may be about to register, or to be told why not."""
_GONE: Final = (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError)


class LeasesServicer(leases.LeasesServicer):
    """Joins streams and registrations."""

    def __init__(self, hosted: HostLeases, front: SocketFront) -> None:
        self._hosted = hosted
        self._front = front
        self._silent: Counter[int] = Counter()

    async def Hold(self, requests: AsyncIterator[pb.HoldRequest], context: Context) -> None:
        """One worker; see the .proto file."""
        del requests  # read through the context
        try:
            worker, told = await self._hosted.register(await self._registration(context))
        except RingcastError as error:
            self._hosted.refused[str(error.code)] += 1
            await refuse(context, error, status=_status(error))
        reading: asyncio.Task[None] | None = None
        try:
            answer = pb.Registered(lease=self._hosted.lease_id, ping_interval_s=PING_S, patience_s=SILENCE_S)
            await context.write(pb.HoldResponse(registered=answer))
            reading = asyncio.create_task(self._read(context, worker))
            await self._ping(context, told, reading)
            if self._hosted.is_given_up(worker):
                await end_call(
                    context,
                    grpc.StatusCode.ABORTED,
                    f"no sign of life came for {SILENCE_S:g} s: the worker was given up",
                )
        finally:  # cancelled, too, when the process at the other end is gone
            if reading is not None:
                reading.cancel()
            self._hosted.ended(worker)

    async def _registration(self, context: Context) -> Registration:
        """The first message of a stream. A user may have few that have said nothing yet."""
        peer = self._front.peer_of(context.peer())
        if peer is None:
            raise UnavailableError("the connection has ended")
        if self._silent[peer.uid] >= _SILENT_STREAMS:
            raise LimitExceededError(
                f"user {peer.uid} has {_SILENT_STREAMS} streams that have not registered: at most that many are allowed"
            )
        self._silent[peer.uid] += 1
        try:
            return await _registration(context, peer.uid)
        finally:
            self._silent[peer.uid] -= 1
            if not self._silent[peer.uid]:
                del self._silent[peer.uid]

    async def _ping(self, context: Context, told: asyncio.Event, reading: asyncio.Task[None]) -> None:
        """Pings until the worker says nothing more or is given up; at once when there is news."""
        number = 0
        reading.add_done_callback(lambda _: told.set())
        while not reading.done():
            told.clear()
            number += 1
            hosted = self._hosted
            ping = pb.Ping(number=number, held=hosted.held, losses=hosted.losses, failed_writes=hosted.failed_writes)
            await context.write(pb.HoldResponse(ping=ping))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PING_S):
                    await told.wait()

    async def _read(self, context: Context, worker: RegisteredWorker) -> None:
        """Takes what the worker says until it leaves, its stream ends, or it is given up."""
        with contextlib.suppress(*_GONE):
            while isinstance(request := await context.read(), pb.HoldRequest):
                if self._hosted.is_given_up(worker):
                    return
                match request.WhichOneof("body"):
                    case "pong":
                        self._hosted.heard(worker)
                    case "doubt":
                        self._hosted.doubt()
                    case "leave":
                        self._hosted.left(worker)
                        return
                    case _:
                        log.warning("worker.protocol_error", worker_id=worker.registration.worker_id)
                        return


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


async def _registration(context: Context, uid: int) -> Registration:
    """The first message of a stream, checked."""
    try:
        async with asyncio.timeout(leases.HANDSHAKE_S):
            first = await context.read()
    except TimeoutError:
        raise InvalidInputError(f"no registration came within {leases.HANDSHAKE_S:g} s") from None
    if not isinstance(first, pb.HoldRequest) or first.WhichOneof("body") != "register":
        raise InvalidInputError("the first message must be a registration")
    asked = first.register
    if asked.version != leases.VERSION:
        raise InvalidInputError(f"version {asked.version} is unknown: this agent speaks {leases.VERSION}")
    names.check_name("worker_id", asked.worker_id)
    names.check_name("store", asked.store)
    if not 1 <= len(asked.incarnation) <= _MAX_INCARNATION:
        raise InvalidInputError(
            f"incarnation has {len(asked.incarnation)} characters: 1 to {_MAX_INCARNATION} are allowed",
            field="incarnation",
        )
    if len(asked.keys) > limits.MAX_KEYS_PER_STORE:
        raise LimitExceededError(
            f"keys has {len(asked.keys)} entries: at most {limits.MAX_KEYS_PER_STORE} are allowed", field="keys"
        )
    if not asked.keys or len(set(asked.keys)) != len(asked.keys):
        raise InvalidInputError("keys must name each config key once, and at least one", field="keys")
    for key in asked.keys:
        names.check_name("key", key)
    return Registration(
        worker_id=asked.worker_id,
        incarnation=asked.incarnation,
        pid=asked.pid,
        store=asked.store,
        keys=tuple(asked.keys),
        since_ms=int(time.time() * 1000),
        uid=uid,
    )


def _status(error: RingcastError) -> grpc.StatusCode | None:
    """What a worker goes by where the error's own status says something else to other clients."""
    if isinstance(error, InUseError):
        return grpc.StatusCode.ALREADY_EXISTS
    return grpc.StatusCode.UNAVAILABLE if isinstance(error, UnavailableError) else None
