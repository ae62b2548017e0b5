"""Groups that hosts share: the agent's real dispatch and seals, over a worker, a bucket and a service that are models.

Each host is a process with a clock of its own. Its worker has the partitions that the leases say it has, some time
later than the others know; loads them, and then gets every change, in order. Hosts are killed, paused, cut off, stopped
and started while rows change and are deleted. Then all are well, and what is left has to come.
"""

from __future__ import annotations

from random import Random
from typing import Final

from tests.simulation.engine import Scheduler
from tests.simulation.group_host import Host, simulated_groups
from tests.simulation.group_judge import GroupJudge
from tests.simulation.group_store import TTL_S, Bus, Record

_FAULTS_S: Final = 30.0
_MOST_REST_S: Final = 120.0
"""Within this time all has to have come once nothing fails any more."""
_MOST_HOSTS: Final = 4


class World:
    """A seed from beginning to end."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(f"groups {seed}")
        self.trace: list[str] = []
        self.scheduler = Scheduler()
        self.record = Record(self.random)
        self.judge = GroupJudge(lambda: self.scheduler.now, self._is_held)
        self.bus = Bus(self.scheduler, self._leases_changed, self.judge.claimed)
        self.hosts: dict[str, Host] = {}
        self._lives = 0
        self._known: list[str] = []
        """The leases, as hosts have heard of them."""
        self._writes_s = self.random.choice((0.02, 0.1, 0.5))

    @property
    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return self.scheduler.now

    def share_of(self, lease: str) -> set[int]:
        """The partitions of a host. All hosts hear of a change at once, and obey it each at its own time."""
        if lease not in self._known:
            return set()
        own, count = self._known.index(lease), len(self._known)
        return {partition for partition in range(self.record.partitions) if partition % count == own}

    def run(self) -> World:
        """Lives through it.

        Raises:
            Violation: a promise is broken.
        """
        with simulated_groups(self.seed):
            try:
                self._start("a")
                self._run_until(self.random.choice((0.3, 2.0)))
                # A group without a seal begins with what changes from then on: nothing was promised before.
                while len(self.bus.entries) < self.record.partitions:
                    self._run_until(self.now + 0.1)
                self._write()
                self._fault()
                self._run_until(_FAULTS_S)
                self._mend()
                self._come_to_rest()
            finally:
                for host in self.hosts.values():
                    host.crash()
        return self

    # ---- what happens

    def _write(self) -> None:
        if self.now < _FAULTS_S:
            change = self.record.write(self.random, self.now / _FAULTS_S)
            self.judge.written(change)
            self.trace.append(f"{self.now:.3f} write {change.row_id} {change.version} {change.value}")
            self.scheduler.after(self.random.expovariate(1.0 / self._writes_s), self._write)

    def _fault(self) -> None:
        if self.now < _FAULTS_S:
            self.random.choice(
                (self._join, self._pass, self._pass, self._kill, self._stop, self._pause, self._cut, self._slow)
            )()
            self.scheduler.after(self.random.choice((0.1, 1.0, 5.0)) * self.random.random(), self._fault)

    def _start(self, name: str) -> Host:
        self._lives += 1
        self._note("start", name)
        host = self.hosts[name] = Host(self, name, self._lives)
        host.start()
        return host

    def _join(self) -> Host | None:
        names = [name for name in "abcdef"[:_MOST_HOSTS] if name not in self.hosts or not self.hosts[name].alive]
        return self._start(self.random.choice(names)) if names else None

    def _pass(self) -> None:
        """A host comes, and is killed before or soon after it has begun."""
        if (host := self._join()) is not None:
            self.scheduler.after(self.random.uniform(0.0, 1.0), self._end, host)

    def _end(self, host: Host) -> None:
        if self.now < _FAULTS_S:
            self._note("kill", host.name)
            host.crash()

    def _some(self) -> Host | None:
        living = [host for host in self.hosts.values() if host.alive]
        return self.random.choice(living) if living else None

    def _kill(self) -> None:
        if (host := self._some()) is not None:
            self._end(host)

    def _stop(self) -> None:
        if (host := self._some()) is not None:
            self._note("stop", host.name)
            host.leaving = True

    def _pause(self) -> None:
        host = self._some()
        if host is not None and not host.paused:
            self._note("pause", host.name)
            host.pause()
            self.scheduler.after(self.random.choice((0.5, 3.0 * TTL_S)) * self.random.random(), host.resume)

    def _cut(self) -> None:
        if (host := self._some()) is not None:
            self._note("cut", host.name)
            host.cut = True
            self.scheduler.after(self.random.choice((0.5, 3.0 * TTL_S)) * self.random.random(), self._reconnect, host)

    def _reconnect(self, host: Host) -> None:
        host.cut = False

    def _slow(self) -> None:
        self._note("slow", "service")
        self.record.slow_until = self.now + self.random.uniform(0.0, 3.0)

    def _note(self, what: str, who: str) -> None:
        self.trace.append(f"{self.now:.3f} {what} {who}")

    # ---- the end

    def _mend(self) -> None:
        self.record.slow_until = 0.0
        if not any(host.alive and not host.leaving for host in self.hosts.values()):
            self._start(next(name for name in "abcdef" if name not in self.hosts or not self.hosts[name].alive))

    def _come_to_rest(self) -> None:
        end = self.now + _MOST_REST_S
        while self.now < end and not self._is_at_rest():
            self._run_until(self.now + 1.0)
        self.judge.ended(self.bus.entries, self.record.heads)
        self.judge.look()

    def _is_at_rest(self) -> bool:
        living = [host for host in self.hosts.values() if host.alive]
        return (
            self.now > _FAULTS_S + 5.0 * TTL_S
            and bool(living)
            and all(map(Host.rest, living))
            and not self.judge.missing()
            and not self.judge.unsealed(self.bus.entries, self.record.heads)
        )

    def _run_until(self, end: float) -> None:
        while self.now < end:
            self.scheduler.run_until(min(end, self.now + 1.0))
            self.judge.look()

    def _is_held(self, incarnation: str) -> bool:
        return incarnation in self.bus.leases.values()

    def _leases_changed(self) -> None:
        """What reads the leases knows it at once; the hosts hear of it a moment later."""
        for incarnation in self.judge.holders():
            if not self._is_held(incarnation):
                self.judge.over(incarnation)
        self.scheduler.after(self.random.uniform(0.0, 0.3), self._hear)

    def _hear(self) -> None:
        self._known = sorted(self.bus.leases)
        for host in self.hosts.values():
            if host.alive:
                host.told()
