"""The judge of exclusive ownership notices each promise that is broken, and excepts what it has to."""

from __future__ import annotations

import json

import pytest
from ringcast_testkit import Report

from tests.integration.faults.exclusive import Exclusive, Fence, Times, judge_exclusive
from tests.integration.faults.histories import Findings
from tests.integration.faults.witness import Refresh, Witness, read_witness

MS = 1_000_000
TIMES = Times.of(4_000, 400)
END_MS = 60_000


class Process:
    """One process that writes down what it does, by the clock in ms."""

    def __init__(self, worker_id: str, *refreshed_ms: int) -> None:
        self.worker_id = worker_id
        self._lines: list[list[object]] = [["refreshed", at * MS, (at + 5) * MS] for at in refreshed_ms]
        self._calls = 0

    def calls(self, token: int, began_ms: float, ended_ms: float | None, *, partition: int = 3) -> Process:
        """A call of the handler within one that is let start."""
        self.admits(token, began_ms, ended_ms, partition=partition)
        self.handles(token, began_ms + 0.1, None if ended_ms is None else ended_ms - 0.1, partition=partition)
        return self

    def admits(self, token: int, began_ms: float, ended_ms: float | None, *, partition: int = 3) -> Process:
        return self._add("admitted", "ended", token, began_ms, ended_ms, partition)

    def handles(self, token: int, began_ms: float, ended_ms: float | None, *, partition: int = 3) -> Process:
        return self._add("handling", "handled", token, began_ms, ended_ms, partition)

    def _add(
        self, begins: str, ends: str, token: int, began_ms: float, ended_ms: float | None, partition: int
    ) -> Process:
        self._calls += 1
        self._lines.append([begins, self._calls, "k", partition, token, int(began_ms * MS)])
        if ended_ms is not None:
            self._lines.append([ends, self._calls, int(ended_ms * MS)])
        return self

    def witness(self) -> Witness:
        return read_witness(f"{self.worker_id}.1.1", map(json.dumps, self._lines))


def reported(worker_id: str, *events: tuple[str, int]) -> list[Report]:
    return [Report(worker_id, 1, event, at_ms * MS, {}) for event, at_ms in events]


def judged(*processes: Process, reports: list[Report] | None = None) -> tuple[dict[str, int], Exclusive, float]:
    """What is found, the figures, and for how many ms a partition was owned twice."""
    findings = Findings()
    witnesses = [process.witness() for process in processes]
    found, spans = judge_exclusive(witnesses, reports or [], TIMES, END_MS * MS, findings)
    return dict(findings.counts), found, sum(ended - began for began, ended in spans) / MS


def test_a_move_without_fault() -> None:
    a = Process("a", 0, 1_000).calls(5, 1_100, 1_110).calls(5, 1_105, 1_120)
    b = Process("b", 0, 1_000).calls(6, 1_120, 1_130).calls(2, 1_110, 1_125, partition=4)
    counts, found, double_ms = judged(a, b)
    assert (counts, double_ms) == ({}, 0)
    assert (found.calls, found.processes, found.fences_passed) == (4, 2, 0)


def test_two_sessions_that_call_at_once() -> None:
    counts, _, double_ms = judged(Process("a", 0).calls(5, 100, 150), Process("b", 0).calls(6, 120, 140))
    assert (counts, double_ms) == ({"double_owned": 1}, 20)


def test_two_sessions_of_one_process_are_two() -> None:
    counts, _, double_ms = judged(Process("a", 0).calls(5, 100, 150).calls(6, 145, 160))
    assert (counts, double_ms) == ({"double_owned": 1}, 5)


def test_calls_of_other_partitions_do_not_count() -> None:
    counts, _, _ = judged(Process("a", 0).calls(5, 100, 150), Process("b", 0).calls(6, 120, 140, partition=4))
    assert not counts


