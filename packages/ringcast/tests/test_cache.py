"""The cache on the disk, with a real NATS server and a real config service, or without."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry
from ringcast import Change, InUseError, InvalidInputError, Mode, UnavailableError, Worker
from ringcast._cache import cache, file
from ringcast._cache.cache import Cache
from ringcast._cache.directory import KEPT_QUARANTINED, CachePlace
from ringcast._common.config import WorkerConfig
from ringcast._common.log import worker_log
from ringcast.metrics import PrometheusMetrics
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer, until

if TYPE_CHECKING:
    from packages.ringcast.tests.conftest import Store


def values(worker: Worker) -> dict[str, str]:
    return {row.row_id: row.value for row in worker.rows("list")}


async def fill(store: Store, directory: Path, rows: int = 30) -> dict[str, str]:
    """A store with rows, and a worker's cache with all of them."""
    await store.create()
    expected = {f"r{n}": "old" for n in range(rows)}
    for row_id, value in expected.items():
        await store.put(row_id, value)
    async with store.worker(cache_dir=directory) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
    return expected


@pytest.fixture
def nowhere(unused_tcp_port: int) -> str:
    """Where no NATS is."""
    return f"nats://127.0.0.1:{unused_tcp_port}"


async def test_it_starts_with_nats_down_and_serves_what_the_last_life_had(
    store: Store, tmp_path: Path, nowhere: str
) -> None:
    expected = await fill(store, tmp_path)
    told: list[tuple[str, int]] = []
    heard: list[Change] = []
    worker = store.worker(
        cache_dir=tmp_path,
        servers=nowhere,
        connect_timeout_s=0.1,
        handler=heard.append,
        on_assigned=lambda key, partitions: told.append(("assigned", len(partitions))),
        on_revoked=lambda key, partitions: told.append(("revoked", len(partitions))),
    )
    async with worker:
        await worker.wait_until("list", lambda: len(heard) == len(expected), timeout_s=PATIENCE_S)
        assert values(worker) == {change.row_id: change.value for change in heard} == expected
        assert all(change.stale and change.cached_age_s is not None for change in heard)
        assert told == [("assigned", 8)]
        health = worker.health()
        assert (health.connected, health.lease_held, health.ready) == (False, False, False)
        assert health.keys[0].cached == health.keys[0].owned == 8
        assert 0 < health.staleness_s <= worker.staleness() < 600
        assert health.cache is not None
        assert (health.cache.restored_rows, health.cache.restored_partitions) == (30, 8)
        with pytest.raises(TimeoutError):
            await worker.wait_ready(timeout_s=0.01)
    assert told == [("assigned", 8), ("revoked", 8)]


