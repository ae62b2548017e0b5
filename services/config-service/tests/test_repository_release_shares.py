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


def sized(count: int, size: int, first: int = 100) -> dict[str, str | None]:
    """Rows of so many bytes each."""
    return {f"r{number}": "x" * (size - 4) for number in range(first, first + count)}


@pytest.mark.parametrize(
    ("policy", "allowed", "refused", "said"),
    [
        ("max_release_byte_growth_percent", sized(5, 30), sized(5, 30) | sized(1, 11, 105), "adds 101"),
        ("max_release_byte_growth_percent", sized(5, 10, 200) | sized(5, 20), sized(11, 10, 200), "adds 110"),
        ("max_release_byte_shrink_percent", sized(20, 5), sized(20, 5) | sized(1, 9, 120), "takes away 101"),
        (
            "max_release_byte_shrink_percent",
            dict.fromkeys(sized(12, 10)) | sized(2, 10, 200),
            dict.fromkeys(sized(11, 10)),
            "takes away 110",
        ),
    ],
)
async def test_a_release_that_changes_too_many_bytes_of_a_key_is_not_staged(
    bench: Bench, policy: str, allowed: dict[str, str | None], refused: dict[str, str | None], said: str
) -> None:
    await bench.write(sized(40, 10))
    await set_policy(bench, **{policy: 25})
    sentence = (
        f"can't be staged: key 'k' has 400 bytes, and the release {said}; the policy {policy} of the store allows 25 %"
    )
    with pytest.raises(LimitExceededError, match=sentence) as caught:
        await stage(bench, refused)
    assert caught.value.field == policy
    release = await stage(bench, allowed)
    assert (await publish(bench, release.number)).state is ReleaseState.PUBLISHED


async def test_bytes_count_as_they_are_when_the_release_is_published_and_an_empty_key_has_none(bench: Bench) -> None:
    await bench.write(old(1, "v"))
    await bench.write(old(1, None))
    await set_policy(bench, max_release_byte_growth_percent=0, max_release_byte_shrink_percent=0)
    first = await stage(bench, sized(4, 10), "first")
    assert (await publish(bench, first.number)).published == 4
    await set_policy(bench, max_release_byte_growth_percent=50)
    second = await stage(bench, sized(2, 10, 200), "second")
    await bench.write(dict.fromkeys(sized(1, 10)))
    said = "can't be published: key 'k' has 30 bytes, and the release adds 20; .* allows 50 %"
    with pytest.raises(LimitExceededError, match=said):
        await bench.repo.releases.publish("s", second.number, DAY_MS, BY)
    await bench.write(sized(1, 10))
    assert (await publish(bench, second.number)).published == 2


def of_partition(count: int, partition: int, value: str | None = "v", first: int = 0) -> dict[str, str | None]:
    """Rows of one partition of the 8 of the store."""
    found: dict[str, str | None] = {}
    for number in range(first, first + 100_000):
        if len(found) == count:
            break
        if row_partition(f"r{number}", 8) == partition:
            found[f"r{number}"] = value
    return found


@pytest.mark.parametrize(
    ("policy", "sign", "said"),
    [
        ("max_release_partition_growth_percent", 1, "partition 3 of key 'k' has 20 rows, and .*longer by 11"),
        ("max_release_partition_shrink_percent", -1, "partition 3 of key 'k' has 20 rows, and .*shorter by 11"),
    ],
)
async def test_one_partition_that_changes_too_much_is_refused_however_little_that_is_of_the_key(
    bench: Bench, policy: str, sign: int, said: str
) -> None:
    here, there = of_partition(20, 3), of_partition(1_000, 4)
    await bench.write(here | there)
    await set_policy(
        bench,
        **{policy: 50},
        release_partition_tolerance_rows=0,
        max_release_growth_percent=2,
        max_release_shrink_percent=2,
    )

    def change(count: int) -> dict[str, str | None]:
        return of_partition(count, 3, "v", 50_000) if sign > 0 else dict.fromkeys([*here][:count])

    sentence = f"can't be staged: {said}; the policy {policy} of the store allows 50 %, and 0 rows in any case"
    with pytest.raises(LimitExceededError, match=sentence) as caught:
        await stage(bench, change(11) | of_partition(9, 4, None, 0))
    assert caught.value.field == policy
    release = await stage(bench, change(10))
    assert (await publish(bench, release.number)).published == 10


async def test_a_small_partition_may_change_by_a_hundred_rows_unless_the_store_says_otherwise(bench: Bench) -> None:
    await bench.write(of_partition(130, 3) | of_partition(1, 4))
    await set_policy(bench, max_release_partition_growth_percent=10, max_release_partition_shrink_percent=10)
    fits = await stage(bench, of_partition(100, 3, None) | of_partition(100, 4, "v", 50_000), "fits")
    with pytest.raises(LimitExceededError, match=r"partition 3 .* 130 rows, .* shorter by 101; .* and 100 rows in any"):
        await stage(bench, of_partition(101, 3, None), "shrinks")
    with pytest.raises(LimitExceededError, match=r"partition 5 .* has 0 rows, .* longer by 101; .* and 100 rows"):
        await stage(bench, of_partition(101, 5), "grows")
    await set_policy(bench, release_partition_tolerance_rows=99)
    with pytest.raises(LimitExceededError, match=r"can't be published: partition 3 .* by 100; .* and 99 rows in any"):
        await bench.repo.releases.publish("s", fits.number, DAY_MS, BY)


async def test_the_partitions_of_a_key_without_rows_may_get_any_number(bench: Bench) -> None:
    await set_policy(bench, max_release_partition_growth_percent=0, release_partition_tolerance_rows=0)
    first = await stage(bench, new(50), "first", key="other")
    await bench.write(old(1, "v"))
    await bench.write(old(1, None))
    second = await stage(bench, new(50), "second")
    for release in (first, second):
        assert (await publish(bench, release.number)).published == 50
    with pytest.raises(LimitExceededError, match="of key 'k' has"):
        await stage(bench, {"one more": "v"}, "third")


@pytest.mark.parametrize(
    ("policy", "least"),
    [
        ({"max_release_shrink_percent": 0}, 14),
        ({"max_release_shrink_percent": 10}, 14),
        ({"max_release_byte_growth_percent": 0}, 15),
        ({"max_release_byte_shrink_percent": 10}, 15),
        ({"max_release_partition_growth_percent": 0}, 15),
        ({"max_release_partition_shrink_percent": 10}, 15),
        ({"release_partition_tolerance_rows": 0}, 15),
    ],
)
async def test_no_older_build_is_let_near_such_a_policy(bench: Bench, policy: dict[str, int], least: int) -> None:
    await set_policy(bench, **policy)
    assert await bench.ask("SELECT usable_from FROM schema_version") == [(least,)]
