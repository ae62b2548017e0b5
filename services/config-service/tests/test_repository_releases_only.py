"""Stores that take releases only: every other write is refused, exactly from the moment in which the policy is set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ringcast_config_service.repository import (
    Authorship,
    Bundle,
    Chain,
    IdempotencyMark,
    LockedError,
    PlainWrites,
    PolicyChange,
    Repository,
    RowWrite,
    StageBatch,
    StagedRow,
    WriteOutcome,
    WriteRequest,
)
from ringcast_config_service.repository.postgres import write as postgres_write
from ringcast_config_service.repository.postgres.settling import settle
from ringcast_core import row_partition, row_partitions
from ringcast_wire import (
    PermissionDeniedError,
    ReleaseState,
    StorePolicy,
    UnavailableError,
    check_row,
)

Bench = Any  # of conftest.py

DAY_MS = 86_400_000
SAID = (
    "store 's' takes no direct writes, its policy releases_only is set: stage this as a release and publish it "
    "(ringcast release stage)"
)


@pytest.fixture
def closed(any_bench: Bench) -> Bench:
    return any_bench


async def close(repo: Repository, *lift: str, **policy: Any) -> StorePolicy:
    """Sets policies, as a client does it: again where writers were in the way."""
    change = PolicyChange(StorePolicy(**policy), frozenset(lift))
    while True:
        try:
            return (await repo.policies.set_policy("s", change)).record.policy
        except UnavailableError as error:
            if not (isinstance(error, LockedError) or "is locked by" in str(error) or "in the way" in str(error)):
                raise


async def is_refused(repo: Repository, *requests: WriteRequest) -> None:
    outcomes = (await repo.writer.write(requests, 5)).outcomes
    assert [(type(outcome), str(outcome)) for outcome in outcomes] == [(PermissionDeniedError, SAID)] * len(requests)


def plain(bench: Bench, start: int, count: int) -> WriteRequest:
    """Many rows at once, which PostgreSQL writes without looking for them once it has seen that they are new."""
    ids = [f"p{number}" for number in range(start, start + count)]
    sizes = [len(row_id) + 1 for row_id in ids]
    rows = PlainWrites(row_partitions(ids, bench.store.partition_count), ids, ["v"] * count, sizes)
    return WriteRequest(bench.store, "k", rows)


async def publish(bench: Bench, rows: dict[str, str | None], base: int = 0, key: str = "k") -> int:
    """Stages and publishes a release; its number."""
    releases = bench.repo.releases
    staged = [
        StagedRow(key, RowWrite(row_partition(row, 8), row, value, None, check_row(row, value or "", None), base))
        for row, value in rows.items()
    ]
    batch = StageBatch(f"{key}-{base}-{sorted(rows)}", 0, staged, True)
    number: int = (await releases.stage(bench.store, batch, Authorship("alice"))).number
    await releases.publish("s", number, DAY_MS, Authorship("alice"))
    await finish(bench, number)
    return number


async def finish(bench: Bench, number: int) -> None:
    while not (await bench.repo.releases.step("s", number, bench.repo.histories.generation)).done:
        pass


async def test_every_direct_write_is_refused_and_releases_go_on(closed: Bench, another: Repository) -> None:
    await closed.write({"a": "1"})
    await another.writer.write([closed.request({"b": "1"})], 5)  # knows the key from now on
    assert await close(closed.repo, releases_only=True) == StorePolicy(releases_only=True)
    never_written = [f"n{number}" for number in range(40)]
    bundle, chain = Bundle(), Chain()
    for repo in (closed.repo, another):
        await is_refused(repo, closed.request({"a": "2"}), closed.request({"a": None}))
        await is_refused(repo, closed.request({"nothing": None}), closed.request(dict.fromkeys(never_written, "1")))
        await is_refused(repo, closed.request({"new": "1"}, "new-key"))
        await is_refused(repo, replace(closed.request({"a": "1"}), skip_unchanged=True))
        await is_refused(
            repo,
            replace(closed.request({"a": "2"}), bundle=bundle),
            replace(closed.request({"x": "1"}, "k2"), bundle=bundle),
        )
        await is_refused(repo, replace(closed.request({"a": "2"}), chain=chain))
        await is_refused(repo, replace(closed.request({"a": "2"}), mark=IdempotencyMark("key", "digest")))
    assert await closed.live() == {"a": "1", "b": "1"}
    assert {stats.name for stats in (await closed.repo.stores.get_store("s")).keys} == {"k"}

    first = await publish(closed, {"c": "1", **dict.fromkeys(never_written, "1")})
    assert len(await closed.live()) == 43
    await is_refused(another, closed.request({"c": "2"}))
    second = await publish(closed, {"x": "1"}, key="k2")  # a key that the release creates is closed from the first
    await is_refused(another, closed.request({"x": "2"}, "k2"), closed.request({"y": "2"}, "k2"))
    for number in (second, first):
        await closed.repo.releases.undo("s", number, Authorship("bob"))
        await finish(closed, number)
        assert (await closed.repo.releases.get("s", number)).state is ReleaseState.UNDONE
    assert await closed.live() == {"a": "1", "b": "1"}

    assert await close(another, "releases_only") == StorePolicy()
    await closed.write({"a": "2", "b": None})
    await closed.write({"x": "2"}, "k2")
    assert await closed.live() == {"a": "2"}
    await closed.check_gap_free()


async def test_it_goes_with_the_limits_of_a_store(closed: Bench) -> None:
    await close(closed.repo, max_rows=3)
    await closed.write({"a": "1"})
    await close(closed.repo, releases_only=True)
    await is_refused(closed.repo, closed.request({"b": "1"}))
    await publish(closed, {"b": "1", "c": "1"})
    assert await close(closed.repo, "max_rows") == StorePolicy(releases_only=True)
    await is_refused(closed.repo, closed.request({"d": "1"}))
    await close(closed.repo, "releases_only", max_rows=4)
    await closed.write({"d": "1"})
    assert set(await closed.live()) == {"a", "b", "c", "d"}


async def test_many_new_rows_are_refused_too(closed: Bench) -> None:
    for start in (0, 300):
        (outcome,) = await closed.group([plain(closed, start, 300)])
        assert isinstance(outcome, WriteOutcome)
    await close(closed.repo, releases_only=True)
    await is_refused(closed.repo, plain(closed, 600, 300))
    assert len(await closed.live()) == 600


async def test_a_deleted_key_stays_closed_once_it_is_restored(closed: Bench) -> None:
    from ringcast_config_service.repository import Deletion

    await closed.write({"a": "1"})
    await closed.repo.deletions.delete_key("s", "k", Deletion(1, 2**41))
    await close(closed.repo, releases_only=True)
    await closed.repo.deletions.restore_key("s", "k", 2)
    await is_refused(closed.repo, closed.request({"a": "2"}))
    await close(closed.repo, "releases_only")
    await closed.write({"a": "2"})


async def test_a_store_whose_heads_an_older_build_left_open_is_closed_by_setting_it_again(closed: Bench) -> None:
    await closed.write({"a": "1"})
    await close(closed.repo, releases_only=True)
    await closed.execute("UPDATE partitions SET releases_only = NULL")
    await close(closed.repo, releases_only=True)
    await is_refused(closed.repo, closed.request({"a": "2"}))


async def test_no_direct_write_is_stored_after_the_policy_is_set(closed: Bench, another: Repository) -> None:
    """Two instances write old and new partitions and keys while a third sets the policy, again and again."""
    wrong: list[str] = []
    is_closed = asyncio.Event()

    async def write(repo: Repository, writer: int, turn: int) -> int:
        """How many writes were stored; the last one begins when the policy is set."""
        done, number, refused = 0, 0, False
        while not refused:
            number += 1
            if number > 20:
                await is_closed.wait()
            began_closed = is_closed.is_set()
            rows: dict[str, str | None] = {f"{turn}.{writer}.{number}": "1", f"all{number % 7}": f"{turn}.{number}"}
            try:
                request = closed.request(rows, f"k{(number + turn) % 5}")
                (outcome,) = (await repo.writer.write([request], 5)).outcomes
            except UnavailableError:  # another process has locked SQLite's file, or for long one of the heads
                continue
            if not isinstance(outcome, PermissionDeniedError):
                assert isinstance(outcome, WriteOutcome)
                done += 1
                if began_closed:
                    wrong.append(f"{writer} wrote {number} in turn {turn}")
                    break
            else:
                refused = began_closed
        return done

    for turn in range(3):
        is_closed.clear()
        writers = [asyncio.create_task(write((closed.repo, another)[n % 2], n, turn)) for n in range(6)]
        await asyncio.sleep(0)
        third = await closed.another()
        await close(third, releases_only=True)
        is_closed.set()
        found = {key: await closed.live(key) for key in sorted(await keys(closed))}
        counts = await asyncio.gather(*writers)
        assert wrong == []
        assert {key: await closed.live(key) for key in sorted(await keys(closed))} == found, "written after it was set"
        mine = sum(row_id.startswith(f"{turn}.") for rows in found.values() for row_id in rows)
        assert mine == sum(counts)
        await close(third, "releases_only")
        await third.close()
        for key in found:
            await closed.check_gap_free(key)


async def keys(bench: Bench) -> set[str]:
    return {stats.name for stats in (await bench.repo.stores.get_store("s")).keys}


@pytest.mark.parametrize("rows", [{"a": "2"}, {f"n{number}": "1" for number in range(40)}], ids=["old", "new"])
@pytest.mark.parametrize("key", ["k", "new-key"])
async def test_the_policy_waits_for_a_write_that_is_under_way(
    postgres_bench: Bench, monkeypatch: pytest.MonkeyPatch, rows: dict[str, str | None], key: str
) -> None:
    """A write that has looked at the heads is stored before the policy is, or decided anew if it needs new heads."""

    async def set_then_look() -> dict[str, str]:
        await close(third, releases_only=True)
        return await live()

    async def live() -> dict[str, str]:
        return await postgres_bench.live(key) if key in await keys(postgres_bench) else {}

    await postgres_bench.write({"a": "1"})
    third = await postgres_bench.another()
    has_looked, may_go_on = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(postgres_write, "settle", _stopped(has_looked, may_go_on))
    under_way = asyncio.create_task(postgres_bench.write(rows, key))
    await has_looked.wait()
    setting = asyncio.create_task(set_then_look())
    done, _ = await asyncio.wait([setting], timeout=0.3)
    assert not done, "the store, or a head, is locked by the write"
    may_go_on.set()
    outcome: Any = (await asyncio.gather(under_way, return_exceptions=True))[0]
    assert await setting == await live(), "nothing is stored once it is set"
    if isinstance(outcome, WriteOutcome):
        assert rows.items() <= (await live()).items()
    else:
        assert (type(outcome), str(outcome)) == (PermissionDeniedError, SAID)
        assert rows.items().isdisjoint((await live()).items())
    await third.close()


def _stopped(has_looked: asyncio.Event, may_go_on: asyncio.Event) -> Callable[..., Any]:
    async def stopped(*words: Any) -> Any:
        settled = await settle(*words)
        has_looked.set()
        await may_go_on.wait()
        return settled

    return stopped
