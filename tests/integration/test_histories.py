"""A record that goes back: what the service notices, and what workers make of it. NATS keeps running throughout."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from ringcast import Change, PoisonPolicy, Worker
from ringcast_client import ConfigServiceClient, DeadLetterRecord, ReplayOutcome, RowWrite
from ringcast_config_service.nats.streams import EVENTS_PER_PARTITION
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer, until
from ringcast_wire import UnavailableError

STORE, KEY = "s", "k"


class System:
    """A broker and a service on SQLite, whose database can be taken back while the service is stopped."""

    def __init__(self, directory: Path, nats: NatsServer) -> None:
        self.nats = nats
        self._directory = directory
        self.database = directory / "db/rows.db"
        self.database.parent.mkdir()
        self._copy = directory / "copy"
        self.service = ConfigServiceProcess(directory, nats_url=self.nats.url, database=f"sqlite:{self.database}")

    def keep_copy(self) -> None:
        with closing(sqlite3.connect(self.database)) as source, closing(sqlite3.connect(self._copy)) as target:
            source.backup(target)

    def take_back(self, *, wipe_nats: bool = False) -> None:
        """The service dies, and starts again with what the database was when it was copied."""
        self.service.kill()
        if wipe_nats:
            self.nats.kill()
            shutil.rmtree(self._directory / "nats/jetstream")
            self.nats.restart()
        for path in self.database.parent.iterdir():
            path.unlink()
        shutil.copy(self._copy, self.database)
        self.service.start()

    def client(self) -> ConfigServiceClient:
        return ConfigServiceClient(self.service.address)

    def worker(self, **settings: object) -> Worker:
        return Worker(servers=self.nats.url, store=STORE, keys=[KEY], worker_id="w1", heads_s=1.0, **settings)  # type: ignore[arg-type]


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    with NatsServer(tmp_path / "nats") as nats:
        system = System(tmp_path, nats)
        with system.service:
            yield system


@pytest.fixture
async def client(system: System) -> AsyncIterator[ConfigServiceClient]:
    async with system.client() as client:
        await client.create_store(STORE, partition_count=4)
        yield client


async def record(client: ConfigServiceClient) -> dict[str, str]:
    return {row.row_id: row.value async for row in client.list(STORE, KEY)}


async def holds(worker: Worker, rows: dict[str, str]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await worker.wait_until(KEY, lambda: {row.row_id: row.value for row in worker.rows(KEY)} == rows)


async def test_new_writes_don_t_overtake_what_a_restored_database_has_lost(
    system: System, client: ConfigServiceClient
) -> None:
    """Both the lost write and the new one have the same revision, and the broker would drop the event of the second."""
    rows = [f"r{number}" for number in range(12)]
    for row in rows:
        await client.put(STORE, KEY, row, "before")
    history = (await client.get_store(STORE)).history_id
    system.keep_copy()
    async with system.worker() as worker:
        for row in rows:
            await client.put(STORE, KEY, row, "lost")
        await holds(worker, dict.fromkeys(rows, "lost"))
        await asyncio.to_thread(system.take_back)
        async with system.client() as again:
            for row in rows[:6]:
                await again.put(STORE, KEY, row, "after")
            after = dict.fromkeys(rows, "before") | dict.fromkeys(rows[:6], "after")
            assert await record(again) == after
            await holds(worker, after)
            assert (await again.get_store(STORE)).history_id != history
            await again.put(STORE, KEY, "new", "1")
            await holds(worker, {**after, "new": "1"})
    assert any("event=history.went_back" in line for line in system.service.process.log)


async def test_a_backup_that_is_restored_twice_is_noticed_twice(
    system: System, client: ConfigServiceClient, tmp_path: Path
) -> None:
    """The last event of the partition is then of a history that the record does not know."""
    await client.put(STORE, KEY, "r", "before")
    histories = {(await client.get_store(STORE)).history_id}
    system.keep_copy()
    async with system.worker(cache_dir=tmp_path / "cache") as worker:
        await client.put(STORE, KEY, "r", "lost")
        await holds(worker, {"r": "lost"})
    await asyncio.to_thread(system.take_back)
    async with system.client() as again:
        # The broker forgets which messages it has had: the stream has later ones, and what it kept apart goes with it.
        for number in range(EVENTS_PER_PARTITION):
            await again.put(STORE, KEY, "r", f"second {number}")
        histories.add((await again.get_store(STORE)).history_id)
    await asyncio.to_thread(system.nats.restart)
    await asyncio.to_thread(system.take_back)
    async with system.client() as again:
        await again.put(STORE, KEY, "r", "third")
        current = (await again.get_store(STORE)).history_id
        assert current not in histories
        # It has the revision in the first history, with what that held then.
        async with system.worker(cache_dir=tmp_path / "cache") as worker:
            await holds(worker, {"r": "third"})
        await again.put(STORE, "later", "r", "1")
    await asyncio.to_thread(system.service.restart)
    async with system.client() as again:
        await again.put(STORE, "later", "r", "2")
        assert (await again.get_store(STORE)).history_id == current, "a key that is created has the number of its store"


async def test_a_cache_does_not_outlive_what_database_and_broker_have_lost_together(
    system: System, client: ConfigServiceClient, tmp_path: Path
) -> None:
    """No event shows that the record went back, and new writes overtake the cache before its worker starts again."""
    rows = [f"r{number}" for number in range(20)]
    for row in rows:
        await client.put(STORE, KEY, row, "before")
    system.keep_copy()
    async with system.worker(cache_dir=tmp_path / "cache") as worker:
        for row in rows:
            await client.put(STORE, KEY, row, "lost")
        await holds(worker, dict.fromkeys(rows, "lost"))
    await asyncio.to_thread(system.take_back, wipe_nats=True)
    async with system.client() as again:
        for number in range(40):
            await again.put(STORE, KEY, f"n{number}", "new")
        after = await record(again)
        history = (await again.get_store(STORE)).history_id
        async with system.worker(cache_dir=tmp_path / "cache") as worker:
            await holds(worker, after)
        await asyncio.to_thread(system.service.restart)
    async with system.client() as again:
        await again.put(STORE, KEY, "n0", "newer")
        assert (await again.get_store(STORE)).history_id == history


async def test_a_broker_that_loses_its_disk_beside_a_running_service_begins_no_history(
    system: System, client: ConfigServiceClient, tmp_path: Path
) -> None:
    await client.put(STORE, KEY, "a", "1")
    history = (await client.get_store(STORE)).history_id
    async with system.worker() as worker:
        await holds(worker, {"a": "1"})
        await asyncio.to_thread(system.nats.kill)
        shutil.rmtree(tmp_path / "nats/jetstream")
        await asyncio.to_thread(system.nats.restart)
        await client.put(STORE, KEY, "a", "2")
        await holds(worker, {"a": "2"})
    assert (await client.get_store(STORE)).history_id == history


async def test_a_restart_without_loss_keeps_the_history(system: System, client: ConfigServiceClient) -> None:
    await client.put(STORE, KEY, "a", "1")
    history = (await client.get_store(STORE)).history_id
    async with system.worker() as worker:
        await holds(worker, {"a": "1"})
        await asyncio.to_thread(system.service.restart)
        async with system.client() as again:
            await again.put(STORE, KEY, "a", "2")
            await holds(worker, {"a": "2"})
            assert (await again.get_store(STORE)).history_id == history


async def test_an_empty_database_does_not_empty_the_workers(
    system: System, client: ConfigServiceClient, tmp_path: Path
) -> None:
    """The store is created again, as a script does that is run at each start."""
    system.keep_copy()  # the store without a row
    rows = {f"r{number}": "1" for number in range(20)}
    deleted: list[str] = []
    for row in rows:
        await client.put(STORE, KEY, row, "1")
    handler = lambda change: deleted.append(change.row_id) if change.deleted else None  # noqa: E731
    async with system.worker(handler=handler, cache_dir=tmp_path / "cache") as worker:
        await holds(worker, rows)
        await asyncio.to_thread(system.take_back)
        async with system.client() as again:
            async with asyncio.timeout(PATIENCE_S):
                await worker.wait_until(KEY, lambda: "20 of 20" in worker.health().keys[0].refused_because)
            await again.put(STORE, KEY, "r0", "2")
            async with asyncio.timeout(PATIENCE_S):
                await worker.wait_until(KEY, lambda: "19 of 20" in worker.health().keys[0].refused_because)
            health = worker.health()
            assert not health.ready
            assert "max_delete_share is 0.5" in health.keys[0].refused_because
            assert health.staleness_s > 0
            assert {row.row_id for row in worker.rows(KEY)} == rows.keys()
            # The operator brings the list back in one transaction: the worker looks again every second.
            async for _ in again.bulk_write(STORE, KEY, [RowWrite(row, "2") for row in rows]):
                pass
            await holds(worker, dict.fromkeys(rows, "2"))
            async with asyncio.timeout(PATIENCE_S):
                await worker.wait_until(KEY, lambda: worker.health().ready)
    assert not deleted


async def test_dead_letters_outlive_a_restored_database_and_are_replayed(
    system: System, client: ConfigServiceClient
) -> None:
    """NATS has them, and stays as it is. What they say of rows is of a history that is over by then."""
    refused, took = {"kept", "lost"}, list[tuple[str, str | None]]()

    def handler(change: Change) -> None:
        if change.row_id in refused:
            raise ValueError(f"not {change.row_id}")
        took.append((change.row_id, change.value))

    async def letters(asked: ConfigServiceClient) -> list[DeadLetterRecord]:
        return [letter async for letter in asked.dead_letters(STORE, oldest_first=True)]

    rows = [f"r{number}" for number in range(12)]
    for row in (*rows, "kept"):
        await client.put(STORE, KEY, row, "before")
    history = (await client.get_store(STORE)).history_id
    settings = {"handler": handler, "handler_tries": 1, "poison_policy": PoisonPolicy.DEAD_LETTER}
    async with system.worker(**settings) as worker:
        system.keep_copy()
        for row in (*rows, "lost"):
            await client.put(STORE, KEY, row, "lost")

        async def are_there() -> bool:
            return len(await letters(client)) == 2

        await until(are_there)
        before = await letters(client)
        assert {letter.row_id for letter in before} == refused
        await holds(worker, dict.fromkeys((*rows, "lost"), "lost") | {"kept": "before"})
        refused.clear()
        await asyncio.to_thread(system.take_back)
        async with system.client() as again:
            for row in rows:
                await again.put(STORE, KEY, row, "after")
            await holds(worker, dict.fromkeys(rows, "after") | {"kept": "before"})
            assert (await again.get_store(STORE)).history_id != history
            assert await letters(again) == before
            took.clear()
            numbers = [letter.number for letter in before]
            results = [each async for each in again.replay_dead_letters(STORE, numbers, patience_s=PATIENCE_S)]
            assert [each.outcome for each in results] == [ReplayOutcome.HANDLED] * 2, results
            assert sorted(took) == [("kept", "before"), ("lost", None)]
            assert await letters(again) == []


async def test_a_fork_shows_when_its_first_event_is_published(system: System, client: ConfigServiceClient) -> None:
    """The record goes back behind the back of a running service: the broker has had an event of that revision."""
    await client.put(STORE, KEY, "a", "1")
    async with system.worker() as worker:
        await holds(worker, {"a": "1"})
        with closing(sqlite3.connect(system.database, timeout=PATIENCE_S)) as db, db:
            for table in ("partitions", "rows", "history", "outbox"):
                db.execute(f"DELETE FROM {table}")
        history = (await client.get_store(STORE)).history_id
        await client.put(STORE, KEY, "a", "forked")
        await holds(worker, {"a": "forked"})
        assert (await client.get_store(STORE)).history_id != history
    assert any("event=history.forked" in line for line in system.service.process.log)


async def test_the_operator_begins_a_new_history(system: System, client: ConfigServiceClient) -> None:
    await client.put(STORE, KEY, "a", "1")
    before = await client.get_store(STORE)
    async with system.worker() as worker:
        await holds(worker, {"a": "1"})
        after = await client.new_history(STORE)
        assert after.history_id != before.history_id
        await client.put(STORE, KEY, "b", "1")
        await holds(worker, {"a": "1", "b": "1"})


async def test_a_store_takes_no_writes_before_it_was_compared(system: System, client: ConfigServiceClient) -> None:
    """The broker is away when the service would look: nobody can tell whether the record went back."""
    await client.put(STORE, KEY, "a", "1")
    await asyncio.to_thread(system.service.restart)
    async with system.client() as again:
        await asyncio.to_thread(system.nats.kill)
        with pytest.raises(UnavailableError, match="takes no writes yet: its record has to be compared"):
            await again.put(STORE, KEY, "a", "2")
        await asyncio.to_thread(system.nats.restart)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await again.put(STORE, KEY, "a", "2")
                    break
                except UnavailableError:
                    await asyncio.sleep(0.1)
        assert await record(again) == {"a": "2"}
