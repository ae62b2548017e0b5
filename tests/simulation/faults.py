"""What goes wrong in a run. Each seed takes a few kinds, so that every mixture comes up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from ringcast_wire import limits, names

from tests.simulation.agent import Host
from tests.simulation.network import Link
from tests.simulation.service import STEPS_THAT_MAY_CRASH
from tests.simulation.worker import Worker
from tests.simulation.world import World

LEASE_S: Final = float(limits.LEASE_TTL_S)


class Faults:
    """Every kind is a method whose name begins with ``do_``; all that it breaks is mended later, or by the end."""

    def __init__(self, world: World) -> None:
        self.counts: dict[str, int] = {}
        self._world = world
        self._random = world.random
        self._new_ids = 0
        self._until = 0.0
        kinds = sorted(name for name in dir(self) if name.startswith("do_"))
        agents = [name for name in kinds if name.startswith("do_agent_")]
        kinds = [name for name in kinds if name not in agents]
        if world.full:
            kinds = [name for name in kinds if name not in ("do_join", "do_leave", "do_flap", "do_usurp")]
        self._kinds = self._random.sample(kinds, self._random.randint(1, 5))
        if world.hosts:
            self._kinds += self._random.sample(agents, self._random.randint(1, 3))
        self._every_s = self._random.uniform(0.5, 6.0)

    def run_until(self, end: float) -> None:
        """Has things go wrong until a time."""
        self._until = end
        self._later(self._random.uniform(0.0, self._every_s), self._next)

    def _next(self) -> None:
        kind = self._random.choice(self._kinds)
        self.counts[kind[3:]] = self.counts.get(kind[3:], 0) + 1
        getattr(self, kind)()
        self._later(self._random.expovariate(1.0 / self._every_s), self._next)

    def _later(self, delay_s: float, fn: Callable[[], None]) -> None:
        """Calls ``fn`` unless all faults have to be over by then."""
        self._world.scheduler.after(delay_s, lambda: fn() if self._world.scheduler.now < self._until else None)

    def _worker(self) -> Worker | None:
        workers = [worker for worker in self._world.workers.values() if worker.alive]
        return self._random.choice(workers) if workers else None

    # ---- workers

    def do_crash(self) -> None:
        """A worker is killed, and mostly started again with its id, often while its lease lives."""
        if worker := self._worker():
            worker.crash()
            if self._random.random() < 0.8:
                self._later(self._random.uniform(0.1, 15.0), lambda: self._start(worker.worker_id))

    def do_join(self) -> None:
        """A new worker comes."""
        if len(self._world.living()) < 6:
            self._new_ids += 1
            self._world.start_worker(f"n{self._new_ids}")

    def do_leave(self) -> None:
        """A worker ends in order; sometimes it comes back."""
        if worker := self._worker():
            worker.stop()
            if self._random.random() < 0.5:
                self._later(self._random.uniform(0.5, 20.0), lambda: self._start(worker.worker_id))

    def do_flap(self) -> None:
        """A worker comes and goes in order, and comes and goes."""
        worker_id = f"f{self._random.randrange(2)}"
        for turn in range(self._random.randint(1, 4)):
            self._later(turn * self._random.uniform(0.3, 3.0), lambda: self._turn(worker_id))

    def do_usurp(self) -> None:
        """A worker stops beyond its lease, and a new one takes its slot."""
        if (worker := self._worker()) and len(self._world.living()) < 6:
            self._pause(self._random.uniform(LEASE_S + 1.0, LEASE_S + 8.0), worker)
            self._new_ids += 1
            newcomer = f"u{self._new_ids}"
            self._later(self._random.uniform(LEASE_S - 1.0, LEASE_S + 2.0), lambda: self._world.start_worker(newcomer))

    def do_pause(self) -> None:
        """A worker stops for a moment."""
        self._pause(self._random.uniform(0.05, 4.0))

    def do_pause_beyond_lease(self) -> None:
        """A worker stops until everybody takes it for dead."""
        self._pause(self._random.uniform(LEASE_S, LEASE_S + 15.0))

    def do_replace(self) -> None:
        """A worker stops and another process is given its id; then the first goes on."""
        if worker := self._worker():
            self._pause(self._random.uniform(LEASE_S, LEASE_S + 15.0), worker)
            self._later(self._random.uniform(0.1, LEASE_S), lambda: self._world.start_worker(worker.worker_id))

    def _start(self, worker_id: str) -> None:
        if not self._world.workers[worker_id].alive:
            self._world.start_worker(worker_id)

    def _turn(self, worker_id: str) -> None:
        worker = self._world.workers.get(worker_id)
        if worker is not None and worker.alive:
            worker.stop()
        else:
            self._world.start_worker(worker_id)

    def _pause(self, for_s: float, worker: Worker | None = None) -> None:
        if (chosen := worker or self._worker()) and not chosen.paused:
            chosen.pause()
            self._later(for_s, lambda: chosen.resume() if chosen.paused else None)

    # ---- the network

    def do_cut(self) -> None:
        """A worker's connection breaks, and for a time it gets no other."""
        if worker := self._worker():
            self._cut(worker.link, self._random.choice((0.0, 2.0, LEASE_S + 10.0)) * self._random.random())

    def do_stall(self) -> None:
        """A worker's packets do not get through for a time; sometimes the connection breaks then."""
        if worker := self._worker():
            link = worker.link
            link.stall()
            breaks = self._random.random() < 0.5
            self._later(self._random.uniform(0.1, 15.0), lambda: self._cut(link, 1.0) if breaks else link.unstall())

    def do_lossy(self) -> None:
        """Messages get lost, come twice and are late, for a time."""
        self._world.network.loss = self._random.uniform(0.0, 0.3)
        self._world.network.repeat = self._random.uniform(0.0, 0.3)
        self._later(self._random.uniform(0.5, 10.0), self._calm_network)

    def do_slow(self) -> None:
        """Some messages take seconds from now on."""
        self._world.network.spike_s = self._random.choice((0.5, 2.0, 8.0))

    def _cut(self, link: Link, for_s: float) -> None:
        link.blocked = for_s > 0.0
        link.cut()
        if link.blocked:
            self._later(for_s, lambda: setattr(link, "blocked", False))

    def _calm_network(self) -> None:
        self._world.network.loss = self._world.network.repeat = 0.0

    # ---- NATS

    def do_restart_nats(self) -> None:
        """NATS ends and comes back, now and then without its disk."""
        broker = self._world.broker
        if broker.up:
            broker.stop()
            wiped = self._random.random() < 0.3
            self._later(self._random.uniform(0.2, 8.0), lambda: self._start_nats(wiped=wiped))

    def _start_nats(self, *, wiped: bool) -> None:
        if not self._world.broker.up:
            self._world.start_broker(wiped=wiped)

    def do_lose_consumer(self) -> None:
        """NATS loses a worker's consumer."""
        stream = self._world.broker.stream
        if (worker := self._worker()) and stream is not None:
            stream.lose_consumer(names.consumer_name("ringcast", worker.worker_id))

    def do_purge(self) -> None:
        """NATS loses all events."""
        if self._world.broker.stream is not None:
            self._world.broker.stream.purge()

    def do_deafen(self) -> None:
        """The watches of a worker go silent."""
        if worker := self._worker():
            self._world.broker.deafen(worker.link)

    def do_lose_markers(self) -> None:
        """Leases that end within the next seconds stay on some server; one worker dies, so that one does."""
        self._world.broker.silent = True
        self._later(LEASE_S + 1.0, lambda: setattr(self._world.broker, "silent", False))
        if len(self._world.living()) > 1 and (worker := self._worker()):
            worker.crash()

    def do_overlook(self) -> None:
        """Some server of the cluster does not have the lease of a worker that lives."""
        if worker := self._worker():
            self._world.broker.overlooked.add(worker.lease_id)
            self._later(self._random.uniform(0.5, 8.0), self._world.broker.overlooked.clear)

    # ---- hosts and their agents

    def do_agent_crash(self) -> None:
        """An agent is killed, and mostly started again, within a moment or long after its lease has ended."""
        host = self._host()
        if host.agent is not None and host.agent.alive:
            host.agent.crash()
            if self._random.random() < 0.8:
                self._restart_agent(host, self._random.choice((0.5, 4.0, 20.0)))

    def do_agent_stop(self) -> None:
        """An agent ends in order, and comes back."""
        host = self._host()
        if host.agent is not None and host.agent.alive:
            host.agent.stop()
            self._restart_agent(host, self._random.choice((1.0, 20.0)))

    def do_agent_pause(self) -> None:
        """An agent stops for a time: a moment, or beyond its lease."""
        agent = self._host().agent
        if agent is not None and agent.alive and not agent.paused:
            agent.pause()
            for_s = self._random.uniform(0.05, self._random.choice((3.0, LEASE_S + 10.0)))
            self._later(for_s, lambda: agent.resume() if agent.paused else None)

    def do_agent_cut(self) -> None:
        """An agent's connection with NATS breaks, while its workers go on."""
        agent = self._host().agent
        if agent is not None and agent.alive:
            self._cut(agent.link, self._random.choice((0.0, 2.0, LEASE_S + 10.0)) * self._random.random())

    def do_agent_stall(self) -> None:
        """An agent's packets do not get through for a time."""
        agent = self._host().agent
        if agent is not None and agent.alive:
            agent.link.stall()
            self._later(self._random.uniform(0.1, 15.0), agent.link.unstall)

    def do_agent_gone(self) -> None:
        """An agent is killed and never comes back: its workers live by leases of their own."""
        host = self._host()
        host.gone = True
        if host.agent is not None:
            host.agent.crash()

    def do_agent_host(self) -> None:
        """A whole host dies: the agent, and all its workers with it; some come back."""
        host = self._host()
        if host.agent is not None:
            host.agent.crash()
        for worker in self._world.living():
            if worker.host is host:
                worker.crash()
                if self._random.random() < 0.8:
                    self._later(self._random.uniform(0.1, 15.0), partial(self._start, worker.worker_id))
        self._restart_agent(host, 15.0)

    def _host(self) -> Host:
        return self._random.choice(self._world.hosts)

    def _restart_agent(self, host: Host, most_s: float) -> None:
        delay_s = self._random.uniform(0.05, most_s)
        self._later(delay_s, lambda: None if host.gone else self._world.start_agent(host))

    # ---- the service and its database

    def do_crash_service(self) -> None:
        """An instance is killed, most often between two steps of its work."""
        name = self._random.choice(sorted(self._world.services))
        service = self._world.services[name]
        if self._random.random() < 0.8:
            service.crash_at = self._random.choice(STEPS_THAT_MAY_CRASH)
        elif service.alive:
            service.crash()
        self._later(self._random.uniform(0.5, 10.0), lambda: self._restart_service(name))

    def do_pause_service(self) -> None:
        """An instance stops for a time."""
        service = self._random.choice(list(self._world.services.values()))
        if not service.paused:
            service.pause()
            self._later(self._random.uniform(0.1, 12.0), lambda: service.resume() if service.paused else None)

    def do_cut_service(self) -> None:
        """An instance's connection with NATS breaks."""
        service = self._random.choice(list(self._world.services.values()))
        self._cut(service.link, self._random.uniform(0.0, 10.0))

    def do_stop_database(self) -> None:
        """The database is away for a time."""
        self._world.database.up = False
        self._later(self._random.uniform(0.1, 10.0), lambda: setattr(self._world.database, "up", True))

    def _restart_service(self, name: str) -> None:
        if not self._world.services[name].alive:
            self._world.start_service(name)
