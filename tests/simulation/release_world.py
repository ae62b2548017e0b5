"""A store whose lists change by releases, beside other writers, with crashes at any step of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

from ringcast_config_service.promql.conditions import Outcome
from ringcast_config_service.repository.writes import Plan as WritePlan
from typing_extensions import override

from tests.simulation.database import Database
from tests.simulation.faults import Faults
from tests.simulation.history import History
from tests.simulation.release_judge import REFUSED, ReleaseJudge, Written
from tests.simulation.release_operator import Operator, Plan
from tests.simulation.release_service import Prometheus, ReleaseService, Steps
from tests.simulation.world import STORE, World

T = TypeVar("T")

STEPS: Final = 250
"""Of about so many steps a run takes for releases, some crash the instance that takes them."""
_RETENTION_MS: Final = 600_000
"""Longer than a run: an undo sees a deletion by another writer as long as there is a tombstone."""
_UNDER_WAY: Final = frozenset({"publishing", "undoing"})


class ReleaseWorld(World):
    """``crash_at``: the numbers of the steps at which the instance that takes them dies; ``None``: drawn."""

    def __init__(self, seed: int, trace: list[str] | None = None, crash_at: Collection[int] | None = None) -> None:
        self.draws = draws = Random(f"releases of {seed}")
        self.prometheus = Prometheus()
        self.operators: list[Operator] = []
        self.is_calm = crash_at is not None
        self.step_rows = draws.choice((1, 2, 3, 5, 2_000))
        self.wave_rows = draws.choice((4, 9, 100_000))
        drawn = draws.sample(range(1, STEPS), draws.choice((0, 1, 2, 5)))
        self.steps = Steps(drawn if crash_at is None else crash_at)
        super().__init__(seed, trace)
        self._retention_ms = _RETENTION_MS
        self.settings.refuses = REFUSED
        self.settings.handler_fails = 0.0
        self.judge = ReleaseJudge(lambda: self.scheduler.now, self.broker, STORE, self.partitions, full=self.full)
        self.judge.told = self.prometheus.told
        self.broker.reported = self.judge.answered
        self.history = _SeenHistory(self.judge)

    @override
    def _host_count(self, seed: int) -> int:
        return 0

    @override
    def _make_database(self) -> Database:
        return ReleaseDatabase(self)

    @override
    def _make_service(self, name: str) -> ReleaseService:
        service = ReleaseService(
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
        service.steps, service.judge, service.prometheus = self.steps, self.judge, self.prometheus
        service.on_death = partial(self._died, name)
        return service

    def _died(self, name: str) -> None:
        """A supervisor starts it again."""
        self.scheduler.after(self.draws.uniform(0.3, 9.0), self._start_again, name)

    def _start_again(self, name: str) -> None:
        if not self.services[name].alive:
            self.start_service(name)

    def any_service(self) -> ReleaseService | None:
        """One that runs."""
        running = [each for each in self.services.values() if isinstance(each, ReleaseService) and each.alive]
        return self.random.choice(running) if running else None

    # ---- releases

    def begin_releases(self, within_s: float) -> None:
        """Has operators come, at some time."""
        for number in range(1 if self.is_calm else self.draws.choice((1, 2, 3))):
            operator = Operator(self, f"r{number}", Plan.drawn(self.draws), self.draws)
            self.operators.append(operator)
            self.scheduler.after(self.draws.uniform(0.2, within_s), operator.begin)

    def places(self) -> set[tuple[str, str]]:
        """The keys and ids of all rows that are ever written."""
        return {(key, row_id) for key in self.keys for row_id in self._rows}

    def stored_rows(self) -> dict[tuple[str, str], tuple[int, bool]]:
        """The version of each row, and whether it is there: as who stages a release reads them."""
        return self.database.stored_rows() if isinstance(self.database, ReleaseDatabase) else {}

    def unmute(self) -> None:
        """Events come again."""
        if self.broker.stream is not None:
            self.broker.stream.muted = False

    def looked(self) -> None:
        """The judge has seen what was committed."""
        self.steps.is_counting = any(each.state in _UNDER_WAY for each in self.judge.recorded.values())

    @override
    def restore(self, *, wiped: bool) -> None:
        super().restore(wiped=wiped)
        self.judge.restore(self.database.heads())
        there = self.judge.recorded
        for operator in self.operators:
            if operator.number not in there:
                operator.is_over = True

    # ---- the end of a run

    @override
    def heal(self) -> None:
        super().heal()
        self.unmute()
        if not self.is_calm:
            self.steps.crash_at = frozenset()
        self.prometheus.outcome = Outcome.MET
        for operator in self.operators:
            operator.end()

    @override
    def unrest(self) -> str:
        for number, recorded in self.judge.recorded.items():
            if recorded.work:
                return f"release {number} is {recorded}"
            if recorded.state in _UNDER_WAY and recorded.rollout is not None and not recorded.rollout.paused:
                return f"release {number} is {recorded}, and nothing is to be done"
        for operator in self.operators:
            if operator.waiting:
                return f"{sorted(operator.waiting)} of release {operator.number} is not answered"
        return super().unrest()


class ReleaseDatabase(Database):
    """The judge sees each transaction that was committed."""

    def __init__(self, world: ReleaseWorld) -> None:
        super().__init__(world.scheduler, world._committed, world._began)
        self._world = world
        self._written: list[Written] = []

    @override
    def run(self, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        self._written = []
        found = super().run(begin, work)
        if begin != "BEGIN":
            self._world.judge.look(self._file, self._written)
            self._world.looked()
        return found

    @override
    def _tell(self, plan: WritePlan) -> None:
        super()._tell(plan)
        self._written += [
            Written(row.key.name, row.partition, row.row_id, row.version, row.value, row.by.reason)
            for row in plan.history
        ]

    def stored_rows(self) -> dict[tuple[str, str], tuple[int, bool]]:
        """The version of each row, and whether it is there."""
        found = self._rows("SELECT name, row_id, version, NOT deleted FROM rows JOIN config_keys USING (key_id)")
        return {(key, row_id): (version, bool(is_live)) for key, row_id, version, is_live in found}


class _SeenHistory(History):
    """The judge sees what handlers have had."""

    def __init__(self, judge: ReleaseJudge) -> None:
        super().__init__()
        self._judge = judge

    @override
    def add(self, time: float, kind: str, *words: Any) -> None:
        super().add(time, kind, *words)
        if kind == "handled":
            worker, key, _, row_id, version, value = words
            self._judge.handled(worker, (key, row_id), version, value)
        elif kind == "own":
            self._judge.owned(*words)


_OF_RELEASES: Final = ("do_prometheus", "do_restore", "do_crash_service")


class ReleaseFaults(Faults):
    """Those of peers, and what only releases fear."""

    def __init__(self, world: ReleaseWorld) -> None:
        super().__init__(world)
        self._releases = world
        self._kinds = [kind for kind in self._kinds if kind not in _OF_RELEASES]
        self._kinds.append(self._random.choices(_OF_RELEASES, (3, 2, 3))[0])
        if "do_restore" in self._kinds:  # which events show, unless they are lost too
            self._kinds = [kind for kind in self._kinds if kind != "do_purge"]

    def do_prometheus(self) -> None:
        """Prometheus does not answer for a while, or says that a condition is not met."""
        prometheus = self._releases.prometheus
        prometheus.outcome = self._random.choice((Outcome.NO_ANSWER, Outcome.NO_DATA, Outcome.NOT_MET))
        self._later(self._random.uniform(0.5, 8.0), lambda: setattr(prometheus, "outcome", Outcome.MET))

    def do_restore(self) -> None:
        """The database is backed up, and soon restored; events may tell nobody of that, for a while."""
        world = self._releases
        if world.database.up:
            world.database.back_up()
            world.judge.back_up()
            self._later(self._random.uniform(0.3, 4.0), self._restore)

    def _restore(self) -> None:
        """Mostly once, but the next time may come before another backup: then it goes back to the same one again."""
        world = self._releases
        world.restore(wiped=False)
        if world.broker.stream is not None and self._random.random() < 0.5:
            world.broker.stream.muted = True
            self._later(self._random.uniform(5.0, 12.0), world.unmute)
