"""Which worker each partition is to get where the workers are to have equal loads.

Loads are measured, and never the same twice. So nothing is even here: a worker may have up to ``HIGH`` times the load
that it should have before anything moves. Then partitions move until it has ``LOW`` times that or less, at most so many
at a time, with a rest after it. Each move takes load from a worker that stays at least as full as the other becomes,
so that no partition goes back by the same loads.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final, NamedTuple

from ringcast_wire.owner_records import MAX_MOVING, Phase, Table

from ringcast._protocol.sticky.loads import KeyLoad
from ringcast._protocol.sticky.plan import Wishes

HIGH: Final = 1.15
"""Partitions move where a worker has so many times the load that it should have,"""
LOW: Final = 1.05
"""until it has so many times that."""
UNDERFULL: Final = 0.9
"""After workers have come, also until each has so many times that."""
GAIN: Final = 0.5
"""A partition moves where that lowers the load of the fuller of the two workers by so much of its own load, or more. So
of two workers with one and two partitions of about the same load neither gets fuller than the other by turns."""
COOLED: Final = 0.8
"""A partition is hot no more when its load is so many times what made it hot."""
HOT_RATE: Final = 1.0
"""A partition with fewer changes a second is not called hot, however idle the others are."""
_IDLE_RATE: Final = 0.01
_IDLE_SHARE: Final = 0.05
"""A partition costs something also where nothing changes: as much as so many changes a second, and as this share of the
mean load of a partition. So idle partitions are shared out by number, and chance moves nothing among a few changes."""
_ENOUGH: Final = 300
_LONGEST_REST: Final = 5
"""A rest is as long as it takes a worker to have so many changes, and so many times as long as usual at most. What is
known of fewer changes is mostly chance: by that partitions would go and come back."""
_LEAST_BATCH: Final = 4
_BATCH_SHARE: Final = 16


class HotPartition(NamedTuple):
    """A partition whose load alone is more than a worker should have. ``rate`` is in changes a second."""

    partition: int
    rate: float


def moves_at_once(partitions: int) -> int:
    """How many partitions of a key may move to even loads out before there is a rest."""
    return min(MAX_MOVING, max(_LEAST_BATCH, partitions // _BATCH_SHARE))


def measured_rates(table: Table, loads: Mapping[str, KeyLoad], known: Sequence[float | None]) -> list[float | None]:
    """The changes a second of each partition, as its owner reports it.

    One that its owner has not measured yet has the rate of before (``known``), or none.
    """
    listed = {worker_id: load.rates() for worker_id, load in loads.items()}
    found: list[float | None] = []
    for number, entry in enumerate(table.entries):
        worker_id = entry.owner.worker_id if entry.owner is not None else ""
        before = known[number] if known else None
        if worker_id not in listed:
            found.append(before)
            continue
        rate = listed[worker_id].get(number)
        found.append(rate if rate is not None else before if before is not None else loads[worker_id].other_rate)
    return found


def weights(rates: Sequence[float | None]) -> list[float]:
    """What each partition counts in a plan; one without a rate counts as the mean of the others."""
    known = [rate for rate in rates if rate is not None]
    mean = sum(known) / len(known) if known else 0.0
    idle = _IDLE_RATE + _IDLE_SHARE * mean
    return [idle + (mean if rate is None else rate) for rate in rates]


def hot_ones(
    load: Sequence[float], capacity: int, workers: int, known: Set[int] = frozenset()
) -> tuple[set[int], float]:
    """The partitions that are hot, and the load for each capacity of 1 that the workers without any should have.

    The hottest is taken out with a worker of its own as long as its load alone is above the mean of those that are
    left, so a second one that the first hides is found, too. ``known``: those that are hot already.
    """
    left, capacity_left = sum(load), float(capacity)
    each = capacity / workers
    hot: set[int] = set()
    for number in sorted(range(len(load)), key=lambda at: (-load[at], at)):
        if len(hot) + 1 >= workers:
            break
        bar = left * each / capacity_left
        if load[number] <= bar * (COOLED if number in known else 1.0):
            break
        hot.add(number)
        left -= load[number]
        capacity_left -= each
    return hot, left / capacity_left


def hot_partitions(
    rates: Sequence[float | None], taking: Mapping[str, int], known: Set[int] = frozenset()
) -> tuple[HotPartition, ...]:
    """The hot partitions that have changes enough to be called so, the hottest first; as :func:`hot_ones`."""
    if not taking or not rates:
        return ()
    hot, _ = hot_ones(weights(rates), sum(taking.values()), len(taking), known)
    found = [HotPartition(number, rate) for number in hot if (rate := rates[number] or 0.0) >= HOT_RATE]
    return tuple(sorted(found, key=lambda one: (-one.rate, one.partition)))


class Fleet:
    """The partitions of a key by worker while a plan is made. ``fixed`` partitions don't move."""

    def __init__(
        self, present: Sequence[str | None], capacities: Mapping[str, int], load: Sequence[float], fixed: Set[int]
    ) -> None:
        self.found: list[str | None] = list(present)
        self._capacities = dict(sorted(capacities.items()))
        self._load = load
        self._fixed = fixed
        self._loads = dict.fromkeys(self._capacities, 0.0)
        self._held: dict[str, set[int]] = {name: set() for name in self._capacities}
        for number, name in enumerate(present):
            if name in self._held:
                self._held[name].add(number)
                self._loads[name] += load[number]

    def fill(self, name: str) -> float:
        """The load of a worker for each capacity of 1."""
        return self._loads[name] / self._capacities[name]

    def house(self, homeless: Sequence[int]) -> None:
        """Places partitions without a worker, by descending load, each where there is least."""
        heap = [(self.fill(name), name) for name in self._capacities]
        heapq.heapify(heap)
        for number in sorted(homeless, key=lambda at: (-self._load[at], at)):
            _, name = heap[0]
            self._give(number, name)
            heapq.heapreplace(heap, (self.fill(name), name))

    def relieve(self, hot: Set[int], should: float, *, above: float, even: bool, most: int) -> int:
        """Moves up to ``most`` partitions from where there is too much, and returns how many it has moved.

        ``above``: too much is so many times what there should be. ``even``: as long as a worker has too little, others
        have too much.
        """
        for moved in range(most):
            least = min(self._capacities, key=lambda name: (self.fill(name), name))
            bar = 0.0 if even and self.fill(least) < UNDERFULL * should else above * should
            if not any(self._relieve(name, least, hot) for name in self._givers(hot, bar)):
                return moved
        return most

    def needs_relief(self, hot: Set[int], should: float) -> bool:
        """Whether loads are so uneven that partitions should move, as far as any may."""
        return any(
            len(held) > 1 and (self.fill(name) > HIGH * should or not hot.isdisjoint(held))
            for name, held in self._held.items()
        )

    @property
    def has_idle(self) -> bool:
        """Whether a worker has no partition."""
        return not all(self._held.values())

    def _givers(self, hot: Set[int], bar: float) -> Iterator[str]:
        """The workers to take load from: those of hot partitions that have others besides first, then the fullest."""
        order = sorted(self._capacities, key=lambda name: (-self.fill(name), name))
        yield from (name for name in order if len(self._held[name]) > 1 and not hot.isdisjoint(self._held[name]))
        yield from (name for name in order if self.fill(name) > bar)

    def _relieve(self, giver: str, receiver: str, hot: Set[int]) -> bool:
        """Moves the partition that leaves the fuller of the two least full, if that gains enough."""
        if giver == receiver:
            return False
        held = self._held[giver]
        fill, takes, gives = self.fill(receiver), self._capacities[receiver], self._capacities[giver]

        def after(number: int) -> float:
            load = self._load[number]
            return max(self.fill(giver) - load / gives, fill + load / takes)

        stays = hot if len(held & hot) == 1 else set[int]()
        able = [number for number in held if number not in self._fixed and number not in stays]
        best = min(able, key=lambda number: (after(number), number), default=None)
        if best is None:
            return False
        least_gain = 0.0 if held & hot else GAIN * self._load[best] / gives
        if self.fill(giver) - after(best) <= least_gain:
            return False
        self._give(best, receiver)
        return True

    def _give(self, number: int, name: str) -> None:
        before = self.found[number]
        if before in self._held:
            self._held[before].discard(number)
            self._loads[before] -= self._load[number]
        self.found[number] = name
        self._held[name].add(number)
        self._loads[name] += self._load[number]


