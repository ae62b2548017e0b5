"""A worker's life under the agent of its host: the agent's lease while it answers, and one of its own otherwise."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ringcast_wire import Backoff, EventLog, InUseError, RingcastError

from ringcast._bus.bus import TRANSIENT
from ringcast._common.config import WorkerConfig
from ringcast._coordination.lease import PATIENCE_S, LeaseHolder
from ringcast._protocol.lease_choice import LeaseChoice

if TYPE_CHECKING:
    from ringcast._coordination.agent_stream import AgentStream, OpenAgentCall, pb

_TICK_S: Final = 0.25
_SILENT_TICKS: Final = 10
"""After so many ticks without a ping the agent does not answer. Ticks of this process: its own pauses don't count."""


class AgentLease:
    """Where a worker's records get their lease from, when an agent is to keep it. ``own`` is what it falls back to."""

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
        self._choice = LeaseChoice(own.id)
        self._stream: AgentStream = AgentStream(
            config,
            incarnation=incarnation,
            open_call=open_call,
            registered=self._on_registered,
            pinged=self._on_ping,
            failed=self._on_failed,
            log=log,
        )
        self._agent = config.agent
        self._streaming: asyncio.Task[None] | None = None
        self._holding: asyncio.Task[None] | None = None
        self._changed: Callable[[], None] = lambda: None
        self._news = asyncio.Event()
        self._refusal: RingcastError | None = None
        self._host_held = False
        self._losses: int | None = None
        self._host_failures = 0
        self._host_told: int | None = None
        self._silent = 0
        self._lease = ""
        self._doubting: asyncio.Future[None] | None = None

    @property
    def id(self) -> str:
        """The agent's lease, or the worker's own."""
        return self._choice.id

    @property
    def ids(self) -> frozenset[str]:
        """What only this process can have."""
        host = self._choice.host
        return self._own.ids | frozenset([host] if host is not None else [])

    @property
    def by_agent(self) -> bool:
        """Whether the agent keeps it now."""
        return self._choice.host is not None

    @property
    def taken(self) -> bool:
        """Whether another process has the worker's id."""
        return self._own.taken

    @taken.setter
    def taken(self, taken: bool) -> None:
        self._own.taken = taken

    @property
    def failed_writes(self) -> int:
        """Of the worker's own lease, and of the host's while the agent has kept it for this worker."""
        return self._own.failed_writes + self._host_failures

    @property
    def held(self) -> bool:
        """Whether the others count this worker as alive, as far as it can tell. Any thread may ask."""
        if self.taken:
            return False
        if self._choice.host is not None:
            return self._host_held
        return self._own.held or self._choice.covered(self._loop.time())

    def on_change(self, callback: Callable[[], None]) -> None:
        """Calls back when the records are to name another lease."""
        self._changed = callback

    def recorded(self, lease: str) -> None:
        """All records name this lease now."""
        self._choice.recorded(lease, asyncio.get_running_loop().time())

    def check(self) -> None:
        """Looks after the lease at once: it was seen to be gone."""
        self._own.check()
        if self._choice.host is not None and (self._doubting is None or self._doubting.done()):
            self._doubting = asyncio.ensure_future(self._stream.doubt())

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
            await self._first_answer(deadline)
            if self._choice.host is None:
                self._log.warning(
                    "agent.unusable",
                    agent=self._agent,
                    error=str(self._refusal),
                )
                await self._own.grant()
                self._choice.own_taken(loop.time())
        except BaseException:
            self.detach()
            raise

    async def _first_answer(self, deadline: float) -> None:
        """Waits until the agent has registered this worker, or is known to be of no use."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self.by_agent or not isinstance(self._refusal, InUseError):
                return
            if asyncio.get_running_loop().time() >= deadline:
                raise self._refusal

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
                if self._choice.host is not None and self._silent >= _SILENT_TICKS:
                    self._log.warning("agent.silent", agent=self._agent)
                    self._choice.lost(now)
                if self._choice.poll(now):
                    self._log.warning("agent.lost", agent=self._agent)
                    self._changed()
                await self._keep_own(tasks, self._choice.wants_own(now))
                self._silent += 1
                try:
                    async with asyncio.timeout(_TICK_S):
                        await self._news.wait()
                except TimeoutError:
                    continue
                self._news.clear()

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

    async def _keep_own(self, tasks: asyncio.TaskGroup, wanted: bool) -> None:
        """Begins or ends to hold the worker's own lease."""
        if wanted and self._holding is None:
            self._holding = tasks.create_task(self._keep_own_alive())
        elif not wanted and self._holding is not None:
            self._holding.cancel()
            await asyncio.wait({self._holding})
            self._holding = None
            if self._choice.own_held:
                self._choice.own_given()
                try:
                    await self._own.revoke()
                except (RingcastError, *TRANSIENT) as error:
                    self._log.debug("lease.revoke_failed", error=str(error))

    async def _keep_own_alive(self) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff(random.random, first_s=0.1, most_s=2.0)
        while not self._choice.own_held:
            try:
                await self._own.grant()
            except InUseError:
                raise
            except (RingcastError, *TRANSIENT) as error:
                self._log.debug("lease.grant_failed", error=str(error))
                await asyncio.sleep(backoff.next_s())
                continue
            if self._choice.own_taken(loop.time()):
                self._verify()
        await self._own.keep_alive()

    def _on_registered(self, lease: str) -> None:
        self._lease, self._silent, self._host_held, self._losses = lease, 0, True, None
        self._host_told = None
        self._refusal = None
        self._answered()
        self._log.info("agent.lease_kept", agent=self._agent, lease=lease)

    def _on_ping(self, ping: pb.Ping) -> None:
        self._silent = 0
        self._host_held = ping.held
        if self._losses is not None and ping.losses > self._losses:
            self._verify()
        self._losses = ping.losses
        if self._host_told is not None:
            self._host_failures += max(0, ping.failed_writes - self._host_told)
        self._host_told = ping.failed_writes
        if self._choice.host is None:
            self._answered()

    def _on_failed(self, error: RingcastError) -> None:
        from ringcast._coordination.agent_stream import GivenUpError

        if self._choice.host is not None:
            self._log.warning("agent.stream_ended", agent=self._agent, error=str(error))
        self._choice.lost(asyncio.get_running_loop().time(), given_up=isinstance(error, GivenUpError))
        self._refusal = error
        self._news.set()

    def _answered(self) -> None:
        before = self._choice.id
        if self._choice.answered(self._lease, asyncio.get_running_loop().time()):
            self._verify()
        if self._choice.id != before:
            self._changed()
        self._news.set()

    def _verify(self) -> None:
        self._log.warning("lease.regranted")
        self._regranted()
