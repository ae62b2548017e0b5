"""A run: everything is made and decided from one seed."""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec
from nats.js.api import StreamConfig
from ringcast._protocol.partition import Fetching
from ringcast_config_service.nats import streams
from ringcast_config_service.nats.streams import StreamSizes
from ringcast_config_service.repository import StoreRecord
from ringcast_config_service.repository.writes import PlannedRow
from ringcast_config_service.writes.batches import RowInput
from ringcast_core import row_partition
from ringcast_wire import Event, Mode, StoreSettings, Strategy, limits, names

from tests.simulation.agent import Agent, Host
from tests.simulation.broker import Broker, Bucket
from tests.simulation.database import Database
from tests.simulation.dispatch import DispatchSettings
from tests.simulation.engine import Scheduler
from tests.simulation.history import History
from tests.simulation.jetstream import Stream
from tests.simulation.network import Network
from tests.simulation.process import SimProcess
from tests.simulation.service import Service
from tests.simulation.worker import Worker, WorkerSettings

STORE: Final = "s"
LEASE_S: Final = float(limits.LEASE_TTL_S)
REST_WITHIN_S: Final = 180.0
"""How long after the last fault everything has to be in order again: five times the longest back-off."""

HOSTED: Final = (5, 6, 11, 14)
"""Seeds that have hosts with agents, by the rest when they are divided by 16: others go on as they did."""
_UNDER_AN_AGENT: Final = 0.65
_OF_AN_AGENT: Final = 0.25


