"""The shadow of a migration, in workers of a store of peers over a real NATS server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, cast

import nats
import pytest
from nats.js.api import KeyValueConfig
from nats.js.errors import NoKeysError, NotFoundError
from nats.js.kv import KeyValue
from ringcast._bus.bus import Bus, connected
from ringcast._bus.kv import NatsBuckets
from ringcast._bus.nats_bus import NatsBus
from ringcast._common.config import WorkerConfig
from ringcast._common.lasting import first_error
from ringcast._common.log import worker_log
from ringcast._coordination import migrating
from ringcast._coordination.migrating import MigratingStore
from ringcast._coordination.sticky.migration import StoreMigration
from ringcast._protocol.assignment import Assignment
from ringcast_testkit import PATIENCE_S, NatsServer, end_task, until
from ringcast_wire import LeaseRecord, Migration, Stage, StoreSettings, encode_migration, encode_record, names
from ringcast_wire.owner_records import Rule, State, Table, decode_state, decode_table

PARTITIONS, KEY = 6, "list"
PEERS = ("a", "a", "a", "a", "a", "b")
LOG = worker_log(logging.getLogger("ringcast"))


def step(stage: Stage, number: int, lease_ttl_ms: int = 2_000) -> bytes:
    return encode_migration(Migration(stage=stage, number=number, lease_ttl_ms=lease_ttl_ms, call_bound_ms=200))


class Onlooker:
    """A participant that does nothing, but for what is given."""

    def __init__(self, **does: Any) -> None:
        self._does = does

    def __getattr__(self, name: str) -> Any:
        return self._does.get(name, lambda *_: None)


class Store:
    """Two workers that share the partitions out as ``PEERS`` says, and the records of the store."""

    def __init__(self, name: str, bus: Bus, meta: KeyValue, owners: KeyValue) -> None:
        self.name, self.bus, self.meta, self.owners = name, bus, meta, owners
        self.workers: dict[str, MigratingStore] = {}
        self.running: dict[str, asyncio.Task[None]] = {}

    def worker_of(self, worker_id: str, participant: Onlooker) -> MigratingStore:
        """A worker that does not run yet."""
        config = WorkerConfig(store=self.name, keys=(KEY,), worker_id=worker_id)
        record = LeaseRecord(incarnation=f"{worker_id}-i", host="h", pid=1, started_at_ms=1)
        settings = StoreSettings(partition_count=PARTITIONS)
        return MigratingStore(
            NatsBuckets(self.bus), config, settings, record=record, participant=cast("Any", participant), log=LOG
        )

    async def table(self) -> Table | None:
        try:
            return decode_table((await self.owners.get(names.table_key(KEY))).value or b"", PARTITIONS)
        except NotFoundError:
            return None

    async def state(self, worker_id: str) -> State:
        return decode_state((await self.owners.get(names.state_key(KEY, worker_id))).value or b"")

    async def sessions(self) -> set[str]:
        try:
            return {name for name in await self.owners.keys() if name.startswith("~")}
        except NoKeysError:
            return set()

    async def owners_planned(self, number: int) -> tuple[str, ...]:
        """Who is to own each partition by the plan of a step; nothing as long as there is none."""
        table = await self.table()
        if table is None or table.step != number:
            return ()
        return tuple(entry.owner.worker_id for entry in table.entries if entry.owner is not None)

    async def plan(self, number: int) -> tuple[str, ...]:
        """The plan of a step, once it is for both workers."""

        async def is_for_both() -> bool:
            return len(set(await self.owners_planned(number))) == 2

        await until(is_for_both)
        return await self.owners_planned(number)


@pytest.fixture
async def store(shared_nats: NatsServer, store_of_owners: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    monkeypatch.setattr(migrating, "READ_S", 0.1)
    monkeypatch.setattr(migrating, "RETRY_S", 0.1)
    async with AsyncExitStack() as stack:
        client = await nats.connect(shared_nats.url)
        stack.push_async_callback(client.close)
        js, name = client.jetstream(), names.meta_bucket(store_of_owners)
        meta = await js.create_key_value(KeyValueConfig(bucket=name, direct=True))
        stack.push_async_callback(js.delete_key_value, name)
        config = WorkerConfig(store=store_of_owners, keys=(KEY,), servers=(shared_nats.url,), worker_id="all")
        bus = await stack.enter_async_context(connected(NatsBus.prepared, config, LOG))
        found = Store(store_of_owners, bus, meta, await js.key_value(names.owners_bucket(store_of_owners)))
        for worker_id in ("a", "b"):
            worker = found.worker_of(worker_id, Onlooker())
            worker.assigned(Assignment(KEY, 1, PEERS))
            found.workers[worker_id] = worker
            found.running[worker_id] = asyncio.create_task(worker.run())
            stack.push_async_callback(end_task, found.running[worker_id])
        yield found


async def test_a_plan_that_nobody_obeys(store: Store) -> None:
    assert not await store.sessions()
    await store.meta.put(names.META_MIGRATION, step(Stage.SHADOW, 5))
    owners = await store.plan(5)
    assert sorted(owners) == ["a", "a", "a", "b", "b", "b"]
    assert sum(now != then for now, then in zip(PEERS, owners, strict=True)) == 2, "as few as can be"
    table = await store.table()
    assert table is not None
    assert table.rule is Rule.PEERS
    for worker_id in store.workers:
        state = await store.state(worker_id)
        assert (state.prepared, state.released, state.guarded) == ((), (), 0), "nothing is claimed"
    balanced = ("a", "b") * 3
    for worker in store.workers.values():
        worker.assigned(Assignment(KEY, 2, balanced))

    async def follows() -> bool:
        return await store.owners_planned(5) == balanced

    await until(follows)


async def test_off_and_on_again(store: Store) -> None:
    await store.meta.put(names.META_MIGRATION, step(Stage.SHADOW, 5))
    await store.plan(5)
    await store.meta.put(names.META_MIGRATION, b"no step")
    await store.meta.put(names.META_MIGRATION, step(Stage.OFF, 6))
    await until(lambda: not any(worker.coordinator for worker in store.workers.values()))
    assert not await store.sessions()
    assert [(await store.state(worker_id)).guarded for worker_id in store.workers] == [0, 0]
    await store.meta.put(names.META_MIGRATION, step(Stage.SHADOW, 7))
    await store.plan(7)


async def test_a_worker_that_stops_once_it_is_off_does_not_keep_the_store_from_the_switch(store: Store) -> None:
    await store.meta.put(names.META_MIGRATION, step(Stage.SHADOW, 5))
    await store.plan(5)
    await store.meta.put(names.META_MIGRATION, step(Stage.OFF, 6))
    await until(lambda: not any(worker.coordinator for worker in store.workers.values()))
    await store.workers["a"].leave()
    assert (await store.state("a")).guarded, "no call of it runs, and none starts"
    assert not (await store.state("b")).guarded


async def test_a_key_that_was_given_up_before_stays_so(store: Store) -> None:
    """It was deleted: a worker that owned partitions of it again, once it is restored, would not serve them."""
    store.workers["a"].give_up(KEY)
    await store.meta.put(names.META_MIGRATION, step(Stage.SHADOW, 5))

    async def has_a_plan() -> bool:
        return len(await store.sessions()) == 2 and await store.owners_planned(5) == ("b",) * PARTITIONS

    await until(has_a_plan)
    with pytest.raises(NotFoundError):
        await store.state("a")


async def test_other_times_count_for_a_worker_that_has_not_heard_that_it_was_off(store: Store) -> None:
    """Its fence, and what it gives away as the leader, have to go by the same times as those of all others."""
    await store.meta.put(names.META_MIGRATION, step(Stage.SHADOW, 5))
    await store.plan(5)
    before = [worker.coordinator for worker in store.workers.values()]
    await store.meta.put(names.META_MIGRATION, step(Stage.SHADOW, 7, lease_ttl_ms=3_000))
    await store.plan(7)
    for worker, other in zip(store.workers.values(), before, strict=True):
        await until(lambda worker=worker, other=other: worker.coordinator not in (None, other))  # type: ignore[misc]
        assert worker.coordinator is not None
        assert worker.coordinator._times.fence.ttl_s == 3


async def test_a_worker_that_is_guarded_ends_when_the_times_are_others(store: Store) -> None:
    await store.meta.put(names.META_MIGRATION, step(Stage.SHADOW, 5))
    await store.plan(5)
    await store.meta.put(names.META_MIGRATION, step(Stage.VALIDATE, 6))
    await until(lambda: all(worker.guards(KEY) for worker in store.workers.values()))
    await store.meta.put(names.META_MIGRATION, step(Stage.SHADOW, 9, lease_ttl_ms=3_000))
    for running in store.running.values():
        with pytest.raises(ExceptionGroup) as raised:
            await asyncio.wait_for(running, PATIENCE_S)
        assert "is guarded with (2000, 200) ms: start it again" in str(first_error(raised.value))


async def test_a_step_that_can_not_be_read_says_nothing_of_a_cache(
    store: Store, shared_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """What the worker remembers of its last life goes on to count: another worker may own what its cache has."""
    told: list[bool] = []
    bucket = KeyValueConfig(bucket=names.meta_bucket(store.name), direct=True)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(await nats.connect(shared_nats.url))
        await client.jetstream().delete_key_value(str(bucket.bucket))
        stack.enter_context(caplog.at_level(logging.DEBUG, "ringcast"))
        worker = store.worker_of("c", Onlooker(may_have_migrated=told.append))
        stack.push_async_callback(end_task, asyncio.create_task(worker.run()))
        await until(lambda: "migration.read_failed" in caplog.text)
        assert not told
        meta = await client.jetstream().create_key_value(bucket)
        await meta.put(names.META_MIGRATION, step(Stage.SHADOW, 5))
        await until(lambda: told)
        assert all(told)


async def test_the_metadata_is_made_anew(store: Store, shared_nats: NatsServer) -> None:
    """NATS has lost it: its revisions begin again, and the step that the service writes there counts all the same."""
    for _ in range(9):
        await store.meta.put(names.META_MIGRATION, step(Stage.SHADOW, 5))
    await store.plan(5)
    async with await nats.connect(shared_nats.url) as client:
        await client.jetstream().delete_key_value(names.meta_bucket(store.name))
        await client.jetstream().create_key_value(KeyValueConfig(bucket=names.meta_bucket(store.name), direct=True))
    await store.meta.put(names.META_MIGRATION, step(Stage.OFF, 6))
    await until(lambda: not any(worker.coordinator for worker in store.workers.values()))
    await store.meta.put(names.META_MIGRATION, step(Stage.SHADOW, 7))
    await store.plan(7)
    await store.meta.put("wire_version", b"1")  # as of a store that was created again
    await store.meta.purge(names.META_MIGRATION)
    await until(lambda: not any(worker.coordinator for worker in store.workers.values()))


@pytest.mark.parametrize("version", [b"2", None], ids=["the step", "all of the metadata"])
async def test_a_worker_that_registers_while_the_step_is_lost_waits_for_it(store: Store, version: bytes | None) -> None:
    """It must not take the store for one that does not migrate: owners may serve it."""
    told: list[str] = []
    does = {
        "may_begin": lambda key: told.append("begins"),
        "guarded": lambda key, tokens: told.append("guarded"),
        "step_unknown": lambda reason: told.append(reason),
    }
    if version is not None:
        await store.meta.put("wire_version", version)
    worker = store.worker_of("c", Onlooker(**does))
    worker.enrolled(KEY)
    running = asyncio.create_task(worker.run())
    try:
        await until(lambda: any(told))
        assert set(told) == {
            f"the step of the migration of store {store.name!r} is lost: its config service writes it again"
        }
        await store.meta.put(names.META_MIGRATION, step(Stage.SWITCH, 5))
        await until(lambda: "begins" in told)
        assert told.index("guarded") < told.index("begins")
    finally:
        await end_task(running)


async def test_a_store_that_has_never_migrated_begins_at_once(store: Store) -> None:
    told: list[str] = []
    await store.meta.put("wire_version", b"1")
    worker = store.worker_of("c", Onlooker(may_begin=told.append))
    worker.enrolled(KEY)
    running = asyncio.create_task(worker.run())
    try:
        await until(lambda: told == [KEY])
    finally:
        await end_task(running)


async def test_a_step_that_is_lost_changes_nothing_for_those_that_know_it(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await store.meta.put(names.META_MIGRATION, step(Stage.SHADOW, 5))
    await store.plan(5)
    before = [worker.coordinator for worker in store.workers.values()]
    with caplog.at_level(logging.DEBUG, "ringcast"):
        await store.meta.put("wire_version", b"2")
        await store.meta.purge(names.META_MIGRATION)
        await until(lambda: caplog.text.count("is lost: its config service writes it again") > len(before))
    assert [worker.coordinator for worker in store.workers.values()] == before


async def test_a_worker_whose_session_another_process_has_taken_ends(store: Store) -> None:
    """As it does by its registration, which the other one has taken too."""
    other = encode_record(LeaseRecord(incarnation="another", host="h", pid=2, started_at_ms=1))
    await store.meta.put(names.META_MIGRATION, step(Stage.SHADOW, 5))
    await store.plan(5)
    await store.owners.put(names.session_key("a"), other, validate_keys=False)
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(store.running["a"], PATIENCE_S)
    assert str(first_error(caught.value)) == "worker id 'a' is in use by process 2 on host h"


async def test_a_mistake_does_not_end_the_worker(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise KeyError("of a mistake")

    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR, "ringcast"):
        patched.setattr(StoreMigration, "share", fails)
        await store.meta.put(names.META_MIGRATION, step(Stage.SHADOW, 5))
        await until(lambda: "shadow.failed" in caplog.text)
        for worker in store.workers.values():
            worker.assigned(Assignment(KEY, 2, PEERS))  # as the coordinator of the peers does, which goes on
    assert "Traceback" in caplog.text
    await store.plan(5)
