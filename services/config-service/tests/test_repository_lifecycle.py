"""Stores and keys that are changed, deleted, restored and purged, on each database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from ringcast_config_service.repository import (
    Deletion,
    Repository,
    StoreRecord,
)
from ringcast_config_service.repository.postgres.new_row_predictor import LEAST_ROWS
from ringcast_wire import (
    KeyDeletedError,
    LimitExceededError,
    RingcastError,
    StoreDeletedError,
    UnavailableError,
    UnknownKeyError,
    UnknownStoreError,
    limits,
)

Bench = Any  # of conftest.py

LATER = 4 * 10**12
DELETED = Deletion(1_000_000, LATER)
PURGED = Deletion(1_000_000, 0)
NOW = 2_000_000


async def refused_everywhere(bench: Bench, error: type[RingcastError], match: str, key: str = "k") -> None:
    """Every way in and out."""
    repo = bench.repo
    for read in (
        repo.reader.heads("s", key),
        repo.reader.read_partition("s", key, 0, None),
        repo.reader.read_rows("s", key, ["a"]),
        repo.reader.read_full("s", key),
    ):
        with pytest.raises(error, match=match):
            await read
    with pytest.raises(error, match=match):
        await bench.live(key)
    many: dict[str, str | None] = {f"many{number}": "1" for number in range(LEAST_ROWS * 2)}
    for rows in ({"a": "2"}, {"a": None}, {"new": "1"}, many):
        with pytest.raises(error, match=match):
            await bench.write(rows, key=key)


async def purge(repo: Repository, store: str, key: str | None = None) -> None:
    while await repo.deletions.purge_rows(store, key):
        pass
    await (repo.deletions.drop_store(store) if key is None else repo.deletions.drop_key(store, key))


async def test_a_purge_that_goes_on_late_leaves_the_store_that_was_made_since(bench: Bench) -> None:
    """Also while that one is purged itself: its rows would stay for ever."""
    deletions, first = bench.repo.deletions, bench.store.created_at_ms
    await deletions.delete_store("s", PURGED)
    await purge(bench.repo, "s")
    made = await bench.repo.stores.create_store(replace(bench.store, created_at_ms=first + 1))
    await bench.write({"a": "1"})
    await deletions.delete_store("s", PURGED)
    await deletions.drop_store("s", created_at_ms=first)
    assert [record.created_at_ms for record in await bench.repo.stores.store_records()] == [first + 1]
    assert await bench.ask("SELECT row_id FROM rows") == [("a",)]
    while await deletions.purge_rows("s", None):
        pass
    await deletions.drop_store("s", created_at_ms=made.created_at_ms)
    assert await bench.ask("SELECT name FROM stores") == await bench.ask("SELECT row_id FROM rows") == []


async def test_what_may_change(bench: Bench) -> None:
    assert (await bench.repo.stores.update_store("s", 0)).record.inline_max_bytes == 0
    assert (await bench.repo.stores.get_record("s")).inline_max_bytes == 0
    with pytest.raises(UnknownStoreError):
        await bench.repo.stores.update_store("none", 0)
    await bench.repo.deletions.delete_store("s", DELETED)
    with pytest.raises(StoreDeletedError):
        await bench.repo.stores.update_store("s", 1)


async def test_a_deleted_store_refuses_everything_until_it_is_restored(
    bench: Bench, new_store: Callable[..., StoreRecord]
) -> None:
    await bench.write({"a": "1", "b": "1"})
    before = await bench.repo.reader.heads("s", "k")
    info = await bench.repo.deletions.delete_store("s", DELETED)
    assert (info.record.deletion, info.keys[0].rows) == (DELETED, 2)
    match = "store 's' was deleted at 1970-01-01 00:16:40 UTC, it can be restored until "
    await refused_everywhere(bench, StoreDeletedError, match)
    await refused_everywhere(bench, StoreDeletedError, match, key="never-written")
    for call in (
        bench.repo.stores.create_store(new_store()),
        bench.repo.stores.get_store("s"),
        bench.repo.stores.get_record("s"),
        bench.repo.histories.new_history("s"),
        bench.repo.deletions.delete_key("s", "k", DELETED),
        bench.repo.deletions.restore_key("s", "k", NOW),
    ):
        with pytest.raises(StoreDeletedError, match=match):
            await call
    assert await bench.repo.stores.list_stores() == []
    assert [found.record.name for found in await bench.repo.stores.list_stores(include_deleted=True)] == ["s"]
    assert (await bench.repo.deletions.delete_store("s", Deletion(5, 6))).record.deletion == DELETED, (
        "again: nothing changes"
    )

    assert (await bench.repo.deletions.restore_store("s", NOW)).record.deletion is None
    assert (await bench.repo.deletions.restore_store("s", NOW)).record.deletion is None
    assert await bench.repo.reader.heads("s", "k") == before
    await bench.write({"a": "2", "b": None, "c": "1"})
    assert await bench.live() == {"a": "2", "c": "1"}
    await bench.check_gap_free()


async def test_a_deleted_key_refuses_everything_until_it_is_restored(bench: Bench) -> None:
    await bench.write({"a": "1"})
    await bench.write({"a": "1"}, key="other")
    before = await bench.repo.reader.heads("s", "k")
    assert (
        await bench.repo.deletions.delete_key("s", "k", DELETED)
        == (await bench.repo.stores.get_store("s", include_deleted=True)).keys[0]
    )
    await refused_everywhere(bench, KeyDeletedError, "config key 'k' of store 's' was deleted at 1970-.* until 2096-")
    assert [key.name for key in (await bench.repo.stores.get_store("s")).keys] == ["other"]
    await bench.write({"a": "2"}, key="other")
    outcomes = await bench.group([bench.request({"a": "3"}), bench.request({"a": "3"}, "other")])
    assert isinstance(outcomes[0], KeyDeletedError)
    assert not isinstance(outcomes[1], RingcastError), "a group's other requests are written"
    await bench.repo.deletions.restore_key("s", "k", NOW)
    assert await bench.repo.reader.heads("s", "k") == before
    await bench.write({"a": "2"})
    await bench.check_gap_free()
    for call in (
        bench.repo.deletions.delete_key("s", "none", DELETED),
        bench.repo.deletions.restore_key("s", "none", NOW),
    ):
        with pytest.raises(UnknownKeyError):
            await call


async def test_a_key_that_was_deleted_by_itself_stays_deleted_when_its_store_is_restored(bench: Bench) -> None:
    await bench.write({"a": "1"})
    await bench.write({"a": "1"}, key="other")
    await bench.repo.deletions.delete_key("s", "k", DELETED)
    await bench.repo.deletions.delete_store("s", DELETED)
    await bench.repo.deletions.restore_store("s", NOW)
    await refused_everywhere(bench, KeyDeletedError, "config key 'k'")
    await bench.write({"a": "2"}, key="other")


async def test_too_late_to_restore(bench: Bench) -> None:
    await bench.write({"a": "1"})
    await bench.repo.deletions.delete_key("s", "k", Deletion(1_000, NOW))
    with pytest.raises(KeyDeletedError, match="is being purged"):
        await bench.repo.deletions.restore_key("s", "k", NOW)
    assert (await bench.repo.deletions.expire_deleted(await bench.lead(), NOW - 1)).keys == []
    assert await bench.repo.deletions.purge_rows("s", "k") == 0, "what can be restored is not purged"
    assert (await bench.repo.deletions.expire_deleted(await bench.lead(), NOW)).keys == [("s", "k")]
    with pytest.raises(KeyDeletedError, match="is being purged"):
        await bench.repo.deletions.restore_key("s", "k", 1_500), "also by a clock that is behind"
    await bench.repo.deletions.delete_store("s", Deletion(1_000, NOW))
    await bench.repo.deletions.delete_store("s", Deletion(1_500, 0))
    with pytest.raises(StoreDeletedError, match="deleted at 1970-01-01 00:00:01 UTC and is being purged"):
        await bench.repo.deletions.restore_store("s", 1_500)
    assert (await bench.repo.deletions.expire_deleted(await bench.lead(), 0)).stores == ["s"]


async def test_a_purged_key_leaves_nothing_and_its_name_is_free(bench: Bench) -> None:
    rows: dict[str, str | None] = {f"row{number}": "1" for number in range(6_000)}
    await bench.write(rows)
    await bench.write(dict.fromkeys(list(rows)[:3_000]))
    await bench.write({"a": "1"}, key="k2")
    before = await bench.repo.reader.heads("s", "k")
    await bench.repo.deletions.delete_key("s", "k", Deletion(1, 0))
    await purge(bench.repo, "s", "k")
    assert {subject.split(".")[3] for subject, _ in await bench.events()} == {"k2"}
    with pytest.raises(UnknownKeyError):
        await bench.repo.reader.heads("s", "k")
    assert await bench.repo.deletions.expire_deleted(
        await bench.lead(), LATER
    ) == await bench.repo.deletions.expire_deleted(await bench.lead(), LATER)
    assert (await bench.repo.deletions.expire_deleted(await bench.lead(), LATER)).keys == []
    await bench.write({"row1": "new"})
    after = await bench.repo.reader.heads("s", "k")
    assert (sum(after.heads), after.history != before.history) == (1, True)
    assert await bench.live() == {"row1": "new"}
    await bench.check_gap_free()
    await bench.check_gap_free("k2")


async def test_a_purged_store_leaves_nothing_and_its_name_is_free(
    bench: Bench, new_store: Callable[..., StoreRecord]
) -> None:
    await bench.repo.stores.create_store(new_store("s2"))
    for key in ("k", "other"):
        await bench.write({f"row{number}": "1" for number in range(100)}, key=key)
    await bench.group([bench.request({"a": "1"}, store=new_store("s2"))])
    history = (await bench.repo.stores.get_record("s")).history_id
    await bench.repo.deletions.delete_key("s", "other", DELETED)
    await bench.repo.deletions.delete_store("s", Deletion(1, 0))
    await purge(bench.repo, "s")
    assert {subject.split(".")[2] for subject, _ in await bench.events()} == {"s2"}
    with pytest.raises(UnknownStoreError):
        await bench.repo.stores.get_record("s")
    with pytest.raises(UnknownStoreError):
        await bench.write({"a": "1"})

    again = await bench.repo.stores.create_store(new_store(partition_count=4))
    assert again.history_id != history
    with pytest.raises(UnavailableError, match="was purged and created again just now: try again"):
        await bench.write({"a": "1"})  # as an instance would that has the old settings in memory
    bench.store = again
    await bench.write({"a": "2"})
    assert await bench.live() == {"a": "2"}
    bench.store = new_store()
    with pytest.raises(UnavailableError, match="try again"):
        await bench.write({"a": "1"})  # also once the key is known


async def test_mistyped_keys_don_t_fill_a_store(bench: Bench) -> None:
    for number in range(limits.MAX_KEYS_PER_STORE):
        await bench.write({"a": "1"}, key=f"typo-{number}")
    with pytest.raises(LimitExceededError, match="has 100 config keys"):
        await bench.write({"a": "1"})
    await bench.repo.deletions.delete_key("s", "typo-0", DELETED)
    await bench.write({"a": "1"})
    with pytest.raises(LimitExceededError, match="has 100 config keys, the limit is 100: 'typo-0' can't be added"):
        await bench.repo.deletions.restore_key("s", "typo-0", NOW)


async def test_deleted_things_have_a_limit_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_DELETED_KEYS_PER_STORE", 2)
    monkeypatch.setattr(limits, "MAX_DELETED_STORES", 0)
    for number in range(3):
        await bench.write({"a": "1"}, key=f"k{number}")
    for number in range(2):
        await bench.repo.deletions.delete_key("s", f"k{number}", DELETED)
    with pytest.raises(LimitExceededError, match="2 config keys of store 's' are deleted and not purged yet"):
        await bench.repo.deletions.delete_key("s", "k2", DELETED)
    await bench.repo.deletions.delete_key("s", "k2", Deletion(1, 0))
    with pytest.raises(LimitExceededError, match="0 stores are deleted and not purged yet"):
        await bench.repo.deletions.delete_store("s", DELETED)
    await bench.repo.deletions.delete_store("s", Deletion(1, 0))


@pytest.mark.parametrize("whole_store", [False, True])
async def test_nothing_is_written_once_a_deletion_has_returned(bench: Bench, whole_store: bool) -> None:
    """Two instances write to partitions old and new while a third deletes."""
    others = [await bench.another() for _ in range(2)]
    returned = asyncio.Event()
    late: list[str] = []

    async def write(repo: Repository, name: str) -> None:
        for number in range(10_000):
            after = returned.is_set()
            requests = [bench.request({f"{name}-{number}": "1", f"{name}-{number % 3}": str(number)})]
            (outcome,) = (await repo.writer.write(requests, 1_000)).outcomes
            if isinstance(outcome, StoreDeletedError | KeyDeletedError):
                return
            assert not isinstance(outcome, RingcastError), outcome
            if after:
                late.append(f"{name}-{number}")

    try:
        await bench.write({"a": "1"})
        writers = [asyncio.create_task(write(repo, f"w{number}")) for number, repo in enumerate([*others, bench.repo])]
        while sum((await bench.repo.reader.heads("s", "k")).heads) < 30:
            pass
        await (
            bench.repo.deletions.delete_store("s", DELETED)
            if whole_store
            else bench.repo.deletions.delete_key("s", "k", DELETED)
        )
        returned.set()
        await asyncio.gather(*writers)
        assert late == []
        await (
            bench.repo.deletions.restore_store("s", NOW)
            if whole_store
            else bench.repo.deletions.restore_key("s", "k", NOW)
        )
        await bench.check_gap_free()
        for repo in others:
            (outcome,) = (await repo.writer.write([bench.request({"b": "1"})], 1_000)).outcomes
            assert not isinstance(outcome, RingcastError)
    finally:
        for repo in others:
            await repo.close()


async def test_keys_are_not_created_in_a_store_that_is_being_deleted(bench: Bench) -> None:
    async def write(number: int) -> object:
        (outcome,) = (await bench.repo.writer.write([bench.request({"a": "1"}, key=f"k{number}")], 1_000)).outcomes
        return outcome

    tasks = [asyncio.create_task(write(number)) for number in range(40)]
    await bench.repo.deletions.delete_store("s", DELETED)
    stored = {key.name for key in (await bench.repo.stores.get_store("s", include_deleted=True)).keys}
    outcomes = await asyncio.gather(*tasks)
    written = {f"k{number}" for number, outcome in enumerate(outcomes) if not isinstance(outcome, RingcastError)}
    assert written == stored
    assert all(isinstance(outcome, StoreDeletedError) for outcome in outcomes if isinstance(outcome, RingcastError))


async def test_a_deletion_that_broke_off_is_finished(postgres_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark is stored and the heads are open: any instance closes them the next time it looks."""
    from ringcast_config_service.repository.postgres.deletions import PostgresDeletions

    bench = postgres_bench
    await bench.write({"a": "1"})
    close = PostgresDeletions._close_heads

    async def break_off(_: PostgresDeletions) -> None:
        raise UnavailableError("the connection broke")

    monkeypatch.setattr(PostgresDeletions, "_close_heads", break_off)
    with pytest.raises(UnavailableError):
        await bench.repo.deletions.delete_key("s", "k", DELETED)
    with suppress(KeyDeletedError):  # the deletion has not returned: either is right
        await bench.write({"a": "2"})
    monkeypatch.setattr(PostgresDeletions, "_close_heads", close)
    await bench.repo.deletions.expire_deleted(await bench.lead(), NOW)
    await refused_everywhere(bench, KeyDeletedError, "config key 'k'")


async def test_serializable_writes_are_refused_too(serializable_bench: Bench) -> None:
    """As on CockroachDB."""
    bench = serializable_bench
    await bench.write({"a": "1"})
    await bench.repo.deletions.delete_key("s", "k", DELETED)
    await refused_everywhere(bench, KeyDeletedError, "config key 'k'")
    await bench.repo.deletions.restore_key("s", "k", NOW)
    await bench.write({"a": "2"})
    await bench.repo.deletions.delete_store("s", Deletion(1, 0))
    await purge(bench.repo, "s")
    with pytest.raises(UnknownStoreError):
        await bench.write({"a": "1"})
