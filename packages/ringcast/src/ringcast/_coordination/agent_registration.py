"""A worker's registration with the agent of its host, as the messages of the agent show it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from ringcast_wire import EventLog, InUseError, RingcastError, event_within

from ringcast._protocol.lease_choice import LeaseChoice

if TYPE_CHECKING:
    from ringcast._coordination.agent_stream import pb

_TICK_S: Final = 0.25
_SILENT_TICKS: Final = 10
"""After so many ticks without a ping the agent does not answer. Ticks of this process: its own pauses don't count."""


class LeaseChanges(Protocol):
    """What follows from a change of the lease."""

    def renamed(self) -> None:
        """The records are to name another lease."""

    def regranted(self) -> None:
        """Other workers may have taken over before the lease was granted: everything has to be verified."""

    def witnessed_by(self, agent: str) -> None:
        """The agent of this id sees this process end; without an id the agent does not."""


class AgentRegistration:
    """:class:`ringcast._coordination.agent_stream.AgentListener`: records in ``choice`` whether the agent answers."""

    def __init__(self, agent: str, choice: LeaseChoice, changes: LeaseChanges, log: EventLog) -> None:
        self._agent = agent
        self._choice = choice
        self._changes = changes
        self._log = log
        self._event = asyncio.Event()
        self._lease = ""
        self._silent_ticks = 0
        self._losses: int | None = None
        self._reported_failures: int | None = None
        self.refusal: RingcastError | None = None
        """What the last attempt to register, or the last stream, failed with."""
        self.held = False
        """Whether the agent holds the host's lease, by its last message."""
        self.failed_writes = 0
        """Failed writes of the host's lease since the agent has kept it for this worker."""

    async def first_answer(self, deadline: float) -> None:
        """Waits until the agent has registered this worker, or can't be used: ``refusal`` says why.

        Raises:
            InUseError: until ``deadline``, on the loop's clock, the agent has had another process of this worker id.
        """
        while True:
            await self._event.wait()
            self._event.clear()
            if self._choice.host is not None or not isinstance(self.refusal, InUseError):
                return
            if asyncio.get_running_loop().time() >= deadline:
                raise self.refusal

    def check_silence(self, now: float) -> None:
        """Counts the agent as lost when it has sent nothing for some ticks."""
        if self._choice.host is not None and self._silent_ticks >= _SILENT_TICKS:
            self._log.warning("agent.silent", agent=self._agent)
            self._choice.lost(now)

    async def tick(self) -> None:
        """Waits for a tick, or until the agent registers this worker, answers again, or fails."""
        self._silent_ticks += 1
        if await event_within(self._event, _TICK_S):
            self._event.clear()

    def registered(self, lease: str, *, sees_end: bool = False) -> None:
        """The agent has registered this worker, and keeps this lease for it."""
        self._lease, self._silent_ticks, self.held, self._losses = lease, 0, True, None
        self._reported_failures = None
        self.refusal = None
        self._answered()
        self._log.info("agent.lease_kept", agent=self._agent, lease=lease)
        self._changes.witnessed_by(lease.partition(".")[0] if sees_end else "")

    def pinged(self, ping: pb.Ping) -> None:
        """The agent has sent the state of the host's lease."""
        self._silent_ticks = 0
        self.held = ping.held
        if self._losses is not None and ping.losses > self._losses:
            self._changes.regranted()
        self._losses = ping.losses
        if self._reported_failures is not None:
            self.failed_writes += max(0, ping.failed_writes - self._reported_failures)
        self._reported_failures = ping.failed_writes
        # An agent that was halted for long says first that its lease has ended: records that named that one would have
        # others take over what the worker's own lease keeps for it.
        if self._choice.host is None and ping.held:
            self._answered()

    def failed(self, error: RingcastError) -> None:
        """The agent did not register this worker, or the stream to it ended."""
        from ringcast._coordination.agent_stream import GivenUpError  # a worker without an agent does not import gRPC

        if self._choice.host is not None:
            self._log.warning("agent.stream_ended", agent=self._agent, error=error)
        self._choice.lost(asyncio.get_running_loop().time(), given_up=isinstance(error, GivenUpError))
        self.refusal = error
        self._event.set()

    def _answered(self) -> None:
        before = self._choice.id
        if self._choice.answered(self._lease, asyncio.get_running_loop().time()):
            self._changes.regranted()
        if self._choice.id != before:
            self._changes.renamed()
        self._event.set()