def test_a_call_in_which_its_process_was_halted_is_excepted() -> None:
    a, b = Process("a", 0).calls(5, 100, 300), Process("b", 0).calls(6, 250, 350)
    halted = reported("a", ("paused", 101), ("resumed", 290))
    counts, found, double_ms = judged(a, b, reports=halted)
    assert (counts, double_ms, found.excepted_ms, found.halted) == ({}, 0, 50, 1)
    for other in (reported("b", ("paused", 251), ("resumed", 290)), reported("a", ("paused", 90), ("resumed", 99))):
        counts, found, _ = judged(a, b, reports=other)
        assert counts == {"double_owned": 1}, "another was halted, or at another time"


def test_a_call_that_took_longer_than_its_bound_is_excepted() -> None:
    counts, found, double_ms = judged(Process("a", 0).calls(5, 100, 501), Process("b", 0).calls(6, 490, 520))
    assert (counts, double_ms, found.excepted_ms, found.over_bound) == ({}, 0, 11, 1)


def test_the_next_owner_has_no_excuse() -> None:
    """It may be halted within its call: the owner before it may start none."""
    a, b = Process("a", 0).calls(5, 250, 260), Process("b", 0).calls(6, 100, 300)
    counts, _, _ = judged(a, b, reports=reported("b", ("paused", 110), ("resumed", 290)))
    assert counts == {"double_owned": 1, "fallen_token": 1}


def test_a_call_that_never_ended_has_ended_with_its_process() -> None:
    a, b = Process("a", 0).calls(5, 100, None), Process("b", 0).calls(6, 300, 310)
    assert judged(a, b, reports=reported("a", ("killed", 250)))[0] == {}
    assert judged(a, b, reports=reported("a", ("killed", 350)))[0] == {"double_owned": 1}
    assert judged(Process("a", 0).calls(5, 100, None), reports=[])[1].over_bound == 1, "it runs still"


@pytest.mark.parametrize(("began_ms", "late"), [(3_599, 0), (3_601, 1)])
def test_a_call_after_the_fence(began_ms: float, late: int) -> None:
    counts, _, _ = judged(Process("a", 0).calls(5, began_ms, began_ms + 1))
    assert counts.get("after_fence", 0) == late


def test_an_answer_that_is_late_moves_no_fence_of_before() -> None:
    witness = Process("a", 0, 3_000).witness()
    witness.refreshes.append(Refresh(3_500 * MS, 8_000 * MS))
    fence = Fence(witness, TIMES)
    assert [fence.at(at_ms * MS) // MS for at_ms in (1, 6, 3_004, 3_006, 7_999, 8_001)] == [
        *(0, 3_600, 3_600),
        *(6_600, 6_600, 7_100),
    ]
    assert [(began // MS, ended // MS) for began, ended in fence.gaps] == [(6_600, 8_000)]


def test_a_token_that_goes_on_after_its_fence() -> None:
    a = Process("a", 0, 3_700).calls(5, 3_000, 3_001).calls(5, 3_800, 3_801)
    counts, found, _ = judged(a)
    assert counts == {"resumed_token": 1}
    assert (found.fences_passed, found.longest_away_ms) == (1, 105)
    assert judged(Process("a", 0, 3_700).calls(5, 3_000, 3_001).calls(9, 3_800, 3_801))[0] == {}


def test_a_token_that_falls_and_one_that_two_have() -> None:
    counts, _, _ = judged(Process("a", 0).calls(5, 10, 11).calls(5, 30, 31), Process("b", 0).calls(6, 20, 21))
    assert counts == {"fallen_token": 1}
    counts, _, _ = judged(Process("a", 0).calls(5, 10, 11), Process("b", 0).calls(5, 20, 21))
    assert counts == {"shared_token": 1}


def test_a_call_of_the_handler_that_nobody_has_let_start() -> None:
    assert judged(Process("a", 0).handles(5, 10, 11))[0] == {"not_admitted": 1}
    assert judged(Process("a", 0).admits(4, 10, 20).handles(5, 11, 12))[0] == {"not_admitted": 1}
    assert judged(Process("a", 0).admits(5, 10, 20).handles(5, 11, 21))[0] == {"not_admitted": 1}, "it ran on"
    assert judged(Process("a", 0).admits(5, 10, None).handles(5, 11, None))[0] == {}


def test_a_witness_that_says_something_else() -> None:
    with pytest.raises(ValueError, match="a witness says"):
        read_witness("a.1.1", ['["admitted", 1]'])
