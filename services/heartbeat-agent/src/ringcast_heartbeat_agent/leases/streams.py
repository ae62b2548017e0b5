"""Joins the streams of workers and their registrations, whatever the streams go over."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from ringcast import InvalidInputError, LimitExceededError, RingcastError, UnavailableError
from ringcast_wire import EventLog, event_within, leases, limits, names

from ringcast_heartbeat_agent.leases.exits import ProcessEnd
from ringcast_heartbeat_agent.leases.host import HostLeases
from ringcast_heartbeat_agent.leases.registry import SILENCE_S, RegisteredWorker, Registration

log = EventLog(logging.getLogger(__name__))

pb = leases.pb

PING_S: Final = 1.0
_MAX_INCARNATION: Final = 64
_SILENT_STREAMS: Final = 16
"""Streams of one user that may be about to register."""


class GivenUpError(UnavailableError):
    """No sign of life came from the worker for too long: its records are deleted."""


class WorkerStream(Protocol):
    """One worker's stream. Messages arrive in order. When the process at its end dies, what serves it is cancelled."""

    async def read(self) -> pb.HoldRequest | None:
        """The next message, or ``None`` once the stream has ended."""

    async def write(self, response: pb.HoldResponse) -> None:
        """Sends a message."""


class WorkerStreams:
    """Serves the streams of one agent."""

    def __init__(self, hosted: HostLeases) -> None:
        self._hosted = hosted
        self._silent: Counter[int] = Counter()

    async def serve(
        self, stream: WorkerStream, uid: int, end_of: Callable[[int], ProcessEnd | None] = lambda pid: None
    ) -> None:
        """One worker, from its registration to the end of its stream; ``uid``: the user whose process it is.

        ``end_of`` returns the end of that process, of which it is given the number that the process itself claims.

        Cancelled, it takes the worker for dead, as its process is.

        Raises:
            GivenUpError: no sign of life came for too long.
            UnavailableError: the agent drains.
            RingcastError: the registration is refused.
        """
        try:
            registration = await self._registration(stream, uid)
            worker, news, sees_end = await self._hosted.register(registration, end_of(registration.pid))
        except RingcastError as error:
            self.refused(error)
            raise
        reading: asyncio.Task[None] | None = None
        try:
            answer = pb.Registered(
                lease=self._hosted.lease.id, ping_interval_s=PING_S, patience_s=SILENCE_S, sees_end=sees_end
            )
            await stream.write(pb.HoldResponse(registered=answer))
            reading = asyncio.create_task(self._read(stream, worker))
            await self._ping(stream, news, reading)
            if self._hosted.is_given_up(worker):
                raise GivenUpError(f"no sign of life came for {SILENCE_S:g} s: the worker was given up")
            if self._hosted.draining:
                raise UnavailableError("the agent drains: its workers are to have leases of their own")
        finally:  # cancelled, too, when the process at the other end is gone
            if reading is not None:
                reading.cancel()
            self._hosted.ended(worker)

    def refused(self, error: RingcastError) -> None:
        """Counts a registration that was refused."""
        self._hosted.refused[str(error.code)] += 1

    async def _registration(self, stream: WorkerStream, uid: int) -> Registration:
        """The first message of a stream. A user may have few that have said nothing yet."""
        if self._silent[uid] >= _SILENT_STREAMS:
            raise LimitExceededError(
                f"user {uid} has {_SILENT_STREAMS} streams that have not registered: at most that many are allowed"
            )
        self._silent[uid] += 1
        try:
            return await _registration(stream, uid)
        finally:
            self._silent[uid] -= 1
            if not self._silent[uid]:
                del self._silent[uid]

    async def _ping(self, stream: WorkerStream, news: asyncio.Event, reading: asyncio.Task[None]) -> None:
        """Pings until the worker says nothing more or is given up, or the agent drains; at once when there is news."""
        number = 0
        reading.add_done_callback(lambda _: news.set())
        while not reading.done() and not self._hosted.draining:
            news.clear()
            number += 1
            lease = self._hosted.lease
            ping = pb.Ping(number=number, held=lease.held, losses=lease.losses, failed_writes=lease.failed_writes)
            await stream.write(pb.HoldResponse(ping=ping))
            await event_within(news, PING_S)

    async def _read(self, stream: WorkerStream, worker: RegisteredWorker) -> None:
        """Takes what the worker says until it leaves, its stream ends, or it is given up."""
        while (request := await stream.read()) is not None:
            if self._hosted.is_given_up(worker):
                return
            match request.WhichOneof("body"):
                case "pong":
                    self._hosted.seen(worker)
                case "lost_lease":
                    self._hosted.lease.check()
                case "sessions" if _makes_sense(request.sessions, worker.registration):
                    sessions = request.sessions
                    registration = worker.registration
                    self._hosted.witnesses.reported(registration, sessions.key, sessions.first, sessions.last)
                case "leave":
                    self._hosted.left(worker)
                    return
                case _:
                    log.warning("worker.protocol_error", worker_id=worker.registration.worker_id)
                    return


def _makes_sense(sessions: pb.Sessions, registration: Registration) -> bool:
    return sessions.key in registration.keys and 1 <= sessions.first <= sessions.last <= leases.MAX_SESSION


async def _registration(stream: WorkerStream, uid: int) -> Registration:
    """The first message of a stream, checked."""
    try:
        async with asyncio.timeout(leases.HANDSHAKE_S):
            first = await stream.read()
    except TimeoutError:
        raise InvalidInputError(f"no registration came within {leases.HANDSHAKE_S:g} s") from None
    if first is None or first.WhichOneof("body") != "register":
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
