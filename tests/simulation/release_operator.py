"""Who stages, publishes, watches, pauses, stops and undoes a release, at whichever instance answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

from ringcast_config_service.core import Core
from ringcast_config_service.repository import Authorship, Release
from ringcast_config_service.writes.batches import RowInput
from ringcast_config_service.writes.terms import KeyedRow
from ringcast_wire import (
    DEFAULT_GATE,
    LimitExceededError,
    ReleaseGate,
    RingcastError,
    UnavailableError,
)

from tests.simulation.release_judge import REFUSED

if TYPE_CHECKING:
    from tests.simulation.release_world import ReleaseWorld

ASK_AGAIN_S: Final = 7.0
"""An answer that has not come by then will not: the instance was killed."""
_SHORTLY_S: Final = 1.0
_BY: Final = Authorship("operator", "for a reason")

Op = Callable[[Core], Awaitable[Any]]


@dataclass(frozen=True)
class Plan:
    """What is to be done with a release. ``orders``: what is asked for, and how long after publishing begins."""

    waves: tuple[int, ...]
    gate: ReleaseGate
    share: float
    """Of the rows that it is about."""
    bad: int
    """How many of its values handlers refuse."""
    batches: int
    orders: tuple[tuple[float, str], ...]
    undone_in_the_end: bool

    @classmethod
    def drawn(cls, random: Random) -> Plan:
        """One of a run."""
        waves = random.choice(((), (100,), (30, 100), (10, 50, 100), (50, 100)))
        gate = DEFAULT_GATE
        if waves:
            gate = ReleaseGate(
                bake_ms=random.choice((0, 0, 400, 2_000)),
                patience_ms=random.choice((1_000, 4_000, 9_000)),
            )
            if gate.bake_ms and random.random() < 0.5:
                gate = ReleaseGate(gate.bake_ms, 0, gate.patience_ms, ("up == bool 1",))
        orders = []
        if waves and random.random() < 0.35:
            at = random.uniform(0.0, 4.0)
            orders = [(at, "pause"), (at + random.uniform(0.1, 6.0), "resume")]
        if random.random() < 0.45:
            orders.append((random.choice((0.05, 1.0, 8.0)) * random.random(), random.choice(("stop", "undo", "undo"))))
        if random.random() < 0.5:
            orders.append((random.uniform(0.0, 6.0), "prove"))
        return cls(
            waves,
            gate,
            random.choice((0.15, 0.4, 0.8)),
            random.choice((0, 0, 0, 0, 1)),
            random.choice((1, 1, 3)),
            tuple(orders),
            random.random() < 0.3,
        )


class Operator:
    """One release, from staging on. What gets no answer is asked again: each call may be made any number of times."""

    def __init__(self, world: ReleaseWorld, name: str, plan: Plan, random: Random) -> None:
        self.number = 0
        """Of its release, once it is staged."""
        self.is_over = False
        """The release is dropped, or was refused, or was lost with the database."""
        self.waiting: set[str] = set()
        """What was asked, and is not answered."""
        self._world = world
        self._name = name
        self._plan = plan
        self._random = random
        self._rows: list[KeyedRow] = []
        self._asked = 0

    def begin(self) -> None:
        """Looks at the rows as they are, and stages what they are to become."""
        random, there = self._random, self._world.stored_rows()
        for key, row_id in sorted(self._world.places()):
            if random.random() < self._plan.share:
                version, is_live = there.get((key, row_id), (0, False))
                value = None if is_live and random.random() < 0.3 else f"{self._name}-{row_id}"
                self._rows.append(KeyedRow(key, RowInput(row_id, value, None, version if is_live else 0)))
        random.shuffle(self._rows)
        changed = [at for at, row in enumerate(self._rows) if row.row.value is not None]
        for at in random.sample(changed, min(self._plan.bad, len(changed))):
            row = self._rows[at].row
            self._rows[at] = KeyedRow(self._rows[at].key, row._replace(value=REFUSED + (row.value or "")))
        if self._rows:
            self._stage(0)
        else:
            self.is_over = True

    def _stage(self, batch: int) -> None:
        size = -(-len(self._rows) // self._plan.batches)
        rows, last = self._rows[batch * size : (batch + 1) * size], (batch + 1) * size >= len(self._rows)

        def staged(found: Any) -> None:
            if isinstance(found, RingcastError):
                self.is_over = True
            elif last:
                self.number = found.release.number
                self._publish()
            else:
                self._stage(batch + 1)

        store = self._world.record.name
        self.ask("stage", lambda core: core.releases.stage(store, self._name, batch, rows, _BY, complete=last), staged)

    def _publish(self) -> None:
        plan = self._plan

        def publish(core: Core) -> Awaitable[Release]:
            return core.releases.publish(self._world.record.name, self.number, _BY, plan.waves, plan.gate)

        def begun(found: Any) -> None:
            if isinstance(
                found, RingcastError
            ):  # others have written its rows meanwhile, or the database is an older one
                self.order("drop")
                return
            for after_s, what in plan.orders:
                self._world.scheduler.after(after_s, self.order, what)

        self.ask("publish", publish, begun)

    def order(self, what: str) -> None:
        """Asks for something once; that it may be refused is part of it."""
        store, number = self._world.record.name, self.number

        def done(found: Any) -> None:
            if what == "drop":
                self.is_over = True

        if what == "prove":
            self.ask(what, lambda core: core.proofs.prove(store, number), done)
        else:
            self.ask(what, lambda core: getattr(core.releases, what)(store, number, _BY), done)

    def end(self) -> None:
        """Has what is paused go on, and may want all of it undone, now that all goes well."""
        if self.number and not self.is_over:
            if self._plan.undone_in_the_end:
                self.order("undo")
            recorded = self._world.judge.recorded.get(self.number)
            if recorded is not None and recorded.is_paused:
                self.order("resume")

    def ask(self, what: str, op: Op, then: Callable[[Any], None]) -> None:
        """Asks an instance, and another one until there is an answer."""
        self._asked += 1
        self.waiting.add(f"{what} {self._asked}")
        self._try(f"{what} {self._asked}", op, then)

    def _try(self, what: str, op: Op, then: Callable[[Any], None]) -> None:
        scheduler, tried = self._world.scheduler, [False]

        def again() -> None:
            if not tried[0]:
                tried[0] = True
                self._try(what, op, then)

        def answered(found: Any) -> None:
            if tried[0]:
                return
            if isinstance(found, UnavailableError | LimitExceededError):
                scheduler.after(_SHORTLY_S, again)
                return
            tried[0] = True
            self.waiting.discard(what)
            then(found)

        scheduler.after(ASK_AGAIN_S, again)
        if (service := self._world.any_service()) is not None:
            service.call(op, answered)
