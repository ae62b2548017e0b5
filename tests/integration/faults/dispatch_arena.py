"""The system of the fault tests with an agent in it, whose group of consumers shares a config key with workers."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from ringcast_testkit import PATIENCE_S, AgentProcess, History, ManagedProcess, ManagedServer, Report, WarmProgram
from ringcast_testkit.dispatch import status_until

from tests.integration.faults.arena import STORE, Arena, Shape, off
from tests.integration.faults.deliveries import Answers

CONSUMERS = ("consumer0", "consumer1", "consumer2")
GROUP = "faults"
_CONSUMER = WarmProgram(
    "tests.integration.faults.consumer_main", ("ringcast.dispatch", "ringcast_testkit._worker_main")
)
_OPTIONS = (
    # Another life has the name of the one before it, and so its partitions.
    *("--id", "host"),
    # A message is tried until it is done with: nothing may be given up here.
    *("--poison-policy", "block", "--max-tries", "1000", "--max-deliveries", "1000", "--retry-first", "0.02"),
    *("--retry-most", "0.2", "--subscribe-timeout", str(PATIENCE_S), "--log-level", "warning"),
)


class ConsumerProcess(ManagedServer):
    """A consumer that can be killed and started again; what it reports goes to ``history`` under its name."""

    def __init__(self, name: str, *, address: str, token: str, key: str, history: History) -> None:
        self.name = name
        self.life = 0
        self._history = history
        place = {"address": address, "store": STORE, "key": key, "group": GROUP, "name": name, "token": token}
        self._words = json.dumps({"consumer": place, "delay_s": 0.002, "fails": 0.02})

    def start(self) -> None:
        """Starts a life. It registers when it can."""
        self.life += 1
        life = self.life
        self._process = ManagedProcess(
            self.name,
            [self._words],
            take_line=lambda line: self._take(life, line),
            program=_CONSUMER,
        )

    def kill(self) -> None:
        """SIGKILL."""
        super().kill()
        self._history.add(Report(self.name, self.life, "killed", time.monotonic_ns(), {}))

    def _take(self, life: int, line: str) -> None:
        fields: dict[str, Any] = json.loads(line)
        self._history.add(Report(self.name, life, fields.pop("event"), fields.pop("at_ns"), fields))


class DispatchArena(Arena):
    """One config key, shared by workers and by an agent, and the agent's part by its consumers."""

    def __init__(self, directory: Path, shape: Shape, *, database: str = "") -> None:
        super().__init__(directory, shape, database=database)
        self.answers = Answers()
        self.history.listen(self._take)
        self.agent: AgentProcess | None = None
        self.consumers: dict[str, ConsumerProcess] = {}

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in (*self.consumers.values(), *filter(None, [self.agent])):
            server.__exit__(None, None, None)
        await super().__aexit__(kind, error, trace)

    def _take(self, report: Report) -> None:
        self.answers.take(report)
        self.mirror.look()  # it was told of the report before the answers were

    def another_agent(self) -> AgentProcess:
        """One more with the same id, on the same host but for its socket, not started."""
        return AgentProcess(self.directory / "copy", nats_url=self._linked("copy"), options=_OPTIONS)

    def consumer_of(self, agent: AgentProcess, name: str) -> ConsumerProcess:
        """A consumer of the group at an agent, which has started; it is not started."""
        (key,) = self.shape.keys
        return ConsumerProcess(name, address=agent.grpc_address, token=agent.token, key=key, history=self.history)

    async def group(self) -> Any:
        """The status of the group once every consumer is there and everything is settled."""
        assert self.agent is not None

        def settled(group: Any) -> bool:
            return len(group["consumers"]) == len(self.consumers) and not group["lag"]

        return await status_until(self.agent, STORE, settled)

    async def shared_out(self) -> None:
        """Waits until the agent says that it has as many partitions as the workers have left to it, and has some.

        A worker hears a moment later than the agent that the agent is there: until then both have what the agent took.
        """
        assert self.agent is not None
        (key,) = self.shape.keys
        deadline = time.monotonic() + PATIENCE_S
        while True:
            told = await off(self.agent.status)
            agents = sum(one["partitions"] for one in told["workers"] if (one["store"], one["key"]) == (STORE, key))
            owners = self.mirror.owner_counts(key)
            if max(owners) <= 1 and owners.count(0) == agents > 0:
                return
            if time.monotonic() > deadline:
                seen = f"the agent has {agents} of {len(owners)}, by workers they are owned so many times: {owners}"
                raise AssertionError(f"the partitions were not shared out within {PATIENCE_S:g} s: {seen}")
            await asyncio.sleep(0.02)

    async def busy(self, deliveries: int) -> None:
        """Waits until consumers have acknowledged so many more."""
        enough = self.answers.count + deliveries
        await self.mirror.wait(lambda: self.answers.count >= enough, PATIENCE_S, "consumers got too little")

    @property
    def _lease_socket(self) -> Path:
        return self.directory / "leases.sock"

    def _worker_settings(self) -> dict[str, Any]:
        # The agent keeps their leases while it lives.
        return {**super()._worker_settings(), "agent": str(self._lease_socket)}

    async def _start(self) -> None:
        await super()._start()
        options = (*_OPTIONS, "--lease-socket", str(self._lease_socket))
        self.agent = AgentProcess(self.directory / "agent", nats_url=self._linked("agent"), options=options)
        await off(self.agent.start)
        for name in CONSUMERS:
            self.consumers[name] = self.consumer_of(self.agent, name)
        await asyncio.gather(*(off(consumer.start) for consumer in self.consumers.values()))
        await self.group()
