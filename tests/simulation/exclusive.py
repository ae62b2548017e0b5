"""Exclusive ownership with the real worker: coordinator, leader, session and records as they are, over ``SimBus``.

``sticky_world`` has the machines alone, under more faults and far faster. Here the judge sees handler calls, and looks
at all other processes whenever one begins.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from random import Random
from typing import Any, Final
from unittest.mock import patch

from ringcast import Change
from ringcast._coordination import sticky
from ringcast._coordination.sticky_ownership import KeyOwnership
from ringcast._coordination.sticky_session import Refresh
from ringcast._protocol.sticky.fence import FenceTimes
from ringcast._protocol.sticky.ownership import OwnedState
from ringcast_config_service.nats import streams
from ringcast_config_service.nats.streams import StreamSizes
from ringcast_wire import Mode, StoreSettings, Strategy, names
from typing_extensions import override

from tests.simulation.checker import PROMPT_S, Checker
from tests.simulation.faults import Faults
from tests.simulation.process import current
from tests.simulation.worker import Worker
from tests.simulation.world import STORE, World

TIMES: Final = FenceTimes(10_000, 1_000)
RESTARTED_AFTER_S: Final = 6.0
"""A supervisor starts a worker again that has ended since NATS lost the bucket of owners."""


class ObservedOwnership(KeyOwnership):
    """One key of one worker. ``fence``: until when calls may start, by the judge's own reckoning and this process's
    clock."""

    def __init__(self, key: str, *words: Any, **options: Any) -> None:
        super().__init__(key, *words, **options)
        self.fence = -math.inf
        self.worker = current(Worker)
        _ownerships[self.worker, key] = self

    @override
    def refreshed(self, refresh: Refresh) -> None:
        self.fence = max(self.fence, refresh.asked_at + TIMES.serve_s)
        super().refreshed(refresh)

    @property
    def has_fence(self) -> bool:
        """Whether no call may start any more."""
        return self.worker.clock() >= self.fence

    def may_call(self, partition: int) -> bool:
        """Whether it could start a call, if it were asked now."""
        return not self.has_fence and self.state_of(partition) is OwnedState.ACTIVE


_ownerships: dict[tuple[Worker, str], ObservedOwnership] = {}
"""Of the run that is under way, by process and key."""


class ExclusiveWorld(World):
    """A store of the strategy ``sticky``."""

    @override
    def _store_settings(self, random: Random) -> StoreSettings:
        super()._store_settings(random)
        return StoreSettings(
            partition_count=self.partitions,
            mode=Mode.PARTITIONED,
            strategy=Strategy.STICKY,
            lease_ttl_ms=TIMES.lease_ttl_ms,
            call_bound_ms=TIMES.call_bound_ms,
        )

    @override
    def _host_count(self, seed: int) -> int:
        return 0

    @override
    def _is_full(self, random: Random) -> bool:
        super()._is_full(random)
        return False

    @property
    @override
    def watched(self) -> str:
        return names.owners_bucket(STORE)

    @override
    def provision(self) -> None:
        super().provision()
        for config in (streams.owners(STORE, StreamSizes()), streams.wishes(STORE)):
            self.broker.make(config)

    @override
    def start_broker(self, *, wiped: bool) -> None:
        super().start_broker(wiped=wiped)
        if wiped:
            self.scheduler.after(RESTARTED_AFTER_S, self._restart_ended)

    def _restart_ended(self) -> None:
        for worker_id, worker in list(self.workers.items()):
            if not worker.alive and not worker.leaving:
                self.start_worker(worker_id)

    @override
    def start_worker(self, worker_id: str) -> None:
        super().start_worker(worker_id)
        worker = self.workers[worker_id]
        worker.on_call = partial(self._note_call, worker)
        worker.on_pause = partial(worker.note, "halted")

    def _note_call(self, worker: Worker, change: Change, begins: bool) -> None:
        """Adds the token of a call that begins, and which other processes could begin one of its partition."""
        if not begins:
            worker.note("called", change.key, change.partition)
            return
        mine = _ownerships[worker, change.key]
        rivals = [
            other.name
            for other in self.living()
            if other is not worker
            and (owned := _ownerships.get((other, change.key))) is not None
            and owned.may_call(change.partition)
        ]
        worker.note("call", change.key, change.partition, change.token, mine.has_fence, tuple(rivals))


class ExclusiveFaults(Faults):
    """Those of peers, and in each run some of what only exclusive ownership fears."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._kinds += self._random.sample(("do_halt", "do_lose_session", "do_lose_table", "do_part"), 2)

    def do_lose_session(self) -> None:
        """The server loses the session entry of a worker that lives."""
        if worker := self._worker():
            self._world.broker.lose(names.owners_bucket(STORE), names.session_key(worker.worker_id))

    def do_lose_table(self) -> None:
        """It loses who owns what."""
        key = self._random.choice(self._world.keys)
        self._world.broker.lose(names.owners_bucket(STORE), names.table_key(key))

    def do_part(self) -> None:
        """A worker is cut off for about as long as others need to be sure that it serves nothing any more."""
        if worker := self._worker():
            self._cut(worker.link, self._random.uniform(0.2, 1.5) * TIMES.give_away_s)

    def do_halt(self) -> None:
        """A worker stops for about as long."""
        self._pause(self._random.uniform(0.2, 1.5) * TIMES.give_away_s)


