"""What lets calls start, and counts those that take too long; the coordinator decides, here a plain one in memory."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ringcast._common.log import worker_log
from ringcast._common.stats import Stats
from ringcast._worker import exclusive
from ringcast._worker.exclusive import KeyGate

BOUND_S = 2.0


class Call:
    def __init__(self, token: int) -> None:
        self.token = token
        self.ends = 0

    def end(self) -> None:
        self.ends += 1


class Owner:
    """Owns partitions, each with a token."""

    def __init__(self) -> None:
        self.tokens: dict[int, int] = {}
        self.last: set[int] = set()
        """Partitions whose last call may still start."""
        self.released: list[int] = []
        self.calls: list[Call] = []

    def begin_call(self, key: str, partition: int) -> Call | None:
        return self._begin(self.tokens.get(partition))

    def begin_last_call(self, key: str, partition: int) -> Call | None:
        return self._begin(1 if partition in self.last else None)

    def end_last_call(self, key: str, partition: int) -> None:
        self.released.append(partition)

    def _begin(self, token: int | None) -> Call | None:
        if token is None:
            return None
        self.calls.append(call := Call(token))
        return call


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(exclusive, "time", clock)
    return clock


class Bench:
    def __init__(self, adopted: dict[int, int] | None = None) -> None:
        self.owner, self.stats, self.lost = Owner(), Stats(), set[int]()
        session = SimpleNamespace(
            key="list",
            applier=SimpleNamespace(lose=self.lost.update),
            machine=SimpleNamespace(stats=self.stats),
            log=worker_log(logging.getLogger("ringcast")),
        )
        self.gate = KeyGate(cast("Any", session), cast("Any", self.owner), BOUND_S, adopted)


@pytest.fixture
def bench(clock: Clock) -> Bench:
    return Bench()


def test_a_call_of_a_partition_that_is_not_owned_does_not_start(bench: Bench) -> None:
    assert bench.gate.begin(3) is None
    assert bench.lost == {3}, "nothing more of it is handed over"
    assert bench.stats.fence_refusals == 1
    assert bench.gate.over_bound_s == 0


def test_a_change_of_the_time_before_does_not_start_a_call(bench: Bench) -> None:
    """The partition was lost, and has come back with another token."""
    bench.owner.tokens[3] = 8
    assert bench.gate.begin(3, 7) is None
    assert [call.ends for call in bench.owner.calls] == [1], "the call that was let start is given back"
    assert bench.stats.fence_refusals == 1
    assert not bench.lost
    for token in (8, None):
        admitted = bench.gate.begin(3, token)
        assert admitted is not None
        admitted.end()


def test_what_was_under_way_when_a_peer_became_the_owner_is_let_through_while_it_is(clock: Clock) -> None:
    bench = Bench({3: 8})
    bench.owner.tokens.update({3: 8, 4: 9})
    assert bench.gate.begin(3, 0) is not None
    assert bench.gate.begin(3, 8) is not None
    assert bench.gate.begin(4, 0) is None, "that one was not adopted"
    bench.owner.tokens[3] = 11
    assert bench.gate.begin(3, 0) is None, "it was lost, and has come back"
    del bench.owner.tokens[3]
    assert bench.gate.begin(3, 0) is None


def test_a_call_ends_once(bench: Bench, clock: Clock) -> None:
    bench.owner.tokens[3] = 8
    admitted = bench.gate.begin(3, 8)
    assert admitted is not None
    clock.now += BOUND_S
    admitted.end()
    admitted.end()
    assert bench.stats.calls_over_bound == 0, "the bound itself is within it"
    assert bench.owner.calls[0].ends == 2, "the second time does nothing there, as its contract says"


def test_a_call_over_the_bound_is_seen_while_it_runs_and_counted_once(bench: Bench, clock: Clock) -> None:
    bench.owner.tokens.update({3: 8, 4: 9})
    first, second = bench.gate.begin(3, 8), bench.gate.begin(4, 9)
    assert first is not None
    assert second is not None
    clock.now += BOUND_S
    assert bench.gate.over_bound_s == 0
    clock.now += 0.5
    assert bench.gate.over_bound_s == pytest.approx(BOUND_S + 0.5)
    first.end()
    first.end()
    assert bench.stats.calls_over_bound == 1
    assert bench.gate.over_bound_s == pytest.approx(BOUND_S + 0.5), "of the other one"
    second.end()
    assert bench.stats.calls_over_bound == 2
    assert bench.gate.over_bound_s == 0


def test_the_last_call(bench: Bench, clock: Clock) -> None:
    assert bench.gate.begin_last(3) is None
    assert bench.stats.fence_refusals == 1
    bench.owner.last.add(3)
    admitted = bench.gate.begin_last(3)
    assert admitted is not None
    clock.now += BOUND_S + 1
    admitted.end()
    assert bench.stats.calls_over_bound == 1, "the bound holds for it too"
    assert not bench.owner.released
    bench.gate.end_last(3)
    assert bench.owner.released == [3]
