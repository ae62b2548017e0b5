"""A host with a heartbeat agent: the agent's real leases, and the streams that workers of the host register over.

All that the simulation takes from the agent's distribution for leases is imported here, also for variants.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import patch

from ringcast import hosting
from ringcast._coordination import agent_stream
from ringcast.hosting import HostBus
from ringcast_heartbeat_agent.leases import state as agent_state
from ringcast_heartbeat_agent.leases.host import HostLeases
from ringcast_heartbeat_agent.leases.registry import Registration, WorkerRegistry
from ringcast_heartbeat_agent.leases.state import SocketPlace, State
from ringcast_heartbeat_agent.leases.streams import GivenUpError, WorkerStreams
from ringcast_wire import NatsLogin, RingcastError, UnavailableError, leases
from typing_extensions import override

from tests.simulation.broker import Broker
from tests.simulation.engine import Process, Scheduler
from tests.simulation.history import History
from tests.simulation.jetstream import Message
from tests.simulation.process import LOOP_TIME, SimProcess, modules_with_time
from tests.simulation.sim_bus import SimBus

HOP_S: Final = 0.0002
"""How long a message takes from one process of a host to another."""
_CONNECT_S: Final = 600.0
_MOST: Final = 64
_USER: Final = 1000

pb = leases.pb

__all__ = ["Agent", "Host", "Registration", "WorkerRegistry", "simulated_agent"]


class Host:
    """A machine: its agent, if it has one now, and what the agent leaves beside its socket."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = f"/run/{name}.sock"
        self.agent: Agent | None = None
        """The newest process of the agent."""
        self.state: State | None = None
        self.gone = False
        """Its agent does not come back."""

    @asynccontextmanager
    async def opened(self, worker: SimProcess, _target: str) -> AsyncIterator[WorkerEnd]:
        """A stream of a worker to the agent; one that ends at once where no process listens."""
        agent = self.agent
        end = WorkerEnd(worker)
        if agent is None or not agent.listens:
            end.ended(_refused())
        else:
            agent.connect(end)
        try:
            yield end
        finally:
            end.close()

    def left(self, worker: Process) -> None:
        """A worker's process has ended: the kernel closes what it had open."""
        if self.agent is not None:
            for stream in list(self.agent.streams):
                if stream.far.process is worker:
                    stream.far.closed()


class End:
    """One end of a stream between two processes of a host: in order, kept while its process is paused."""

    def __init__(self, process: SimProcess) -> None:
        self.process = process
        self._loop = process.loop
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()

    def arrive(self, message: Any) -> None:
        """Something comes from the other end."""
        self.process.scheduler.after(HOP_S, self.process.run, self._loop.call_soon, (self._inbox.put_nowait, message))


class WorkerEnd(End):
    """:class:`ringcast._coordination.agent_stream.AgentCall` within a host."""

    def __init__(self, process: SimProcess) -> None:
        super().__init__(process)
        self.far: AgentEnd | None = None

    async def read(self) -> pb.HoldResponse | None:
        """The next message."""
        found = await self._inbox.get()
        if isinstance(found, pb.HoldResponse):
            return found
        self._inbox.put_nowait(found)
        if found is not None:
            raise found
        return None

    async def write(self, request: pb.HoldRequest) -> None:
        """Sends a message, if the process still lives."""
        if self.far is not None and self.process.alive:
            self.far.arrive(request)

    def ended(self, error: RingcastError | None) -> None:
        """The other end is gone, or has said why it ends."""
        self.far = None
        self.arrive(error)

    def close(self) -> None:
        """Ends the stream, unless the process is on its way out: then the kernel does."""
        if self.process.alive:
            self.closed()

    def closed(self) -> None:
        """It is closed."""
        far, self.far = self.far, None
        if far is not None:
            far.gone()


class AgentEnd(End):
    """:class:`ringcast_heartbeat_agent.leases.streams.WorkerStream` within a host."""

    def __init__(self, agent: SimProcess, far: WorkerEnd) -> None:
        super().__init__(agent)
        self.far = far
        self.task: asyncio.Task[None] | None = None

    async def read(self) -> pb.HoldRequest | None:
        """The next message."""
        return cast("pb.HoldRequest", await self._inbox.get())

    async def write(self, response: pb.HoldResponse) -> None:
        """Sends a message, if the process still lives."""
        if self.process.alive and self.far.far is self:
            self.far.arrive(response)

    def gone(self) -> None:
        """The process at the other end is gone: as gRPC does, it ends what serves the stream."""
        self.process.scheduler.after(HOP_S, self.process.run, self._loop.call_soon, (self._cancel,))

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class Place:
    """What the agent leaves to the next one: :class:`SocketPlace` without a file."""

    def __init__(self, agent: Agent) -> None:
        self.path = Path(agent.host.path)
        self._agent = agent

    def read(self) -> State | None:
        """What the agent before left."""
        return self._agent.host.state

    def write(self, state: State) -> None:
        """Leaves it to the next one."""
        if self._agent.alive:
            self._agent.host.state = state


