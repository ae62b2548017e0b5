"""Pinned releases in each database: however old they become, what it takes to come back to them is kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ringcast_config_service.repository import Authorship, Deletion, Release, RowWrite, StageBatch, StagedRow
from ringcast_core import row_partition
from ringcast_wire import ConditionFailedError, InvalidInputError, LimitExceededError, ReleaseState, check_row, limits

Bench = Any  # of conftest.py

BY = Authorship("alice", "before the sale")
DAY_MS = 86_400_000


async def stage(bench: Bench, number: int) -> Release:
    """The release of this number, of one new row."""
    row_id = f"r{number}"
    write = RowWrite(row_partition(row_id, 8), row_id, "v", None, check_row(row_id, "v", None), 0)
    batch = StageBatch(f"stage-{number}", 0, [StagedRow("k", write)], True)
    release: Release = await bench.repo.releases.stage(bench.store, batch, BY)
    assert release.number == number
    return release


async def work(bench: Bench, number: int) -> None:
    while not (await bench.repo.releases.step("s", number, bench.repo.histories.generation)).done:
        pass


async def publish(bench: Bench, *numbers: int) -> None:
    for number in numbers:
        await stage(bench, number)
        await bench.repo.releases.publish("s", number, DAY_MS, BY)
        await work(bench, number)


async def grow_old(bench: Bench) -> list[int]:
    """Two days go by; returns the releases whose rows are removed then."""
    await bench.execute(
        f"UPDATE releases SET staged_at_ms = staged_at_ms - {2 * DAY_MS}, changed_at_ms = changed_at_ms - {2 * DAY_MS}"
    )
    removed = []
    while (release := await bench.repo.releases.expire(DAY_MS, DAY_MS)) is not None:
        removed.append(release.number)
        await work(bench, release.number)
    return sorted(removed)


async def pinned(bench: Bench) -> list[int]:
    found = [each.number for each in await bench.repo.releases.newest("s", 1_000, 1_000) if each.pinned]
    assert [number for number in found if not (await bench.repo.releases.get("s", number)).pinned] == []
    return found


async def test_what_is_pinned_and_what_came_after_it_keep_their_rows(bench: Bench) -> None:
    await publish(bench, 1, 2, 3)
    await stage(bench, 4)
    assert (await bench.repo.releases.pin("s", 2, BY)).pinned
    assert await pinned(bench) == [2]
    assert await grow_old(bench) == [1, 4], "4 was never published"
    for number in (3, 2):
        await bench.repo.releases.undo("s", number, BY)
        await work(bench, number)
    assert await bench.live() == {"r1": "v"}
    assert await grow_old(bench) == [], "what is undone is known: rows go back through it"


async def test_a_later_pin_takes_the_place_of_the_one_before(bench: Bench) -> None:
    await publish(bench, 1, 2, 3)
    for number in (1, 3, 3):
        await bench.repo.releases.pin("s", number, BY)
    assert await pinned(bench) == [3]
    with pytest.raises(ConditionFailedError, match="release 1 of store 's' is not pinned: release 3 of this store is"):
        await bench.repo.releases.unpin("s", 1, BY)
    assert await grow_old(bench) == [1, 2]
    for _ in range(2):
        assert not (await bench.repo.releases.unpin("s", 3, BY)).pinned
    assert await pinned(bench) == []
    assert await grow_old(bench) == [3]
    noted = await bench.ask("SELECT principal, action FROM audit_pending WHERE action LIKE '%inRelease'")
    assert sorted(noted) == [("alice", action) for action in ("PinRelease", "PinRelease", "UnpinRelease")]


async def test_only_what_is_published_and_kept_can_be_pinned(bench: Bench) -> None:
    pin = bench.repo.releases.pin
    with pytest.raises(InvalidInputError, match="has no release 1"):
        await pin("s", 1, BY)
    await stage(bench, 1)
    with pytest.raises(ConditionFailedError, match="release 1 of store 's' can't be pinned: it is staged"):
        await pin("s", 1, BY)
    await bench.repo.releases.drop("s", 1, BY)
    await publish(bench, 2)
    await stage(bench, 3)
    await bench.repo.releases.undo("s", 2, BY)
    with pytest.raises(ConditionFailedError, match="can't be pinned: it is undoing"):
        await pin("s", 2, BY)
    await work(bench, 2)
    await publish(bench, 4)
    assert await grow_old(bench) == [2, 3, 4]
    await bench.repo.releases.unpin("s", 4, BY)
    with pytest.raises(
        ConditionFailedError, match="release 4 of store 's' can't be pinned: its rows are removed already"
    ):
        await pin("s", 4, BY)


async def test_a_release_can_not_be_pinned_below_one_whose_rows_are_removed(bench: Bench) -> None:
    await publish(bench, 1, 2)
    await bench.execute(f"UPDATE releases SET changed_at_ms = changed_at_ms - {2 * DAY_MS} WHERE number = 2")
    assert (await bench.repo.releases.expire(DAY_MS, DAY_MS)).number == 2
    for _ in range(2):
        with pytest.raises(ConditionFailedError, match="the rows of release 2 are removed already"):
            await bench.repo.releases.pin("s", 1, BY)
        await work(bench, 2)
    assert await pinned(bench) == []


async def test_a_pin_and_a_release_that_expires_do_not_both_win(bench: Bench) -> None:
    """They meet at the row of the store's numbers: either the pin finds the rows gone, or they stay."""
    await publish(bench, 1, 2)
    for number in range(3, 23):
        await publish(bench, number)
        await bench.execute(f"UPDATE releases SET changed_at_ms = changed_at_ms - {2 * DAY_MS} WHERE number = {number}")
        both: Any = await asyncio.gather(
            bench.repo.releases.expire(DAY_MS, DAY_MS), bench.repo.releases.pin("s", number, BY), return_exceptions=True
        )
        expired, pin = both
        if isinstance(pin, ConditionFailedError):
            assert getattr(expired, "number", None) == number
            await work(bench, number)
        else:
            assert (expired, pin.pinned) == (None, True)
            await bench.repo.releases.unpin("s", number, BY)
            assert (await bench.repo.releases.expire(DAY_MS, DAY_MS)).number == number
            await work(bench, number)


