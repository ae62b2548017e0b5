"""Partitions that are held and not owned: current all the time, and silent until they are handed over."""

from __future__ import annotations

import pytest
from ringcast._protocol.actions import Action, Announce, Apply, FetchPartition
from ringcast._protocol.key import KeyMachine
from ringcast._protocol.snapshots import CachedPartition
from ringcast_wire import Change as WireChange
from ringcast_wire import Event, PartitionRows, Row


class Bench:
    """A machine of two partitions, and an application that takes each job at once."""

    def __init__(self, *, exclusive: bool = True) -> None:
        self.machine = KeyMachine("s", "k", full=False, partition_count=2, random=lambda: 0.5, exclusive=exclusive)
        self.told: list[tuple[str, str | None, int]] = []
        """Row, value and token, in the order in which the application was told."""
        self.announced: list[tuple[bool, frozenset[int]]] = []
        self.now = 0.0

    def run(self) -> list[FetchPartition]:
        """Does what is to be done; returns what is to be fetched."""
        fetches: list[FetchPartition] = []
        while actions := self.machine.poll(self.now):
            for action in actions:
                if isinstance(action, FetchPartition):
                    fetches.append(action)
                self._take(action)
        return fetches

    def _take(self, action: Action) -> None:
        if isinstance(action, Announce):
            self.announced.append((action.assigned, action.partitions))
        if isinstance(action, Apply):
            for change in action.changes:
                self.told.append((change.row_id, change.value, change.token))
        if isinstance(action, Apply | Announce):
            self.machine.handover.done(action.number, self.now)

    def hold(self, *numbers: int) -> None:
        """Holds partitions, and has their filters confirmed."""
        self.machine.assign(frozenset(numbers))
        self.machine.filters_ready(numbers, self.now)

    def answer(self, *fetches: FetchPartition, rows: list[Row], revision: int, whole: bool = True) -> None:
        for fetch in fetches:
            reply = PartitionRows(fetch.partition, revision, whole, rows)
            self.machine.fetches.partition_reply(fetch.request, reply, self.now)
        assert not self.run()

    def write(self, number: int, row_id: str, value: str | None, revision: int) -> None:
        """An event comes that continues what is there."""
        change = WireChange(row_id, revision, value is None, value)
        self.machine.event(number, Event(1, revision - 1, revision, 1, [change]), f"t{revision}", self.now)
        self.run()


@pytest.fixture
def bench() -> Bench:
    """Holds partition 0 at revision 2, with the rows a and b."""
    bench = Bench()
    bench.hold(0)
    (fetch,) = bench.run()
    assert not bench.machine.silent.is_current(0), "it has no rows yet"
    bench.answer(fetch, rows=[Row("a", "1", 1), Row("b", "1", 2)], revision=2)
    return bench


def test_what_is_held_is_current_and_nobody_is_told(bench: Bench) -> None:
    machine = bench.machine
    assert machine.silent.is_current(0)
    assert not machine.silent.is_current(1), "it is not held"
    bench.write(0, "a", "2", 3)
    assert machine.partitions[0].rows["a"].value == "2"
    assert not bench.told
    assert not bench.announced
    assert not machine.owned()


def test_the_owner_is_told_of_everything_and_then_of_each_change(bench: Bench) -> None:
    bench.machine.silent.hand_over({0: 7})
    bench.run()
    assert bench.announced == [(True, frozenset({0}))]
    assert sorted(bench.told) == [("a", "1", 7), ("b", "1", 7)]
    assert bench.machine.owned() == {0}
    assert bench.machine.ready
    bench.write(0, "a", "2", 3)
    assert bench.told[-1] == ("a", "2", 7)


def test_what_is_silenced_is_kept_current_and_announced_as_lost(bench: Bench) -> None:
    machine = bench.machine
    machine.silent.hand_over({0: 7})
    bench.run()
    del bench.told[:]
    machine.silent.silence({0, 1}, bench.now)
    (fetch,) = bench.run()
    assert fetch.since == 2, "what it has missed meanwhile is fetched"
    assert bench.announced == [(True, frozenset({0})), (False, frozenset({0}))]
    assert not machine.owned()
    bench.answer(fetch, rows=[Row("b", "", 3, True)], revision=3, whole=False)
    bench.write(0, "c", "1", 4)
    assert not bench.told
    machine.silent.hand_over({0: 9})
    bench.run()
    assert sorted(bench.told, key=str) == [("a", "1", 9), ("b", None, 9), ("c", "1", 9)], "the deleted row is owed"