async def test_what_is_too_old_is_there_and_not_handed_over_before_the_worker_is_registered(
    store: Store, tmp_path: Path, nowhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registration that it had then may be forgotten, so that the store may have got owners meanwhile."""
    expected = await fill(store, tmp_path)
    monkeypatch.setattr(cache, "ALONE_S", -1.0)
    heard: list[Change] = []
    async with store.worker(cache_dir=tmp_path, servers=nowhere, connect_timeout_s=0.1, handler=heard.append) as worker:
        await worker.wait_until("list", lambda: values(worker) == expected, timeout_s=PATIENCE_S)
        assert (worker.owned("list"), heard) == (frozenset(), [])
    async with store.worker(cache_dir=tmp_path, handler=heard.append) as worker:
        await worker.wait_until("list", lambda: len(heard) == len(expected), timeout_s=PATIENCE_S)


async def test_the_file_has_to_say_that_the_store_migrates_before_the_worker_is_guarded(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its next process would hand over what the file has, while another worker owns it."""
    await fill(store, tmp_path)
    config = WorkerConfig(store=store.name, keys=("list",), worker_id=f"{store.name}-w", cache_dir=str(tmp_path))
    failing = True

    def write_identity(identity: file.Identity) -> Callable[[sqlite3.Connection], None]:
        def work(connection: sqlite3.Connection) -> None:
            if failing:
                raise sqlite3.OperationalError("disk I/O error")
            write(identity)(connection)

        return work

    write = file.write_identity
    monkeypatch.setattr(file, "write_identity", write_identity)
    async with Cache.open(config, worker_log(logging.getLogger("ringcast"))) as opened:
        assert opened is not None
        assert opened.identity is not None
        await opened.follow(opened.identity, {})
        opened.remember_migration(True)
        knows = asyncio.create_task(opened.knows_migration())
        await until(lambda cached=opened: cached.write_failures > 1)  # type: ignore[misc]
        assert not knows.done()
        failing = False
        await asyncio.wait_for(knows, PATIENCE_S)
    async with Cache.open(config, worker_log(logging.getLogger("ringcast"))) as opened:
        assert opened is not None
        assert opened.may_have_migrated


async def test_metrics_tell_of_the_cache_before_there_is_a_connection(
    store: Store, tmp_path: Path, nowhere: str
) -> None:
    await fill(store, tmp_path)
    metrics = PrometheusMetrics(CollectorRegistry())
    async with store.worker(cache_dir=tmp_path, servers=nowhere, connect_timeout_s=0.1, metrics=metrics) as worker:
        mine = {"store": store.name, "worker_id": worker.config.worker_id}
        read = metrics.registry.get_sample_value
        assert read("config_cached_partitions", {**mine, "key": "list"}) == 8
        assert read("config_cache_unsaved_partitions", mine) == 0
        assert read("config_cache_write_failures_total", mine) == 0
        assert read("config_cache_quarantined_total", mine) == 0
        assert (read("config_staleness_seconds", mine) or 0) > 0
    assert read("config_cached_partitions", {**mine, "key": "list"}) is None


async def test_without_rows_in_the_cache_a_server_that_is_down_is_an_error(
    store: Store, tmp_path: Path, nowhere: str
) -> None:
    with pytest.raises(UnavailableError, match="did not answer"):
        async with store.worker(cache_dir=tmp_path, servers=nowhere, connect_timeout_s=0.1):
            pytest.fail("it started")


async def test_only_what_has_changed_is_fetched(store: Store, tmp_path: Path) -> None:
    expected = await fill(store, tmp_path)
    await store.put("r0", "new")
    await store.put("more", "new")
    await store.client.delete(store.name, "list", "r1")
    expected |= {"r0": "new", "more": "new"}
    del expected["r1"]
    heard: list[Change] = []
    async with store.worker(cache_dir=tmp_path, handler=heard.append) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        assert values(worker) == expected
        stats = worker.stats()
        assert (stats.fetches, stats.fetches_since) == (8, 8)
        assert worker.staleness() == 0
        assert worker.health().keys[0].cached == 0
    versions: dict[str, int] = {}
    for change in heard:  # they only rise
        assert change.version > versions.get(change.row_id, 0)
        versions[change.row_id] = change.version
    assert [(change.row_id, change.stale) for change in heard[30:]] != []
    assert {(change.row_id, change.deleted) for change in heard if not change.stale} == {
        ("r0", False),
        ("more", False),
        ("r1", True),
    }


async def test_changes_begin_with_the_cached_rows(store: Store, tmp_path: Path, nowhere: str) -> None:
    await fill(store, tmp_path, rows=5)
    async with store.worker(cache_dir=tmp_path, servers=nowhere, connect_timeout_s=0.1) as worker:
        seen = []
        async for change in worker.changes():
            seen.append((change.row_id, change.stale))
            if len(seen) == 5:
                break
        assert sorted(seen) == [(f"r{n}", True) for n in range(5)]


async def test_partitions_that_moved_meanwhile_are_revoked_and_the_others_are_kept(
    store: Store, tmp_path: Path
) -> None:
    expected = await fill(store, tmp_path)
    told: list[tuple[str, frozenset[int]]] = []
    async with store.worker("other") as other:
        await other.wait_ready(timeout_s=PATIENCE_S)
        async with store.worker(
            cache_dir=tmp_path,
            on_assigned=lambda key, partitions: told.append(("assigned", partitions)),
            on_revoked=lambda key, partitions: told.append(("revoked", partitions)),
        ) as worker:
            await worker.wait_ready(timeout_s=PATIENCE_S)
            await other.wait_until("list", lambda: len(other.owned("list")) < 8, timeout_s=PATIENCE_S)
            mine, theirs = worker.owned("list"), other.owned("list")
            assert mine | theirs == frozenset(range(8))
            assert not mine & theirs
            assert worker.stats().fetches == worker.stats().fetches_since == len(mine)
            assert values(worker) == {r: v for r, v in expected.items() if worker.get("list", r) is not None}
            assert told == [("assigned", frozenset(range(8))), ("revoked", theirs)]
    place = CachePlace(tmp_path, store.name, f"{store.name}-w")
    with sqlite3.connect(place.path) as connection:
        assert {n for (n,) in connection.execute("SELECT number FROM partitions")} == mine
        assert {n for (n,) in connection.execute("SELECT DISTINCT number FROM rows")} <= mine
    connection.close()


async def test_full_mode_fetches_what_changed_partition_by_partition(store: Store, tmp_path: Path) -> None:
    await store.create(mode=Mode.FULL)
    await store.put("a", "1")
    async with store.worker(cache_dir=tmp_path) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        assert (worker.stats().fetches, worker.stats().fetches_since) == (1, 0)
    await store.put("b", "2")
    async with store.worker(cache_dir=tmp_path) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        assert (worker.stats().fetches, worker.stats().fetches_since) == (8, 8)
        assert values(worker) == {"a": "1", "b": "2"}


def damage_header(path: Path) -> None:
    path.write_bytes(b"not a database".ljust(5_000, b"x"))


def damage_a_row(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE rows SET row = CAST('x' AS BLOB) WHERE row_id = 'r3'")
    connection.close()


def lose_a_row(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM rows WHERE row_id = 'r3'")
    connection.close()


def damage_a_partition(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE partitions SET state = X'94' WHERE number = (SELECT min(number) FROM rows)")
    connection.close()


def damage_pages(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(4_096 + 8, len(data), 4_096):
        data[at : at + 200] = b"\xff" * 200
    path.write_bytes(data)


def of_another_format(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


@pytest.mark.parametrize(
    "harm", [damage_header, damage_a_row, lose_a_row, damage_a_partition, damage_pages, of_another_format]
)
async def test_a_file_that_is_damaged_is_quarantined(
    store: Store, tmp_path: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    expected = await fill(store, tmp_path)
    place = CachePlace(tmp_path, store.name, f"{store.name}-w")
    harm(place.path)
    heard: list[Change] = []
    with caplog.at_level(logging.ERROR, logger="ringcast"):
        async with store.worker(cache_dir=tmp_path, handler=heard.append) as worker:
            await worker.wait_ready(timeout_s=PATIENCE_S)
            assert values(worker) == expected
            assert not any(change.stale for change in heard)
            cache = worker.health().cache
            assert cache is not None
            assert cache.restored_rows == 0
            assert cache.quarantined_because
    assert len(place.quarantined()) == 1
    (event,) = [event for record in caplog.records if (event := getattr(record, "event", "")).startswith("cache.")]
    assert event == "cache.quarantined"
    async with store.worker(cache_dir=tmp_path) as worker:  # the new file is good
        assert values(worker) == expected
        assert worker.stats().fetches == worker.stats().fetches_since


def test_only_so_many_files_are_kept_in_quarantine(tmp_path: Path) -> None:
    place = CachePlace(tmp_path, "s", "w")
    for number in range(KEPT_QUARANTINED + 2):
        place.path.write_text(str(number))
        place.path.with_name(place.path.name + "-wal").write_text("log")
        place.quarantine()
    assert [path.read_text() for path in place.quarantined()] == ["2", "3", "4"]
    assert len(list(tmp_path.iterdir())) == 2 * KEPT_QUARANTINED


async def test_a_cache_of_another_partition_count_is_quarantined_at_the_start(
    store: Store, tmp_path: Path, nowhere: str
) -> None:
    await fill(store, tmp_path)
    # What was asked for is known before there is a connection.
    worker = store.worker(cache_dir=tmp_path, partition_count=16, servers=nowhere, connect_timeout_s=0.1)
    with pytest.raises(UnavailableError):
        await worker.start()
    assert len(CachePlace(tmp_path, store.name, f"{store.name}-w").quarantined()) == 1


async def test_a_cache_of_a_store_that_was_created_again_is_given_up_on_joining(
    new_store: Callable[[str], Store], store_name: str, tmp_path: Path
) -> None:
    """Same name, other store: the file of the one under the name of the other."""
    old, new = new_store(store_name), new_store(f"{store_name}2")
    await fill(old, tmp_path)
    await new.create(partition_count=4)
    await new.put("only", "this")
    theirs = CachePlace(tmp_path, new.name, f"{new.name}-w").path
    with sqlite3.connect(CachePlace(tmp_path, old.name, f"{old.name}-w").path) as connection:
        (found,) = connection.execute("SELECT value FROM meta WHERE name = 'identity'").fetchone()
        renamed = found.decode().replace(f'"{old.name}', f'"{new.name}').encode()
        connection.execute("UPDATE meta SET value = ? WHERE name = 'identity'", (renamed,))
    connection.close()
    CachePlace(tmp_path, old.name, f"{old.name}-w").path.rename(theirs)
    told: list[tuple[str, int]] = []
    async with new.worker(
        cache_dir=tmp_path,
        on_assigned=lambda key, partitions: told.append(("assigned", len(partitions))),
        on_revoked=lambda key, partitions: told.append(("revoked", len(partitions))),
    ) as worker:
        assert worker.row_count("list") == 30
        await worker.wait_ready(timeout_s=PATIENCE_S)
        assert values(worker) == {"only": "this"}
        assert told == [("assigned", 8), ("revoked", 8), ("assigned", 4)]
        cache = worker.health().cache
        assert cache is not None
        assert cache.quarantined_because == "partition_count is 8 in the cache and 4 in the store"
    async with new.worker(cache_dir=tmp_path) as worker:
        assert values(worker) == {"only": "this"}


async def test_two_workers_can_not_share_a_cache(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(store, tmp_path)
    monkeypatch.setattr("ringcast._cache.directory._PATIENCE_S", 0.0)
    async with store.worker(cache_dir=tmp_path):
        with pytest.raises(InUseError, match=r"cache .* is in use by another process"):
            async with store.worker(cache_dir=tmp_path):
                pytest.fail("it started")


def test_a_cache_needs_a_worker_id_that_stays(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cache_dir needs a worker_id"):
        Worker(store="s", keys=["k"], cache_dir=tmp_path)


async def test_a_directory_that_can_not_be_does_no_more_harm(store: Store, tmp_path: Path) -> None:
    await store.create()
    await store.put("a", "1")
    (tmp_path / "file").write_text("no directory")
    async with store.worker(cache_dir=tmp_path / "file") as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        assert values(worker) == {"a": "1"}
        cache = worker.health().cache
        assert cache is not None
        assert "file" in cache.failing_because
        assert cache.behind == 0


async def serve_for_ever(worker: Worker) -> None:
    async with worker:
        assert worker.row_count("list") == 30
        await asyncio.Event().wait()


async def test_what_makes_joining_impossible_interrupts_a_worker_that_serves_from_its_cache(
    store: Store, tmp_path: Path
) -> None:
    await fill(store, tmp_path)
    async with store.worker():  # somebody else has the id
        with pytest.raises(InUseError, match="in use by another worker of this process"):
            await serve_for_ever(store.worker(cache_dir=tmp_path))


async def test_cancelling_the_start_with_a_cache_leaves_no_task(store: Store, tmp_path: Path) -> None:
    await fill(store, tmp_path)
    before = asyncio.all_tasks()
    for wait in (0.0, 0.002, 0.01, 0.03):
        worker = store.worker(cache_dir=tmp_path)
        starting = asyncio.create_task(worker.start())
        await asyncio.wait({starting}, timeout=wait)
        starting.cancel()
        await asyncio.wait({starting})
        await worker.stop()  # if it was faster
        assert asyncio.all_tasks() == before


async def test_it_joins_once_nats_is_there(
    nats_server: NatsServer, config_service: ConfigServiceProcess, tmp_path: Path
) -> None:
    heard: list[Change] = []
    failed = asyncio.Event()
    logger = logging.Logger("of this test")

    def listen(record: logging.LogRecord) -> bool:
        if getattr(record, "event", "") == "store.join_failed":
            failed.set()
        return False

    logger.addFilter(listen)
    settings: dict[str, Any] = {"store": "s", "keys": ["list"], "worker_id": "w", "servers": nats_server.url}
    settings |= {"cache_dir": tmp_path / "cache", "connect_timeout_s": 0.2}
    async with ConfigServiceClient(config_service.address) as client:
        await client.create_store("s", partition_count=8)
        for number in range(20):
            await client.put("s", "list", f"r{number}", "old")
        async with Worker(**settings) as worker:
            await worker.wait_ready(timeout_s=PATIENCE_S)
        nats_server.kill()
        await client.put("s", "list", "r0", "written while NATS was down")
    config_service.kill()
    async with Worker(**settings, handler=heard.append, logger=logger) as worker:
        await worker.wait_until("list", lambda: len(heard) == 20, timeout_s=PATIENCE_S)
        assert {change.value for change in heard} == {"old"}
        assert all(change.stale for change in heard)
        await asyncio.wait_for(failed.wait(), PATIENCE_S)
        nats_server.start()
        config_service.start()
        await worker.wait_ready(timeout_s=PATIENCE_S)
        assert [(change.row_id, change.value, change.stale) for change in heard[20:]] == [
            ("r0", "written while NATS was down", False)
        ]
        assert worker.stats().fetches == worker.stats().fetches_since
        assert worker.health().ready
        async with ConfigServiceClient(config_service.address) as client:
            result = await client.put("s", "list", "r1", "live")
        await worker.wait_for("list", result.partition, result.version, timeout_s=PATIENCE_S)
        assert (heard[-1].row_id, heard[-1].value, heard[-1].stale) == ("r1", "live", False)


async def test_stopping_before_it_could_join_leaves_no_task(store: Store, tmp_path: Path, nowhere: str) -> None:
    await fill(store, tmp_path)
    before = asyncio.all_tasks()
    for wait in (0.0, 0.02, 0.3):
        worker = store.worker(cache_dir=tmp_path, servers=nowhere, connect_timeout_s=0.1)
        await worker.start()
        with pytest.raises(TimeoutError):
            await worker.wait_ready(timeout_s=wait)
        await worker.stop()
        assert asyncio.all_tasks() == before
