"""What shows when, while a part is gone: the timelines of docs/outages.md, measured with real servers.

Usage: python -m benchmarks.outages [--only NAME,…]. Two workers share a key of a store in PostgreSQL, every setting is
the default, and somebody writes a row four times a second. Then a part is killed, and started again after half a minute
(NATS also after two seconds).
What is told: transitions of the worker's health and of the service's, the first log record of each kind, and what the
writer is answered. The times are seconds since the part was killed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import re
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from ringcast import RingcastError, Worker
from ringcast_client import ConfigServiceClient
from ringcast_testkit import AgentProcess, ConfigServiceProcess, History, NatsServer, PostgresServer, WorkerProcess

STORE: Final = "gateway"
KEY: Final = "blocklist"
PARTITIONS: Final = 64
LOOK_S: Final = 0.02
WRITE_EVERY_S: Final = 0.25
PARTS: Final = ("reads", "writes", "bus")
_LOGGED: Final = re.compile(r"\b(WARNING|ERROR|CRITICAL) \S+ (event=\S+|[^=:]*)")
"""The level, and the name of the event or the first words of the sentence."""


@dataclass(slots=True)
class Timeline:
    """What was seen since ``zero_s``: states that change, and the first log record of each kind."""

    zero_s: float = 0.0
    _states: dict[str, str] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)

    def begin(self, name: str) -> None:
        """A part is killed now."""
        print(f"\n## {name}", flush=True)
        self.zero_s = time.monotonic()
        self._told.clear()

    def say(self, text: str) -> None:
        """One line, with the time."""
        if self.zero_s:
            print(f"{time.monotonic() - self.zero_s:6.1f}  {text}", flush=True)

    def state(self, what: str, now: str) -> None:
        """How something is."""
        if self._states.get(what) != now:
            self._states[what] = now
            self.say(f"{what}: {now}")

    def log(self, text: str) -> None:
        """Something was logged."""
        if text not in self._told:
            self._told.add(text)
            self.say(text)


class WorkerLog(logging.Handler):
    """Notes what the worker in this process logs."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__(logging.INFO)
        self._timeline = timeline

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, "event", "").startswith("partition."):  # one for each that is acquired
            self._timeline.log(f"worker logs {record.levelname}: {record.getMessage()}")


@dataclass(slots=True)
class System:
    """The parts, of which one is killed at a time. ``other`` is a worker in a process of its own."""

    nats: NatsServer
    database: PostgresServer
    service: ConfigServiceProcess
    other: WorkerProcess
    agent: AgentProcess | None
    timeline: Timeline


def worker_state(worker: Worker) -> str:
    """What a probe would see, but for ages, which change all the time."""
    health = worker.health()
    (key,) = health.keys
    words = ["ready" if health.ready else "not ready", "connected" if health.connected else "disconnected"]
    words += ["lease held" if health.lease_held else "no lease"]
    words += ["stale" if health.staleness_s else "current"]
    words += [f"owns {key.owned} of {PARTITIONS}"]
    if key.unfetched_for_s:
        words.append("fetches fail")
    return ", ".join(words)


async def watch_worker(system: System, worker: Worker) -> None:
    while True:
        system.timeline.state("worker", worker_state(worker))
        await asyncio.sleep(LOOK_S)


async def watch_service(system: System) -> None:
    """Its health, part by part, and its log."""
    seen: set[str] = set()
    soon = [("grpc.max_reconnect_backoff_ms", 1_000)]
    async with grpc.aio.insecure_channel(system.service.address, options=soon) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        while True:
            found = []
            for part in PARTS:
                name = f"ringcast.config.v1.ConfigService/{part}"
                try:
                    answer = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=2.0)
                except grpc.aio.AioRpcError as error:
                    found = [error.code().name.lower().replace("_", " ")]
                    break
                good = answer.status == health_pb2.HealthCheckResponse.SERVING
                found.append(f"{part} {'served' if good else 'not served'}")
            system.timeline.state("service", ", ".join(found))
            for line in list(system.service.process.log):
                if line not in seen and (match := _LOGGED.search(line)):
                    system.timeline.log(f"service logs {match[1]}: {match[2].strip()}")
                seen.add(line)
            await asyncio.sleep(LOOK_S)


