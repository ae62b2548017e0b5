"""How much of a key one release may change, in each database: policies that a release is held to as a whole."""

from __future__ import annotations

from typing import Any

import pytest
from ringcast_config_service.repository import (
    Authorship,
    ListFilter,
    PolicyChange,
    Release,
    RowWrite,
    StageBatch,
    StagedRow,
)
from ringcast_core import row_partition
from ringcast_wire import LimitExceededError, ReleaseState, StorePolicy, check_row

Bench = Any  # of conftest.py

BY = Authorship("alice", "new list")
DAY_MS = 86_400_000


async def set_policy(bench: Bench, **values: Any) -> None:
    bench.store = (await bench.repo.policies.set_policy("s", PolicyChange(StorePolicy(**values)))).record


async def stage(bench: Bench, values: dict[str, str | None], stage_id: str = "one", key: str = "k") -> Release:
    """A release of what rows are to become, of the versions that they have."""
    versions: dict[str, int] = {}
    if key == "k":
        async for page in bench.repo.reader.list_rows("s", key, ListFilter()):
            versions |= {found.row.row_id: found.row.version for found in page}
    rows = []
    for row_id, value in values.items():
        size = check_row(row_id, value or "", None)
        write = RowWrite(row_partition(row_id, 8), row_id, value, None, size, versions.get(row_id, 0))
        rows.append(StagedRow(key, write))
    release: Release = await bench.repo.releases.stage(bench.store, StageBatch(stage_id, 0, rows, True), BY)
    return release


async def publish(bench: Bench, number: int) -> Release:
    await bench.repo.releases.publish("s", number, DAY_MS, BY)
    while not (await bench.repo.releases.step("s", number, bench.repo.histories.generation)).done:
        pass
    done: Release = await bench.repo.releases.get("s", number)
    return done


def new(count: int) -> dict[str, str | None]:
    return {f"new{number}": "v" for number in range(count)}


def old(count: int, value: str | None, first: int = 0) -> dict[str, str | None]:
    return {f"r{number}": value for number in range(first, first + count)}


@pytest.mark.parametrize(
    ("policy", "most", "allowed", "refused", "said"),
    [
        ("max_release_growth_percent", 25, new(5), new(6), "the release makes it longer by 6"),
        ("max_release_growth_percent", 0, new(3) | old(3, None), new(4) | old(3, None), "makes it longer by 1"),
        ("max_release_shrink_percent", 25, old(5, None), old(6, None), "the release makes it shorter by 6"),
        ("max_release_shrink_percent", 0, new(3) | old(3, None), new(3) | old(4, None), "makes it shorter by 1"),
        (
            "max_release_change_percent",
            25,
            old(2, None) | old(3, "x", 2) | new(20),
            old(2, None) | old(4, "x", 2),
            "the release changes or deletes 6",
        ),
    ],
)
async def test_a_release_that_changes_too_much_of_a_key_is_not_staged(
    bench: Bench, policy: str, most: int, allowed: dict[str, str | None], refused: dict[str, str | None], said: str
) -> None:
    await bench.write(old(20, "v"))
    await set_policy(bench, **{policy: most})
    sentence = f"can't be staged: key 'k' has 20 rows, and .*{said}; the policy {policy} of the store allows {most} %"
    with pytest.raises(LimitExceededError, match=sentence) as caught:
        await stage(bench, refused)
    assert caught.value.field == policy
    assert await bench.repo.releases.newest("s", 100, 10) == [], "nothing of it is there"
    release = await stage(bench, allowed)
    assert (await publish(bench, release.number)).state is ReleaseState.PUBLISHED


async def test_what_counts_is_the_policy_and_the_rows_of_the_moment_in_which_it_is_published(bench: Bench) -> None:
    await bench.write(old(20, "v"))
    staged = await stage(bench, old(5, None))
    await set_policy(bench, max_release_shrink_percent=20)
    said = "can't be published: key 'k' has 20 rows, and the release makes it shorter by 5; .* allows 20 %"
    with pytest.raises(LimitExceededError, match=said):
        await bench.repo.releases.publish("s", staged.number, DAY_MS, BY)
    assert (await bench.repo.releases.get("s", staged.number)).state is ReleaseState.STAGED
    await bench.write(new(5))
    assert (await publish(bench, staged.number)).published == 5


async def test_a_key_without_rows_may_get_any_number_and_each_key_counts_alone(bench: Bench) -> None:
    await bench.write(old(20, "v"))
    await set_policy(bench, max_release_growth_percent=0, max_release_shrink_percent=0, max_release_change_percent=0)
    first = await stage(bench, new(50), "first", key="other")
    assert (await publish(bench, first.number)).published == 50
    with pytest.raises(LimitExceededError, match="key 'k' has 20 rows"):
        await stage(bench, {"r0": "changed"}, "second")


async def test_an_undo_is_held_to_no_such_policy(bench: Bench) -> None:
    await bench.write(old(4, "v"))
    staged = await stage(bench, new(40))
    await publish(bench, staged.number)
    await set_policy(bench, max_release_shrink_percent=0, max_release_change_percent=0)
    await bench.repo.releases.undo("s", staged.number, BY)
    while not (await bench.repo.releases.step("s", staged.number, bench.repo.histories.generation)).done:
        pass
    assert await bench.live() == old(4, "v")


@pytest.mark.parametrize("most", [0, 10])
async def test_no_older_build_is_let_near_such_a_policy(bench: Bench, most: int) -> None:
    await set_policy(bench, max_release_shrink_percent=most)
    assert await bench.ask("SELECT usable_from FROM schema_version") == [(14,)]
