"""Worker processes that are killed at random moments: what their cache holds is old at most, never wrong."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import pytest
from ringcast._cache.directory import CachePlace
from ringcast._cache.file import StoredPartition, read_key
from ringcast_testkit import PATIENCE_S, History, SmallDisk, WorkerProcess
from ringcast_wire import names

if TYPE_CHECKING:
    from packages.ringcast.tests.conftest import Store

LIVES = 6
PARTITIONS = 4
ROWS = 40


class Truth:
    """Every write of a store: partition → row id → version → value, ``None`` for a deletion."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.writes: dict[int, dict[str, dict[int, str | None]]] = defaultdict(lambda: defaultdict(dict))
        self.count = 0

    async def put(self) -> None:
        """Writes some row."""
        row_id = f"r{random.randrange(ROWS)}"
        self.count += 1
        value = f"v{self.count}" * random.randint(1, 50)
        partition, version = await self.store.put(row_id, value)
        self.writes[partition][row_id][version] = value

    async def delete(self) -> None:
        """Deletes some row. Only once something was written: else there is no such key."""
        row_id = f"r{random.randrange(ROWS)}"
        gone = await self.store.client.delete(self.store.name, "list", row_id)
        self.writes[gone.partition][row_id][gone.version] = None

    async def write_until(self, over: asyncio.Event) -> None:
        while not over.is_set():
            await (self.delete() if random.random() < 0.3 else self.put())

    def live(self) -> dict[str, str]:
        newest = {row_id: versions[max(versions)] for rows in self.writes.values() for row_id, versions in rows.items()}
        return {row_id: value for row_id, value in newest.items() if value is not None}

    def check(self, cached: StoredPartition) -> None:
        """Every change up to ``applied`` is in; what is newer was written, too."""
        written = self.writes[cached.number]
        for row_id, row in cached.rows.items():
            assert written[row_id][row.version] == row.value
        for row_id, version in cached.tombstones.items():
            assert version > cached.applied
            assert row_id not in cached.rows
        for row_id, versions in written.items():
            before = max((version for version in versions if version <= cached.applied), default=None)
            if row_id in cached.rows:
                assert cached.rows[row_id].version >= (before or 0)
            elif before is not None and row_id not in cached.tombstones:
                assert versions[before] is None


def read(path: Path) -> list[StoredPartition]:
    """What the file holds, as a worker would read it."""
    with closing(sqlite3.connect(path)) as connection:
        return read_key(connection, "list", PARTITIONS)


async def end_lease(store: Store, worker_id: str) -> None:
    """The killed process is gone for sure: nobody needs to wait until its lease has ended."""
    client = await nats.connect(store.nats_url)
    try:
        await (await client.jetstream().key_value(names.LEASES_BUCKET)).delete(worker_id)
    finally:
        await client.close()


def wait_for_more(history: History, reports: int) -> None:
    enough = len(history.reports()) + reports
    assert history.wait(lambda: len(history.reports()) >= enough, PATIENCE_S)


def versions_only_rise(history: History, worker_id: str) -> None:
    seen: dict[tuple[int, str], int] = {}
    for report in history.reports():
        if report.worker_id == worker_id and report.event == "row":
            place = (report.life, report.fields["row_id"])
            assert report.fields["version"] > seen.get(place, 0)
            seen[place] = report.fields["version"]


async def test_a_cache_is_old_but_never_wrong_whenever_the_worker_is_killed(store: Store, tmp_path: Path) -> None:
    await store.create(partition_count=PARTITIONS)
    worker_id, history, truth = f"{store.name}-w", History(), Truth(store)
    worker = WorkerProcess(
        worker_id, servers=store.nats_url, store=store.name, keys=("list",), history=history, cache_dir=str(tmp_path)
    )
    path = CachePlace(tmp_path, store.name, worker_id).path
    await truth.put()
    found, newest = 0, dict.fromkeys(range(PARTITIONS), 0)
    for _ in range(LIVES):
        over = asyncio.Event()
        writers = [asyncio.create_task(truth.write_until(over)) for _ in range(3)]
        worker.start()
        try:
            await asyncio.to_thread(worker.wait_ready, PATIENCE_S)
            await asyncio.to_thread(wait_for_more, history, random.randrange(400))
        finally:
            worker.kill()
            over.set()
            await asyncio.gather(*writers)
        await end_lease(store, worker_id)
        for cached in read(path):
            truth.check(cached)
            assert cached.applied >= newest[cached.number]
            newest[cached.number] = cached.applied
            found += len(cached.rows)
    assert found > 0
    worker.start()
    try:
        await asyncio.to_thread(worker.wait_ready, PATIENCE_S)
        rows = await asyncio.to_thread(worker.dump)
    finally:
        worker.terminate()
    assert {row_id: value for row_id, (value, _, _) in rows["list"].items()} == truth.live()
    versions_only_rise(history, worker_id)
    for cached in read(path):  # an orderly end leaves nothing out
        truth.check(cached)
        assert cached.applied == max(version for of_row in truth.writes[cached.number].values() for version in of_row)


@pytest.mark.skipif(not SmallDisk.supported(), reason="needs the right to make a mount namespace")
async def test_a_full_disk_leaves_the_cache_as_it_was_and_the_worker_goes_on(
    store: Store, tmp_path: Path, unused_tcp_port: int
) -> None:
    await store.create(partition_count=PARTITIONS)
    await store.put("before", "x")
    worker_id, history = f"{store.name}-w", History()
    with SmallDisk(tmp_path / "disk", 4 * 1024 * 1024) as disk:
        settings: dict[str, Any] = {"store": store.name, "keys": ("list",), "history": history, "prefix": disk.prefix}
        worker = WorkerProcess(worker_id, servers=store.nats_url, cache_dir=str(disk.path), **settings)
        worker.start()
        await asyncio.to_thread(worker.wait_ready, PATIENCE_S)
        disk.fill()
        for number in range(40):
            await store.put(f"r{number}", "y" * 20_000)

        def heard() -> bool:
            return {r.fields["row_id"] for r in history.reports() if r.event == "row"} == {
                "before",
                *(f"r{number}" for number in range(40)),
            }

        assert await asyncio.to_thread(history.wait, heard, PATIENCE_S)
        worker.process.wait_until(lambda: any("event=cache.write_failed" in line for line in list(worker.process.log)))
        disk.free()
        assert worker.terminate() == 0
        late = WorkerProcess(
            worker_id,
            servers=f"nats://127.0.0.1:{unused_tcp_port}",
            cache_dir=str(disk.path),
            **{**settings, "history": (told := History())},
        )
        late.start()
        assert await asyncio.to_thread(
            told.wait, lambda: sum(r.event == "row" for r in told.reports()) == 41, PATIENCE_S
        )
        late.kill()
