"""The steps of a migration: in both databases, through the API, and on the bus."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from nats.aio.msg import Msg
from nats.js.errors import KeyNotFoundError
from ringcast_config_service.nats.migration_checks import read_bucket
from ringcast_config_service.nats.steps import ensure_step
from ringcast_config_service.repository import StoreRecord, make_repository
from ringcast_wire import (
    ConditionFailedError,
    Migration,
    MismatchError,
    Stage,
    StoreSettings,
    Strategy,
    UnavailableError,
    decode_migration,
    encode_migration,
    names,
)
from ringcast_wire.ended_sessions import Span, encode_gone
from ringcast_wire.grpc import pb
from ringcast_wire.owner_records import Rule

Running = Any  # of conftest.py
Bench = Any  # of conftest.py
Workers = Any  # of conftest.py

SHADOW, OFF = pb.MIGRATION_STAGE_SHADOW, pb.MIGRATION_STAGE_OFF
VALIDATE, SWITCH = pb.MIGRATION_STAGE_VALIDATE, pb.MIGRATION_STAGE_SWITCH
FINISH = pb.MIGRATION_STAGE_FINISH


def step(stage: Stage, number: int) -> Migration:
    return Migration(stage=stage, number=number, lease_ttl_ms=2_000, call_bound_ms=200)


async def entries(service: Running, store: str) -> dict[str, bytes]:
    bucket = await service.nc.jetstream().key_value(names.meta_bucket(store))
    found = {}
    for name in (*StoreSettings.__struct_fields__, names.META_MIGRATION):
        try:
            found[name] = (await bucket.get(name)).value or b""
        except KeyNotFoundError:
            continue
    return found


async def test_a_step_names_the_one_before(bench: Bench) -> None:
    stores, name = bench.repo.stores, bench.store.name
    assert (await stores.get_record(name)).migration is None
    first, second = step(Stage.SHADOW, 7), step(Stage.OFF, 8)
    assert (await stores.migrate_store(name, None, first)).record.migration == first
    with pytest.raises(ConditionFailedError) as caught:
        await stores.migrate_store(name, None, second)
    assert caught.value.found_version == 7
    found = (await stores.store_records())[0]
    assert (found.migration, found.settings.wire_version) == (first, 2)
    assert (await stores.create_store(bench.store)).migration == first, "it has the settings that it was created with"
    await stores.migrate_store(name, first, second)
    found = await stores.get_record(name)
    assert (found.migration, found.settings.wire_version) == (second, 1)


async def test_a_database_of_the_schema_before_gets_steps(bench: Bench) -> None:
    await bench.write({"a": "1"})
    before = await bench.repo.stores.get_record(bench.store.name)
    await bench.repo.close()
    await bench.make_older(6)
    bench.repo = make_repository(bench.address)
    await bench.repo.open()
    assert await bench.repo.stores.get_record(bench.store.name) == before
    await bench.repo.stores.migrate_store(bench.store.name, None, step(Stage.SHADOW, 7))
    await bench.write({"b": "2"})
    assert await bench.live() == {"a": "1", "b": "2"}
    assert (await bench.repo.stores.get_record(bench.store.name)).migration == step(Stage.SHADOW, 7)


async def test_there_and_back(service: Running, store_name: str) -> None:
    await service.create(store_name)
    before = await entries(service, store_name)
    shadow = pb.MigrateStoreRequest(name=store_name, stage=SHADOW, lease_ttl_ms=2_000, call_bound_ms=200)
    made = await service.migrate(shadow)
    assert (made.migration.stage, made.migration.lease_ttl_ms, made.migration.call_bound_ms) == (SHADOW, 2_000, 200)
    assert (await service.migrate(shadow)).migration == made.migration
    found = await entries(service, store_name)
    assert decode_migration(found.pop(names.META_MIGRATION)) == step(Stage.SHADOW, made.migration.number)
    assert found == {**before, "wire_version": b"2"}, "what builds refuse that know of no step"
    assert StoreSettings.from_kv(found) == StoreSettings.from_kv(before)
    js = service.nc.jetstream()
    for bucket in (names.owners_bucket(store_name), names.wishes_bucket(store_name)):
        await js.stream_info(f"KV_{bucket}")
    ended = await service.migrate(pb.MigrateStoreRequest(name=store_name, stage=OFF))
    assert ended.migration.number > made.migration.number
    found = await entries(service, store_name)
    assert decode_migration(found.pop(names.META_MIGRATION)).stage is Stage.OFF
    assert found == before
    await service.stub.DeleteStore(pb.DeleteStoreRequest(name=store_name, purge=True))
    assert not (await service.create(store_name)).HasField("migration"), "it is another store"


async def test_what_is_refused(service: Running, store_name: str) -> None:
    await service.create(store_name)
    migrate = service.migrate
    switch = pb.MigrateStoreRequest(name=store_name, stage=pb.MIGRATION_STAGE_SWITCH)
    await service.is_refused(migrate(switch), "is at the stage off: it can't go to switch, only to shadow")
    await service.is_refused(migrate(pb.MigrateStoreRequest(name=store_name)), "stage 0 is unknown")
    times = pb.MigrateStoreRequest(name=store_name, stage=SHADOW, lease_ttl_ms=2_000, call_bound_ms=1_900)
    await service.is_refused(migrate(times), "call_bound_ms 1900 is out of range")
    await migrate(pb.MigrateStoreRequest(name=store_name, stage=SHADOW))
    times.call_bound_ms = 200
    await service.is_refused(migrate(times), "lease_ttl_ms of store .* can't become 2000")
    times.stage = OFF
    await service.is_refused(migrate(times), "lease_ttl_ms 2000 goes with the step to shadow alone")
    await service.is_refused(migrate(switch), "is at the stage shadow: it can't go to switch, only to off, validate")
    sticky, full = f"{store_name}-sticky", f"{store_name}-full"
    await service.create(sticky, strategy=pb.STRATEGY_STICKY)
    await service.create(full, mode=pb.MODE_FULL)
    await service.is_refused(migrate(pb.MigrateStoreRequest(name=sticky, stage=SHADOW)), "strategy sticky already")
    await service.is_refused(migrate(pb.MigrateStoreRequest(name=full, stage=SHADOW)), "only PARTITIONED has owners")


async def test_steps_that_the_workers_are_not_ready_for(service: Running, store_name: str, workers: Workers) -> None:
    await service.create(store_name)
    await workers.go(SHADOW)
    for worker_id in ("a", "b"):
        await workers.register(worker_id)
    await workers.say("a", 0)
    await workers.is_refused(VALIDATE, "can't go from shadow to validate yet: workers b of key 'k' take no part in the")
    await workers.say("b", 0)
    number = await workers.go(VALIDATE)
    await workers.say("a", number)
    await workers.is_refused(SWITCH, "from validate to switch yet: workers b of key 'k' are not guarded")
    await workers.leave("b")
    await workers.is_refused(SWITCH, "workers b of key 'k' are not guarded")  # as an agent does of a closed socket
    await workers.say("b", number)
    await workers.say("c", 1)  # it has ended, and never starts a call again
    await workers.go(SWITCH)
    back = await workers.go(SHADOW)
    await workers.table(Rule.OWNERS, back)
    await workers.is_refused(OFF, "from shadow to off yet: workers a of key 'k' are still guarded")
    await workers.say("a", 0)
    await workers.is_refused(OFF, "from shadow to off yet: key 'k' is not back yet")
    await workers.table(Rule.PEERS, back - 1)
    await workers.is_refused(OFF, "key 'k' is not back yet")
    await workers.table(Rule.PEERS, back)
    await workers.go(OFF)


async def test_the_finish_is_for_good(service: Running, store_name: str, workers: Workers) -> None:
    created = await service.create(store_name)
    await service.migrate(pb.MigrateStoreRequest(name=store_name, stage=SHADOW, lease_ttl_ms=2_000, call_bound_ms=200))
    await service.is_refused(workers.go(FINISH), "is at the stage shadow: it can't go to finish, only to off, validate")
    await workers.register("a")
    await workers.say("a", 0)
    number = await workers.go(VALIDATE)
    await workers.say("a", number)
    number = await workers.go(SWITCH)
    await workers.is_refused(FINISH, "can't go from switch to finish yet: key 'k' has no owners yet")
    await workers.table(Rule.NOBODY, number)
    await workers.is_refused(FINISH, "key 'k' has no owners yet")
    await workers.table(Rule.OWNERS, number - 1)  # of a switch before that was taken back
    await workers.is_refused(FINISH, "key 'k' has no owners yet")
    await workers.table(Rule.OWNERS, number)
    before = await service.stub.GetStore(pb.GetStoreRequest(name=store_name))
    finished = await workers.go(FINISH)
    assert await workers.go(FINISH) == finished
    found = await service.stub.GetStore(pb.GetStoreRequest(name=store_name))
    assert (created.strategy, before.strategy, before.HasField("lease_ttl_ms")) == (pb.STRATEGY_JUMP,) * 2 + (False,)
    assert (found.strategy, found.lease_ttl_ms, found.call_bound_ms) == (pb.STRATEGY_STICKY, 2_000, 200)
    kept = await entries(service, store_name)
    locked = StoreSettings.from_kv(kept)
    now = locked.after(decode_migration(kept[names.META_MIGRATION]))
    assert (locked.strategy, locked.lease_ttl_ms) == (Strategy.JUMP, None)
    assert (now.strategy, now.lease_ttl_ms, now.call_bound_ms) == (Strategy.STICKY, 2_000, 200)
    for stage in (OFF, SHADOW, VALIDATE, SWITCH):
        await service.is_refused(workers.go(stage), "has the strategy sticky already")
    sticky = {"strategy": pb.STRATEGY_STICKY, "lease_ttl_ms": 2_000, "call_bound_ms": 200}
    assert (await service.create(store_name, **sticky)).migration.number == finished, "it is there with these settings"
    with pytest.raises(
        grpc.aio.AioRpcError, match="exists with strategy sticky: it can't be created with strategy jump"
    ):
        await service.create(store_name)


async def test_a_finish_that_the_database_has_forgotten_is_taken_again(
    service: Running, store_name: str, workers: Workers
) -> None:
    """It was restored to an earlier state."""
    await service.create(store_name)
    number = await workers.go(SHADOW) + 10
    bucket = await service.nc.jetstream().key_value(names.meta_bucket(store_name))
    await bucket.put(names.META_MIGRATION, encode_migration(step(Stage.FINISH, number)))
    await service.is_refused(workers.go(OFF), "has the strategy sticky already")
    assert await workers.go(FINISH) == number
    found = await service.stub.GetStore(pb.GetStoreRequest(name=store_name))
    assert (found.strategy, found.lease_ttl_ms) == (pb.STRATEGY_STICKY, 2_000)


async def test_a_worker_whose_agent_has_seen_its_process_end_is_not_waited_for(
    service: Running, store_name: str, workers: Workers
) -> None:
    """It was killed before it could hear of the validation."""
    await service.create(store_name)
    await workers.go(SHADOW)
    await workers.say("a", 0, session=1, agent="host-1")
    await workers.go(VALIDATE)
    waits = "from validate to switch yet: workers a of key 'k' are not guarded"
    await workers.is_refused(SWITCH, waits)
    seen, owners = encode_gone({"a": Span(1, 1)}), names.owners_bucket(store_name)
    await workers.put(owners, names.gone_key("k", "host-2"), seen)
    await workers.is_refused(SWITCH, waits)  # not its agent
    await workers.put(owners, names.gone_key("k", "host-1"), seen)
    await workers.register("a")
    await workers.is_refused(SWITCH, waits)  # another process of this id may have registered
    await workers.leave("a")
    await workers.go(SWITCH)


async def test_a_worker_whose_registration_its_agent_has_deleted_is_waited_for(
    service: Running, store_name: str, workers: Workers
) -> None:
    """It had no time to say anything of itself, and may be halted within a call, or cut off."""
    await service.create(store_name)
    await workers.go(SHADOW)
    await workers.register("a")
    await workers.leave("a", may_call=True)
    await workers.is_refused(
        VALIDATE, "from shadow to validate yet: workers a of key 'k' take no part in the migration"
    )
    await workers.leave("a")  # its end was seen
    number = await workers.go(VALIDATE)
    await workers.leave("a", may_call=True)
    await workers.is_refused(SWITCH, "from validate to switch yet: workers a of key 'k' are not guarded")
    await workers.say("a", 1)  # it has ended, but has a cache that does not know of the step
    await workers.is_refused(SWITCH, "workers a of key 'k' are not guarded")
    await workers.say("a", number)
    await workers.go(SWITCH)
    back = await workers.go(SHADOW)
    await workers.table(Rule.PEERS, back)
    await workers.is_refused(
        OFF, "workers a of key 'k' are still guarded"
    )  # it would go on with the table that it knows
    await workers.say("a", 0)
    await workers.go(OFF)


async def test_a_worker_that_is_guarded_since_an_earlier_step_is_not_guarded(
    service: Running, store_name: str, workers: Workers
) -> None:
    await service.create(store_name)
    await workers.go(SHADOW)
    await workers.register("a")
    await workers.say("a", 0)
    first = await workers.go(VALIDATE)
    await workers.say("a", first)
    await workers.go(SHADOW)
    await workers.go(VALIDATE)
    await workers.is_refused(SWITCH, "workers a of key 'k' are not guarded")


async def test_a_step_that_the_database_has_forgotten_counts(
    service: Running, store_name: str, workers: Workers
) -> None:
    """It was restored to an earlier state, while owners serve the store."""
    await service.create(store_name)
    number = await workers.go(SHADOW) + 10
    bucket = await service.nc.jetstream().key_value(names.meta_bucket(store_name))
    await bucket.put(names.META_MIGRATION, encode_migration(step(Stage.SWITCH, number)))
    await service.is_refused(workers.go(OFF), "is at the stage switch: it can't go to off, only to shadow")
    assert await workers.go(SHADOW) > number
    assert decode_migration((await entries(service, store_name))[names.META_MIGRATION]).is_back
    await workers.go(OFF)


async def test_a_server_that_lags_behind_is_not_believed(service: Running, store_name: str, workers: Workers) -> None:
    """It has not heard of the last registration yet."""
    await service.create(store_name)
    js = service.nc.jetstream()
    await workers.register("a")
    assert set((await read_bucket(js, names.nodes_bucket(store_name))).entries) == {"k.a"}

    class Ahead:
        """The server that takes writes in has one more."""

        def __getattr__(self, name: str) -> Any:
            return getattr(service.nc, name)

        async def request(self, subject: str, payload: bytes, timeout: float) -> Msg:
            reply: Msg = await service.nc.request(subject, payload, timeout=timeout)
            info = json.loads(reply.data)
            info["state"]["last_seq"] += 1
            reply.data = json.dumps(info).encode()
            return reply

    with pytest.raises(UnavailableError, match="is read from a server that lags behind"):
        await read_bucket(SimpleNamespace(_nc=Ahead()), names.nodes_bucket(store_name))  # type: ignore[arg-type]


async def test_an_instance_that_knows_an_older_step_changes_nothing(service: Running, store_name: str) -> None:
    await service.create(store_name)
    bucket = await service.nc.jetstream().key_value(names.meta_bucket(store_name))
    own = StoreRecord(store_name, StoreSettings(partition_count=8), 256, 1)
    await ensure_step(bucket, replace(own, migration=step(Stage.SHADOW, 5)))
    after = await entries(service, store_name)
    assert (after["wire_version"], decode_migration(after[names.META_MIGRATION]).number) == (b"2", 5)
    for older in (own, replace(own, migration=step(Stage.OFF, 4))):
        await ensure_step(bucket, older)
        assert await entries(service, store_name) == after
    await bucket.put("wire_version", b"1")  # as by one that was halted in between
    await ensure_step(bucket, own)
    assert await entries(service, store_name) == after
    await bucket.put("wire_version", b"9")
    with pytest.raises(MismatchError, match="has wire_version 2 in the database, NATS says 9"):
        await ensure_step(bucket, own)
