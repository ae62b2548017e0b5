"""What every store promises, over each backend with a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from ringcast_meta import Change, Entry, LocalCache, MetadataStore, Progress, Snapshot, StoreOptions, Watch, limits
from ringcast_testkit import PATIENCE_S, until
from ringcast_wire import (
    ConditionFailedError,
    InvalidInputError,
    LimitExceededError,
    OutcomeUnknownError,
    UnavailableError,
)


async def snapshot(watch: Watch) -> Snapshot:
    """The next snapshot."""
    async with asyncio.timeout(PATIENCE_S):
        async for event in watch:
            if isinstance(event, Snapshot):
                return event
    raise AssertionError("a watch has no end")


async def changes(watch: Watch, count: int) -> list[Change]:
    """The next changes; a snapshot between them fails the test."""
    found: list[Change] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            event = await anext(watch)
            assert not isinstance(event, Snapshot)
            if isinstance(event, Change):
                found.append(event)
    return found


async def progress(watch: Watch, since_s: float) -> Progress:
    """The next sign of life that was asked for after a time."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            event = await anext(watch)
            if isinstance(event, Progress) and event.asked_at_s >= since_s:
                return event


async def increment(store: MetadataStore, times: int) -> None:
    """Adds one to the entry ``counter`` so often."""
    for _ in range(times):
        while True:
            entry = await store.get("counter")
            assert entry is not None
            try:
                await store.put("counter", str(int(entry.value) + 1).encode(), last=entry.revision)
                break
            except ConditionFailedError:
                continue


# ---- writes


async def test_compare_and_set(bench: Any) -> None:
    store = await bench.store()
    assert await store.get("a.b") is None

    first = await store.create("a.b", b"1")
    assert await store.get("a.b") == ("a.b", b"1", first, False)
    with pytest.raises(ConditionFailedError, match=f"key 'a.b' is at revision {first}, and none was expected") as lost:
        await store.create("a.b", b"2")
    assert lost.value.found_version == first
    second = await store.put("a.b", b"", last=first)
    assert second > first
    with pytest.raises(ConditionFailedError, match=f"revision {second}, and revision {first} was expected"):
        await store.put("a.b", b"3", last=first)
    with pytest.raises(ConditionFailedError) as lost:
        await store.delete("a.b", last=first)
    assert lost.value.found_version == second
    gone = await store.delete("a.b", last=second)
    assert gone > second
    assert await store.get("a.b") is None
    with pytest.raises(ConditionFailedError, match=r"key 'a\.b' has no entry") as lost:
        await store.put("a.b", b"3", last=second)
    assert lost.value.found_version == 0
    with pytest.raises(ConditionFailedError):
        await store.delete("a.b", last=gone)
    assert await store.create("a.b", b"4") > gone


async def test_of_several_that_create_one_succeeds(bench: Any) -> None:
    stores = [await bench.store() for _ in range(6)]
    for round_ in range(5):
        key = f"leader.{round_}"
        found = await asyncio.gather(
            *(store.create(key, str(n).encode()) for n, store in enumerate(stores)), return_exceptions=True
        )
        winners = [(n, revision) for n, revision in enumerate(found) if isinstance(revision, int)]
        assert len(winners) == 1
        ((winner, revision),) = winners
        losers = [error for error in found if isinstance(error, ConditionFailedError)]
        assert [error.found_version for error in losers] == [revision] * (len(stores) - 1)
        assert await stores[0].get(key) == (key, str(winner).encode(), revision, False)


async def test_no_update_is_lost_in_a_race(bench: Any) -> None:
    stores = [await bench.store() for _ in range(4)]
    await stores[0].create("counter", b"0")
    await asyncio.gather(*(increment(store, 10) for store in stores))
    entry = await stores[0].get("counter")
    assert entry is not None
    assert entry.value == b"40"


# ---- reads


