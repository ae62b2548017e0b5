"""Exclusive ownership with the real worker: coordinator, leader, session and records as they are, over ``SimBus``.

``sticky_world`` has the machines alone, under more faults and far faster. Here the judge sees handler calls, and looks
at all other processes whenever one begins.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final
from unittest.mock import patch

from ringcast import Change
from ringcast._coordination.sticky import coordinator
from ringcast._coordination.sticky.ownership import KeyOwnership
from ringcast._coordination.sticky.session import Refresh
from ringcast._coordination.sticky.wishes import encode_wishes
from ringcast._protocol.sticky.fence import FenceTimes
from ringcast._protocol.sticky.ownership import OwnedState
from ringcast._protocol.sticky.plan import Wishes
from ringcast_config_service.nats import streams
from ringcast_config_service.nats.streams import StreamSizes
from ringcast_wire import Mode, StoreSettings, Strategy, names
from ringcast_wire.owner_records import decode_term
from typing_extensions import override

from tests.simulation.checker import PROMPT_S, Checker
from tests.simulation.faults import Faults
from tests.simulation.process import current
from tests.simulation.worker import Worker
from tests.simulation.world import STORE, World

TIMES: Final = FenceTimes(10_000, 1_000)
RESTARTED_AFTER_S: Final = 6.0
"""A supervisor starts a worker again that has ended since NATS lost the bucket of owners."""
REVOKES_S: Final = (0.0001, 0.1, 0.6)
"""The longest that ``on_revoked`` takes, in some run: less than the bound on calls, also where it comes too late."""


class ObservedOwnership(KeyOwnership):
    """One key of one worker, with fences by the judge's own reckoning and this process's clock."""

    def __init__(self, key: str, *words: Any, **options: Any) -> None:
        super().__init__(key, *words, **options)
        self._fences: list[float] = []
        """Until when calls may start: one of each session. It ends where its entry is lost, or its fence has passed."""
        self._told: dict[int, int] = {}
        """The partitions that the application has, and which of these fences is that of the session which has them."""
        self.worker = current(Worker)
        _ownerships[self.worker, key] = self

    @override
    def refreshed(self, refresh: Refresh) -> None:
        if not refresh.continued or self.has_fence:
            self._fences.append(-math.inf)
        self._fences[-1] = max(self._fences[-1], refresh.asked_at + TIMES.serve_s)
        super().refreshed(refresh)

    def told(self, partitions: frozenset[int]) -> None:
        """The application is told that it has these."""
        self._told.update(dict.fromkeys(partitions, len(self._fences) - 1))

    def took_back(self, partitions: frozenset[int]) -> None:
        """The application has been told that it has lost these."""
        for partition in partitions:
            self._told.pop(partition, None)

    def has(self, partition: int) -> bool:
        """Whether the application has a partition, and the session runs that gave it."""
        return partition in self._told and self.worker.clock() < self._fences[self._told[partition]]

    @property
    def has_fence(self) -> bool:
        """Whether no call may start any more."""
        return self.worker.clock() >= max(self._fences, default=-math.inf)

    def may_call(self, partition: int) -> bool:
        """Whether it could start a call, if it were asked now."""
        return not self.has_fence and self.state_of(partition) is OwnedState.ACTIVE


_ownerships: dict[tuple[Worker, str], ObservedOwnership] = {}
"""Of the run that is under way, by process and key."""


class ExclusiveWorld(World):
    """A store of the strategy ``sticky``."""

    def __init__(self, seed: int, trace: list[str] | None = None) -> None:
        super().__init__(seed, trace)
        self.settings.revoke_s = Random(f"revocations of {seed}").choice(REVOKES_S)
        self.wishes = dict.fromkeys(self.keys, Wishes())
        """What the operator wants of each key."""
        self._has_rested = False

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
            self.wishes = dict.fromkeys(self.keys, Wishes())
            self.scheduler.after(RESTARTED_AFTER_S, self._restart_ended)

    def wish(self, key: str, wishes: Wishes) -> None:
        """The operator wants something else of a key, unless NATS can't take that now."""
        bucket = names.wishes_bucket(STORE)
        if self.broker.up and bucket in self.broker.buckets:
            self.broker.overwrite(bucket, names.wishes_key(key), encode_wishes(wishes, self.partitions))
            self.wishes[key] = wishes

    @override
    def heal(self) -> None:
        """The second time no worker stays drained: any of them may be the last one in the drills."""
        super().heal()
        for key, wishes in self.wishes.items():
            if self._has_rested and wishes.drains:
                self.wish(key, replace(wishes, drains=frozenset()))
        self._has_rested = True

    @override
    def unrest(self) -> str:
        for key, wishes in self.wishes.items():
            if wishes.drains.issuperset(worker.worker_id for worker in self.living()):
                self.wish(key, replace(wishes, drains=frozenset()))  # else there need be no owners
        return super().unrest() or next(filter(None, map(self._uneven, self.keys)), "")

    def _uneven(self, key: str) -> str:
        """What of a key is not where it is to be: with more than a share, drained workers, or others than it is pinned
        to; empty if nothing."""
        wishes = self.wishes[key]
        owned = {worker.worker_id: worker.owned(key) for worker in self.living()}
        taking = owned.keys() - wishes.drains
        pins = {partition: worker_id for partition, worker_id in wishes.pins.items() if worker_id in taking}
        for partition, worker_id in pins.items():
            if partition not in owned[worker_id]:
                return f"{key}/{partition} is pinned to {worker_id}: {owned}"
        most = self.partitions if pins else math.ceil(self.partitions / len(taking))
        for worker_id, partitions in owned.items():
            if len(partitions) > (most if worker_id in taking else 0):
                return f"{worker_id} has too much of {key}: {owned}, drained: {sorted(wishes.drains)}"
        return ""

    def _restart_ended(self) -> None:
        for worker_id, worker in list(self.workers.items()):
            if not worker.alive and not worker.leaving:
                self.start_worker(worker_id)

    @override
    def start_worker(self, worker_id: str) -> None:
        super().start_worker(worker_id)
        worker = self.workers[worker_id]
        worker.on_call = partial(self._note_call, worker)
        worker.on_told = partial(self._note_told, worker)
        worker.within_last_call = partial(self._last_call, worker)
        worker.on_pause = partial(worker.note, "halted")

    def _note_call(self, worker: Worker, change: Change, begins: bool) -> None:
        """Adds the token of a call that begins, and which other processes could begin one of its partition."""
        if not begins:
            worker.note("called", change.key, change.partition)
            return
        mine = _ownerships[worker, change.key]
        rivals = self._others(worker, change.key, lambda owned: owned.may_call(change.partition))
        worker.note("call", change.key, change.partition, change.token or 0, mine.has_fence, rivals)

    def _others(self, worker: Worker, key: str, applies: Callable[[ObservedOwnership], bool]) -> tuple[str, ...]:
        """The other processes to which something applies."""
        owned = {other.name: _ownerships.get((other, key)) for other in self.living() if other is not worker}
        return tuple(name for name, each in owned.items() if each is not None and applies(each))

    def _note_told(self, worker: Worker, key: str, partitions: frozenset[int]) -> None:
        """Adds which other applications have a partition that one is told it has."""
        for partition in sorted(partitions):
            if rivals := self._others(worker, key, lambda owned, number=partition: owned.has(number)):  # type: ignore[misc]
                worker.note("told_beside", key, partition, rivals)
        _ownerships[worker, key].told(partitions)

    @contextmanager
    def _last_call(self, worker: Worker, key: str, partitions: frozenset[int]) -> Iterator[None]:
        """Adds the call of ``on_revoked``, of the partitions for which it does not come too late: it is one of them."""
        mine = _ownerships[worker, key]
        inside = [partition for partition in sorted(partitions) if mine.has(partition)]
        for partition in inside:
            worker.note("last_call", key, partition)
        try:
            yield
        finally:
            mine.took_back(partitions)
            for partition in inside:
                worker.note("called", key, partition)


