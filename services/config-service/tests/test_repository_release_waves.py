"""Releases in waves, in each database: some partitions first, the others later."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from ringcast_config_service.releases.driver import Releases
from ringcast_config_service.repository import Authorship, HistoryFilter, RowWrite, StageBatch, StagedRow, release_steps
from ringcast_config_service.repository.release_draw import Canary, draw
from ringcast_core import row_partition
from ringcast_wire import (
    ConditionFailedError,
    InvalidInputError,
    LimitExceededError,
    ReleaseGate,
    ReleaseOutcome,
    ReleaseState,
    UnavailableError,
    UnknownKeyError,
    check_row,
    check_waves,
)

Bench = Any  # of conftest.py

BY = Authorship("alice", "new list")
BOB = Authorship("bob", "it looks bad")
DAY_MS = 86_400_000
ROWS = [f"r{number}" for number in range(40)]


async def stage(bench: Bench, *, keys: Sequence[str] = ("k", "k2"), stage_id: str = "one") -> None:
    """A release that changes or adds each row of several keys."""
    rows = []
    for key in keys:
        versions = await _versions(bench, key)
        for row_id in sorted(ROWS, key=lambda each: row_partition(each, 8)):
            write = RowWrite(row_partition(row_id, 8), row_id, "new", None, check_row(row_id, "new", None))
            rows.append(StagedRow(key, write._replace(condition=versions.get(row_id, 0))))
    await bench.repo.releases.stage(bench.store, StageBatch(stage_id, 0, rows, True), BY)


async def _versions(bench: Bench, key: str) -> dict[str, int]:
    found: dict[str, int] = {}
    with suppress(UnknownKeyError):
        async for page in bench.repo.reader.history("s", key, HistoryFilter()):
            found.update({revision.row.row_id: revision.row.version for revision in page})
    return found


async def work(bench: Bench, number: int = 1) -> int:
    """Takes steps until there is nothing to do; how many."""
    for count in range(1_000):
        if (await bench.repo.releases.step("s", number, bench.repo.histories.generation)).done:
            return count
    raise AssertionError("it does not end")


async def published(bench: Bench, number: int = 1) -> set[tuple[str, int]]:
    """The keys and partitions in which rows are published, in which then no row waits."""
    rows = await bench.repo.releases.rows("s", number, 0, 1_000, 1 << 20, conflicts_only=False)
    waiting = {(row.key, row.partition) for row in rows if row.outcome is ReleaseOutcome.WAITING}
    done = {(row.key, row.partition) for row in rows if row.outcome is ReleaseOutcome.PUBLISHED}
    assert not done & waiting
    return done


def _releases(bench: Bench) -> Any:
    """What callers may do, where nothing but the database is asked."""
    parts: list[Any] = [None] * 6
    return Releases(bench.repo, *parts, staged_ms=DAY_MS)


def test_waves_are_drawn_by_a_hash_of_release_and_partition() -> None:
    rollout, waves = draw(7, range(4096), (1, 10, 50, 100))
    assert (rollout.waves, rollout.partitions) == ((1, 10, 50, 100), (41, 410, 2048, 4096))
    assert sorted(waves) == list(range(4096))
    assert [sum(wave <= number for wave in waves.values()) for number in (1, 2, 3, 4)] == list(rollout.partitions)
    assert draw(7, range(4096), (1, 10, 50, 100)) == (rollout, waves)
    again = draw(8, range(4096), (1, 10, 50, 100))[1]
    assert again != waves, "each release begins elsewhere"
    assert sorted(draw(7, [3, 9], (1, 10, 50, 100))[0].partitions) == [1, 2], "no wave is empty"
    assert draw(7, [3, 9], (1, 10, 50, 100))[0].waves == (50, 100)
    assert draw(7, [3], (1, 100))[0].waves == (100,)


def test_the_wave_of_a_canary_comes_first_and_the_others_have_their_percents_of_all() -> None:
    canary = Canary("site=test", frozenset({7, 3, 11}))
    rollout, waves = draw(7, range(16), (0, 10, 25, 50, 100), canary=canary)
    assert (rollout.waves, rollout.partitions, rollout.canary) == ((0, 25, 50, 100), (3, 4, 8, 16), "site=test")
    assert {partition for partition, wave in waves.items() if wave == 1} == canary.partitions
    assert sorted(waves) == list(range(16))
    drawn = draw(7, [each for each in range(16) if each not in canary.partitions], (100,))[1]
    assert [each for each in waves if each not in canary.partitions] == list(drawn), "the others in the order of always"
    everything = Canary("site=test", frozenset({3, 9}))
    assert draw(7, [3, 9], (0, 10, 100), canary=everything)[0].waves == (0,), "all of it is the canary's"
    assert draw(7, range(10), (0, 10, 100), canary=Canary("a=b", frozenset({3})))[0].waves == (0, 100)


@pytest.mark.parametrize("waves", [(0, 100), (1, 1, 100), (50,), (10, 5, 100), (1, 101), (101,), (-5, 100)])
def test_waves_rise_strictly_to_100(waves: tuple[int, ...]) -> None:
    with pytest.raises(
        InvalidInputError, match="are not allowed: they are whole percents from 1 on that rise"
    ) as caught:
        check_waves(waves)
    assert caught.value.field == "waves"
    assert check_waves([]) == ()
    assert check_waves([1, 100]) == (1, 100)


async def test_partitions_come_wave_by_wave_and_each_row_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_steps, "STEP_ROWS", 3)
    monkeypatch.setattr(release_steps, "WAVE_ROWS", 7)
    await bench.write(dict.fromkeys(ROWS[:20], "old"), metadata={"by": "me"})
    before = await bench.live()
    await stage(bench)
    releases = bench.repo.releases
    release = await releases.publish("s", 1, DAY_MS, BY, (10, 50, 100))
    assert (release.state, release.rollout.waves, release.rollout.partitions) == (
        "publishing",
        (10, 50, 100),
        (1, 4, 8),
    )
    _, drawn = draw(1, range(8), (10, 50, 100))
    for wave in (1, 2, 3):
        assert (await releases.due(-1_000)) == [("s", 1)]
        await work(bench)
        release = await releases.get("s", 1)
        assert (release.at_gate, release.rollout.wave, release.state) == (True, wave, "publishing")
        partitions = {partition for partition, found in drawn.items() if found <= wave}
        assert await published(bench) == {(key, partition) for partition in partitions for key in ("k", "k2")}
        (found, *_) = await releases.of_row("s", "k", ROWS[0], 1)
        assert (found.wave, found.rollout.wave) == (drawn[row_partition(ROWS[0], 8)], wave)
        assert (await releases.pass_gate("s", 1, wave + 1)).at_gate, "it is not that wave's turn"
        await releases.pass_gate("s", 1, wave)
        assert not (await releases.pass_gate("s", 1, wave)).at_gate, "the same again changes nothing"
    release = await releases.get("s", 1)
    assert (release.state, release.published, release.skipped, release.work) == ("published", 80, 0, "")
    assert await releases.due(-1_000) == []
    assert await bench.live() == dict.fromkeys(ROWS, "new")
    await bench.check_gap_free()
    await bench.check_gap_free("k2")
    await releases.undo("s", 1, BY)
    await work(bench)
    assert (await releases.get("s", 1)).undone == 80
    assert await bench.live() == before, "what rows held is kept in whatever wave they were"
    assert await bench.live("k2") == {}
    await bench.check_gap_free()


async def test_a_release_is_paused_resumed_and_stopped_in_the_middle_of_a_wave(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_steps, "STEP_ROWS", 3)
    await bench.write(dict.fromkeys(ROWS, "old"))
    await stage(bench, keys=["k"])
    releases = bench.repo.releases
    for call, what in ((releases.pause, "paused"), (releases.resume, "resumed"), (releases.stop, "stopped")):
        with pytest.raises(ConditionFailedError, match=f"can't be {what}: it is staged"):
            await call("s", 1, BOB)
    await releases.publish("s", 1, DAY_MS, BY, (50, 100))
    await releases.step("s", 1, bench.repo.histories.generation)
    paused = await releases.pause("s", 1, BOB)
    assert (paused.state, paused.rollout.paused, paused.changed_by) == ("publishing", True, "bob")
    assert (await releases.pause("s", 1, BY)).changed_by == "bob", "it is paused already"
    assert await work(bench) == 0
    assert (await releases.get("s", 1)).published == 3
    assert await releases.due(-1_000) == []
    assert (await releases.publish("s", 1, DAY_MS, BY)).rollout.paused, "only resume lets it go on"
    assert not (await releases.resume("s", 1, BY)).rollout.paused
    assert (await releases.resume("s", 1, BOB)).changed_by == "alice"
    await work(bench)
    at_gate = await releases.pause("s", 1, BOB)
    assert at_gate.rollout.at_gate
    assert (await releases.pass_gate("s", 1, 1)).rollout.wave == 1
    first = (await releases.get("s", 1)).published
    stopped = await releases.stop("s", 1, BOB)
    assert (stopped.state, stopped.work, stopped.published) == (ReleaseState.STOPPED, "", first)
    assert 0 < first < 40
    assert (await releases.stop("s", 1, BY)).changed_by == "bob"
    for call, what in ((releases.publish, "published"), (releases.resume, "resumed"), (releases.drop, "dropped")):
        words = (DAY_MS, BY) if what == "published" else (BY,)
        with pytest.raises(ConditionFailedError, match=f"can't be {what}: it is stopped"):
            await call("s", 1, *words)
    await releases.undo("s", 1, BY)
    await work(bench)
    done = await releases.get("s", 1)
    assert (done.state, done.undone) == ("undone", first)
    assert await bench.live() == dict.fromkeys(ROWS, "old")
    await bench.check_gap_free()


async def test_a_paused_release_can_be_undone_and_a_stopped_one_expires(bench: Bench) -> None:
    releases = bench.repo.releases
    await stage(bench, keys=["k"])
    await releases.publish("s", 1, DAY_MS, BY, (50, 100))
    await work(bench)
    await releases.pause("s", 1, BY)
    await releases.undo("s", 1, BY)
    await work(bench)
    assert ((await releases.get("s", 1)).state, await bench.live()) == ("undone", {})
    await stage(bench, keys=["k2"], stage_id="two")
    await releases.publish("s", 2, DAY_MS, BY, (50, 100))
    await work(bench, 2)
    await releases.stop("s", 2, BY)
    found = {(await releases.expire(DAY_MS, -1_000)).number for _ in range(2)}
    assert found == {1, 2}


async def test_a_release_that_is_published_all_at_once_gets_no_waves(bench: Bench) -> None:
    releases = bench.repo.releases
    await stage(bench, keys=["k"])
    await releases.publish("s", 1, DAY_MS, BY)
    with pytest.raises(ConditionFailedError, match="can't be published in waves: it is publishing without"):
        await releases.publish("s", 1, DAY_MS, BY, (50, 100))
    with pytest.raises(ConditionFailedError, match="can't be paused: it is publishing"):
        await releases.pause("s", 1, BY)
    with pytest.raises(InvalidInputError, match="waves 50 are not allowed"):
        await _releases(bench).publish("s", 1, BY, (50,))


async def test_a_release_that_is_being_published_keeps_its_waves_and_its_gate(bench: Bench) -> None:
    """The same may be asked for again, or the release alone; another way is refused, and nothing changes."""
    releases = bench.repo.releases
    await stage(bench, keys=["k"])
    begun = (await releases.publish("s", 1, DAY_MS, BY, (50, 100))).rollout
    assert (await releases.publish("s", 1, DAY_MS, BY, (50, 100))).rollout == begun
    assert (await releases.publish("s", 1, DAY_MS, BY)).rollout == begun
    with pytest.raises(ConditionFailedError, match=r"publishing in waves of 50, 100 %, not 100 %"):
        await releases.publish("s", 1, DAY_MS, BY, (100,))
    with pytest.raises(ConditionFailedError, match=r"another gate: bake 0 ms, .* 0, patience 60000 ms"):
        await releases.publish("s", 1, DAY_MS, BY, (50, 100), ReleaseGate(bake_ms=1))
    assert (await releases.get("s", 1)).rollout == begun


async def test_a_canary_is_kept_whoever_owns_what_later(bench: Bench) -> None:
    releases, canary = bench.repo.releases, Canary("site=test", frozenset({2, 5}))
    await stage(bench)
    with pytest.raises(UnavailableError, match="it was not staged a moment ago, try again"):
        await releases.publish("s", 1, DAY_MS, BY, (0, 50, 100), canary=Canary("site=test"))
    found = await releases.key_partitions("s", 1)
    assert found == {key: set(range(8)) for key in ("k", "k2")}
    begun = (await releases.publish("s", 1, DAY_MS, BY, (0, 50, 100), canary=canary)).rollout
    assert (begun.waves, begun.partitions, begun.canary) == ((0, 50, 100), (2, 4, 8), "site=test")
    await work(bench)
    assert await published(bench) == {(key, partition) for key in ("k", "k2") for partition in (2, 5)}
    others = Canary("site=test", frozenset({1}))
    assert (await releases.publish("s", 1, DAY_MS, BY, (0, 50, 100), canary=others)).rollout.canary == "site=test"
    with pytest.raises(ConditionFailedError, match=r"waves of 50, 100 %, not 60, 100 %"):
        await releases.publish("s", 1, DAY_MS, BY, (0, 60, 100), canary=others)
    with pytest.raises(ConditionFailedError, match="with the canary site=test, not without a canary") as caught:
        await releases.publish("s", 1, DAY_MS, BY, (50, 100))
    assert caught.value.field == "canary"
    with pytest.raises(ConditionFailedError, match="with the canary site=test, not with the canary a=b"):
        await releases.publish("s", 1, DAY_MS, BY, (0, 50, 100), canary=Canary("a=b"))
    await releases.pass_gate("s", 1, 1)
    await work(bench)
    wave = {partition for _, partition in await published(bench)}
    assert len(wave) == 4
    assert wave > canary.partitions
    ((details, *_),) = await bench.ask("SELECT details FROM audit_pending WHERE action = 'PublishRelease'")
    assert '"canary":"site=test"' in details


async def test_a_canary_is_a_label_with_waves_behind_it(bench: Bench) -> None:
    calls = _releases(bench)
    with pytest.raises(InvalidInputError, match="canary needs waves: 100 is a single one behind") as caught:
        await calls.publish("s", 1, BY, canary="site=test")
    assert caught.value.field == "canary"
    with pytest.raises(InvalidInputError, match="canary 'site' is not a label"):
        await calls.publish("s", 1, BY, (100,), canary="site")


async def test_conditions_of_prometheus_keep_builds_away_that_would_leave_them_out(bench: Bench) -> None:
    usable_from = "SELECT usable_from FROM schema_version"
    await stage(bench)
    await stage(bench, stage_id="two")
    await bench.repo.releases.publish("s", 1, DAY_MS, BY, (50, 100), ReleaseGate(bake_ms=1))
    before = await bench.ask(usable_from)
    assert before < [(13,)]
    gate = ReleaseGate(bake_ms=1, promql=("up",))
    begun = await bench.repo.releases.publish("s", 2, DAY_MS, BY, (50, 100), gate)
    assert begun.rollout.gate == (await bench.repo.releases.get("s", 2)).rollout.gate == gate
    assert await bench.ask(usable_from) == [(13,)]
    other = "is publishing with another gate: .*, 1 PromQL conditions"
    with pytest.raises(ConditionFailedError, match=other):
        await bench.repo.releases.publish("s", 2, DAY_MS, BY, (50, 100), ReleaseGate(bake_ms=1))


async def test_a_release_that_workers_lay_over_is_at_its_gate_and_publishes_nothing_before(bench: Bench) -> None:
    """What is waiting they may have until the release has ended."""
    releases, canary = bench.repo.releases, Canary("site=test", provisional=True)
    await stage(bench, keys=["k"])
    words = "s", 1, "k", {0, 1, 2, 3}, 0, 1_000, 1 << 20
    assert await releases.provisional_rows(*words) == (ReleaseState.STAGED, [])
    begun = await releases.publish("s", 1, DAY_MS, BY, (0, 50, 100), canary=canary)
    assert (begun.rollout.waves, begun.rollout.partitions) == ((0, 50, 100), (0, 4, 8))
    assert (begun.work, begun.at_gate, begun.is_only_laid_over) == ("lay", True, True), "older builds leave it alone"
    assert await work(bench) == 0
    assert not await published(bench)
    state, rows = await releases.provisional_rows(*words)
    assert state is ReleaseState.PUBLISHING
    assert {row.row_id for row in rows} == {each for each in ROWS if row_partition(each, 8) < 4}
    assert await releases.provisional_rows("s", 1, "k", set(), 0, 1_000, 1 << 20) == (ReleaseState.PUBLISHING, [])

    await releases.pause("s", 1, BY)
    assert (await releases.get("s", 1)).work == ""
    assert (await releases.resume("s", 1, BY)).at_gate
    await releases.pass_gate("s", 1, 1)
    release = await releases.get("s", 1)
    assert (release.work, release.at_gate, release.is_laid_over, release.is_only_laid_over) == (
        "wave",
        False,
        True,
        False,
    )
    await work(bench)
    done = {partition for _, partition in await published(bench)}
    assert len(done) == 4
    state, rows = await releases.provisional_rows("s", 1, "k", set(range(8)), 0, 1_000, 1 << 20)
    assert {row.partition for row in rows} == set(range(8)) - done, "what is published they have"
    await releases.pass_gate("s", 1, 2)
    await work(bench)
    await releases.pass_gate("s", 1, 3)
    assert await releases.provisional_rows(*words) == (ReleaseState.PUBLISHED, [])


async def test_a_release_that_is_laid_over_is_undone_without_a_write(bench: Bench) -> None:
    releases, canary = bench.repo.releases, Canary("site=test", provisional=True)
    await stage(bench, keys=["k"])
    await releases.publish("s", 1, DAY_MS, BY, (0, 100), canary=canary)
    await releases.fail_gate("s", 1, 1, "it is bad")
    await work(bench)
    release = await releases.get("s", 1)
    assert (release.state, release.published, release.undone) == (ReleaseState.UNDONE, 0, 0)
    assert (await releases.provisional_rows("s", 1, "k", {0}, 0, 10, 1 << 20)).state is ReleaseState.UNDONE


async def test_one_release_of_a_store_is_laid_over_at_a_time(bench: Bench) -> None:
    releases, canary = bench.repo.releases, Canary("site=test", provisional=True)
    for stage_id, key in (("one", "k"), ("two", "k2"), ("three", "k3")):
        await stage(bench, keys=[key], stage_id=stage_id)
    await releases.publish("s", 1, DAY_MS, BY, (100,))
    with pytest.raises(ConditionFailedError, match="can't be laid over: it is publishing"):
        await releases.provisional_rows("s", 1, "k", {0}, 0, 10, 1 << 20)
    await releases.publish("s", 2, DAY_MS, BY, (0, 100), canary=canary)
    with pytest.raises(LimitExceededError, match="release 2 is laid over at workers, and the limit is 1") as caught:
        await releases.publish("s", 3, DAY_MS, BY, (0, 100), canary=canary)
    assert caught.value.field == "canary"
    await releases.stop("s", 2, BY)
    assert (await releases.publish("s", 3, DAY_MS, BY, (0, 100), canary=canary)).is_laid_over
