"""Balance by load: the leader, workers that report, and a write load that is never the same twice."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
from ringcast._protocol.sticky.balance import Fleet, hot_ones, hot_partitions, moves_at_once, weights
from ringcast._protocol.sticky.evidence import LeaseEvidence
from ringcast._protocol.sticky.leader import Leader, LeaderTimes, View, WriteTable
from ringcast._protocol.sticky.loads import KeyLoad, LoadMeter, decode_loads, encode_loads, reported
from ringcast._protocol.sticky.plan import Wishes
from ringcast_wire.owner_records import Phase, Session, State, Table, Term

REPORT_S, REST_S = 10.0, 60.0


class World:
    """A key whose workers do at once what the table says, and report their loads every 10 s."""

    def __init__(self, workers: int, rates: list[float], *, wishes: Wishes | None = None, seed: int = 1) -> None:
        self.rates = rates
        self.wishes = wishes or Wishes(by_load=True)
        self.now = 0.0
        self.moves: list[tuple[float, int, str]] = []
        """When a partition has changed its owner, which, and who has it then."""
        self.table: Table | None = None
        self._random = random.Random(seed)
        self._written = [0.0] * len(rates)
        self._sessions: dict[str, Session] = {}
        self._meters: dict[str, LoadMeter] = {}
        self._loads: dict[str, KeyLoad] = {}
        self._over: dict[str, State] = {}
        """What workers say that have ended."""
        self._revision = 1000
        for number in range(workers):
            self.join(f"w{number:03}")
        self.take_over()

    def take_over(self) -> None:
        """Another process leads, which knows nothing."""
        self.leader = Leader("w000", len(self.rates), LeaseEvidence(11.0), 11.0, LeaderTimes(rest_s=REST_S))

    def join(self, name: str) -> None:
        self._sessions[name] = Session(name, name, len(self._sessions) + 1)
        self._meters[name] = LoadMeter(3 * REPORT_S)

    def leave(self, name: str) -> None:
        """A worker ends, and says so."""
        session = self._sessions.pop(name)
        self._over = {name: State(lease=name, session=0, first=session.number, ended=session.number)}

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / REPORT_S)):
            self.now += REPORT_S
            self._write()
            self._report()
            self._lead()

    def fill(self) -> dict[str, float]:
        """The true changes a second of each worker."""
        found = dict.fromkeys(self._sessions, 0.0)
        for number, name in enumerate(self.owners()):
            found[name] += self.rates[number]
        return found

    def skew(self) -> float:
        fill = self.fill()
        return max(fill.values()) / (sum(fill.values()) / len(fill))

    def owners(self) -> list[str]:
        assert self.table is not None
        return [entry.owner.worker_id for entry in self.table.entries if entry.owner is not None]

    def _write(self) -> None:
        for number, rate in enumerate(self.rates):
            mean = rate * REPORT_S
            self._written[number] += max(0, round(self._random.gauss(mean, mean**0.5)))

    def _report(self) -> None:
        owned: dict[str, dict[int, int]] = {name: {} for name in self._sessions}
        for number, entry in enumerate(self.table.entries if self.table is not None else ()):
            if entry.owner is not None and entry.owner.worker_id in owned:
                owned[entry.owner.worker_id][number] = int(self._written[number])
        self._loads = dict(self._loads)
        for name, revisions in owned.items():
            self._meters[name].look(revisions, self.now)
            report = reported({"key": self._meters[name].rates()})
            if report:
                self._loads[name] = decode_loads(encode_loads(report))["key"]

    def _lead(self) -> None:
        for _ in range(1000):
            step = self.leader.step(self._view(), self.now)
            if not isinstance(step.write, WriteTable):
                return
            before, self.table = self.table, step.write.table
            self._revision += 1
            for number, (old, new) in enumerate(
                zip(before.entries if before else (), self.table.entries, strict=False)
            ):
                if old.owner != new.owner and new.owner is not None:
                    assert new.token > old.token, "tokens rise"
                    self.moves.append((self.now, number, new.owner.worker_id))
        raise AssertionError("the leader goes on writing")

    def _view(self) -> View:
        prepared: dict[str, list[tuple[int, int]]] = {name: [] for name in self._sessions}
        released: dict[str, list[tuple[int, int]]] = {name: [] for name in self._sessions}
        for number, entry in enumerate(self.table.entries if self.table is not None else ()):
            if entry.phase is not Phase.HELD and entry.next is not None:
                prepared[entry.next.worker_id].append((number, entry.next_token))
            if entry.phase is Phase.DRAIN and entry.owner is not None:
                released[entry.owner.worker_id].append((number, entry.token))
        states = {
            name: State(
                lease=name,
                session=session.number,
                prepared=tuple(prepared[name]),
                released=tuple(released[name]),
            )
            for name, session in self._sessions.items()
        }
        return View(
            term=Term(leader="w000"),
            term_revision=4,
            table=self.table,
            table_revision=self._revision if self.table is not None else 0,
            states=self._over | states,
            live=frozenset(self._sessions),
            wishes=self.wishes,
            loads=self._loads,
        )


def zipf(partitions: int, exponent: float, total: float) -> list[float]:
    """The changes a second of each partition."""
    shares = [(rank + 1) ** -exponent for rank in range(partitions)]
    return [total * share / sum(shares) for share in shares]


@pytest.mark.parametrize("total", [20.0, 200.0, 2_000.0])
def test_a_zipf_load_is_evened_out_once_and_stays_so(total: float) -> None:
    """With 20 changes a second in all, each worker has one: it has to measure for minutes, or it would tell chance."""
    world = World(20, zipf(256, 0.6, total))
    world.run(60)
    assert world.skew() > 1.5, "equal numbers of partitions"
    world.run(1_140)
    assert world.skew() <= 1.25
    assert world.leader.skew <= 1.25
    evened_out = len(world.moves)
    assert 0 < evened_out <= 3 * moves_at_once(256)
    world.run(1_500)
    assert len(world.moves) == evened_out, "nothing moves under a steady load"
    assert world.skew() <= 1.25


@pytest.mark.parametrize(
    ("workers", "partitions", "exponent", "total"),
    [
        (20, 256, 0.6, 20.0),
        (20, 256, 0.6, 200.0),
        (4, 32, 0.6, 40.0),
        (7, 16, 0.0, 500.0),
        (3, 7, 0.0, 100.0),
        (20, 64, 0.0, 5.0),
    ],
)
def test_no_partition_comes_and_goes_under_a_steady_load(
    workers: int, partitions: int, exponent: float, total: float
) -> None:
    """However few changes there are, and however badly the partitions go into the workers."""
    for seed in range(1 if partitions > 100 else 3):
        world = World(workers, zipf(partitions, exponent, total), seed=seed)
        world.run(2_000)
        of_partition = Counter(number for _, number, _ in world.moves)
        assert max(of_partition.values(), default=0) <= 2
        assert len(world.moves) <= partitions / 2


def test_at_most_so_many_move_at_a_time_with_a_rest_after_it() -> None:
    world = World(20, zipf(256, 1.2, 2_000.0))
    world.run(900)
    at = Counter(moment for moment, _, _ in world.moves)
    assert max(at.values()) <= moves_at_once(256) == 16
    moments = sorted(at)
    assert len(moments) > 1
    assert all(later - earlier >= REST_S for earlier, later in pairwise(moments))


def test_a_hot_partition_stands_alone_and_is_named() -> None:
    rates = zipf(64, 0.3, 400.0)
    rates[9] = 300.0
    world = World(8, rates)
    world.run(600)
    assert [one.partition for one in world.leader.hot] == [9]
    assert world.leader.hot[0].rate == pytest.approx(300.0, rel=0.2)
    owners = world.owners()
    assert owners.count(owners[9]) == 1
    others = [load for name, load in world.fill().items() if name != owners[9]]
    assert max(others) / (sum(others) / 7) <= 1.25
    moved = len(world.moves)
    world.run(900)
    assert len(world.moves) == moved
    world.rates[9] = 5.0
    world.run(900)
    assert world.leader.hot == ()
    assert world.skew() <= 1.25
    assert world.owners().count(world.owners()[9]) > 1, "its worker takes others again"


def test_two_hot_partitions_of_one_worker_are_parted() -> None:
    world = World(4, zipf(16, 0.0, 80.0))
    world.run(30)
    first = world.owners()[0]
    both = [number for number, name in enumerate(world.owners()) if name == first][:2]
    for number in both:
        world.rates[number] = 200.0
    world.run(900)
    assert {one.partition for one in world.leader.hot} == set(both)
    owners = world.owners()
    assert owners[both[0]] != owners[both[1]]
    assert [owners.count(owners[number]) for number in both] == [1, 1]


def test_workers_that_come_get_their_share_of_the_load_and_those_that_end_leave_theirs() -> None:
    world = World(4, zipf(64, 0.6, 1_000.0))
    world.run(600)
    before = len(world.moves)
    world.join("w900")
    world.run(20)
    assert world.fill()["w900"] >= 0.8 * sum(world.fill().values()) / 5, "that does not wait for a rest to be over"
    to = [name for _, _, name in world.moves[before:]]
    assert to.count("w900") >= 0.8 * len(to), "little moves between the others"
    world.leave("w001")
    world.run(300)
    assert world.skew() <= 1.25


def test_a_successor_moves_nothing_that_is_even_and_waits_for_loads() -> None:
    world = World(20, zipf(256, 0.6, 2_000.0))
    world.run(600)
    moved = len(world.moves)
    world.take_over()
    world._loads = {}
    world.run(900)
    assert len(world.moves) == moved


def test_pins_hold_and_a_drained_worker_gets_nothing() -> None:
    wishes = Wishes(by_load=True, pins={0: "w001", 1: "w001"}, drains=frozenset({"w002"}))
    world = World(5, zipf(64, 1.0, 500.0), wishes=wishes)
    world.run(900)
    owners = world.owners()
    assert owners[0] == owners[1] == "w001"
    assert "w002" not in owners


def test_without_loads_partitions_are_shared_out_by_number() -> None:
    world = World(4, [0.0] * 64)
    world.run(300)
    assert set(Counter(world.owners()).values()) == {16}
    assert world.moves == []
    world.join("w900")
    world.run(300)
    assert set(Counter(world.owners()).values()) <= {11, 12, 13, 14}


def test_by_count_loads_are_told_and_move_nothing() -> None:
    rates = zipf(64, 0.3, 400.0)
    rates[9] = 300.0
    world = World(8, rates, wishes=Wishes())
    world.run(300)
    assert [one.partition for one in world.leader.hot] == [9]
    assert world.leader.skew > 2
    assert world.moves == []


def test_hot_is_what_is_above_the_mean_of_those_that_are_left() -> None:
    load = [100.0, 30.0, *[10.0] * 20]
    hot, should = hot_ones(load, 10, 10)
    assert hot == {0, 1}, "the second is below the mean of all, and above that of the workers without the first"
    assert should == pytest.approx(200.0 / 8)
    assert hot_ones([100.0, 1.0], 1, 1)[0] == set(), "one worker has all"
    assert hot_ones([1.0] * 4, 2, 2)[0] == set()
    assert hot_ones([24.0, *[10.0] * 9, *[6.0] * 10], 8, 8, {0})[0] == {0}, "it stays hot until it has cooled down"
    assert hot_partitions([0.5, 0.0, 0.0], {"a": 1, "b": 1}) == (), "next to nothing is not hot"
    assert hot_partitions([], {"a": 1}) == ()


def test_a_partition_without_a_rate_counts_as_the_mean() -> None:
    assert weights([4.0, None, 0.0]) == pytest.approx([4.11, 2.11, 0.11])
    assert weights([None, None]) == pytest.approx([0.01, 0.01])


def test_homeless_partitions_go_where_there_is_least() -> None:
    fleet = Fleet([None, None, None, "a", None], {"a": 1, "b": 2}, [4.0, 3.0, 2.0, 6.0, 1.0], set())
    fleet.house([0, 1, 2, 4])
    assert fleet.found == ["b", "b", "b", "a", "b"]