class Balance:
    """What the leader of a key knows of loads, and when it last moved partitions because of them.

    A successor begins with what the workers report, and with a rest.
    """

    def __init__(self, rest_s: float) -> None:
        self._rest_s = rest_s
        self._rates: list[float | None] = []
        self._read: Mapping[str, KeyLoad] | None = None
        self._rests_since: float | None = None
        self._taking: Mapping[str, int] = {}
        self._has_new = False
        self.hot: tuple[HotPartition, ...] = ()
        """The partitions that are hot, the hottest first."""
        self.skew = 0.0
        """The load of the busiest worker over the mean of all; 0 as long as nothing is known."""
        self.wake_at: float | None = None
        """When there may be more to do if nothing changes before."""

    def note(self, table: Table, loads: Mapping[str, KeyLoad] | None, taking: Mapping[str, int], now: float) -> None:
        """To be called in each step of the leader, before :meth:`targets`. ``loads``: ``None`` before the first."""
        if self._rests_since is None or any(entry.phase is not Phase.HELD for entry in table.entries):
            self._rests_since = now
        if taking != self._taking:
            self._has_new = self._has_new or bool(self._taking and taking.keys() - self._taking.keys())
            self._taking = dict(taking)
        if loads is None or loads is self._read:
            return
        self._read = loads
        self._rates = measured_rates(table, loads, self._rates)
        self.hot = hot_partitions(self._rates, taking, {one.partition for one in self.hot})
        self.skew = _skew(table, self._rates, taking)

    def targets(
        self,
        table: Table,
        present: Sequence[str | None],
        taking: Mapping[str, int],
        wishes: Wishes,
        passed_over: Set[str],
        now: float,
        *,
        quiet: bool,
    ) -> tuple[str, ...] | None:
        """The worker that each partition is to get; ``None``: no worker takes any.

        Args:
            table: as it is.
            present: the worker that each partition is at, or goes to.
            taking: the capacity of each worker that may get partitions.
            wishes: what an operator wants.
            passed_over: workers that keep what they have and get nothing else.
            now: on the leader's clock.
            quiet: whether the members are.
        """
        self.wake_at = None
        if not taking:
            return None
        pins = {number: name for number, name in wishes.pins.items() if name in taking}
        kept = {number for number, name in enumerate(present) if name in passed_over}
        at = [pins.get(number, name) if number not in kept else name for number, name in enumerate(present)]
        load = weights(self._rates or [None] * len(present))
        fleet = Fleet(at, taking, load, kept | pins.keys())
        fleet.house([number for number, name in enumerate(at) if name not in taking and number not in kept])
        if quiet and self._may_even_out(table, now):
            hot, should = hot_ones(load, sum(taking.values()), len(taking), {one.partition for one in self.hot})
            needs, even = fleet.needs_relief(hot, should), self._has_new or fleet.has_idle
            most = MAX_MOVING if self._has_new else moves_at_once(len(present))
            above = LOW if needs else math.inf
            if not ((needs or even) and fleet.relieve(hot, should, above=above, even=even, most=most)):
                self._has_new = False
        return tuple(name or "" for name in fleet.found)

    def _may_even_out(self, table: Table, now: float) -> bool:
        """Whether partitions may move for the sake of loads: they are known, nothing moves, and the rest is over."""
        if self._read is None or any(entry.phase is not Phase.HELD for entry in table.entries):
            return False
        assert self._rests_since is not None
        rested_at = self._rests_since + self._rest_now_s()
        if self._has_new or now >= rested_at:
            return True
        self.wake_at = rested_at
        return False

    def _rest_now_s(self) -> float:
        """How long a rest is by the loads of now."""
        rate = sum(rate or 0.0 for rate in self._rates) / max(1, len(self._taking))
        longest_s = _LONGEST_REST * self._rest_s
        return max(self._rest_s, _ENOUGH / rate) if rate * longest_s > _ENOUGH else longest_s


def _skew(table: Table, rates: Sequence[float | None], taking: Mapping[str, int]) -> float:
    owners = [entry.owner.worker_id if entry.owner is not None else None for entry in table.entries]
    fleet = Fleet(owners, taking, [rate or 0.0 for rate in rates], set())
    fills = [fleet.fill(name) for name in taking]
    mean = sum(fills) / len(fills) if fills else 0.0
    return max(fills) / mean if mean else 0.0
