"""The store for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from ringcast_groupstore import (
    EventKind,
    InputError,
    Quota,
    QuotaExceededError,
    StoreBusyError,
    StoreClosedError,
    StoreError,
    Transaction,
    aio,
)
from ringcast_groupstore import GroupStore as SyncStore

Clock = Any  # of conftest.py


@pytest.fixture
async def store(path: Path, clock: Clock) -> AsyncIterator[aio.GroupStore]:
    async with aio.GroupStore(path, clock=clock, durable=False, purge_interval_s=None) as store:
        yield store


async def test_every_verb(store: aio.GroupStore, clock: Clock) -> None:
    assert await store.set("g", "a", "1") == 1
    assert await store.set_many("g", {"b": "x y", "c": b"3"}, ttl_ms=10) == 3
    assert await store.create("g", "a", "2") is None
    assert await store.compare_and_set("g", "a", "2", revision=1) == 4
    assert await store.get("g", "none", "default") == "default"
    assert await store.get("g", "a") == await store.require("g", "a") == "2"
    entry = await store.entry("g", "a")
    assert entry is not None
    assert entry.revision == 4
    assert await store.contains("g", "c")
    assert await store.get_many("g", iter(["a", "none"])) == {"a": "2"}
    assert await store.get_all("g") == {"a": "2", "b": "x y", "c": b"3"}
    assert [item async for item in store.items("g")] == [("a", "2"), ("b", "x y"), ("c", b"3")]
    assert [key async for key in store.keys("g")] == ["a", "b", "c"]
    assert [found.key async for found in store.entries()] == ["a", "b", "c"]
    assert [group async for group in store.groups()] == ["g"]
    assert await store.count("g") == await store.count_all("g") == 3
    assert list(await store.get_split("g", "b", " ")) == list(await store.get_fields("g", "b")) == ["x", "y"]
    assert await store.render("{{ a }}-{{ b }}", "g") == "2-x y"
    clock.advance(10)
    assert await store.purge_expired() == 2
    assert await store.delete("g", "a")
    assert await store.delete_many("g", ["a", "b"]) == 0
    assert await store.delete_group("g") == 0
    assert await store.revision() == 5
    assert [event.kind for event in await store.changes(3)] == [EventKind.SET, EventKind.DELETE]
    assert await store.check() == []


async def test_many_pages(store: aio.GroupStore) -> None:
    await store.set_many("g", {f"{number:05}": "v" for number in range(2_500)})
    assert len([item async for item in store.items("g")]) == 2_500


async def test_calls_at_once(store: aio.GroupStore) -> None:
    await asyncio.gather(*(store.set("g", str(number), "v") for number in range(200)))
    assert await store.count("g") == 200
    assert await store.revision() == 200
    found = await asyncio.gather(*(store.get("g", str(number)) for number in range(200)))
    assert found == ["v"] * 200


async def test_transactions(store: aio.GroupStore) -> None:
    def both(tx: Transaction) -> int:
        tx.set("g", "a", "1")
        return tx.set("g", "b", "2")

    assert await store.transact(both) == 2

    def fails(tx: Transaction) -> None:
        tx.set("g", "c", "3")
        raise LookupError("no")

    with pytest.raises(LookupError):
        await store.transact(fails)
    assert await store.get_all("g") == {"a": "1", "b": "2"}


async def test_namespaces(store: aio.GroupStore) -> None:
    tenant = store.namespace("tenant-1", quota=Quota(max_keys=2))
    async with await tenant.watch() as watch:
        await tenant.set("g", "a", "1")
        await store.set("g", "a", "not the tenant's")
        await tenant.transact(lambda namespace: namespace.set("g", "b", "2"))
        with pytest.raises(QuotaExceededError):
            await tenant.set("g", "c", "3")
        events = [await watch.next(5), await watch.next(5)]
        assert [(event.group, event.key) for event in events if event] == [("g", "a"), ("g", "b")]
        assert await watch.next(0.001) is None
    assert tenant.name == "tenant-1"
    assert await tenant.get_all("g") == {"a": "1", "b": "2"}
    assert await store.get_all("tenant-1:g") == {"a": "1", "b": "2"}
    assert await tenant.purge_expired() == 0


async def test_a_snapshot_does_not_change(store: aio.GroupStore) -> None:
    await store.set("g", "a", "1")
    async with store.snapshot() as view:
        await store.set("g", "a", "2")
        assert await view.get("g", "a") == "1"
        reads = await asyncio.gather(*(view.count("g") for _ in range(20)))
        assert reads == [1] * 20
        assert await store.get("g", "a") == "2"
    with pytest.raises(StoreError, match="the snapshot has ended"):
        await view.get("g", "a")


async def test_a_watch_waits_for_what_comes(store: aio.GroupStore) -> None:
    watch = await store.watch("g", capacity=8)
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def read() -> None:
        async for event in watch:
            seen.put_nowait(event.key)

    reading = asyncio.create_task(read())
    for key in "abc":
        await store.set("g", key, "v")
        await store.set("other", key, "v")
    assert [await seen.get() for _ in range(3)] == ["a", "b", "c"]
    await watch.close()
    await reading
    assert seen.empty()
    assert watch.dropped == 0


async def test_a_watch_resumes(store: aio.GroupStore, path: Path) -> None:
    await store.set("g", "a", "1")
    await store.set("g", "b", "1")
    async with await store.watch(since=1, poll_s=0.01) as watch:
        event = await watch.next(5)
        assert event is not None
        assert (event.revision, event.key) == (2, "b")
        assert await watch.next(0.005) is None
        with SyncStore(path) as other:  # as another process would
            other.set("g", "c", "1")
        event = await watch.next(5)
        assert event is not None
        assert (event.revision, event.key) == (3, "c")


async def test_an_event_is_not_lost_with_a_wait_that_times_out(store: aio.GroupStore) -> None:
    async with await store.watch(since=0, poll_s=0.001) as watch:
        got: list[int] = []

        async def write() -> None:
            for number in range(100):
                await store.set("g", str(number), "v")

        writing = asyncio.create_task(write())
        while len(got) < 100:
            event = await watch.next(0.0001)
            if event is not None:
                got.append(event.revision)
        await writing
    assert got == list(range(1, 101))


async def test_closing_ends_watches(path: Path) -> None:
    store = aio.GroupStore(path)
    await store.open()
    watches = [await store.watch(), await store.watch(since=0)]
    waiting = [asyncio.create_task(watch.next()) for watch in watches]
    await asyncio.sleep(0)
    await store.close()
    await store.close()
    assert await asyncio.gather(*waiting) == [None, None]
    for call in (store.get("g", "k"), store.set("g", "k", "v"), store.open()):
        with pytest.raises(StoreError):
            await call
    with pytest.raises(StoreClosedError):
        _ = store.sync


async def test_waiting_calls_are_bounded(path: Path) -> None:
    async with aio.GroupStore(path, max_waiting=2) as store:
        leave = threading.Event()

        def waits(_: Transaction) -> None:
            assert leave.wait(10)

        held = [asyncio.create_task(store.transact(waits)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(StoreBusyError, match="2 calls wait already"):
            await store.set("g", "k", "v")
        assert await store.get("g", "k") is None, "reads go on"
        leave.set()
        await asyncio.gather(*held)
        await store.set("g", "k", "v")


async def test_a_cancelled_write_may_commit(store: aio.GroupStore) -> None:
    entered, leave = threading.Event(), threading.Event()

    def work(tx: Transaction) -> None:
        tx.set("g", "k", "v")
        entered.set()
        assert leave.wait(10)

    task = asyncio.create_task(store.transact(work))
    await asyncio.to_thread(entered.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    leave.set()
    await store.set("g", "after", "v")
    assert await store.get("g", "k") == "v"


async def test_backup(store: aio.GroupStore, tmp_path: Path) -> None:
    await store.set("g", "k", "v")
    await store.backup(tmp_path / "copy.db")
    async with aio.GroupStore(tmp_path / "copy.db") as copy:
        assert await copy.get("g", "k") == "v"


def test_settings_have_a_range(path: Path) -> None:
    with pytest.raises(InputError, match="must be 1 or more"):
        aio.GroupStore(path, readers=0)


async def test_a_watch_outlives_a_moment_in_which_too_many_reads_wait(path: Path) -> None:
    async with aio.GroupStore(path, readers=1, max_waiting=1) as store:
        await store.set("g", "k", "v")
        async with await store.watch(since=0) as watch:
            go_on, begun = threading.Event(), asyncio.Event()
            loop = asyncio.get_running_loop()

            def occupy() -> None:
                loop.call_soon_threadsafe(begun.set)
                go_on.wait(30)

            busy = asyncio.create_task(store._runner.reads.run(occupy))
            await begun.wait()
            assert await watch.next(0.01) is None
            go_on.set()
            await busy
            for number in range(1, 4):
                event = await watch.next(30)
                assert event is not None
                assert event.revision == number
                await store.set("g", "k", f"v{number}")
