"""Config services that die between commit and publish, hang, and answer too late, under load."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import asyncpg
import pytest
from nats.js.errors import NotFoundError
from ringcast_client import ConfigServiceClient
from ringcast_testkit import ConfigServiceProcess, NatsServer
from ringcast_wire import UnavailableError, decode_event, names

from tests.integration.faults.arena import STORE, off
from tests.integration.faults.conftest import Start
from tests.integration.faults.kinds import KINDS
from tests.integration.faults.load import Write
from tests.integration.faults.run import Run

KILLS = 8
MOST_S = 30.0


async def waiting_events(run: Run) -> int:
    """Events that are committed and not published yet."""
    connection = await asyncpg.connect(run.arena.database)
    try:
        return int(await connection.fetchval("SELECT count(*) FROM outbox"))
    finally:
        await connection.close()


async def stream_of(run: Run) -> list[tuple[str, int]]:
    """Subject and revision of every event in the stream."""
    found = []
    async with run.arena.bus() as client:
        js = client.jetstream()
        state = (await js.stream_info(names.notify_stream(STORE))).state
        for sequence in range(state.first_seq, state.last_seq + 1):
            try:
                message = await js.get_msg(names.notify_stream(STORE), sequence)
            except NotFoundError:
                continue  # older ones are discarded
            found.append((message.subject or "", decode_event(message.data or b"").rev))
    return found


async def test_a_service_killed_between_commit_and_publish_loses_no_event(start: Start) -> None:
    """The only instance is killed under load, again and again: what it left in the outbox goes out afterwards."""
    caught = 0
    async with start(services=1, workers=1) as run:
        service = run.arena.services["service0"]
        for number in range(KILLS):
            await run.load.put("routes", f"just-acknowledged-{number}", random.Random(number))
            await off(service.kill)  # the answer has just come, so the event is on its way at best
            caught += bool(await waiting_events(run))
            await off(service.start)
        await run.recovered()
        assert caught >= KILLS // 4, "hardly a kill came between commit and publish"
    assert caught


async def test_the_other_instance_publishes_what_a_dead_one_left(start: Start) -> None:
    async with start(services=2, workers=1) as run:
        dead = run.arena.services["service1"]
        run.arena.down.add("service1")
        await off(dead.kill)
        await run.recovered()  # with one instance alone
        await off(dead.start)
        run.arena.down.clear()
        await run.recovered()
        events = await stream_of(run)
        assert len(events) == len(set(events)), "two relays published an event twice"


async def test_a_request_that_timed_out_takes_effect_later(start: Start) -> None:
    async with start(hold=1.0) as run:  # longer than a client waits
        assert await run.fault(KINDS["service_paused"]) < MOST_S
    assert run.outcome.uncertain, "no request timed out"


async def test_all_instances_die_together(start: Start) -> None:
    async with start() as run:
        assert await run.fault(KINDS["all_services_killed"]) < MOST_S


async def test_a_write_that_waits_for_a_lock_is_not_stored_after_its_client_gave_up(start: Start) -> None:
    """The database makes the service wait, the client does not: what it was told nothing about never overtakes."""
    async with start(services=1, workers=1) as run:
        row_id = "late"
        first = await run.load.put("routes", row_id, random.Random(1))
        await run.load.stop()
        locker = await asyncpg.connect(run.arena.database)
        transaction = locker.transaction()
        await transaction.start()
        await locker.execute("SELECT * FROM partitions WHERE partition = $1 FOR UPDATE", first.partition)
        async with ConfigServiceClient(run.arena.services["service0"].address, timeout_s=0.5) as hasty:
            with pytest.raises(UnavailableError, match=r"within 0\.5 s"):
                await hasty.put(STORE, "routes", row_id, "given up")
        await transaction.rollback()
        await locker.close()
        # Writes to a partition are in the order of their revisions: one that is stored now is behind all of before.
        second = await run.load.put("routes", row_id, random.Random(2))
        assert (second.partition, second.version) == (first.partition, first.version + 1)


async def test_an_instance_that_hangs_in_a_transaction_does_not_hold_up_the_others(start: Start) -> None:
    """It has locked a partition when it stops: the database ends its transaction, and another instance goes on."""
    async with start(services=2, workers=1) as run:
        row_id = "contended"
        first = await run.load.put("routes", row_id, random.Random(1))
        await run.load.stop()
        locker = await asyncpg.connect(run.arena.database)
        transaction = locker.transaction()
        await transaction.start()
        await locker.execute("SELECT * FROM partitions WHERE partition = $1 FOR UPDATE", first.partition)
        stuck = asyncio.create_task(run.arena.clients["service0"].put(STORE, "routes", row_id, "stuck"))
        run.load.ledger.writes.append(Write("routes", row_id, "stuck", attempts=1))
        await waits_for_a_lock(run)
        await off(run.arena.services["service0"].pause)
        await transaction.rollback()  # the lock is now held by a process that does nothing
        await locker.close()
        with pytest.raises(UnavailableError):
            await stuck
        begun, attempts = run.load.ledger.now(), 0
        async with asyncio.timeout(MOST_S):
            while True:
                attempts += 1
                try:  # refused after --lock-timeout, until the database has ended the transaction
                    done = await run.arena.clients["service1"].put(STORE, "routes", row_id, "went on")
                    break
                except UnavailableError:
                    await asyncio.sleep(0.1)
        ended = run.load.ledger.now()
        run.load.ledger.writes.append(
            Write("routes", row_id, "went on", attempts, True, done.version, done.partition, begun, ended)
        )
        await off(run.arena.services["service0"].resume)
        await run.recovered()


async def waits_for_a_lock(run: Run) -> None:
    """Waits until a transaction of a service waits for a lock."""
    connection = await asyncpg.connect(run.arena.database)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    try:
        async with asyncio.timeout(MOST_S):
            while True:
                if await connection.fetchval(waiting):
                    return
                await asyncio.sleep(0.01)
    finally:
        await connection.close()


async def test_deletes_that_were_compacted_while_a_worker_was_away(start: Start) -> None:
    """The tombstones are gone when it is back, so what changed can't be told: it takes its partitions whole."""
    options = ("--tombstone-retention", "1s", "--compaction-interval", "200ms")
    async with start(services=1, workers=1, partitions=8, service_options=options) as run:
        rows = [f"doomed-{number}" for number in range(24)]
        chance = random.Random(1)
        kept = [await run.load.put("routes", row_id, chance) for row_id in rows]
        await run.recovered()
        await run.load.stop()
        for link in run.arena.links["worker0"]:
            link.cut()
        client = run.arena.clients["service0"]
        for write in kept:
            begun = run.load.ledger.now()
            gone = await client.delete(STORE, "routes", write.row_id)
            assert gone.existed
            ended = run.load.ledger.now()
            run.load.ledger.writes.append(
                Write("routes", write.row_id, None, 1, True, gone.version, gone.partition, begun, ended)
            )
        await compacted(run, {write.partition: write.version for write in kept})
        for link in run.arena.links["worker0"]:
            link.resume()
        await run.recovered()
        held = (await off(run.arena.workers["worker0"].dump))["routes"]
        assert not set(rows) & set(held)


