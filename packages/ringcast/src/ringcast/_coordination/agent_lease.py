"""A worker's life under the agent of its host: the agent's lease while it answers, and one of its own otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from ringcast_wire import EventLog

from ringcast._common.config import WorkerConfig
from ringcast._coordination.agent_registration import AgentRegistration
from ringcast._coordination.fallback_lease import FallbackLease
from ringcast._coordination.lease import PATIENCE_S, LeaseHolder
from ringcast._protocol.lease_choice import LeaseChoice

if TYPE_CHECKING:
    from ringcast._coordination.agent_stream import AgentStream, OpenAgentCall


class AgentLease:
    """The :class:`LeaseSource` of a worker under an agent. ``own`` is the lease that it falls back to.

    ``regranted`` is called when other workers may have taken over before the lease was granted.
    """

    def __init__(
        self,
        config: WorkerConfig,
        own: LeaseHolder,
        open_call: OpenAgentCall | None = None,
        *,
        incarnation: str,
        regranted: Callable[[], None],
        log: EventLog,
    ) -> None:
        from ringcast._coordination.agent_stream import AgentStream  # a worker without an agent does not import gRPC

        if open_call is None:
            from ringcast._coordination.agent_call import GrpcAgentCall

            open_call = GrpcAgentCall.opened
        self._own = own
        self._regranted = regranted
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._agent = config.agent
        self._choice = LeaseChoice(own.id)
        self._registration = AgentRegistration(config.agent, self._choice, self, log)
        self._fallback = FallbackLease(own, self._choice, self, log)
        self._stream: AgentStream = AgentStream(
            config, incarnation=incarnation, open_call=open_call, listener=self._registration, log=log
        )
        self._streaming: asyncio.Task[None] | None = None
        self._reporting: asyncio.Future[None] | None = None
        self._changed: Callable[[], None] = lambda: None
        self._witness: str | None = None
        self.sees_end = False
        self._witnessed: Callable[[str], None] = lambda agent: None

    @property
    def id(self) -> str:
        """The agent's lease, or the worker's own."""
        return self._choice.id

    @property
    def ids(self) -> frozenset[str]:
        """The leases that no other process can have while this one has them."""
        host = self._choice.host
        return self._own.ids | frozenset([host] if host is not None else [])

    @property
    def by_agent(self) -> bool:
        """Whether the agent keeps it now."""
        return self._choice.host is not None

    @property
    def id_in_use(self) -> bool:
        """Whether another process has the worker's id."""
        return self._own.id_in_use

    @id_in_use.setter
    def id_in_use(self, in_use: bool) -> None:
        self._own.id_in_use = in_use

    @property
    def failed_writes(self) -> int:
        """Of the worker's own lease, and of the host's while the agent has kept it for this worker."""
        return self._own.failed_writes + self._registration.failed_writes

    @property
    def held(self) -> bool:
        """Whether the others count this worker as alive, as far as it knows. From any thread."""
        if self.id_in_use:
            return False
        if self._choice.host is not None:
            return self._registration.held
        return self._own.held or self._choice.covered(self._loop.time())

    def on_change(self, callback: Callable[[], None]) -> None:
        """Calls back when the records are to name another lease."""
        self._changed = callback

    def on_witnessed(self, callback: Callable[[str], None]) -> None:
        """Calls back with the id of an agent that sees this process end, or with nothing for one that does not; at once
        if one has registered this process."""
        self._witnessed = callback
        if self._witness is not None:
            callback(self._witness)

    def witnessed_by(self, agent: str) -> None:
        """The agent of this id sees this process end; without an id the agent does not."""
        self._witness, self.sees_end = agent, agent != ""
        self._witnessed(agent)

    def report_sessions(self, key: str, first: int, last: int) -> None:
        """The sessions of exclusive ownership that this process has had: they are over at once when it has ended."""
        self._stream.report_sessions(key, first, last)

    def recorded(self, lease: str) -> None:
        """All records name this lease now."""
        self._choice.recorded(lease, asyncio.get_running_loop().time())

    def check(self) -> None:
        """Looks after the lease at once: it was seen to be gone."""
        self._own.check()
        if self._choice.host is not None and (self._reporting is None or self._reporting.done()):
            self._reporting = asyncio.ensure_future(self._stream.report_lost_lease())

    async def grant(self) -> None:
        """Registers with the agent, or has the worker's own lease granted if it can't be reached.

        Raises:
            InUseError: another live process has the worker id.
            UnavailableError: neither the agent nor the bucket can be reached.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        self._streaming = loop.create_task(self._stream.run(), name="agent-lease")
        try:
            await self._registration.first_answer(deadline)
            if self._choice.host is None:
                self._log.warning("agent.unusable", agent=self._agent, error=self._registration.refusal)
                await self._own.grant()
                self._choice.own_taken(loop.time())
        except BaseException:
            self.detach()
            raise

    async def keep_alive(self) -> None:
        """Refreshes the lease that is needed until cancelled.

        Raises:
            InUseError: another process has the worker id.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            while True:
                now = loop.time()
                if self._streaming is not None and self._streaming.done():
                    self._streaming.result()
                self._registration.check_silence(now)
                if self._choice.poll(now):
                    self._log.warning("agent.lost", agent=self._agent)
                    self._changed()
                await self._fallback.keep(tasks, wanted=self._choice.wants_own(now))
                await self._registration.tick()

    async def revoke(self) -> None:
        """Ends the registration, and revokes the worker's own lease if it has it."""
        await self._stream.leave()
        if self._choice.own_held:
            await self._own.revoke()
            self._choice.own_given()

    def detach(self) -> bool:
        """The worker needs it no longer."""
        if self._streaming is not None:
            self._streaming.cancel()
        return self._own.detach()

    def renamed(self) -> None:
        """The records are to name another lease."""
        self._changed()

    def regranted(self) -> None:
        """Other workers may have taken over meanwhile."""
        self._log.warning("lease.regranted")
        self._regranted()
