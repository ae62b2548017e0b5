"""What an instance does when a step of a release fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from ringcast_config_service.releases import HALTED_AFTER_S, ReleaseWork
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
async def working(bench: Bench, halted_after_s: float) -> AsyncIterator[None]:
    """An instance that works at releases."""
    histories: Any = SimpleNamespace(is_open=lambda _: True)
    retention = {"staged_ms": DAY_MS, "kept_ms": DAY_MS}
    work = ReleaseWork(
        bench.repo,
        histories,
        SimpleNamespace(),  # type: ignore[arg-type]
        lambda _: None,
        Measures(),
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