async def compacted(run: Run, above: dict[int, int]) -> None:
    """Waits until the floor of each partition is above a version, so that ``since`` it can't be answered any more."""
    connection = await asyncpg.connect(run.arena.database)
    try:
        async with asyncio.timeout(MOST_S):
            while True:
                floors = dict(await connection.fetch("SELECT partition, floor FROM partitions"))
                if all(floors[partition] > version for partition, version in above.items()):
                    return
                await asyncio.sleep(0.05)
    finally:
        await connection.close()


async def test_a_client_finds_a_service_that_was_away_for_long(
    nats_server: NatsServer, tmp_path: Path, store_name: str
) -> None:
    """A channel of gRPC tries ever more rarely by default: it would find the service some 5 s after its return."""
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    with ConfigServiceProcess(tmp_path, nats_url=nats_server.url, database=database) as service:
        async with ConfigServiceClient(service.address, timeout_s=3) as client:
            await client.create_store(store_name, partition_count=1)
            service.kill()
            killed_at = time.monotonic()
            while time.monotonic() < killed_at + 11.0:
                with pytest.raises(UnavailableError):
                    await client.put(store_name, "k", "a", "1")
                await asyncio.sleep(0.05)
            await off(service.restart)
            back_at = time.monotonic()
            while True:
                try:
                    await client.put(store_name, "k", "a", "1")
                    break
                except UnavailableError:
                    await asyncio.sleep(0.02)
            assert time.monotonic() - back_at < 4.0