async def test_what_is_below_a_prefix_is_read_once(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await bench.store()
    assert await store.read() == []
    keys = [f"n.{number:04}" for number in range(150)]
    for first in range(0, len(keys), 50):
        await asyncio.gather(*(store.create(key, key.encode()) for key in keys[first : first + 50]))
    await store.create("na.x", b"not below n.")
    gone = await store.get("n.0003")
    assert gone is not None
    await store.delete("n.0003", last=gone.revision)
    async with store.lease(10) as lease:
        revision = await store.create("n.9999", b"", lease=lease)
        found = await store.read("n.")
        assert [entry.key for entry in found] == [key for key in keys if key != "n.0003"] + ["n.9999"]
        assert found[0] == await store.get("n.0000")
        assert found[-1] == ("n.9999", b"", revision, True)
    assert [entry.key for entry in (await store.read())[-2:]] == ["n.0149", "na.x"]
    with pytest.raises(InvalidInputError, match="prefix 'n' is not valid"):
        await store.read("n")
    monkeypatch.setattr("ringcast_meta._limits.MAX_ENTRIES", 148)
    with pytest.raises(LimitExceededError, match=r"prefix 'n\.' has \d+ entries: a watch takes 148"):
        await store.read("n.")


# ---- watches


async def test_a_watch_begins_with_a_snapshot_and_goes_on_with_changes(bench: Any) -> None:
    store = await bench.store()
    first = await store.create("a.x", b"1")
    await store.create("ab.x", b"not below a.")
    deleted = await store.create("a.gone", b"")
    await store.delete("a.gone", last=deleted)
    async with store.watch("a.") as watch:
        begin = await snapshot(watch)
        assert begin.entries == (("a.x", b"1", first, False),)
        second = await store.put("a.x", b"2", last=first)
        await store.create("b.y", b"elsewhere")
        third = await store.create("a.y.z", b"3")
        gone = await store.delete("a.x", last=second)
        assert await changes(watch, 3) == [
            Change("a.x", ("a.x", b"2", second, False), second),  # type: ignore[arg-type]
            Change("a.y.z", ("a.y.z", b"3", third, False), third),  # type: ignore[arg-type]
            Change("a.x", None, gone),
        ]
        other = await store.create("b.z", b"")
        sign = await progress(watch, asyncio.get_running_loop().time())
        assert sign.revision >= other
    async with store.watch() as everything:
        assert [entry.key for entry in (await snapshot(everything)).entries] == ["a.y.z", "ab.x", "b.y", "b.z"]


async def test_many_entries_come_in_one_snapshot(bench: Any) -> None:
    store = await bench.store()
    keys = [f"n.{number:04}" for number in range(200)]
    for first in range(0, len(keys), 50):
        await asyncio.gather(*(store.create(key, key.encode()) for key in keys[first : first + 50]))
    async with store.watch("n.") as watch:
        assert [entry.key for entry in (await snapshot(watch)).entries] == keys


async def test_a_reader_that_is_too_slow_gets_a_snapshot(bench: Any) -> None:
    store = await bench.store(StoreOptions(max_queued_changes=4))
    async with store.watch("a.") as watch, LocalCache(await bench.store(), "a.") as cache:
        assert (await snapshot(watch)).entries == ()
        for number in range(12):
            revision = await store.create(f"a.{number:02}", b"")
        await cache.wait_for(revision, PATIENCE_S)
        # Nothing tells of what waits for a reader: let the watch have had the time to take it.
        outlet = watch._outlet
        assert outlet is not None
        await until(outlet.overflowed.is_set)
        assert len((await snapshot(watch)).entries) == 12
        await store.create("a.more", b"")
        assert [change.key for change in await changes(watch, 1)] == ["a.more"]


# ---- faults


async def test_a_server_that_hangs(bench: Any) -> None:
    store = await bench.quick()
    async with LocalCache(store, "a.", fresh_within_s=1.0) as cache:
        revision = await store.create("a.x", b"1")
        await cache.wait_for(revision, PATIENCE_S)
        await until(lambda: cache.fresh)
        bench.pause()
        await until(lambda: not cache.fresh)
        loop = asyncio.get_running_loop()
        stale_s, at_s = cache.stale_s, loop.time()
        with pytest.raises(UnavailableError) as read:
            await store.get("a.x")
        assert not isinstance(read.value, OutcomeUnknownError)
        with pytest.raises(UnavailableError):
            await store.put("a.x", b"2", last=revision)
        assert cache.get("a.x") == ("a.x", b"1", revision, False)
        assert cache.stale_s - stale_s >= loop.time() - at_s - 0.01
        bench.resume()
        await until(lambda: cache.fresh)
        entry = await store.get("a.x")
        assert entry is not None
        await cache.wait_for(entry.revision, PATIENCE_S)
        assert cache.get("a.x") == entry


async def test_a_write_without_an_answer_says_so(bench: Any) -> None:
    store = await bench.store(StoreOptions(call_timeout_s=2.0))
    await store.get("a.x")
    bench.pause()
    with pytest.raises(OutcomeUnknownError):
        await store.create("a.x", b"")
    bench.resume()


@pytest.mark.parametrize("fault", ["cut", "silence"])
async def test_a_network_that_fails(bench: Any, fault: str) -> None:
    store, near = await bench.quick(), await bench.quick(near=True)
    kept = await store.create("a.kept", b"1")
    gone = await store.create("a.gone", b"1")
    async with LocalCache(store, "a.", fresh_within_s=1.0) as cache:
        await cache.wait_for(gone, PATIENCE_S)
        getattr(bench, fault)()
        if bench.has_network:
            await near.put("a.kept", b"2", last=kept)
            await near.delete("a.gone", last=gone)
            await near.create("a.new", b"1")
        await until(lambda: not cache.fresh)
        assert set(cache.entries()) == {"a.kept", "a.gone"}
        bench.mend()
        if not bench.has_network:
            await near.put("a.kept", b"2", last=kept)
            await near.delete("a.gone", last=gone)
            await near.create("a.new", b"1")
        await until(lambda: cache.fresh and set(cache.entries()) == {"a.kept", "a.new"})
        assert cache.entries()["a.kept"].value == b"2"


async def test_a_server_that_restarts(bench: Any) -> None:
    store = await bench.store()
    revision = await store.create("a.x", b"1")
    async with store.watch("a.") as watch:
        await snapshot(watch)
        await asyncio.to_thread(bench.restart)
        assert [entry.key for entry in (await snapshot(watch)).entries] == ["a.x"]
        await store.put("a.x", b"2", last=revision)
        assert [change.key for change in await changes(watch, 1)] == ["a.x"]


async def test_a_cache_before_its_first_snapshot(bench: Any) -> None:
    store = await bench.quick()
    await store.get("a.x")
    bench.pause()
    async with LocalCache(store, "a.") as cache:
        assert not cache.complete
        assert not cache.fresh
        with pytest.raises(UnavailableError, match=r"the cache of 'a\.' has had no snapshot yet"):
            cache.get("a.x")
        with pytest.raises(UnavailableError, match=r"has not reached revision 1 after 0\.2 s"):
            await cache.wait_for(1, 0.2)
        bench.resume()
        await cache.wait_complete(PATIENCE_S)
        with pytest.raises(InvalidInputError, match=r"key 'b\.x' is not below the prefix 'a\.'"):
            cache.get("b.x")


async def test_a_cache_reaches_a_revision_elsewhere(bench: Any) -> None:
    store = await bench.store()
    async with LocalCache(store, "a.") as cache:
        revision = await store.create("b.x", b"")
        await cache.wait_for(revision, PATIENCE_S)
        assert cache.entries() == {}


# ---- leases


async def test_the_entries_of_a_lease_go_with_it(bench: Any) -> None:
    store, other = await bench.store(), await bench.store()
    async with LocalCache(other, "a.") as cache:
        async with store.lease(30) as lease:
            revision = await store.create("a.leased", b"1", lease=lease)
            await store.create("a.kept", b"")
            await cache.wait_until(lambda: "a.leased" in cache.entries(), PATIENCE_S)
            assert cache.get("a.leased") == ("a.leased", b"1", revision, True)
            assert 0 < lease.remaining_s <= 30
        assert lease.remaining_s == 0
        assert await other.get("a.leased") is None
        await cache.wait_until(lambda: set(cache.entries()) == {"a.kept"}, PATIENCE_S)
        with pytest.raises(UnavailableError, match="has ended"):
            await store.create("a.more", b"", lease=lease)


async def test_a_change_that_comes_before_the_answer_of_a_check_is_no_lost_history(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await bench.store()
    asked, heard = asyncio.Event(), asyncio.Event()

    async def late(answer: Awaitable[Any]) -> Any:
        found = await answer
        asked.set()
        await heard.wait()
        return found

    async with store.watch("a.") as watch:
        await snapshot(watch)
        bench.delay_checks(monkeypatch, late)
        async with asyncio.timeout(PATIENCE_S):
            await asked.wait()
        revision = await store.create("a.x", b"1")
        await changes(watch, 1)
        heard.set()
        async with asyncio.timeout(PATIENCE_S):
            event = await anext(watch)
    assert isinstance(event, Progress)
    assert event.revision == revision


async def test_a_refresh_is_no_change(bench: Any) -> None:
    store = await bench.store()
    async with store.watch("a.") as watch, store.lease(2) as lease:
        await snapshot(watch)
        revision = await store.create("a.x", b"1", lease=lease)
        await changes(watch, 1)
        asked_at_s = asyncio.get_running_loop().time()
        await until(lambda: asyncio.get_running_loop().time() > asked_at_s + 3)
        entry = await store.get("a.x")
        assert entry == ("a.x", b"1", revision, True)
        second = await store.put("a.x", b"2", last=revision, lease=lease)
        (change,) = await changes(watch, 1)
        assert change.revision == second
        # Written over without the lease: it stays.
        third = await store.put("a.x", b"3", last=second)
    assert await store.get("a.x") == ("a.x", b"3", third, False)


async def test_the_lease_of_a_holder_that_is_gone_ends(bench: Any) -> None:
    holder, near = await bench.quick(), await bench.quick(near=True)
    async with LocalCache(near, "a.") as cache, holder.lease(5) as lease:
        await holder.create("a.x", b"", lease=lease)
        await cache.wait_until(lambda: "a.x" in cache.entries(), PATIENCE_S)
        bench.cut()
        async with asyncio.timeout(PATIENCE_S):
            await lease.wait_lost()
        assert lease.remaining_s == 0
        if not bench.has_network:
            bench.mend()
        # The holder knows before anybody else: nobody took the entry away while `remaining_s` was above 0.
        await cache.wait_until(lambda: "a.x" not in cache.entries(), PATIENCE_S)
        assert await near.get("a.x") is None
        await near.create("a.x", b"the next one's")
        bench.mend()


async def test_an_end_of_a_lease_that_a_watch_is_not_told(bench: Any) -> None:
    holder, store = await bench.quick(), await bench.quick()
    async with LocalCache(store, "a.", fresh_within_s=1.0) as cache, holder.lease(5) as lease:
        await store.create("a.kept", b"")
        await holder.create("a.x", b"", lease=lease)
        await cache.wait_until(lambda: set(cache.entries()) == {"a.kept", "a.x"}, PATIENCE_S)
        bench.cut()
        async with asyncio.timeout(PATIENCE_S):
            await lease.wait_lost()
        await until(lambda: not cache.fresh)
        assert set(cache.entries()) == {"a.kept", "a.x"}
        bench.mend()
        await cache.wait_until(lambda: set(cache.entries()) == {"a.kept"}, PATIENCE_S)


async def test_a_lease_outlives_a_restart_of_its_server(bench: Any) -> None:
    holder, store = await bench.quick(), await bench.quick()
    async with LocalCache(store, "a.") as cache, holder.lease(20) as lease:
        revision = await holder.create("a.x", b"1", lease=lease)
        await cache.wait_for(revision, PATIENCE_S)
        await asyncio.to_thread(bench.restart)
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + lease.remaining_s
        # Its end stays where it is, until it is refreshed at the server that is back: then it is a third of 20 s later.
        await until(lambda: loop.time() + lease.remaining_s > ends_s + 1)
        await until(lambda: cache.fresh)
        assert cache.get("a.x") == ("a.x", b"1", revision, True)
        # It still ends what belongs to it.
    assert await _read(store, "a.x") is None


async def _read(store: MetadataStore, key: str) -> Entry | None:
    """What stands there, once the server answers."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await store.get(key)
            except UnavailableError:
                await asyncio.sleep(0.05)


async def test_a_lease_that_another_ends_is_only_of_its_own_entries(bench: Any) -> None:
    store, other = await bench.store(), await bench.store()
    async with store.lease(2) as lease:
        revision = await store.create("a.x", b"mine", lease=lease)
        await other.delete("a.x", last=revision)
        theirs = await other.create("a.x", b"theirs")
        begin_s = asyncio.get_running_loop().time()
        await until(lambda: asyncio.get_running_loop().time() > begin_s + 2.5)
        assert lease.remaining_s > 0
    assert await other.get("a.x") == ("a.x", b"theirs", theirs, False)


# ---- limits


@pytest.mark.parametrize("key", ["", ".", "a.", ".a", "a..b", "a b", "a/b", "ä", "a*", "a.>", "x" * 257, 7, None])
async def test_a_key_that_is_none(bench: Any, key: Any) -> None:
    store = await bench.store()
    for call in (store.get(key), store.create(key, b""), store.put(key, b"", last=1), store.delete(key, last=1)):
        with pytest.raises(InvalidInputError, match=r"key .* is not valid: 1 to 256 characters are allowed"):
            await call


async def test_other_inputs_that_are_refused(bench: Any) -> None:
    store = await bench.store()
    await store.create("k" * limits.MAX_KEY_CHARS, b"v" * limits.MAX_VALUE_BYTES)
    with pytest.raises(LimitExceededError, match="value has 524289 bytes: 524288 are allowed"):
        await store.create("a", b"v" * (limits.MAX_VALUE_BYTES + 1))
    with pytest.raises(InvalidInputError, match="value 'text' is not bytes"):
        await store.create("a", "text")
    for last in (0, -1, True, "1"):
        with pytest.raises(InvalidInputError, match=r"last .* is not the revision of an entry"):
            await store.put("a", b"", last=last)
    for prefix in ("a", ".", "a..", "a.>", 7):
        with pytest.raises(InvalidInputError, match=r"prefix .* is not valid"):
            store.watch(prefix)
    for ttl_s in (1, 601, 2.5, True):
        with pytest.raises(InvalidInputError, match=r"ttl_s .* is out of range: whole seconds from 2 to 600"):
            store.lease(ttl_s)


async def test_how_many_watches_and_leases(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringcast_meta._limits.MAX_WATCHES", 2)
    monkeypatch.setattr("ringcast_meta._limits.MAX_LEASES", 2)
    monkeypatch.setattr("ringcast_meta._lease.MAX_LEASED_ENTRIES", 2)
    store = await bench.store()
    async with store.watch(), store.watch():
        with pytest.raises(LimitExceededError, match="3 watches: 2 are allowed"):
            async with store.watch():
                pass
    async with store.watch() as watch:
        await snapshot(watch)
    async with store.lease(2), store.lease(2) as lease:
        with pytest.raises(LimitExceededError, match="3 leases: 2 are allowed"):
            async with store.lease(2):
                pass
        await store.create("a", b"", lease=lease)
        await store.create("b", b"", lease=lease)
        with pytest.raises(LimitExceededError, match="lease has 3 entries: 2 are allowed"):
            await store.create("c", b"", lease=lease)
    assert await store.get("c") is None


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [("MAX_ENTRIES", "3 entries: a watch takes 2"), ("MAX_SNAPSHOT_BYTES", "bytes or more: a watch takes 2")],
)
async def test_a_prefix_with_more_than_a_watch_takes(
    bench: Any, monkeypatch: pytest.MonkeyPatch, limit: str, sentence: str
) -> None:
    store = await bench.store()
    for key in ("a.x", "a.y", "a.z"):
        await store.create(key, b"value")
    monkeypatch.setattr(f"ringcast_meta._limits.{limit}", 2)
    async with LocalCache(store, "a.") as cache:
        with pytest.raises(LimitExceededError, match=sentence):
            await cache.wait_complete(PATIENCE_S)
        assert not cache.complete
