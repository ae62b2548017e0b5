"""Broken releases. Each takes one rule away by which they are published, proven and undone; the judge has to notice."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec
from ringcast_config_service.promql.conditions import Answer, Outcome
from ringcast_config_service.releases import fleet, gates, proof, proofs
from ringcast_config_service.releases.proof import Fleet, Lack, ProofTarget, Verdict
from ringcast_config_service.releases.proofs import Look, Proof, Proofs
from ringcast_config_service.repository import (
    Release,
    ReleaseRepository,
    Step,
    StoreRecord,
    WriteRequest,
    release_proofs,
    release_steps,
    release_waves,
)
from ringcast_config_service.repository.release_records import UNDO, WAVE
from ringcast_config_service.repository.release_transactions import Ask, Transaction, begin, locked
from ringcast_config_service.repository.sqlite import writer
from ringcast_config_service.repository.sqlite.releases import SqliteReleases
from ringcast_wire import ReleaseGate, ReleaseState
from ringcast_wire.reports import ReportRound

from tests.simulation.agent_variants import Variant
from tests.simulation.database import Database
from tests.simulation.process import current
from tests.simulation.release_service import ReleaseService

_publish_step = release_steps._publish_step
_wave_step = release_steps._wave_step
_undo_step = release_steps._undo_step
_requests = release_steps._requests
_step = SqliteReleases.step
_judge = proof.judge
_found = gates._found
_read_fleet = fleet.read_fleet
_try = Proofs._try

_drivers: WeakKeyDictionary[Database, dict[int, ReleaseService]] = WeakKeyDictionary()
"""Which instance took the last step of each release."""


def _is_taken_over(release: Release) -> bool:
    """Whether another process took the last step of a release."""
    service = current(ReleaseService)
    drivers = _drivers.setdefault(service.database, {})
    before, drivers[release.number] = drivers.get(release.number, service), service
    return before is not service


# ---- publishing and undoing


async def _step_in_two(self: SqliteReleases, store: str, number: int, generation: int) -> Step:
    late: list[Ask] = []

    def rows() -> Transaction[Step]:
        late.clear()
        transaction, answer = release_steps.step(self._sql, store, number, generation), None
        while True:
            try:
                asked = transaction.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            answer = None
            if isinstance(asked, Ask) and asked.text == self._sql.set_release:
                late.append(asked)
            else:
                answer = yield asked

    def state() -> Transaction[None]:
        yield from late

    done = await self._write(rows)
    await self._write(state)
    return done


def _undo_a_page_less(sql: Any, release: Release, *words: Any) -> Transaction[Step]:
    if _is_taken_over(release):
        release = replace(release, reached=max(1, release.reached - release_steps.STEP_ROWS))
    return (yield from _undo_step(sql, release, *words))


_again_now = [False]
"""Whether the step that is under way publishes rows again."""


def _again(step: Any) -> Any:
    def publish(sql: Any, release: Release, *words: Any) -> Transaction[Step]:
        _again_now[0] = _is_taken_over(release)
        if _again_now[0]:
            release = replace(release, reached=max(0, release.reached - release_steps.STEP_ROWS))
        done: Step = yield from step(sql, release, *words)
        return done

    return publish


def _without_conditions_again(release: Release, *words: Any) -> list[WriteRequest]:
    return (_without_conditions(undoes=False) if _again_now[0] else _requests)(release, *words)


def _without_conditions(*, undoes: bool) -> Any:
    def requests(
        release: Release, store: StoreRecord, by_key: Mapping[str, Any], generation: int
    ) -> list[WriteRequest]:
        if (release.work == UNDO) is undoes:
            by_key = {key: [write._replace(condition=None) for write in writes] for key, writes in by_key.items()}
        return _requests(release, store, by_key, generation)

    return requests


def _note_without_images(db: Any, plan: Any, requests: Any, staged: Any, _: Any) -> None:
    _note_published(db, plan, requests, staged, {})


_note_published = writer._note_published


def _pause_on_paper(sql: Any, store: str, number: int, by: Any) -> Transaction[Release]:
    release, rollout = yield from release_waves._under_way(sql, store, number, "paused")
    if rollout.paused:
        return release
    release = replace(release, rollout=msgspec.structs.replace(rollout, paused=True, waits_for=""))
    return (yield from begin(sql, release, release.state, WAVE, release.reached, by, "PauseRelease"))


async def _nothing_due(*_: Any) -> list[tuple[str, int]]:
    return []


def _wave_without_gate(sql: Any, release: Release, *words: Any) -> Transaction[Step]:
    step = yield from _wave_step(sql, release, *words)
    rollout = step.release.rollout
    assert rollout is not None
    if rollout.at_gate and rollout.wave < len(rollout.waves):
        rollout = msgspec.structs.replace(rollout, at_gate=False, wave=rollout.wave + 1)
        release = replace(step.release, rollout=rollout, reached=0)
        yield Ask(sql.set_release, release.changes())
        return Step(release, False)
    return step


async def _go_on(self: ReleaseRepository, store: str, number: int, wave: int, _why: str) -> Release:
    return await self.pass_gate(store, number, wave)


# ---- gates and proofs


def _found_in_silence(gate: ReleaseGate, look: Look, answers: Sequence[Answer]) -> Any:
    return _found(gate, Look(look.given_up, (), look.proven), answers)


def _found_without_prometheus(gate: ReleaseGate, look: Look, answers: Sequence[Answer]) -> Any:
    silent = (Outcome.NO_ANSWER, Outcome.NO_DATA)
    return _found(gate, look, [Answer(Outcome.MET) if answer.outcome in silent else answer for answer in answers])


def _nothing_lacks(*_: Any, **_words: Any) -> Iterator[Lack]:
    return iter(())


def _judge_any_history(target: ProofTarget, before: Fleet, found: ReportRound, *words: Any, **more: Any) -> Verdict:
    reports = {name: msgspec.structs.replace(each, history=target.history) for name, each in found.reports.items()}
    return _judge(target, before, replace(found, reports=reports), *words, **more)


def _judge_any_revision(target: ProofTarget, *words: Any, **more: Any) -> Verdict:
    ranges = dict.fromkeys(target.ranges, (0, 0))
    return _judge(ProofTarget(target.key, target.history, ranges), *words, **more)


def _as_published(release: Release) -> Release:
    """One that is still being published, as if it were published."""
    if release.state is not ReleaseState.PUBLISHING:
        return release
    return replace(release, state=ReleaseState.PUBLISHED, work="")


class _AsPublished:
    """The releases of a database, as they are taken by the variant."""

    def __init__(self, releases: ReleaseRepository) -> None:
        self._releases = releases

    def __getattr__(self, name: str) -> Any:
        return getattr(self._releases, name)

    async def get(self, store: str, number: int) -> Release:
        return _as_published(await self._releases.get(store, number))


async def _try_what_is_under_way(self: Proofs, store: str, number: int) -> Proof:
    proving: Any = copy.copy(self)
    proving._releases = _AsPublished(self._releases)
    return await _try(proving, store, number)


def _locked_as_published(sql: Any, store: str, number: int) -> Transaction[tuple[StoreRecord, Release]]:
    record, release = yield from locked(sql, store, number)
    return record, _as_published(release)


_fleets: WeakKeyDictionary[ReleaseService, dict[str, tuple[float, Fleet]]] = WeakKeyDictionary()
_OLD_S: Final = 6.0


async def _read_fleet_now_and_then(js: Any, store: StoreRecord, key: str) -> Fleet:
    service = current(ReleaseService)
    known = _fleets.setdefault(service, {})
    if key not in known or service.clock() > known[key][0] + _OLD_S:
        known[key] = service.clock(), await _read_fleet(js, store, key)
    return known[key][1]


VARIANTS: Final = {
    "state_apart": Variant(
        "notes how far a release is in another transaction than it writes rows",
        20,
        ((SqliteReleases, "step", _step_in_two),),
    ),
    "undoes_other_writers": Variant(
        "undoes rows that other writers have changed since",
        100,
        ((release_steps, "_requests", _without_conditions(undoes=True)),),
    ),
    "publishes_over_others": Variant(
        "publishes over what was written since it was staged",
        100,
        ((release_steps, "_requests", _without_conditions(undoes=False)),),
    ),
    "forgets_to_undo": Variant(
        "forgets a page of rows when an instance goes on with the undo of another one",
        100,
        ((release_steps, "_undo_step", _undo_a_page_less),),
    ),
    "publishes_twice": Variant(
        "publishes a page of rows again when an instance goes on with the release of another one",
        100,
        (
            (release_steps, "_publish_step", _again(_publish_step)),
            (release_steps, "_wave_step", _again(_wave_step)),
            (release_steps, "_requests", _without_conditions_again),
        ),
    ),
    "keeps_no_images": Variant(
        "does not keep what rows held before", 50, ((writer, "_note_published", _note_without_images),)
    ),
    "pauses_on_paper": Variant(
        "goes on with a release that is paused", 100, ((release_waves, "pause", _pause_on_paper),)
    ),
    "takes_nothing_over": Variant(
        "leaves the release of an instance that is gone as it is", 60, ((SqliteReleases, "due", _nothing_due),)
    ),
    "has_no_gate": Variant(
        "begins the next wave without a gate", 50, ((release_steps, "_wave_step", _wave_without_gate),)
    ),
    "goes_on_after_a_failure": Variant(
        "lets the next wave follow a gate that has failed", 50, ((SqliteReleases, "fail_gate", _go_on),)
    ),
    "silence_is_good": Variant(
        "passes a gate as long as no handler has refused a row, whether workers answer or not",
        50,
        ((gates, "_found", _found_in_silence),),
    ),
    "prometheus_is_silent": Variant(
        "takes a condition for met that Prometheus does not answer",
        300,
        ((gates, "_found", _found_without_prometheus),),
    ),
    "counts_who_answers": Variant(
        "proves a release by those workers that answer", 300, ((proof, "_answers", _nothing_lacks),)
    ),
    "old_registrations": Variant(
        "proves a release by the workers that were there a while ago",
        100,
        ((fleet, "read_fleet", _read_fleet_now_and_then), (proof, "_answers", _nothing_lacks)),
    ),
    "compares_no_digest": Variant(
        "does not ask whether the workers share the partitions out in the same way",
        500,
        ((proof, "agreement", _nothing_lacks),),
    ),
    "any_history": Variant(
        "takes what workers have applied of another history for the same revisions",
        500,
        ((proofs, "judge", _judge_any_history),),
    ),
    "any_revision": Variant(
        "proves a release that owners have not applied yet", 100, ((proofs, "judge", _judge_any_revision),)
    ),
    "proves_what_is_under_way": Variant(
        "proves a release that is still being published, by what is published of it so far",
        100,
        ((Proofs, "_try", _try_what_is_under_way), (release_proofs, "locked", _locked_as_published)),
    ),
    "refusals_do_not_count": Variant(
        "proves a release of which handlers refuse rows", 100, ((proof, "_refusals", _nothing_lacks),)
    ),
}
