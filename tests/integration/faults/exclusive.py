"""The judge of exclusive ownership: what each process says of its calls, put side by side on the machine's one clock.

It reckons the fence of each process itself, from when that sent its refreshes, and takes nobody's word for an owner.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ringcast_testkit import Report

from tests.integration.faults.histories import Findings, covered
from tests.integration.faults.witness import Call, Place, Witness

_ENDS = ("killed", "ended", "failed", "started")
"""Reports after which no call of the process before runs."""


@dataclass(frozen=True)
class Times:
    """Of a store: how long a lease lasts, and the bound on a call; in ns."""

    lease_ns: int
    bound_ns: int

    @classmethod
    def of(cls, lease_ttl_ms: int, call_bound_ms: int) -> Times:
        """From the settings of a store."""
        return cls(lease_ttl_ms * 1_000_000, call_bound_ms * 1_000_000)


@dataclass
class Exclusive:
    """What there was to judge, and what is excepted: a call that took longer than its bound, or was halted."""

    calls: int = 0
    processes: int = 0
    fences_passed: int = 0
    """How often a process had no session between two refreshes."""
    longest_away_ms: float = 0.0
    over_bound: int = 0
    halted: int = 0
    excepted_ms: float = 0.0
    """Time in which two sessions ran calls of a partition, the earlier one such a call."""

    def add(self, other: Exclusive) -> None:
        """Another run beside this one."""
        self.calls += other.calls
        self.processes += other.processes
        self.fences_passed += other.fences_passed
        self.longest_away_ms = max(self.longest_away_ms, other.longest_away_ms)
        self.over_bound += other.over_bound
        self.halted += other.halted
        self.excepted_ms += other.excepted_ms


class Fence:
    """Until when a process may start calls, as it could know at each moment. A refresh counts from when it was sent."""

    def __init__(self, witness: Witness, times: Times) -> None:
        self.gaps: list[tuple[int, int]] = []
        """From when a fence passed to when a refresh was answered after it."""
        self._answered: list[int] = []
        self._until: list[int] = []
        for refresh in sorted(witness.refreshes, key=lambda refresh: refresh.answered_ns):
            until_ns = refresh.sent_ns + times.lease_ns - times.bound_ns
            if self._until:
                if self._until[-1] < refresh.answered_ns:
                    self.gaps.append((self._until[-1], refresh.answered_ns))
                until_ns = max(until_ns, self._until[-1])
            self._answered.append(refresh.answered_ns)
            self._until.append(until_ns)

    def at(self, at_ns: int) -> int:
        """The fence as it stood then."""
        index = bisect_right(self._answered, at_ns)
        return self._until[index - 1] if index else 0

    def passes_within(self, began_ns: int, ended_ns: int) -> bool:
        """Whether there was a moment without a session between two others."""
        return any(began_ns < gap_ended and gap_began < ended_ns for gap_began, gap_ended in self.gaps)


class _Admitted(NamedTuple):
    began_ns: int
    ended_ns: int
    token: int
    process: str
    is_excepted: bool


def judge_exclusive(
    witnesses: Sequence[Witness], reports: Sequence[Report], times: Times, end_ns: int, findings: Findings
) -> tuple[Exclusive, list[tuple[int, int]]]:
    """Calls of a partition by two sessions never overlap, none starts after its fence, tokens never fall.

    ``reports`` say which processes were halted or ended, and when; ``end_ns`` is when it was looked. Returns the spans
    of double ownership beside the figures, in ns, without the excepted ones.
    """
    found = Exclusive(processes=len(witnesses))
    lives = Lives(reports, end_ns)
    by_place: defaultdict[Place, list[_Admitted]] = defaultdict(list)
    for witness in witnesses:
        fence = Fence(witness, times)
        found.fences_passed += len(fence.gaps)
        found.longest_away_ms = max([found.longest_away_ms, *((b - a) / 1e6 for a, b in fence.gaps)])
        _judge_fence(witness, fence, findings)
        _judge_admission(witness, findings)
        for call in witness.admitted:
            ended_ns = lives.end_of(witness.worker_id, call)
            is_halted = lives.is_halted_within(witness.worker_id, call)
            is_over_bound = ended_ns - call.began_ns > times.bound_ns
            found.calls += 1
            found.halted += is_halted
            found.over_bound += is_over_bound
            by_place[call.place].append(
                _Admitted(call.began_ns, ended_ns, call.token, witness.process, is_halted or is_over_bound)
            )
    double: list[tuple[int, int]] = []
    excepted: list[tuple[int, int]] = []
    for place, calls in by_place.items():
        calls.sort()
        _judge_tokens(place, calls, findings)
        for first, second in _overlaps(calls):
            span = (second.began_ns, min(first.ended_ns, second.ended_ns))
            if first.token < second.token and first.is_excepted:
                excepted.append(span)
                continue
            double.append(span)
            findings.add("double_owned", f"{place}: {_told(first)} and {_told(second)} ran at once")
    found.excepted_ms = covered(excepted) / 1e6
    return found, double


def _judge_fence(witness: Witness, fence: Fence, findings: Findings) -> None:
    first: dict[tuple[Place, int], int] = {}
    last: dict[tuple[Place, int], int] = {}
    for call in witness.admitted:
        if call.began_ns > (until_ns := fence.at(call.began_ns)):
            late_ms = (call.began_ns - until_ns) / 1e6
            findings.add("after_fence", f"{witness.process} started a call of {call.place} {late_ms:.1f} ms after it")
        first.setdefault((call.place, call.token), call.began_ns)
        last[call.place, call.token] = call.began_ns
    for (place, token), began_ns in first.items():
        if fence.passes_within(began_ns, last[place, token]):
            findings.add("resumed_token", f"{witness.process} went on with {token} of {place} after its fence")


def _judge_admission(witness: Witness, findings: Findings) -> None:
    """Each call of the handler is within one that was let start with its token."""
    admitted: defaultdict[tuple[Place, int], list[Call]] = defaultdict(list)
    for call in witness.admitted:
        admitted[call.place, call.token].append(call)
    for mine in admitted.values():
        mine.sort(key=lambda call: call.began_ns)
    began = {what: [call.began_ns for call in mine] for what, mine in admitted.items()}
    for call in witness.handled:
        what = (call.place, call.token)
        before = admitted[what][: bisect_right(began.get(what, []), call.began_ns)]
        if not any(_lasts_until(each, call.ended_ns) for each in reversed(before)):
            findings.add("not_admitted", f"{witness.process} called its handler for {what} and did not ask")


def _lasts_until(admitted: Call, ended_ns: int | None) -> bool:
    return admitted.ended_ns is None or (ended_ns is not None and admitted.ended_ns >= ended_ns)


def _judge_tokens(place: Place, calls: Sequence[_Admitted], findings: Findings) -> None:
    newest, holders = calls[0], dict[int, str]()
    for call in calls:
        if call.token < newest.token:
            findings.add("fallen_token", f"{place}: {_told(call)} began after {_told(newest)}")
        elif call.token > newest.token:
            newest = call
        if holders.setdefault(call.token, call.process) != call.process:
            findings.add("shared_token", f"{place}: {call.token} was {holders[call.token]}'s and {call.process}'s")


def _overlaps(calls: Sequence[_Admitted]) -> Iterator[tuple[_Admitted, _Admitted]]:
    """Pairs of different sessions that ran at once, the one that began first before the other."""
    running: list[_Admitted] = []
    for call in calls:
        running = [each for each in running if each.ended_ns > call.began_ns]
        for each in running:
            if (each.process, each.token) != (call.process, call.token):
                yield each, call
        running.append(call)


def _told(call: _Admitted) -> str:
    return f"{call.process} with {call.token} ({call.began_ns // 1_000_000}-{call.ended_ns // 1_000_000} ms)"


class Lives:
    """When workers were halted, and when their processes ended, by their reports."""

    def __init__(self, reports: Iterable[Report], end_ns: int) -> None:
        self._end_ns = end_ns
        self._ends: Mapping[str, list[int]] = defaultdict(list)
        self._halts: Mapping[str, list[tuple[int, int]]] = defaultdict(list)
        halted: dict[str, int] = {}
        for report in sorted(reports, key=lambda report: report.at_ns):
            worker_id = report.worker_id
            if report.event == "paused":
                halted[worker_id] = report.at_ns
            elif report.event == "resumed" and worker_id in halted:
                self._halts[worker_id].append((halted.pop(worker_id), report.at_ns))
            elif report.event in _ENDS:
                halted.pop(worker_id, None)
                self._ends[worker_id].append(report.at_ns)

    def end_of(self, worker_id: str, call: Call) -> int:
        """When a call ended; one that did not has ended with its process, or runs still."""
        if call.ended_ns is not None:
            return call.ended_ns
        ends = self._ends[worker_id]
        index = bisect_right(ends, call.began_ns)
        return ends[index] if index < len(ends) else self._end_ns

    def is_halted_within(self, worker_id: str, call: Call) -> bool:
        """Whether the process was halted after a call began and before it ended."""
        ended_ns = self.end_of(worker_id, call)
        return any(call.began_ns <= began and ended_ns >= ended for began, ended in self._halts[worker_id])