class Agent(SimProcess):
    """A process with one real agent in it, as far as it keeps leases."""

    def __init__(
        self, scheduler: Scheduler, name: str, random: Random, *, host: Host, broker: Broker, history: History
    ) -> None:
        super().__init__(scheduler, name, random, broker, history)
        self.host = host
        self.process: Process = self
        self.hosted: HostLeases | None = None
        self.listens = False
        self.leaving = False
        self.streams: list[AgentEnd] = []
        self._served: WorkerStreams | None = None
        self._stopping = asyncio.Event()

    @property
    def keeps(self) -> bool:
        """Whether it has its lease, and workers can register."""
        return self.listens and self.hosted is not None and self.hosted.lease.held

    def received(self, token: str, message: Message) -> None:
        """It takes no events."""
        raise AssertionError(f"{token} {message}")

    # ---- life

    def stop(self) -> None:
        """Has it end in order, as SIGTERM does."""
        self.leaving = True
        self.run(self._stopping.set, ())

    @override
    async def live(self) -> None:
        async with self._bus() as bus, self._leases(bus) as self.hosted:
            self._served = WorkerStreams(self.hosted)
            self.listens = True
            try:
                await self._stopping.wait()
            finally:
                self.hosted.stop()
                self._close()

    def _bus(self) -> Any:
        return HostBus.open(
            self.host.name,
            servers=(f"nats://{self.name}",),
            login=NatsLogin(),
            jetstream_api="$JS.API",
            connect_timeout_s=_CONNECT_S,
            logger=_silent,
            open_bus=partial(SimBus.prepared, self),
        )

    def _leases(self, bus: HostBus) -> Any:
        place = cast(SocketPlace, Place(self))
        return HostLeases.open(bus, place, self.host.name, most=_MOST, most_of_user=_MOST)

    @override
    def crash(self) -> None:
        if self.alive:
            self._close()
            super().crash()

    def _close(self) -> None:
        self.listens = False
        for stream in self.streams:
            if stream.far.far is stream:
                stream.far.ended(_refused())

    # ---- streams

    def connect(self, worker: WorkerEnd) -> None:
        """A worker of the host connects. The kernel takes the connection in, the agent when it has a turn."""
        worker.far = stream = AgentEnd(self, worker)
        self.streams.append(stream)
        self.scheduler.after(HOP_S, self.run, self.loop.call_soon, (self._accept, stream))

    def _accept(self, stream: AgentEnd) -> None:
        stream.task = self.loop.create_task(self._serve(stream))

    async def _serve(self, stream: AgentEnd) -> None:
        assert self._served is not None
        error: RingcastError | None = None
        try:
            await self._served.serve(stream, _USER)
        except GivenUpError as caught:
            error = agent_stream.GivenUpError(str(caught))
        except RingcastError as caught:
            error = caught
        finally:
            self.streams.remove(stream)
            if self.alive and stream.far.far is stream:
                stream.far.ended(error)


def _refused() -> RingcastError:
    return UnavailableError("the agent did not answer: nobody listens")


@contextmanager
def simulated_agent(seed: int) -> Iterator[None]:
    """Has the agent's code tell the time by its loop, and draw from the seed."""
    random = Random(f"secrets of {seed}")
    secrets = SimpleNamespace(token_hex=lambda count: random.randbytes(count).hex())
    logger = logging.getLogger("ringcast_heartbeat_agent")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    with ExitStack() as stack:
        for module in modules_with_time("ringcast_heartbeat_agent"):
            stack.enter_context(patch.object(module, "time", LOOP_TIME))
        for module in (hosting, agent_stream):
            stack.enter_context(patch.object(module, "os", SimpleNamespace(getpid=lambda: 1)))
        stack.enter_context(patch.object(hosting, "socket", SimpleNamespace(gethostname=lambda: "host")))
        stack.enter_context(patch.object(agent_state, "secrets", secrets))
        yield
    logger.setLevel(level)


_silent: Final = logging.getLogger("ringcast.simulation")