async def test_a_pin_keeps_as_many_releases_as_a_store_may_have(
    sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = sqlite_bench
    monkeypatch.setattr(limits, "MAX_KEPT_RELEASES", 3)
    await publish(bench, 1, 2)
    await bench.repo.releases.pin("s", 1, BY)
    await publish(bench, 3)
    full = "store 's' keeps 3 releases since release 1, which is pinned, the limit is 3: pin a later one, or unpin it"
    for _ in range(2):
        with pytest.raises(LimitExceededError, match=full):
            await stage(bench, 4)
    await bench.repo.releases.pin("s", 2, BY)
    await publish(bench, 4)
    expired = await bench.repo.releases.expire(DAY_MS, DAY_MS)
    assert expired.number == 1
    await work(bench, 1)
    assert await bench.repo.releases.expire(DAY_MS, DAY_MS) is None


async def test_the_pin_of_a_store_ends_with_it(bench: Bench) -> None:
    """A store of that name that is created again begins with number 1, and without a pin."""
    await publish(bench, 1)
    await bench.repo.releases.pin("s", 1, BY)
    await bench.repo.deletions.delete_store("s", Deletion(1, 0))
    while await bench.repo.deletions.purge_rows("s", None):
        pass
    await bench.repo.deletions.drop_store("s")
    bench.store = await bench.repo.stores.create_store(bench.store)
    await publish(bench, 1)
    assert await pinned(bench) == []


async def test_no_older_build_is_let_near_a_pin(bench: Bench) -> None:
    """It would remove the rows."""
    await publish(bench, 1)
    await bench.repo.releases.pin("s", 1, BY)
    assert await bench.ask("SELECT usable_from FROM schema_version") == [(14,)]
    assert ReleaseState.PUBLISHED is (await bench.repo.releases.get("s", 1)).state
