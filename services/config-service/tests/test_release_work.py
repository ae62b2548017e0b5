"""What an instance does when a step of a release fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from ringcast_config_service.releases import driver as releases_module
from ringcast_config_service.releases.driver import HALTED_AFTER_S, ReleaseWork
from ringcast_config_service.releases.gates import Judgement
from ringcast_config_service.repository import Authorship, Release, RowWrite, StageBatch, StagedRow, Step
from ringcast_config_service.telemetry import Measures
from ringcast_core import row_partition
from ringcast_testkit import until
from ringcast_wire import LimitExceededError, ReleaseState, RingcastError, UnavailableError, check_row

Bench = Any  # of conftest.py

BY = Authorship("alice", "new list")
DAY_MS = 86_400_000


async def publish(bench: Bench) -> None:
    row = RowWrite(row_partition("a", 8), "a", "1", None, check_row("a", "1", None), 0)
    await bench.repo.releases.stage(bench.store, StageBatch("one", 0, [StagedRow("k", row)], True), BY)
    await bench.repo.releases.publish("s", 1, DAY_MS, BY)


@asynccontextmanager
async def working(bench: Bench, halted_after_s: float, gates: Any = None) -> AsyncIterator[None]:
    """An instance that works at releases."""
    histories: Any = SimpleNamespace(is_open=lambda _: True)
    retention = {"staged_ms": DAY_MS, "kept_ms": DAY_MS}
    work = ReleaseWork(
        bench.repo,
        histories,
        gates,
        lambda _: None,
        Measures(),
        ask_again=lambda _: None,
        instance_id="i",
        **retention,
        takeover_ms=0,
        halted_after_s=halted_after_s,
    )
    task = asyncio.create_task(work.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def fails(bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception], times: int) -> list[str]:
    """Lets the first steps fail; the problems that are noted."""
    releases, left, noted = bench.repo.releases, times, []
    step, set_problem = releases.step, releases.set_problem

    async def failing(*words: Any) -> Step:
        nonlocal left
        left -= 1
        if left >= 0:
            raise error()
        done: Step = await step(*words)
        return done

    async def noting(store: str, number: int, problem: str) -> None:
        noted.append(problem)
        await set_problem(store, number, problem)

    monkeypatch.setattr(releases, "step", failing)
    monkeypatch.setattr(releases, "set_problem", noting)
    return noted


async def _release(bench: Bench) -> Release:
    release: Release = await bench.repo.releases.get("s", 1)
    return release


async def _is_published(bench: Bench) -> bool:
    return (await _release(bench)).state is ReleaseState.PUBLISHED


@pytest.mark.parametrize("error", [lambda: UnavailableError("the connection is lost"), lambda: OSError("a fault")])
async def test_a_release_whose_steps_fail_for_a_moment_goes_on_by_itself(
    sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception]
) -> None:
    await publish(sqlite_bench)
    noted = fails(sqlite_bench, monkeypatch, error, times=3)
    async with working(sqlite_bench, HALTED_AFTER_S):
        await until(lambda: _is_published(sqlite_bench))
    assert noted == [], "it never read as halted"


@pytest.mark.parametrize(
    ("error", "after_s", "problem"),
    [
        (UnavailableError("the connection is lost"), 0.2, "the connection is lost"),
        (OSError("a fault"), 0.2, "the step failed: OSError"),
        (LimitExceededError("the store is full"), HALTED_AFTER_S, "the store is full"),
    ],
)
async def test_a_release_halts_once_its_steps_have_failed_for_long_and_at_once_when_one_is_refused(
    sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch, error: RingcastError, after_s: float, problem: str
) -> None:
    await publish(sqlite_bench)
    fails(sqlite_bench, monkeypatch, lambda: error, times=1_000_000)

    async def halted() -> bool:
        return bool((await _release(sqlite_bench)).problem)

    async with working(sqlite_bench, after_s):
        await until(halted)
        assert (await _release(sqlite_bench)).problem == problem
    monkeypatch.undo()
    async with working(sqlite_bench, after_s):
        await until(lambda: _is_published(sqlite_bench))
    assert (await _release(sqlite_bench)).problem == ""


class Judge:
    """Judges a release once it is told to."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.verdicts: dict[int, asyncio.Future[str]] = {}

    async def judged(self, release: Release) -> Judgement:
        self.begun.append(release.number)
        return Judgement(await self.verdicts.setdefault(release.number, asyncio.get_running_loop().create_future()))


async def test_no_more_gates_than_may_be_are_judged_at_once_and_one_in_doubt_is_judged_again(
    sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases_module, "MAX_GATES", 2)
    monkeypatch.setattr(releases_module, "_POLL_S", 0.05)
    repo, judge = sqlite_bench.repo.releases, Judge()
    for number in (1, 2, 3):
        key = f"k{number}"
        row = RowWrite(row_partition("a", 8), "a", "1", None, check_row("a", "1", None), 0)
        await repo.stage(sqlite_bench.store, StageBatch(key, 0, [StagedRow(key, row)], True), BY)
        await repo.publish("s", number, DAY_MS, BY, (100,))

    async def ended(number: int, state: ReleaseState) -> bool:
        return bool((await repo.get("s", number)).state is state)

    async with working(sqlite_bench, HALTED_AFTER_S, judge):
        await until(lambda: len(judge.begun) == 2)
        (waiting,) = {1, 2, 3} - set(judge.begun)
        assert (await repo.get("s", waiting)).published == 1, "its rows are published, and it waits for a place"
        first, second = judge.begun
        judge.verdicts[first].set_result("it is bad")
        await until(lambda: ended(first, ReleaseState.UNDONE))
        await until(lambda: waiting in judge.begun)
        assert judge.begun.count(second) == 1
        doubtful = judge.verdicts.pop(second)
        doubtful.set_exception(UnavailableError("the database does not answer"))
        await until(lambda: judge.begun.count(second) == 2)
        for number in (second, waiting):
            judge.verdicts[number].set_result("")
            await until(partial(ended, number, ReleaseState.PUBLISHED))
    assert len(judge.begun) == 4