async def write(system: System) -> None:
    """A row, four times a second, with two seconds of patience."""
    async with ConfigServiceClient(system.service.address, timeout_s=2.0) as client:
        while True:
            try:
                await client.put(STORE, KEY, f"row-{time.time_ns() % 1000}", str(time.time_ns()))
            except RingcastError as error:
                system.timeline.state("writer", type(error).__name__)
            else:
                system.timeline.state("writer", "acknowledged")
            await asyncio.sleep(WRITE_EVERY_S)


async def keep(system: System, kill: Callable[[], object], start: Callable[[], object] | None, gone_s: float) -> None:
    """Kills a part, waits, starts it again, and waits until all is well."""
    await asyncio.to_thread(kill)
    await asyncio.sleep(gone_s)
    if start is not None:
        system.timeline.say("it is started again")
        await asyncio.to_thread(start)
    await asyncio.sleep(15.0)
    system.timeline.zero_s = 0.0


@contextlib.asynccontextmanager
async def running(directory: Path, timeline: Timeline, *, by_agent: bool) -> AsyncIterator[System]:
    """All parts, with the worker of this process and everything that looks on."""
    socket = str(directory / "lease.sock")
    with contextlib.ExitStack() as stack:
        nats = stack.enter_context(NatsServer(directory / "nats"))
        database = stack.enter_context(PostgresServer())
        url = database.create_database()
        service = stack.enter_context(ConfigServiceProcess(directory, nats_url=nats.url, database=url))
        agent = None
        if by_agent:
            agent = stack.enter_context(AgentProcess(directory, nats_url=nats.url, options=("--lease-socket", socket)))
        async with ConfigServiceClient(service.address) as client:
            await client.create_store(STORE, partition_count=PARTITIONS)
            await client.put(STORE, KEY, "row-0", "0")
        place: dict[str, Any] = {"servers": nats.url, "store": STORE, "agent": socket if by_agent else None}
        other = WorkerProcess("other", keys=(KEY,), history=History(), **place)
        stack.enter_context(other)
        log = logging.getLogger("outages")
        log.setLevel(logging.INFO)
        log.propagate = False
        log.handlers = [WorkerLog(timeline)]
        system = System(nats, database, service, other, agent, timeline)
        worker = Worker(keys=[KEY], worker_id="shown", handler=_nothing, logger=log, **place)
        async with worker, asyncio.TaskGroup() as tasks:
            await worker.wait_ready()
            await asyncio.to_thread(other.wait_ready)
            looking = [tasks.create_task(one) for one in (watch_worker(system, worker), watch_service(system))]
            looking.append(tasks.create_task(write(system)))
            await asyncio.sleep(3.0)
            yield system
            for task in looking:
                task.cancel()


def _nothing(_change: object) -> None:
    """The handler."""


async def show(only: set[str]) -> None:
    timeline = Timeline()
    for by_agent in (False, True):
        with tempfile.TemporaryDirectory(prefix="rc-outage-") as temporary:
            async with running(Path(temporary), timeline, by_agent=by_agent) as system:
                for name, kill, start, gone_s in outages(system):
                    if not only or name in only:
                        timeline.begin(name)
                        await keep(system, kill, start, gone_s)


Outage = tuple[str, Callable[[], object], Callable[[], object] | None, float]


def outages(system: System) -> list[Outage]:
    """What is killed, in turn. A worker last, since it stays away."""
    if system.agent is None:
        return [
            ("nats-briefly", system.nats.kill, system.nats.restart, 2.0),
            ("nats", system.nats.kill, system.nats.restart, 30.0),
            ("service", system.service.kill, system.service.restart, 30.0),
            ("database", system.database.kill, system.database.restart, 30.0),
            ("worker", system.other.kill, None, 15.0),
        ]
    return [
        ("agent", system.agent.kill, system.agent.restart, 30.0),
        ("worker-under-agent", system.other.kill, None, 5.0),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", metavar="NAME,…", default="", help="only these outages")
    only = {name for name in parser.parse_args().only.split(",") if name}
    asyncio.run(show(only))


if __name__ == "__main__":
    main()
