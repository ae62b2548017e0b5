"""The revisions of a key when a release was published, over SQLite and PostgreSQL: right, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from ringcast_config_service.repository import Authorship, RowWrite, StageBatch, StagedRow, release_steps
from ringcast_core import row_partition
from ringcast_testkit.rows import same_partition
from ringcast_wire import ConditionFailedError, InvalidInputError, ReleaseState, RevisionGoneError, UnknownKeyError

Bench = Any  # of conftest.py

DAY_MS = 86_400_000
BY = Authorship("alice")


def staged(row_id: str, value: str, base: int, key: str = "k") -> StagedRow:
    return StagedRow(key, RowWrite(row_partition(row_id, 8), row_id, value, None, len(row_id + value), base))


async def stage(bench: Bench, *rows: StagedRow, stage_id: str = "one") -> int:
    number: int = (await bench.repo.releases.stage(bench.store, StageBatch(stage_id, 0, rows, True), BY)).number
    return number


async def step(bench: Bench, number: int) -> bool:
    done: bool = (await bench.repo.releases.step("s", number, bench.repo.histories.generation)).done
    return done


async def publish(bench: Bench, number: int) -> None:
    await bench.repo.releases.publish("s", number, DAY_MS, BY)
    while not await step(bench, number):
        pass


async def heads(bench: Bench, key: str = "k") -> list[int]:
    return list((await bench.repo.reader.heads("s", key)).heads)


async def heads_of_release(bench: Bench, number: int, key: str = "k") -> list[int]:
    return list((await bench.repo.reader.heads_of_release("s", key, number)).heads)


async def test_the_revisions_when_a_release_was_published(bench: Bench) -> None:
    await bench.write({"a": "1", "b": "1"})
    await bench.write({"x": "1"}, key="other")
    await bench.pass_time(60_000)
    await publish(bench, await stage(bench, staged("a", "2", 1), staged("new", "1", 0)))
    then, beside = await heads(bench), await heads(bench, "other")
    await bench.pass_time(60_000)
    await bench.write({"a": "3", "b": "2", "c": "1"})
    await bench.write({"x": "2"}, key="other")
    await bench.write({"y": "1"}, key="later")
    assert await heads_of_release(bench, 1) == then != await heads(bench)
    assert await heads_of_release(bench, 1, "other") == beside != await heads(bench, "other"), (
        "a key without rows of it"
    )
    assert await heads_of_release(bench, 1, "later") == [0] * 8, "there was none"
    await bench.pass_time(60_000)
    await bench.repo.releases.undo("s", 1, BY)
    while not await step(bench, 1):
        pass
    assert (await bench.repo.releases.get("s", 1)).state is ReleaseState.UNDONE
    assert await heads_of_release(bench, 1) == then


async def test_what_a_release_has_written_is_in_whatever_the_clocks_said(bench: Bench) -> None:
    """As if an instance whose clock is ahead had written the row before one of the release."""
    a, b = same_partition(2)
    await publish(bench, await stage(bench, staged(a, "1", 0)))
    await publish(bench, await stage(bench, staged(b, "1", 0), staged("z", "1", 0), stage_id="two"))
    then = await heads(bench)
    await bench.execute("UPDATE history SET written_at_ms = written_at_ms + 5000 WHERE revision = 1 AND partition = 3")
    assert await heads_of_release(bench, 2) == then


async def test_what_can_not_be_said(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_steps, "STEP_ROWS", 1)
    await bench.write({"a": "1"})
    number = await stage(bench, staged("a", "2", 1), staged("new", "1", 0))
    with pytest.raises(InvalidInputError, match="store 's' has no release 9"):
        await heads_of_release(bench, 9)
    with pytest.raises(UnknownKeyError):
        await heads_of_release(bench, number, "none")
    with pytest.raises(ConditionFailedError, match="release 1 was published can't be read: the release is staged"):
        await heads_of_release(bench, number)
    await bench.repo.releases.publish("s", number, DAY_MS, BY)
    await step(bench, number)
    with pytest.raises(ConditionFailedError, match="the release is publishing"):
        await heads_of_release(bench, number)
    await publish(bench, number)
    await bench.execute("DELETE FROM history")
    with pytest.raises(RevisionGoneError, match="1 was published can't be read any more: its history goes back to"):
        await heads_of_release(bench, number)
    await bench.execute("UPDATE releases SET changed_at_ms = changed_at_ms - 100000")
    assert await bench.repo.releases.expire(60_000, 60_000)
    for _ in range(2):  # as soon as its rows begin to go
        with pytest.raises(RevisionGoneError, match="any more: the rows of a release are kept for a time only"):
            await heads_of_release(bench, number)
        while not await step(bench, number):
            pass
    skipped = await stage(bench, staged("b", "1", 0), stage_id="two")
    await bench.repo.releases.publish("s", skipped, DAY_MS, BY)
    await bench.write({"b": "theirs"})
    await publish(bench, skipped)
    with pytest.raises(ConditionFailedError, match="no row of it was published"):
        await heads_of_release(bench, skipped)