class ExclusiveChecker(Checker):
    """The promises of exclusive ownership in place of those that peers make of how soon, and how often, they own."""

    def __init__(self, *, full: bool = False) -> None:
        super().__init__(full=full)
        self._running: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        self._halted: set[tuple[str, tuple[str, int]]] = set()
        """Processes that were halted within a call, and of which partition: nothing fences that."""
        self._tokens: dict[tuple[str, int], int] = {}

    # ---- owners

    @override
    def _on_own(self, worker: str, key: str, partition: int) -> None:
        """It prepares the partition: it owns it once it is told so."""

    @override
    def _on_disown(self, worker: str, key: str, partition: int) -> None:
        """It stops: it has lost the partition once it is told so."""

    @override
    def _on_assigned(self, worker: str, key: str, partitions: tuple[int, ...]) -> None:
        for partition in partitions:
            super()._on_own(worker, key, partition)
        super()._on_assigned(worker, key, partitions)

    @override
    def _on_revoked(self, worker: str, key: str, partitions: tuple[int, ...]) -> None:
        super()._on_revoked(worker, key, partitions)
        for partition in partitions:
            super()._on_disown(worker, key, partition)

    @override
    def _on_end(self, worker: str) -> None:
        for running in self._running.values():
            running.pop(worker, None)
        for (key, partition), found in self._partitions.items():
            if worker in found.owners:
                super()._on_disown(worker, key, partition)

    # ---- calls

    def _on_halted(self, worker: str) -> None:
        self._halted.update((worker, place) for place, running in self._running.items() if running[worker])

    def _on_call(
        self, worker: str, key: str, partition: int, token: int | None, has_fence: bool, rivals: tuple[str, ...]
    ) -> None:
        place, running = f"{worker} {key}/{partition}", self._running[key, partition]
        others = [one for one in running if running[one] and (one, (key, partition)) not in self._halted]
        if set(others) - {worker}:
            self._wrong("two calls", f"{place}: a call begins beside one of {', '.join(others)}")
        running[worker] += 1
        if has_fence:
            self._wrong("fence", f"{place}: a call begins after its fence")
        if rivals:
            self._wrong("two owners", f"{place}: a call begins, and {', '.join(rivals)} could begin one")
        if token is None or token < self._tokens.get((key, partition), 0):
            self._wrong("token", f"{place}: {token} after {self._tokens.get((key, partition))}")
        else:
            self._tokens[key, partition] = token

    @override
    def _on_wiped(self) -> None:
        super()._on_wiped()
        self._tokens.clear()  # with the bucket of owners their numbers are gone: all workers start again

    def _on_called(self, worker: str, key: str, partition: int) -> None:
        running = self._running[key, partition]
        running[worker] -= 1
        if not running[worker]:
            self._halted.discard((worker, (key, partition)))

    @override
    def _on_ack(self, worker: str, key: str, partition: int, rev: int, history: str) -> None:
        """What has come before it owned is handed over with all rows once it does, by whoever owns then."""

    @override
    def _later(
        self, kind: str, key: str, partition: int, rev: int, worker: str = "", *, within_s: float = PROMPT_S
    ) -> None:
        """A worker that dies has a successor after ``D``, which is longer than a drill waits."""
        if kind != "owner":
            super()._later(kind, key, partition, rev, worker, within_s=within_s)


@contextmanager
def simulated_ownership(world: World) -> Iterator[None]:
    """Has a run of an exclusive world observe who owns; of another one nothing."""
    with ExitStack() as stack:
        stack.callback(_ownerships.clear)
        if isinstance(world, ExclusiveWorld):
            stack.enter_context(patch.object(sticky, "KeyOwnership", ObservedOwnership))
        yield
