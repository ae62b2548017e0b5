"""What passes the gate of a wave, and what fails it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from ringcast_config_service.promql.conditions import Answer, Outcome
from ringcast_config_service.releases import gates
from ringcast_config_service.releases.driver import TAKEOVER_MS
from ringcast_config_service.releases.gates import Gates
from ringcast_config_service.releases.proof import Lack
from ringcast_config_service.releases.proofs import Look
from ringcast_config_service.repository import KeyRevisions, Release
from ringcast_wire import (
    InvalidInputError,
    KeyCertificate,
    ReleaseGate,
    ReleaseState,
    Rollout,
    UnavailableError,
    check_gate,
)

GOOD = Look()
REFUSED = Look((Lack("k", "row 'a' was dropped at worker w", "w", "a"),))
MANY_REFUSED = Look((*REFUSED.given_up, Lack("k", "worker w has refused 11 more rows", rows=11)))
MET, NOT_MET = Answer(Outcome.MET), Answer(Outcome.NOT_MET)
SILENT = Look((), (Lack("k", "worker w does not answer", "w"),))


@dataclass
class Fleet:
    """Answers of workers and a repository, in a time that only sleeping lets pass. The last answer comes for ever."""

    answers: Sequence[Look | Exception]
    noted: list[str] = field(default_factory=list)
    noted_s: list[float] = field(default_factory=list)
    looks: int = 0
    look_s: float = 0.0
    now_s: float = 0.0
    leaves_after: int = 1_000_000
    of_prometheus: Sequence[Answer] = (MET,)
    proven: Sequence[KeyCertificate] = ()

    async def gather(self, *work: Any) -> Any:
        return await asyncio.gather(*work)

    async def ask(self, conditions: Sequence[str]) -> list[Answer]:
        if not conditions:
            return []
        found, *rest = self.of_prometheus
        self.of_prometheus = rest or [found]
        return [found] * len(conditions)

    async def look(self, _release: Release, _keys: Sequence[KeyRevisions]) -> Look:
        self.looks += 1
        self.now_s += self.look_s
        found, *rest = self.answers
        self.answers = rest or [found]
        if isinstance(found, Exception):
            raise found
        return found

    async def revisions(self, *_: Any) -> list[KeyRevisions]:
        return [KeyRevisions("k", "h", {0: (1, 1)})]

    async def note_gate(self, _store: str, _number: int, wave: int, waits_for: str) -> bool:
        assert wave == 2
        self.noted.append(waits_for)
        self.noted_s.append(self.now_s)
        return len(self.noted) < self.leaves_after

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= 1, "another instance would take it over"
        self.now_s += seconds


def release(gate: ReleaseGate) -> Release:
    rollout = Rollout((1, 10, 100), (1, 2, 8), wave=2, at_gate=True, gate=gate)
    counts = (10, 100, 1, 0, 5, 0, 0)
    words = ("s", 1, "one", ReleaseState.PUBLISHING, "wave", True, *counts, "alice", "", "alice", "", "", 0, 0, 0)
    return Release(*words, rollout)


async def judged(monkeypatch: pytest.MonkeyPatch, fleet: Fleet, gate: ReleaseGate) -> str | None:
    monkeypatch.setattr(gates, "time", fleet)
    monkeypatch.setattr(gates, "asyncio", fleet)
    made: Any = fleet
    judgement = await Gates(made, made, made, made).judged(release(gate))
    fleet.proven = judgement.proven if judgement is not None else ()
    return judgement.why if judgement is not None else None


async def test_a_wave_passes_once_it_is_proven_and_baked(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet([SILENT, UnavailableError("NATS does not answer"), GOOD])
    assert await judged(monkeypatch, fleet, ReleaseGate()) == ""
    assert fleet.noted == ["proof: k: worker w does not answer", "proof: NATS does not answer"]
    fleet = Fleet([GOOD])
    assert await judged(monkeypatch, fleet, ReleaseGate(bake_ms=30_000)) == ""
    assert fleet.now_s >= 30
    assert fleet.noted[-1].startswith(("bake time: 28 of 30 s", "bake time: 29 of 30 s", "bake time: 30 of 30 s"))


@pytest.mark.parametrize("look_s", [0.0, 0.4, 1.0, 2.0])
async def test_what_a_wave_waits_for_is_written_no_more_often_than_it_takes(
    monkeypatch: pytest.MonkeyPatch, look_s: float
) -> None:
    """Often enough that no other instance takes the release over, and at once when it waits for something else."""
    fleet = Fleet([GOOD] * 100 + [SILENT, GOOD], look_s=look_s)
    assert await judged(monkeypatch, fleet, ReleaseGate(bake_ms=600_000)) == ""
    pauses = [after - before for before, after in pairwise(fleet.noted_s)]
    assert max(pauses) < TAKEOVER_MS / 1000
    assert len(fleet.noted) <= 600 / 1.5 + 3
    assert look_s or len(fleet.noted) < 0.6 * fleet.looks
    assert sum(pause < 1.5 for pause in pauses) <= 2, "for the proof, and for the bake time again"
    assert sum(words.startswith("proof: ") for words in fleet.noted) == 1


@pytest.mark.parametrize("answer", [SILENT, UnavailableError("NATS does not answer")])
async def test_no_answer_within_the_patience_is_bad(monkeypatch: pytest.MonkeyPatch, answer: Look | Exception) -> None:
    fleet = Fleet([answer])
    why = await judged(monkeypatch, fleet, ReleaseGate(patience_ms=10_000))
    assert why is not None
    assert why.startswith("not proven within 10 s: ")
    assert 10 <= fleet.now_s <= 11
    fleet = Fleet([GOOD, SILENT])
    why = await judged(monkeypatch, fleet, ReleaseGate(bake_ms=60_000, patience_ms=10_000))
    assert why == "not proven within 10 s: k: worker w does not answer", "while it bakes too"


async def test_refused_rows_fail_the_gate_at_once_whatever_else_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    why = await judged(monkeypatch, Fleet([Look(REFUSED.given_up, SILENT.pending)]), ReleaseGate())
    assert why == "1 row is refused, and 0 may be: k: row 'a' was dropped at worker w"
    assert await judged(monkeypatch, Fleet([REFUSED]), ReleaseGate(max_refused=1)) == ""
    fleet = Fleet([GOOD, GOOD, REFUSED])
    assert await judged(monkeypatch, fleet, ReleaseGate(bake_ms=60_000)) == why, "while it bakes too"
    assert fleet.now_s < 1


async def test_what_the_last_look_has_proven_is_kept_and_nothing_where_a_row_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, last = (KeyCertificate("k", "h", (0, 1), (revision,), ()) for revision in (1, 2))
    fleet = Fleet([Look(proven=(first,)), SILENT, Look(proven=(last,))])
    assert await judged(monkeypatch, fleet, ReleaseGate(bake_ms=3_000)) == ""
    assert fleet.proven == (last,)
    fleet = Fleet([Look(proven=(first,)), REFUSED])
    assert await judged(monkeypatch, fleet, ReleaseGate(bake_ms=3_000, max_refused=1)) == ""
    assert fleet.proven == ()


async def test_each_refused_row_counts_whether_it_is_named_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await judged(monkeypatch, Fleet([MANY_REFUSED]), ReleaseGate(max_refused=12)) == ""
    fleet = Fleet([MANY_REFUSED])
    why = await judged(monkeypatch, fleet, ReleaseGate(max_refused=11))
    assert why == "12 rows are refused, and 11 may be: k: row 'a' was dropped at worker w"
    assert fleet.now_s == 0, "at once"


async def test_a_release_that_is_paused_meanwhile_is_judged_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await judged(monkeypatch, Fleet([SILENT], leaves_after=3), ReleaseGate()) is None


@pytest.mark.parametrize("gate", [ReleaseGate(-1), ReleaseGate(86_400_001), ReleaseGate(0, -1), ReleaseGate(0, 0, 499)])
def test_each_part_of_a_gate_has_a_range(gate: ReleaseGate) -> None:
    with pytest.raises(InvalidInputError, match=r"(bake_ms|max_refused|patience_ms) -?\d+ is out of range: "):
        check_gate(gate, [100])


UNANSWERED = [
    Answer(Outcome.NO_DATA, "it has no sample"),
    Answer(Outcome.WRONG, "its value is 3"),
    Answer(Outcome.NO_ANSWER, "Prometheus can't be reached"),
]


async def test_a_condition_that_is_not_met_fails_the_gate_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = ReleaseGate(bake_ms=60_000, promql=("up",))
    fleet = Fleet([GOOD], of_prometheus=[MET, MET, NOT_MET])
    assert await judged(monkeypatch, fleet, gate) == "PromQL condition 'up' is not met: it is 0"
    assert fleet.now_s < 1
    assert fleet.noted == ["bake time: 0 of 60 s; PromQL: 1 of 1 met"]
    fleet = Fleet([SILENT], of_prometheus=[NOT_MET])
    assert await judged(monkeypatch, fleet, gate) == "PromQL condition 'up' is not met: it is 0", "proven or not"


@pytest.mark.parametrize("answer", UNANSWERED)
async def test_a_condition_without_an_answer_is_waited_for_and_fails_the_gate_after_the_patience(
    monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    gate = ReleaseGate(bake_ms=60_000, patience_ms=10_000, promql=("up", "down == bool 0"))
    fleet = Fleet([GOOD], of_prometheus=[MET, answer])
    why = await judged(monkeypatch, fleet, gate)
    assert why == f"not met within 10 s: PromQL condition 1 'up': {answer.why}"
    assert 10 <= fleet.now_s <= 12
    assert fleet.noted[1] == f"PromQL condition 1 'up': {answer.why}"
    fleet = Fleet([GOOD], of_prometheus=[answer, answer, answer, MET])
    assert await judged(monkeypatch, fleet, gate) == ""
    assert fleet.now_s >= 60, "it bakes once everything is good"


@pytest.mark.parametrize(
    ("gate", "waves", "sentence"),
    [
        (ReleaseGate(bake_ms=1, promql=("up",)), (), "promql needs waves: "),
        (ReleaseGate(promql=("up",)), (100,), "promql needs a bake time: "),
        (ReleaseGate(bake_ms=1, promql=("up",) * 9), (100,), "promql has 9 conditions: at most 8 are allowed"),
        (ReleaseGate(bake_ms=1, promql=("up", "\n ")), (100,), "PromQL condition 2 has 2 bytes: 1 to 1000 are allowed"),
        (ReleaseGate(bake_ms=1, promql=("ü" * 501,)), (100,), "PromQL condition 1 has 1002 bytes: 1 to 1000 are"),
    ],
)
def test_conditions_have_limits(gate: ReleaseGate, waves: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        check_gate(gate, waves)
    assert str(refused.value).startswith(sentence)
    most = ReleaseGate(bake_ms=1, promql=("ü" * 500,) * 8)
    assert check_gate(most, (100,)) is most
