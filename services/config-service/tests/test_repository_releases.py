"""Releases in each database: staged aside, published and undone step by step."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from ringcast_config_service.releases.driver import Releases
from ringcast_config_service.repository import (
    Authorship,
    Deletion,
    HistoryFilter,
    Release,
    ReleaseRow,
    RowWrite,
    StageBatch,
    StagedRow,
    make_repository,
    release_steps,
)
from ringcast_config_service.telemetry import Measures
from ringcast_config_service.value_schemas import ValueSchemas
from ringcast_config_service.writes.batches import RowInput
from ringcast_config_service.writes.terms import KeyedRow
from ringcast_core import row_partition
from ringcast_wire import (
    ConditionFailedError,
    InvalidInputError,
    KeyDeletedError,
    LimitExceededError,
    ReleaseOutcome,
    ReleaseState,
    StoreDeletedError,
    check_row,
    limits,
)

Bench = Any  # of conftest.py

BY = Authorship("alice", "new list")
DAY_MS = 86_400_000


def staged(row_id: str, value: str | None, base: int, key: str = "k", metadata: Any = None) -> StagedRow:
    size = check_row(row_id, value or "", metadata)
    return StagedRow(key, RowWrite(row_partition(row_id, 8), row_id, value, metadata, size, base))


async def stage(bench: Bench, *rows: StagedRow, stage_id: str = "one") -> Release:
    batch = StageBatch(stage_id, 0, rows, True)
    release: Release = await bench.repo.releases.stage(bench.store, batch, BY)
    return release


async def work(bench: Bench, number: int, most: int = 1_000) -> int:
    """Takes steps until there is nothing to do; how many."""
    for count in range(most):
        if (await bench.repo.releases.step("s", number, bench.repo.histories.generation)).done:
            return count
    return most


async def rows_of(bench: Bench, number: int, *, conflicts_only: bool = False) -> list[ReleaseRow]:
    found: list[ReleaseRow] = await bench.repo.releases.rows(
        "s", number, 0, 1_000, 1 << 20, conflicts_only=conflicts_only
    )
    return found


async def test_a_release_is_seen_by_nobody_before_it_is_published_and_is_gone_when_it_is_undone(bench: Bench) -> None:
    await bench.write({"a": "1"}, metadata={"by": "me"})
    await bench.write({"b": "1", "c": "1"})
    versions = {row.row.row_id: row.row.version async for page in _list(bench) for row in page}
    release = await stage(
        bench,
        staged("b", None, versions["b"]),
        staged("a", "2", versions["a"]),
        staged("new", "1", 0, metadata={"x": "y"}),
        staged("other", "1", 0, key="k2"),
    )
    assert (release.number, release.state, release.rows) == (1, ReleaseState.STAGED, 4)
    assert [tuple(key) for key in release.keys] == [("k", 1, 1, 1), ("k2", 1, 0, 0)]
    assert await bench.live() == {"a": "1", "b": "1", "c": "1"}
    events = len(await bench.events())

    begun = await bench.repo.releases.publish("s", 1, DAY_MS, Authorship("bob"))
    assert begun.state is ReleaseState.PUBLISHING
    assert await bench.live() == {"a": "1", "b": "1", "c": "1"}
    await work(bench, 1)
    done = await bench.repo.releases.get("s", 1)
    assert (done.state, done.published, done.skipped, done.changed_by) == (ReleaseState.PUBLISHED, 4, 0, "bob")
    assert await bench.live() == {"a": "2", "c": "1", "new": "1"}
    assert await bench.live("k2") == {"other": "1"}
    assert len(await bench.events()) > events
    written = [found async for page in _history(bench) for found in page if found.by.author == "bob"]
    assert {(found.row.row_id, found.by.reason) for found in written} == {
        (row_id, "release 1: new list") for row_id in ("a", "b", "new")
    }
    assert (await bench.repo.releases.publish("s", 1, DAY_MS, BY)).state is ReleaseState.PUBLISHED  # nothing to do
    assert await work(bench, 1) == 0

    await bench.repo.releases.undo("s", 1, Authorship("carol", "too strict"))
    await work(bench, 1)
    done = await bench.repo.releases.get("s", 1)
    assert (done.state, done.undone, done.skipped) == (ReleaseState.UNDONE, 4, 0)
    assert await bench.live() == {"a": "1", "b": "1", "c": "1"}
    assert await bench.live("k2") == {}
    first = [found.row async for page in _list(bench) for found in page if found.row.row_id == "a"]
    assert first[0].metadata == {"by": "me"}
    with pytest.raises(ConditionFailedError, match="release 1 of store 's' can't be published: it is undone"):
        await bench.repo.releases.publish("s", 1, DAY_MS, BY)
    await bench.check_gap_free()
    await bench.check_gap_free("k2")


def _list(bench: Bench) -> Any:
    from ringcast_config_service.repository import ListFilter

    return bench.repo.reader.list_rows("s", "k", ListFilter())


def _history(bench: Bench) -> Any:
    return bench.repo.reader.history("s", "k", HistoryFilter())


async def test_a_row_that_was_written_since_it_was_staged_refuses_the_release(bench: Bench) -> None:
    await bench.write({"a": "1"})
    await stage(bench, staged("a", "2", 1), staged("b", "1", 0))
    await bench.write({"b": "theirs"})
    with pytest.raises(ConditionFailedError, match=r"1 row was written since it was staged, .*: k/'b'"):
        await bench.repo.releases.publish("s", 1, DAY_MS, BY)
    assert [(row.row_id, row.found_version) for row in await rows_of(bench, 1, conflicts_only=True)] == [("b", 1)]
    assert await work(bench, 1) == 0
    assert await bench.live() == {"a": "1", "b": "theirs"}
    # Deleted again, it is as it was.
    await bench.write({"b": None})
    await bench.repo.releases.publish("s", 1, DAY_MS, BY)
    await work(bench, 1)
    assert await bench.live() == {"a": "2", "b": "1"}


async def test_rows_that_others_write_while_it_is_published_or_undone_are_left_alone_and_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_steps, "STEP_ROWS", 2)
    await bench.write({"gone": "1"})
    await stage(bench, *(staged(name, "1", 0) for name in "abcd"), staged("gone", None, 1))
    await bench.repo.releases.publish("s", 1, DAY_MS, BY)
    await work(bench, 1, most=1)
    await bench.write({"d": "theirs"})
    await work(bench, 1)
    done = await bench.repo.releases.get("s", 1)
    assert (done.state, done.published, done.skipped) == (ReleaseState.PUBLISHED, 4, 1)
    assert await bench.live() == {"a": "1", "b": "1", "c": "1", "d": "theirs"}
    await bench.write({"a": "theirs"})
    await bench.write({"gone": "back"})
    await bench.write({"gone": None})
    await bench.repo.releases.undo("s", 1, BY)
    await work(bench, 1)
    done = await bench.repo.releases.get("s", 1)
    assert (done.state, done.undone, done.skipped) == (ReleaseState.UNDONE, 2, 2)
    assert await bench.live() == {"a": "theirs", "d": "theirs"}
    assert {row.row_id: row.outcome for row in await rows_of(bench, 1)} == {
        "a": ReleaseOutcome.KEPT,
        "b": ReleaseOutcome.UNDONE,
        "c": ReleaseOutcome.UNDONE,
        "d": ReleaseOutcome.SKIPPED,
        "gone": ReleaseOutcome.KEPT,
    }
    await bench.check_gap_free()


async def test_a_release_that_is_half_published_can_be_undone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_steps, "STEP_ROWS", 2)
    await stage(bench, *(staged(name, "1", 0) for name in "abcd"))
    await bench.repo.releases.publish("s", 1, DAY_MS, BY)
    await work(bench, 1, most=1)
    assert await bench.live() == {"a": "1", "b": "1"}
    await bench.repo.releases.undo("s", 1, BY)
    await work(bench, 1)
    assert await bench.live() == {}
    outcomes = [row.outcome for row in await rows_of(bench, 1)]
    assert outcomes == [*[ReleaseOutcome.UNDONE] * 2, *[ReleaseOutcome.WAITING] * 2]


async def test_instances_that_work_at_one_release_write_each_row_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_steps, "STEP_ROWS", 7)
    names = [f"r{number}" for number in range(100)]
    await stage(bench, *(staged(name, "1", 0) for name in names))
    other = await bench.another()
    try:
        for undoes in (False, True):
            if undoes:
                await bench.repo.releases.undo("s", 1, BY)
            else:
                await bench.repo.releases.publish("s", 1, DAY_MS, BY)
            await asyncio.gather(*(work(replace(bench, repo=repo), 1) for repo in (bench.repo, other, bench.repo)))
    finally:
        await other.close()
    found = [revision.row async for page in _history(bench) for revision in page]
    assert sorted(row.row_id for row in found) == sorted(names * 2)
    assert await bench.live() == {}
    await bench.check_gap_free()


async def test_an_undo_needs_no_history(bench: Bench) -> None:
    await bench.write({"a": "1", "b": "1"})
    versions = {row.row.row_id: row.row.version async for page in _list(bench) for row in page}
    await stage(bench, staged("a", "2", versions["a"]), staged("b", None, versions["b"]))
    await bench.repo.releases.publish("s", 1, DAY_MS, BY)
    await work(bench, 1)
    await bench.pass_time(100_000)
    done = await bench.repo.maintenance.compact(await bench.lead(), 1_000, 1_000)
    assert (done.tombstones, done.revisions) == (1, 3)
    await bench.repo.releases.undo("s", 1, BY)
    await work(bench, 1)
    assert await bench.live() == {"a": "1", "b": "1"}


async def test_old_releases_lose_their_rows(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_steps, "REMOVED_ROWS", 1)
    await stage(bench, staged("a", "1", 0), staged("b", "1", 0))
    await stage(bench, staged("c", "1", 0), stage_id="two")
    await bench.repo.releases.publish("s", 2, DAY_MS, BY)
    await work(bench, 2)
    assert await bench.repo.releases.expire(60_000, 60_000) is None
    await bench.execute(
        "UPDATE releases SET staged_at_ms = staged_at_ms - 60000, changed_at_ms = changed_at_ms - 60000"
    )
    with pytest.raises(ConditionFailedError, match="it was staged more than 60 s ago"):
        await bench.repo.releases.publish("s", 1, 60_000, BY)
    assert {(await bench.repo.releases.expire(60_000, 60_000)).number for _ in range(2)} == {1, 2}
    assert await bench.repo.releases.expire(60_000, 60_000) is None
    assert sorted(await bench.repo.releases.due(0)) == [("s", 1), ("s", 2)]
    for number, state in ((1, ReleaseState.EXPIRED), (2, ReleaseState.PUBLISHED)):
        await work(bench, number)
        release = await bench.repo.releases.get("s", number)
        assert (release.state, release.kept, await rows_of(bench, number)) == (state, False, [])
    with pytest.raises(ConditionFailedError, match="what it replaced is not kept any more"):
        await bench.repo.releases.undo("s", 2, BY)
    assert await bench.repo.releases.due(0) == []


async def test_batches_that_are_sent_again_count_once_and_others_are_refused(bench: Bench) -> None:
    stages = bench.repo.releases.stage
    first, second = [staged("a", "1", 0)], [staged("b", "1", 0)]
    for _ in range(2):
        release = await stages(bench.store, StageBatch("x", 0, first, False), BY)
        assert (release.number, release.state, release.rows) == (1, ReleaseState.STAGING, 1)
    with pytest.raises(InvalidInputError, match="sequence 2 is not the next one"):
        await stages(bench.store, StageBatch("x", 2, second, False), BY)
    with pytest.raises(InvalidInputError, match="a row comes twice"):
        await stages(bench.store, StageBatch("x", 1, first, True), BY)
    with pytest.raises(ConditionFailedError, match="can't be published: it is staging"):
        await bench.repo.releases.publish("s", 1, DAY_MS, BY)
    for _ in range(2):
        release = await stages(bench.store, StageBatch("x", 1, second, True), BY)
        assert (release.state, release.rows) == (ReleaseState.STAGED, 2)
    with pytest.raises(InvalidInputError, match="which is complete"):
        await stages(bench.store, StageBatch("x", 2, [staged("c", "1", 0)], True), BY)
    with pytest.raises(InvalidInputError, match="has no release with stage_id"):
        await stages(bench.store, StageBatch("y", 1, first, True), BY)
    with pytest.raises(InvalidInputError, match="a release without rows can't be staged"):
        await stages(bench.store, StageBatch("y", 0, [], True), BY)
    assert [release.number for release in await bench.repo.releases.newest("s", 100, 10)] == [1]


async def test_of_so_many_releases_the_oldest_that_are_done_lose_their_rows(
    sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = sqlite_bench
    monkeypatch.setattr(limits, "MAX_KEPT_RELEASES", 2)
    for number in (1, 2, 3, 4):
        await stage(bench, staged(f"r{number}", "1", 0), stage_id=f"{number}")
        if number != 1:  # which is still staged
            await bench.repo.releases.publish("s", number, DAY_MS, BY)
            await work(bench, number)
    expired = await bench.repo.releases.expire(DAY_MS, DAY_MS)
    assert (expired.number, expired.state) == (2, ReleaseState.PUBLISHED)
    await work(bench, 2)
    assert await bench.repo.releases.expire(DAY_MS, DAY_MS) is None
    await stage(bench, staged("r5", "1", 0), stage_id="5")
    assert [release.number for release in await bench.repo.releases.newest("s", 100, 10)] == [5, 4, 3, 1]


async def test_a_client_without_a_credential_may_go_on_from_another_address(sqlite_bench: Bench) -> None:
    stages = sqlite_bench.repo.releases.stage
    await stages(sqlite_bench.store, StageBatch("x", 0, [staged("a", "1", 0)], False), Authorship("host:10.0.0.1"))
    batch = StageBatch("x", 1, [staged("b", "1", 0)], True)
    assert (await stages(sqlite_bench.store, batch, Authorship("host:127.0.0.1"))).rows == 2


async def test_a_batch_that_is_sent_again_has_to_be_the_same(bench: Bench) -> None:
    stages = bench.repo.releases.stage
    first, second = [staged("a", "1", 0)], [staged("b", "1", 0, metadata={"x": "y", "z": "1"})]
    await stages(bench.store, StageBatch("x", 0, first, False), BY)
    for rows, complete in (
        ([staged("a", "2", 0)], False),
        ([staged("a", None, 1)], False),
        ([staged("a", "1", 0, key="k2")], False),
        ([staged("a", "1", 0, metadata={"x": "y"})], False),
        ([*first, *second], False),
        ([], False),
        (first, True),
    ):
        with pytest.raises(InvalidInputError, match=r"sequence 0 of release 1 .* is staged with other rows"):
            await stages(bench.store, StageBatch("x", 0, rows, complete), BY)
    with pytest.raises(InvalidInputError, match="release 1 of store 's', which another principal has begun"):
        await stages(bench.store, StageBatch("x", 1, second, True), Authorship("mallory"))
    await stages(bench.store, StageBatch("x", 1, second, True), BY)
    with pytest.raises(InvalidInputError, match="is staged with other rows"):
        await stages(bench.store, StageBatch("x", 1, second, False), BY)
    assert [(row.row_id, row.value) for row in await rows_of(bench, 1)] == [("a", "1"), ("b", "1")]
    await bench.repo.releases.drop("s", 1, BY)
    with pytest.raises(InvalidInputError, match="release 1 of store 's', which is dropped"):
        await stages(bench.store, StageBatch("x", 1, second, True), BY)


async def test_a_release_that_is_completed_just_now_is_not_published_unseen(
    sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = sqlite_bench
    releases = bench.repo.releases
    await bench.write({"a": "theirs"})
    await releases.stage(bench.store, StageBatch("x", 0, [staged("a", "1", 0)], False), BY)
    read = releases._read

    async def then_complete(make: Any) -> Any:
        found = await read(make)
        await releases.stage(bench.store, StageBatch("x", 1, [staged("b", "1", 0)], True), BY)
        return found

    monkeypatch.setattr(releases, "_read", then_complete)
    with pytest.raises(ConditionFailedError, match="can't be published: it is staging"):
        await releases.publish("s", 1, DAY_MS, BY)


async def test_a_batch_has_so_many_bytes_at_most(sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_BATCH_BYTES", 3)
    schemas = ValueSchemas(sqlite_bench.repo, Measures())
    none: Any = None
    calls: Any = Releases(sqlite_bench.repo, none, schemas, none, none, none, none, staged_ms=DAY_MS)
    rows = [KeyedRow("k", RowInput(name, "1", None, 0)) for name in "ab"]
    with pytest.raises(InvalidInputError, match="rows has 4 bytes: at most 3 are allowed in a batch"):
        await calls.stage("s", "one", 0, rows, BY, complete=True)


async def test_rows_written_since_they_were_published_are_conflicts_of_an_undo(bench: Bench) -> None:
    await bench.write({"gone": "1", "back": "1"})
    versions = {row.row.row_id: row.row.version async for page in _list(bench) for row in page}
    deletes = [staged(name, None, versions[name]) for name in ("gone", "back")]
    await stage(bench, staged("a", "1", 0), staged("b", "1", 0), *deletes)
    await bench.repo.releases.publish("s", 1, DAY_MS, BY)
    await work(bench, 1)
    assert await rows_of(bench, 1, conflicts_only=True) == []
    await bench.write({"b": "theirs", "back": "theirs"})
    assert [row.row_id for row in await rows_of(bench, 1, conflicts_only=True)] == ["b", "back"]


async def test_callers_leave_the_connections_of_postgresql_to_the_relay(
    postgres_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = postgres_bench
    sessions = bench.repo._sessions
    transact, running, most = sessions.transact, 0, 0

    async def counted(*words: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await transact(*words)
        finally:
            running -= 1

    monkeypatch.setattr(sessions, "transact", counted)
    await asyncio.gather(*(stage(bench, staged("a", "1", 0), stage_id=f"{number}") for number in range(8)))
    await asyncio.gather(*(bench.repo.releases.drop("s", number, BY) for number in range(1, 9)))
    assert most == 1


async def test_the_limits_of_releases(sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = sqlite_bench
    monkeypatch.setattr(limits, "MAX_RELEASE_ROWS", 2)
    monkeypatch.setattr(limits, "MAX_RELEASE_BYTES", 8)
    monkeypatch.setattr(limits, "MAX_OPEN_RELEASES", 2)
    with pytest.raises(LimitExceededError, match="would have 3 rows, the limit is 2"):
        await stage(bench, *(staged(name, "1", 0) for name in "abc"))
    with pytest.raises(LimitExceededError, match="would have 10 bytes, the limit is 8"):
        await stage(bench, staged("a", "123456789", 0))
    await stage(bench, staged("a", "1", 0), stage_id="1")
    await stage(bench, staged("a", "1", 0), stage_id="2")
    with pytest.raises(LimitExceededError, match="has 2 releases that are staged or under way, the limit is 2"):
        await stage(bench, staged("a", "1", 0), stage_id="3")
    dropped = await bench.repo.releases.drop("s", 1, BY)
    assert dropped.state is ReleaseState.DROPPED
    await work(bench, 1)
    monkeypatch.setattr(limits, "MAX_KEPT_RELEASES", 2)
    assert (await stage(bench, staged("a", "1", 0), stage_id="3")).number == 3
    assert [release.number for release in await bench.repo.releases.newest("s", 100, 10)] == [3, 2]
    with pytest.raises(InvalidInputError, match="store 's' has no release 1"):
        await bench.repo.releases.get("s", 1)
    with pytest.raises(ConditionFailedError, match="can't be undone: it is staged"):
        await bench.repo.releases.undo("s", 2, BY)


async def test_what_a_store_forbids_halts_a_release_and_changes_nothing(bench: Bench) -> None:
    from ringcast_config_service.repository import PolicyChange
    from ringcast_wire import StorePolicy

    await stage(bench, staged("a", "1", 0), staged("b", "1", 0))
    await bench.repo.policies.set_policy("s", PolicyChange(StorePolicy(max_rows=1), frozenset()))
    await bench.repo.releases.publish("s", 1, DAY_MS, BY)
    with pytest.raises(LimitExceededError, match="policy max_rows allows 1"):
        await work(bench, 1)
    assert await bench.repo.releases.counts() == {"publishing": 1}
    await bench.repo.releases.set_problem("s", 1, "why")
    assert await bench.repo.releases.counts() == {"halted": 1}
    halted = await bench.repo.releases.get("s", 1)
    assert (halted.state, halted.published, halted.problem) == (ReleaseState.PUBLISHING, 0, "why")
    await bench.repo.policies.set_policy("s", PolicyChange(StorePolicy(max_rows=2), frozenset()))
    await work(bench, 1)
    assert await bench.live() == {"a": "1", "b": "1"}
    assert (await bench.repo.releases.get("s", 1)).problem == ""
    await stage(bench, staged("c", "1", 0), stage_id="two")
    assert await bench.repo.releases.counts() == {"published": 1, "staged": 1}


async def test_a_purge_takes_the_rows_of_releases_along(bench: Bench) -> None:
    await bench.write({"a": "1"})
    await bench.write({"a": "1"}, key="k2")
    await stage(bench, staged("b", "1", 0), staged("b", "1", 0, key="k2"))
    await bench.repo.deletions.delete_key("s", "k", Deletion(1, 2**41))
    with pytest.raises(KeyDeletedError, match="config key 'k' of store 's'"):
        await bench.repo.releases.publish("s", 1, DAY_MS, BY)
    assert (await bench.repo.releases.get("s", 1)).state is ReleaseState.STAGED
    await bench.repo.deletions.delete_key("s", "k", Deletion(1, 0))
    while await bench.repo.deletions.purge_rows("s", "k"):
        pass
    await bench.repo.deletions.drop_key("s", "k")
    assert [row.key for row in await rows_of(bench, 1)] == ["k2"]
    with pytest.raises(ConditionFailedError, match="key 'k' was purged since it was staged"):
        await bench.repo.releases.publish("s", 1, DAY_MS, BY)
    await bench.repo.deletions.delete_store("s", Deletion(1, 0))
    with pytest.raises(StoreDeletedError):
        await bench.repo.releases.get("s", 1)
    while await bench.repo.deletions.purge_rows("s", None):
        pass
    await bench.repo.deletions.drop_store("s")
    for table in (
        "releases",
        "release_rows",
        "release_keys",
        "release_numbers",
        "release_proofs",
        "release_partitions",
    ):
        assert await bench.ask(f"SELECT count(*) FROM {table}") == [(0,)]
    other = make_repository(bench.address)
    await other.open()
    try:
        await other.stores.create_store(replace(bench.store, history_id="another"))
        assert await other.releases.newest("s", 100, 10) == []
    finally:
        await other.close()
