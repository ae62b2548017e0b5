"""One worker against a real NATS server and a real config service."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from ringcast import (
    Change,
    InUseError,
    InvalidInputError,
    MismatchError,
    Mode,
    UnavailableError,
    UnknownStoreError,
    Worker,
)
from ringcast_client import RowWrite
from ringcast_testkit import PATIENCE_S

if TYPE_CHECKING:
    from packages.ringcast.tests.conftest import Store


def values(worker: Worker, key: str = "list") -> dict[str, str]:
    return {row.row_id: row.value for row in worker.rows(key)}


async def holds(worker: Worker, expected: dict[str, str], key: str = "list") -> None:
    """Waits until the worker holds exactly these rows."""
    await worker.wait_until(key, lambda: values(worker, key) == expected, timeout_s=PATIENCE_S)


async def test_it_loads_what_is_there_and_hears_every_change(store: Store) -> None:
    await store.create()
    await store.put("a", "1", colour="red")
    await store.put("b", "2")
    heard: list[Change] = []
    async with store.worker(handler=heard.append) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        assert values(worker) == {"a": "1", "b": "2"}
        assert {change.row_id: change.committed_at_ms for change in heard} == {"a": None, "b": None}
        partition, version = await store.put("a", "3", colour="blue")
        await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
        row = worker.get("list", "a")
        assert row is not None
        assert (row.value, row.version, row.metadata) == ("3", version, {"colour": "blue"})
        last = heard[-1]
        assert (last.key, last.partition, last.row_id, last.value, last.deleted) == ("list", partition, "a", "3", False)
        assert last.committed_at_ms is not None
        gone = await store.client.delete(store.name, "list", "a")
        await worker.wait_for("list", gone.partition, gone.version, timeout_s=PATIENCE_S)
        assert worker.get("list", "a") is None
        assert (heard[-1].row_id, heard[-1].deleted, heard[-1].value) == ("a", True, None)
        assert worker.applied("list")[partition] == gone.version
        assert worker.owned("list") == frozenset(range(8))


async def test_a_key_that_nobody_wrote_to_is_empty_until_somebody_does(store: Store) -> None:
    await store.create()
    async with store.worker() as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        assert worker.row_count("list") == 0
        await store.put("first", "x")
        await holds(worker, {"first": "x"})


async def test_values_that_do_not_ride_in_the_event_are_fetched(store: Store) -> None:
    await store.create(inline=0)
    async with store.worker() as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        expected = {f"r{n}": f"v{n}" for n in range(50)}
        for row_id, value in expected.items():
            await store.put(row_id, value)
        await holds(worker, expected)
        assert worker.stats().batch_fetches > 0
        assert worker.stats().gaps == 0


async def test_a_write_too_large_for_one_event_and_one_reply_chunk(store: Store) -> None:
    await store.create(partition_count=1)
    async with store.worker() as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        rows = {f"r{n}": "x" * 3_000 for n in range(900)}
        writes = [RowWrite(row_id, value) for row_id, value in rows.items()]
        async for _ in store.client.bulk_write(store.name, "list", writes):
            pass
        await holds(worker, rows)
    async with store.worker("late") as late:  # 2.7 MB in one partition: several chunks
        await late.wait_ready(timeout_s=PATIENCE_S)
        assert values(late) == rows


async def test_changes_come_as_an_iterator(store: Store) -> None:
    await store.create()
    await store.put("old", "1")
    async with store.worker() as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        seen: list[tuple[str, str | None]] = []
        async for change in worker.changes():
            seen.append((change.row_id, change.value))
            if len(seen) == 1:
                partition, version = await store.put("new", "2")
            elif len(seen) == 2:
                # What the loop is busy with is not applied yet.
                assert worker.applied("list")[partition] < version
                await store.put("last", "3")
            else:
                break
        assert seen == [("old", "1"), ("new", "2"), ("last", "3")]
        await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
        with pytest.raises(RuntimeError, match="only once"):
            await anext(worker.changes())


async def test_handlers_of_different_rows_run_in_parallel_and_of_one_row_in_order(store: Store) -> None:
    await store.create(partition_count=1)
    for n in range(8):
        await store.put(f"r{n}", "0")
    running: set[str] = set()
    most = 0
    together = asyncio.Event()
    seen: dict[str, int] = {}

    async def handler(change: Change) -> None:
        nonlocal most
        assert change.row_id not in running
        assert change.version > seen.get(change.row_id, 0)
        running.add(change.row_id)
        most = max(most, len(running))
        if most > 1:
            together.set()
        await asyncio.wait_for(together.wait(), PATIENCE_S)
        seen[change.row_id] = change.version
        running.discard(change.row_id)

    async with store.worker(handler=handler, max_parallel_handlers=3) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        for n in range(8):
            for value in "123":
                await store.put(f"r{n}", value)
        await worker.wait_until("list", lambda: set(values(worker).values()) == {"3"}, timeout_s=PATIENCE_S)
    assert 1 < most <= 3


async def test_a_handler_that_fails_is_called_again_and_then_the_change_is_dropped(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await store.create()
    calls: list[str] = []

    def handler(change: Change) -> None:
        calls.append(change.row_id)
        if change.row_id == "bad" or (change.row_id == "shaky" and calls.count("shaky") < 3):
            raise ValueError("no")

    with caplog.at_level(logging.WARNING, logger="ringcast"):
        async with store.worker(handler=handler) as worker:
            await worker.wait_ready(timeout_s=PATIENCE_S)
            for row_id in ("shaky", "bad", "good"):
                partition, version = await store.put(row_id, "x")
                await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
            assert (worker.stats().handler_failures, worker.stats().poisoned) == (5, 1)
    assert calls == ["shaky"] * 3 + ["bad"] * 3 + ["good"]
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    fields = vars(record)
    assert (fields["store"], fields["key"], fields["worker_id"]) == (store.name, "list", f"{store.name}-w")
    assert fields["partition"] in range(8)


async def test_callbacks_say_what_was_assigned_and_revoked(store: Store) -> None:
    await store.create()
    told: list[tuple[str, str, frozenset[int]]] = []

    async def on_assigned(key: str, partitions: frozenset[int]) -> None:
        told.append(("assigned", key, partitions))

    def on_revoked(key: str, partitions: frozenset[int]) -> None:
        told.append(("revoked", key, partitions))

    async with store.worker(on_assigned=on_assigned, on_revoked=on_revoked) as first:
        await first.wait_ready(timeout_s=PATIENCE_S)
        async with store.worker("other") as second:
            await first.wait_until("list", lambda: len(first.owned("list")) < 8, timeout_s=PATIENCE_S)
            await second.wait_ready(timeout_s=PATIENCE_S)
            lost = second.owned("list")
            assert first.owned("list") | lost == frozenset(range(8))
            assert not first.owned("list") & lost
        await first.wait_until("list", lambda: len(first.owned("list")) == 8, timeout_s=PATIENCE_S)
        await first.wait_ready(timeout_s=PATIENCE_S)
    every = frozenset(range(8))
    assert told == [
        ("assigned", "list", every),
        ("revoked", "list", lost),
        ("assigned", "list", lost),
        ("revoked", "list", every),
    ]


async def test_several_keys_have_rows_and_revisions_of_their_own(store: Store) -> None:
    await store.create()
    await store.put("x", "1", "one")
    await store.put("x", "2", "two")
    async with store.worker(keys=("one", "two")) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        assert values(worker, "one") == {"x": "1"}
        assert values(worker, "two") == {"x": "2"}
        with pytest.raises(InvalidInputError, match="three"):
            worker.owned("three")


async def test_full_mode_gives_every_worker_every_row(store: Store) -> None:
    await store.create(mode=Mode.FULL)
    for n in range(20):
        await store.put(f"r{n}", "old")
    async with store.worker("a", mode="FULL") as first, store.worker("b") as second:
        for worker in (first, second):
            await worker.wait_ready(timeout_s=PATIENCE_S)
            assert worker.owned("list") == frozenset(range(8))
            assert values(worker) == {f"r{n}": "old" for n in range(20)}
            assert worker.stats().fetches == 1
        await store.put("r0", "new")
        for worker in (first, second):
            await holds(worker, {f"r{n}": "new" if n == 0 else "old" for n in range(20)})


@pytest.mark.parametrize(
    ("wanted", "words"),
    [({"mode": Mode.FULL}, ("PARTITIONED", "FULL")), ({"partition_count": 16}, ("8", "16"))],
)
async def test_a_mismatch_is_refused_and_names_both_values(
    store: Store, wanted: dict[str, Any], words: tuple[str, str]
) -> None:
    await store.create()
    with pytest.raises(MismatchError) as caught:
        async with store.worker(**wanted):
            pytest.fail("it started")
    assert all(word in str(caught.value) for word in words)
    assert caught.value.field == next(iter(wanted))


async def test_an_unknown_store_is_refused(store: Store) -> None:
    with pytest.raises(UnknownStoreError, match=store.name):
        async with store.worker():
            pytest.fail("it started")


async def test_a_server_that_is_down_is_one_clear_error(store: Store, unused_tcp_port: int) -> None:
    url = f"nats://127.0.0.1:{unused_tcp_port}"
    with pytest.raises(UnavailableError, match=f"{url} did not answer within 0.5 s"):
        async with store.worker(servers=url, connect_timeout_s=0.5):
            pytest.fail("it started")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"keys": []}, "at least one"),
        ({"keys": ["a", "a"]}, "once"),
        ({"keys": ["a b"]}, "key 'a b' is not a valid name"),
        ({"partition_count": 0}, "1 to 4096"),
        ({"window_s": -1}, "window_s -1"),
        ({"max_parallel_handlers": 0}, "max_parallel_handlers 0"),
        ({"mode": "HALF"}, "HALF"),
        ({"worker_id": "a.b"}, "worker_id 'a.b'"),
        ({"store": "x" * 65}, "1 to 64 characters"),
        ({"servers": []}, "servers"),
        ({"jetstream_api": "$JS.>"}, "jetstream_api '$JS.>' is not a subject"),
        ({"user": "u"}, "user is given without password"),
    ],
)
def test_a_bad_setting_is_refused_by_the_constructor(settings: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Worker(**{"store": "s", "keys": ["k"], **settings})  # type: ignore[arg-type]
    assert words in str(caught.value)


async def test_waiting_too_long_says_what_for(store: Store) -> None:
    await store.create()
    async with store.worker() as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        with pytest.raises(TimeoutError, match=r"revision 5 of partition 3 of list was not applied within 0\.01 s"):
            await worker.wait_for("list", 3, 5, timeout_s=0.01)
        with pytest.raises(InvalidInputError, match="partition 8 is out of range"):
            await worker.wait_for("list", 8, 5)


async def test_a_worker_id_can_be_used_once_in_a_store(store: Store) -> None:
    await store.create()
    async with store.worker():
        with pytest.raises(InUseError, match=f"{store.name}-w"):
            async with store.worker():
                pytest.fail("it started")


async def test_stopping_leaves_no_task_and_is_repeatable(store: Store) -> None:
    await store.create()
    before = asyncio.all_tasks()
    worker = store.worker()
    await worker.start()
    await worker.stop()
    await worker.stop()
    await worker.wait_closed()
    assert asyncio.all_tasks() == before
    with pytest.raises(RuntimeError, match="only once"):
        await worker.start()


async def test_cancelling_the_start_leaves_no_task(store: Store) -> None:
    await store.create()
    before = asyncio.all_tasks()
    for wait in (0.0, 0.01, 0.03):
        starting = asyncio.create_task(store.worker().start())
        await asyncio.wait({starting}, timeout=wait)
        starting.cancel()
        await asyncio.wait({starting})
        assert asyncio.all_tasks() == before
    async with store.worker() as worker:  # and nothing stands in the way of another start
        await worker.wait_ready(timeout_s=PATIENCE_S)


async def test_what_is_asked_for_while_it_ends_is_not_begun(store: Store) -> None:
    await store.create()
    begun, started = False, asyncio.Event()
    worker = store.worker()
    await worker.start()
    runtime = worker._life.runtime
    assert runtime is not None
    assert runtime.joined is not None
    tasks = runtime.joined.tasks

    async def for_ever() -> None:
        nonlocal begun
        begun = True
        await asyncio.Event().wait()

    async def asks_at_its_end() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            tasks.spawn(for_ever())

    tasks.spawn(asks_at_its_end())
    await started.wait()
    async with asyncio.timeout(PATIENCE_S):
        await worker.stop()
    assert not begun


async def test_a_stopping_worker_waits_for_its_handler(store: Store) -> None:
    await store.create()
    await store.put("a", "1")
    begun, finished = asyncio.Event(), False

    async def handler(change: Change) -> None:
        nonlocal finished
        begun.set()
        for _ in range(100):
            await asyncio.sleep(0)
        finished = True

    async with store.worker(handler=handler):
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
    assert finished


async def test_a_handler_that_hangs_does_not_keep_the_worker_from_stopping(store: Store) -> None:
    await store.create()
    await store.put("a", "1")
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(change: Change) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with store.worker(handler=handler, drain_timeout_s=0.05):
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
    assert cancelled.is_set()