def test_what_was_not_owned_can_be_silenced_without_harm(bench: Bench) -> None:
    bench.machine.silent.silence({0}, bench.now)
    assert not bench.run()
    assert not bench.announced
    assert bench.machine.silent.is_current(0)


def test_an_owner_that_was_not_told_yet_is_not_told_of_the_loss(bench: Bench) -> None:
    bench.machine.silent.hand_over({0: 7})
    bench.machine.silent.silence({0}, bench.now)
    bench.run()
    assert not bench.told
    assert not bench.announced


def test_another_application_is_told_of_what_is_owned_once_more(bench: Bench) -> None:
    bench.machine.silent.hand_over({0: 7})
    bench.run()
    first = list(bench.told)
    bench.machine.silent.hand_over_again()
    bench.run()
    assert bench.told == first * 2
    bench.machine.silent.silence({0}, bench.now)
    bench.run()
    bench.machine.silent.hand_over_again()
    bench.run()
    assert bench.told == first * 2, "nothing of what is only held"


@pytest.fixture
def peer() -> Bench:
    """Owns both partitions by the peer rule, with a row in each."""
    bench = Bench(exclusive=False)
    bench.hold(0, 1)
    for fetch in bench.run():
        bench.answer(fetch, rows=[Row(f"a{fetch.partition}", "1", 1)], revision=1)
    assert sorted(bench.told) == [("a0", "1", 0), ("a1", "1", 0)]
    return bench


def test_a_peer_that_becomes_an_exclusive_owner_goes_on_with_what_it_has_a_token_for(peer: Bench) -> None:
    machine = peer.machine
    del peer.told[:], peer.announced[:]
    machine.become_exclusive({0: 7, 5: 7}, peer.now)
    (fetch,) = peer.run()
    assert (fetch.partition, fetch.since) == (1, 1)
    assert peer.announced == [(False, frozenset({1}))], "it has no token for that one"
    assert not peer.told, "nothing is handed over twice"
    assert machine.owned() == {0}
    peer.answer(fetch, rows=[], revision=1, whole=False)
    peer.write(0, "a0", "2", 2)
    peer.write(1, "a1", "2", 2)
    assert peer.told == [("a0", "2", 7)]
    machine.silent.hand_over({1: 9})
    peer.run()
    assert peer.told[1:] == [("a1", "2", 9)]
    machine.assign(frozenset({1}))
    machine.assign(frozenset({0, 1}))
    assert machine.owned() == {1}, "what it gains is silent from now on"


def test_an_exclusive_owner_that_becomes_a_peer_goes_on_with_what_it_has(peer: Bench) -> None:
    machine = peer.machine
    machine.become_exclusive({0: 7}, peer.now)
    machine.assign(frozenset({0}))
    peer.run()
    del peer.told[:], peer.announced[:]
    machine.become_shared(frozenset({0, 1}))
    machine.filters_ready([1], peer.now)
    (fetch,) = peer.run()
    assert (fetch.partition, fetch.since) == (1, None)
    assert peer.announced == [(True, frozenset({1}))]
    peer.write(0, "a0", "2", 2)
    assert peer.told == [("a0", "2", 0)]
    assert machine.owned() == {0, 1}
    machine.assign(frozenset())
    peer.run()
    assert peer.announced[1:] == [(False, frozenset({0, 1}))]


def test_what_a_peer_to_be_holds_silently_it_has_handed_over_from_the_start(bench: Bench) -> None:
    machine = bench.machine
    machine.silent.hand_over({0: 7})  # and not a row of it has been handed over
    machine.become_shared(frozenset({0}))
    machine.filters_ready([0], bench.now)
    (fetch,) = bench.run()
    assert fetch.since is None
    bench.answer(fetch, rows=[Row("a", "1", 1), Row("b", "1", 2)], revision=2)
    assert sorted(bench.told) == [("a", "1", 0), ("b", "1", 0)]
    assert bench.announced == [(True, frozenset({0}))]


def test_what_the_disk_had_is_not_current_before_it_was_fetched() -> None:
    bench = Bench()
    bench.machine.restore([CachedPartition(1, 5, {"z": Row("z", "1", 5)}, {}, 0.0)], hand_over=True)
    assert not bench.run()
    assert not bench.told
    assert not bench.machine.silent.is_current(1)
    bench.hold(1)
    (fetch,) = bench.run()
    assert fetch.since == 5
    bench.answer(fetch, rows=[], revision=5, whole=False)
    assert bench.machine.silent.is_current(1)