_KINDS: Final = ("do_depose", "do_halt", "do_lose_session", "do_lose_table", "do_part", "do_wish")


class ExclusiveFaults(Faults):
    """Those of peers, and in each run some of what only exclusive ownership fears."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._kinds += self._random.sample(_KINDS, 2)

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

    def do_wish(self) -> None:
        """The operator drains workers and pins partitions, or takes that back."""
        assert isinstance(self._world, ExclusiveWorld)
        random, worker_ids = self._random, sorted(self._world.workers)
        drains = random.sample(worker_ids, random.randint(0, len(worker_ids) - 1))
        pinned = random.sample(range(self._world.partitions), random.randint(0, min(2, self._world.partitions)))
        pins = {partition: random.choice(worker_ids) for partition in pinned}
        self._world.wish(random.choice(self._world.keys), Wishes(pins=pins, drains=frozenset(drains)))

    def do_depose(self) -> None:
        """The leader of a key is away until another one leads. Then that one is, and the first may lead again."""
        away_s = self._random.uniform(0.9, 1.3) * TIMES.give_away_s
        self._send_leader_away(away_s)
        back_s = away_s + self._random.uniform(0.0, 4.0)
        self._later(back_s, lambda: self._send_leader_away(self._random.uniform(0.9, 1.3) * TIMES.give_away_s))

    def _send_leader_away(self, for_s: float) -> None:
        worker = self._leader()
        if worker is None:
            return
        match self._random.randrange(3):
            case 0:
                self._cut(worker.link, for_s)
            case 1:
                self._pause(for_s, worker)
            case _:
                worker.link.stall()
                self._later(for_s, worker.link.unstall)

    def _leader(self) -> Worker | None:
        """The worker that leads a key, as the server has it."""
        bucket = self._world.broker.buckets.get(names.owners_bucket(STORE))
        entry = (
            bucket.entries.get(names.term_key(self._random.choice(self._world.keys))) if bucket is not None else None
        )
        if entry is None or entry.value is None:
            return None
        worker = self._world.workers.get(decode_term(entry.value).leader)
        return worker if worker is not None and worker.alive else None


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
        self, worker: str, key: str, partition: int, token: int, has_fence: bool, rivals: tuple[str, ...]
    ) -> None:
        place = f"{worker} {key}/{partition}"
        self._on_last_call(worker, key, partition)
        if has_fence:
            self._wrong("fence", f"{place}: a call begins after its fence")
        if rivals:
            self._wrong("two owners", f"{place}: a call begins, and {', '.join(rivals)} could begin one")
        if not token or token < self._tokens.get((key, partition), token):
            self._wrong("token", f"{place}: {token} after {self._tokens.get((key, partition))}")
        else:
            self._tokens[key, partition] = token

    def _on_last_call(self, worker: str, key: str, partition: int) -> None:
        running = self._running[key, partition]
        others = [one for one in running if running[one] and (one, (key, partition)) not in self._halted]
        if set(others) - {worker}:
            self._wrong("two calls", f"{worker} {key}/{partition}: a call begins beside one of {', '.join(others)}")
        running[worker] += 1

    def _on_told_beside(self, worker: str, key: str, partition: int, rivals: tuple[str, ...]) -> None:
        self._wrong("two told", f"{worker} {key}/{partition}: {', '.join(rivals)} has not been told that it lost it")

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
            stack.enter_context(patch.object(coordinator, "KeyOwnership", ObservedOwnership))
        yield
