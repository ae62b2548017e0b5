"""Registering a worker with the agent of its host: one stream over a Unix socket, retried for ever."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final, Protocol, TypeAlias

from ringcast_wire import Backoff, EventLog, InUseError, ProtocolError, RingcastError, UnavailableError, leases

from ringcast._common.config import WorkerConfig

pb = leases.pb

_HANDSHAKE_S: Final = 2.0
_LEAVE_S: Final = 1.0
_IN_USE_PAUSE_S: Final = 0.25


class AgentCall(Protocol):
    """One stream to the agent. Messages arrive in order, and a stream ends at once when the process at its end does."""

    async def read(self) -> pb.HoldResponse | None:
        """The next message, or ``None``: the agent ended the stream without an error.

        Raises:
            RingcastError: the stream ended; :class:`GivenUpError` and ``InUseError`` as the agent reports them.
        """

    async def write(self, request: pb.HoldRequest) -> None:
        """Sends a message; raises as :meth:`read`."""


OpenAgentCall: TypeAlias = Callable[[str], AbstractAsyncContextManager[AgentCall]]
"""Opens a stream to the agent at a target, and ends it with the block. If no agent listens, the first read fails."""


class AgentListener(Protocol):
    """What an :class:`AgentStream` reports to. Each method may be called often."""

    def registered(self, lease: str, *, sees_end: bool = False) -> None:
        """The agent has registered this worker, and keeps the lease of this id for it.

        ``sees_end``: it will know from the kernel when this process has ended.
        """

    def pinged(self, ping: pb.Ping) -> None:
        """The agent has sent a ping."""

    def failed(self, error: RingcastError) -> None:
        """The agent did not register this worker, or the stream to it ended."""


class AgentStream:
    """Keeps a worker registered."""

    def __init__(
        self,
        config: WorkerConfig,
        *,
        incarnation: str,
        open_call: OpenAgentCall,
        listener: AgentListener,
        log: EventLog,
    ) -> None:
        self._target = leases.target(config.agent)
        self._open_call = open_call
        self._register = pb.Register(
            version=leases.VERSION,
            worker_id=config.worker_id,
            incarnation=incarnation,
            pid=os.getpid(),
            store=config.store,
            keys=config.keys,
        )
        self._listener = listener
        self._log = log
        self._call: AgentCall | None = None
        self._sessions: dict[str, pb.Sessions] = {}
        self._sees_end = False
        self._reports: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()
        self._ended = asyncio.Event()
        self._leaving = False

    async def run(self) -> None:
        """Registers, answers pings, and registers again, until it has left or is cancelled."""
        backoff = Backoff(random.random, first_s=0.1, most_s=5.0)
        while not self._leaving:
            try:
                await self._hold(backoff)
                error: RingcastError = UnavailableError("the agent ended the stream")
            except RingcastError as caught:
                error = caught
            if self._leaving:
                break
            self._log.debug("agent.attempt_failed", error=error)
            self._listener.failed(error)
            pause_s = backoff.next_s()
            await asyncio.sleep(_IN_USE_PAUSE_S if isinstance(error, InUseError) else pause_s)
        self._ended.set()

    async def report_lost_lease(self) -> None:
        """Reports to the agent that the host's lease was seen to be gone."""
        await self._write(pb.HoldRequest(lost_lease=pb.LostLease()))

    def report_sessions(self, key: str, first: int, last: int) -> None:
        """Reports the sessions of exclusive ownership that this process has had, now or once it is registered."""
        self._sessions[key] = pb.Sessions(key=key, first=first, last=last)
        if self._call is not None and self._sees_end:
            self._reports.add(task := asyncio.ensure_future(self._write(pb.HoldRequest(sessions=self._sessions[key]))))
            task.add_done_callback(self._reports.discard)

    async def leave(self) -> None:
        """Ends the registration, and waits for the agent to end the stream, for a second at most.

        To be called once the worker's partitions are released, or its own lease covers them.
        """
        self._leaving = True
        call = self._call
        if call is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await self._write(pb.HoldRequest(leave=pb.Leave()))
                await self._ended.wait()

    async def _hold(self, backoff: Backoff) -> None:
        """One stream, until it ends."""
        async with self._open_call(self._target) as call:
            try:
                async with asyncio.timeout(_HANDSHAKE_S):
                    await call.write(pb.HoldRequest(register=self._register))
                    first = await call.read()
                if first is None or first.WhichOneof("body") != "registered":
                    raise ProtocolError("the agent did not answer the registration")
                backoff.reset()
                self._call, self._sees_end = call, first.registered.sees_end
                for sessions in list(self._sessions.values()) if self._sees_end else ():
                    await self._write(pb.HoldRequest(sessions=sessions))
                self._listener.registered(first.registered.lease, sees_end=self._sees_end)
                await self._answer_pings(call)
            except TimeoutError:
                raise UnavailableError(f"the agent did not answer within {_HANDSHAKE_S:g} s") from None
            finally:
                self._call = None

    async def _answer_pings(self, call: AgentCall) -> None:
        while (response := await call.read()) is not None:
            if response.WhichOneof("body") == "ping":
                self._listener.pinged(response.ping)
                await self._write(pb.HoldRequest(pong=pb.Pong(number=response.ping.number)))

    async def _write(self, request: pb.HoldRequest) -> None:
        """Sends a message, one at a time. A stream that is broken shows when it is read."""
        async with self._writing:
            if (call := self._call) is not None:
                with suppress(RingcastError):
                    await call.write(request)


class GivenUpError(UnavailableError):
    """The agent has had no message from this worker for too long, and has deleted its records."""