class World:
    """The processes, the server, the database, and the writers."""

    def __init__(self, seed: int, trace: list[str] | None = None) -> None:
        self.random = random = Random(seed)
        self.scheduler = Scheduler(trace)
        self.network = Network(self.scheduler, random)
        self.history = History()
        self.broker = Broker(self.scheduler, self.network)
        self.full = self._is_full(random)
        self.keys = ("k",) if random.random() < 0.8 else ("k", "j")
        self.partitions = random.choice((1, 4, 8, 8, 12))
        self.store = self._store_settings(random)
        self.record = StoreRecord(STORE, self.store, random.choice((0, 12, 256)), 0, "h0")
        self.database = self._make_database()
        self.workers: dict[str, Worker] = {}
        """The newest process of each worker id."""
        self.ghosts: list[Worker] = []
        """Processes whose id another one has been given."""
        self._hosts_random = Random(f"hosts of {seed}")
        self.hosts = [Host(f"h{number}") for number in range(self._host_count(seed))]
        """Machines with an agent."""
        self._places: dict[str, Host | None] = {}
        """On which of them each worker id is."""
        self._dispatching: set[str] = set()
        """The worker ids that are an agent's own, whose groups have consumers."""
        self.dispatch = DispatchSettings.drawn(self._hosts_random)
        self.services: dict[str, Service] = {}
        self.writes = 0
        self.write_every_s = random.uniform(0.15, 0.8)
        self.settings = self._worker_settings()
        self.settings.stabilisation_s = Random(f"stabilisation of {seed}").choice((0.0, 0.3, 1.0, 5.0))
        """Drawn apart, so that seeds which are known for something go on as they did."""
        self._lives = 0
        self._rows = self._row_ids()
        self._writing_until = -1.0
        self._ack_wait_s = random.choice((30.0, 30.0, 5.0))
        self._depth = random.choice((64, 64, 2))
        self._max_ack_pending = self.settings.max_ack_pending = random.choice((4096, 4096, 3))
        self.settings.ack_wait_s = self._ack_wait_s
        self._inactive_s = random.choice((300.0, 12.0))
        self.marker_s = random.choice((600.0, 20.0, 20.0))
        self._max_payload = random.choice((1 << 20, 1 << 20, 240))
        self._retention_ms = random.choice((1_000, 5_000, 60_000))
        self.provision()

    def _make_database(self) -> Database:
        return Database(self.scheduler, self._committed, self._began)

    # ---- what kind of store it is: each draws the same of a seed, whatever it makes of that

    def _is_full(self, random: Random) -> bool:
        return random.random() < 0.08

    def _store_settings(self, random: Random) -> StoreSettings:
        strategy = Strategy.RING if random.random() < 0.15 else Strategy.JUMP
        mode = Mode.FULL if self.full else Mode.PARTITIONED
        return StoreSettings(partition_count=self.partitions, mode=mode, strategy=strategy)

    def _host_count(self, seed: int) -> int:
        return self._hosts_random.choice((1, 1, 2)) if seed % 16 in HOSTED and not self.full else 0

    @property
    def watched(self) -> str:
        """The bucket that every worker watches."""
        return names.nodes_bucket(STORE)

    def _worker_settings(self) -> WorkerSettings:
        random = self.random
        return WorkerSettings(
            store=STORE,
            keys=self.keys,
            full=self.full,
            window_s=random.choice((0.1, 0.1, 0.01, 1.0)),
            grace_s=random.choice((5.0, 5.0, 1.0)),
            filters=random.choice((500, 500, 2)),
            parallel=random.choice((16, 1)),
            handler_s=random.choice((0.0, 0.0, 0.02, 0.6)),
            handler_fails=random.choice((0.0, 0.0, 0.1)),
        )

    def _row_ids(self) -> list[str]:
        """About five rows a partition, of which some are written far more often than others."""
        count = 5 * self.partitions
        return [f"row{int(count * self.random.random() ** 2)}" for _ in range(2 * count)]

    # ---- processes

    def start_service(self, name: str) -> None:
        """Starts an instance of the config service, instead of the one of that name if there was one."""
        service = self.services[name] = self._make_service(name)
        service.start()

    def _make_service(self, name: str) -> Service:
        return Service(
            self.scheduler,
            name,
            self.random,
            broker=self.broker,
            database=self.database,
            history=self.history,
            store=self.record,
            max_payload=self._max_payload,
            retention_ms=self._retention_ms,
        )

    def start_worker(self, worker_id: str) -> None:
        """Starts a process with a worker id. One that has the id already is left to find out."""
        before = self.workers.get(worker_id)
        if before is not None and before.alive:
            self.ghosts.append(before)
        self._lives += 1
        worker = self.workers[worker_id] = Worker(
            self.scheduler,
            f"{worker_id}.{self._lives}",
            self.random,
            worker_id=worker_id,
            settings=self.settings,
            broker=self.broker,
            history=self.history,
            host=self._host_of(worker_id),
            dispatch=(self.partitions, self.dispatch) if worker_id in self._dispatching else None,
        )
        worker.start()

    def start_agent(self, host: Host) -> None:
        """Starts the agent of a host, unless it runs."""
        if host.agent is None or not host.agent.alive:
            self._lives += 1
            host.agent = Agent(
                self.scheduler,
                f"{host.name}.{self._lives}",
                self._hosts_random,
                host=host,
                broker=self.broker,
                history=self.history,
            )
            host.agent.start()

    def agents(self) -> list[Agent]:
        """The agents that run."""
        return [host.agent for host in self.hosts if host.agent is not None and host.agent.alive]

    def _host_of(self, worker_id: str) -> Host | None:
        if self.hosts and worker_id not in self._places:
            drawn = self._hosts_random.random()
            self._places[worker_id] = self._hosts_random.choice(self.hosts) if drawn < _UNDER_AN_AGENT else None
            if _UNDER_AN_AGENT <= drawn < _UNDER_AN_AGENT + _OF_AN_AGENT:
                self._dispatching.add(worker_id)
        return self._places.get(worker_id)

    def living(self) -> list[Worker]:
        """Every worker process that has not ended."""
        return [worker for worker in (*self.workers.values(), *self.ghosts) if worker.alive]

    def _processes(self) -> tuple[SimProcess, ...]:
        """Workers and agents that have not ended, and all services."""
        return *self.living(), *self.services.values(), *self.agents()

    def provision(self) -> None:
        """NATS and the database have what a service made in an earlier life."""
        self.broker.make_stream = self._make
        self.broker.published = self._published
        for config in (streams.leases(StreamSizes()), *streams.of_store(STORE, StreamSizes())):
            self.broker.make(config)
        bucket = names.meta_bucket(STORE)
        settings = {**self.store.to_kv(), names.SETTING_HISTORY: msgspec.json.encode(self.record.history_id)}
        for setting, value in settings.items():
            self.broker.put(bucket, setting, value, 0)
        self.database.create(self.record)

    def _make(self, config: StreamConfig) -> Stream | Bucket | None:
        """What stands for a stream on the server."""
        assert config.name is not None
        if config.name == names.notify_stream(STORE):
            return Stream(
                self.scheduler,
                config.name,
                life=self.broker.wipes,
                depth=self._depth,
                ack_wait_s=self._ack_wait_s,
                max_ack_pending=self._max_ack_pending,
                inactive_s=self._inactive_s,
            )
        if config.name.startswith("KV_"):
            ttl_s = config.max_age or None
            made = Bucket(ttl_s, self.marker_s if config.name == f"KV_{names.nodes_bucket(STORE)}" else LEASE_S)
            made.sequence = max(1, config.first_seq or 0) - 1
            return made
        return None  # dead letters, which nobody reads here

    # ---- writes

    def write_until(self, end: float) -> None:
        """Has writers at work until a time."""
        if self._writing_until < self.scheduler.now:
            self._writing_until = end
            self._write()
        self._writing_until = end

    def _write(self) -> None:
        if self.scheduler.now > self._writing_until:
            return
        random = self.random
        self.scheduler.after(random.expovariate(1.0 / self.write_every_s), self._write)
        count = 1 if random.random() < 0.6 else random.randint(2, 6)
        self._send(random.choice(self.keys), random.choices(self._rows, k=count))

    def touch_each(self, within_s: float) -> None:
        """Writes once to every partition that has a row, at some time."""
        rows = {row_partition(row_id, self.partitions): row_id for row_id in self._rows}
        for key in self.keys:
            for row_id in rows.values():
                self.scheduler.after(self.random.uniform(0.0, within_s), self._touch, key, row_id)

    def row_of(self, worker: Worker, key: str) -> str | None:
        """A row of one of a worker's partitions, if it has one."""
        owned = worker.sessions[key].machine.partitions
        rows = [row_id for row_id in self._rows if row_partition(row_id, self.partitions) in owned]
        return self.random.choice(rows) if rows else None

    def put(self, key: str, row_id: str, value: str) -> None:
        """Writes a row."""
        self._request(key, [RowInput(row_id, value, None)])

    def _touch(self, key: str, row_id: str) -> None:
        """A write that is one in any case: to delete what is not there would tell of nothing."""
        self.writes += 1
        self.put(key, row_id, f"t{self.writes}" + "." * self.random.choice((0, 0, 20, 300)))

    def _send(self, key: str, row_ids: list[str]) -> None:
        rows = {row_id: self._row(row_id) for row_id in row_ids}
        self._request(key, list(rows.values()))

    def _request(self, key: str, rows: list[RowInput]) -> None:
        services = [service for service in self.services.values() if service.alive]
        if services:
            self.random.choice(services).write(key, rows)

    def _row(self, row_id: str) -> RowInput:
        self.writes += 1
        if self.random.random() < 0.25:
            return RowInput(row_id, None, None)
        return RowInput(row_id, f"v{self.writes}" + "." * self.random.choice((0, 0, 20, 300)), None)

    def _committed(self, key: str, partition: int, rows: list[PlannedRow], history: str) -> None:
        written = tuple((row.row_id, row.version, row.value) for row in rows)
        self.history.add(self.scheduler.now, "commit", key, partition, written, history)

    def _began(self, histories: dict[str, str]) -> None:
        self.history.add(self.scheduler.now, "began", histories)

    def _published(self, subject: str, event: Event) -> None:
        head, _, number = subject.rpartition(".")
        self.history.add(self.scheduler.now, "published", head.rpartition(".")[2], int(number), event.prev, event.rev)

    def restore(self, *, wiped: bool) -> None:
        """Services end, and the database is restored; ``wiped``: NATS loses all that it has."""
        for service in self.services.values():
            service.crash()
        self.database.restore()
        self.history.add(self.scheduler.now, "restored", self.database.heads())
        if wiped:
            self.broker.stop()
            self.start_broker(wiped=True)
        for name in list(self.services):
            self.start_service(name)

    # ---- the end of a run

    def heal(self) -> None:
        """Ends every fault."""
        self.network.loss = self.network.repeat = 0.0
        self.network.spike_s = min(self.network.spike_s, 0.1)
        self.settings.handler_fails = 0.0
        self.dispatch.well = True
        self.settings.handler_s = min(self.settings.handler_s, 0.02)
        self.database.up = True
        self.broker.silent = False
        self.broker.overlooked.clear()
        if not self.broker.up:
            self.start_broker(wiped=False)
        for name, service in list(self.services.items()):
            service.crash_at = ""
            if not service.alive:
                self.start_service(name)
            elif service.paused:
                service.resume()
            service.link.blocked = False
            service.link.unstall()
        for host in self.hosts:
            if host.agent is not None and host.agent.leaving:
                host.agent.crash()  # it may be paused, and would end later
            if not host.gone:
                self.start_agent(host)
        for process in (*self.living(), *self.agents()):
            process.link.blocked = False
            process.link.unstall()
            if process.paused:
                process.resume()

    def unrest(self) -> str:
        """What is not in order yet, of what has to be after the last fault; empty if nothing."""
        if not self.living():
            self.start_worker("w0")
        if unpublished := self.database.unpublished:
            return f"{unpublished} events are not published"
        if unacked := self.unacked():
            return f"deliveries wait for an acknowledgement: {unacked}"
        for agent in self.agents():
            if not agent.keeps or not agent.link.connected:
                return f"{agent.name} does not keep a lease"
        owners: dict[tuple[str, int], int] = {}
        heads = self.database.heads()
        for worker in self.living():
            if worker.leaving:
                return f"{worker.name} is about to leave"
            if not worker.link.connected or not worker.sessions:
                return f"{worker.name} is not connected"
            if not all(session.vitals.assigned for session in worker.sessions.values()):
                return f"{worker.name} waits for its share"
            if worker.host is not None and worker.by_agent is worker.host.gone:
                return f"{worker.name} has the wrong lease: {worker.lease_id}"
            if not self.full and not self.broker.is_watched_by(worker.link, self.watched):
                return f"{worker.name} does not watch"
            if worker.dispatching is not None and (unrest := worker.dispatching.unrest):
                return f"{worker.name} {unrest}"
            for key, session in worker.sessions.items():
                if session.machine.wake_at is not None or session.deliveries.busy:
                    return f"{worker.name} {key} waits for something"
                for number, partition in session.machine.partitions.items():
                    owners[key, number] = owners.get((key, number), 0) + 1
                    if not partition.live or partition.fetching is not Fetching.IDLE:
                        return f"{worker.name} {key}/{number} is not live"
                    if partition.applied != (head := heads.get((key, number), 0)):
                        return f"{worker.name} {key}/{number} is at {partition.applied}, the head at {head}"
        if not self.full and (len(owners) < self.partitions * len(self.keys) or set(owners.values()) != {1}):
            return f"owners: {owners}"
        return self.database.audit_problem()

    def unacked(self) -> dict[str, int]:
        """Deliveries to living workers that nobody has acknowledged."""
        ids = {worker.worker_id for worker in self.living()}
        consumers = self.broker.stream.consumers.values() if self.broker.stream is not None else ()
        found = {}
        for consumer in consumers:
            if consumer.unacked and consumer.name.split("-")[1] in ids:
                found[consumer.name] = len(consumer.unacked)
        return found

    def start_broker(self, *, wiped: bool) -> None:
        """NATS comes back; ``wiped``: without its disk."""
        if wiped:
            self.history.add(self.scheduler.now, "wiped")
        self.broker.start(wiped=wiped)

    def end(self) -> None:
        """Ends every process, after the last fact: its tasks leave nothing behind."""
        for process in self._processes():
            process.crash()

    def note_the_end(self) -> None:
        """Adds what is held and what is left to the history."""
        for process in self._processes():
            process.note_errors()
        self.note_rows()
        for consumer, count in self.unacked().items():
            self.history.add(self.scheduler.now, "unacked", consumer, count)

    def note_rows(self) -> None:
        """Adds what workers hold to the history, which is to be what the database has."""
        for worker in self.living():
            for key, session in worker.sessions.items():
                for number, partition in session.machine.partitions.items():
                    rows = {row.row_id: (row.version, row.value) for row in partition.rows.values()}
                    worker.note("held", key, number, partition.applied, rows)
