"""Workers through deaths, restarts and losses, with a real NATS server and a real config service: no row is lost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import nats
import pytest
from ringcast import Change, Health, InUseError, LimitExceededError, Mode, Worker
from ringcast_client import ConfigServiceClient, RowWrite
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, ManagedProcess, NatsServer, until_workers
from ringcast_wire import LeaseRecord, NodeRecord, SlotClaim, encode_record, limits, names

PARTITIONS = 64
ROWS = 500
SCRIPT = Path(__file__).with_name("worker_process.py")


class Fleet:
    """A store with rows, and the workers of a test."""

    def __init__(self, nats_server: NatsServer, service: ConfigServiceProcess, client: ConfigServiceClient) -> None:
        self.nats = nats_server
        self.service = service
        self.client = client
        self.rows: dict[str, str] = {}

    async def write(self, rows: dict[str, str]) -> None:
        """Writes rows in bulk."""
        self.rows |= rows
        writes = [RowWrite(row_id, value) for row_id, value in rows.items()]
        async for _ in self.client.bulk_write("s", "k", writes):
            pass

    async def put(self, row_id: str, value: str) -> tuple[int, int]:
        """Writes a row; returns its partition and version."""
        self.rows[row_id] = value
        result = await self.client.put("s", "k", row_id, value)
        return result.partition, result.version

    def worker(self, worker_id: str, **settings: object) -> Worker:
        """A worker in this process, not started yet."""
        return Worker(servers=self.nats.url, store="s", keys=["k"], worker_id=worker_id, **settings)  # type: ignore[arg-type]

    def process(self, worker_id: str) -> ManagedProcess:
        """A worker in a process of its own."""
        return ManagedProcess(worker_id, [sys.executable, SCRIPT, self.nats.url, "s", "k", worker_id])

    def held_once(self, workers: list[Worker]) -> bool:
        """Whether every row is held by exactly one of the workers, with the right value."""
        held = [(row.row_id, row.value) for worker in workers for row in worker.rows("k")]
        return len(held) == len(self.rows) and dict(held) == self.rows

    def owned_once(self, workers: list[Worker]) -> bool:
        """Whether every partition has exactly one of the workers as its owner."""
        owned = sorted(number for worker in workers for number in worker.owned("k"))
        return owned == list(range(PARTITIONS))


@pytest.fixture
async def fleet(nats_server: NatsServer, config_service: ConfigServiceProcess) -> AsyncIterator[Fleet]:
    """A store of 64 partitions with 500 rows."""
    async with ConfigServiceClient(config_service.address) as client:
        await client.create_store("s", partition_count=PARTITIONS)
        fleet = Fleet(nats_server, config_service, client)
        await fleet.write({f"row{number}": f"v{number}" for number in range(ROWS)})
        yield fleet


async def ready(*workers: Worker) -> None:
    for worker in workers:
        await worker.wait_ready(timeout_s=PATIENCE_S)


async def test_partitions_are_shared_out_and_a_change_reaches_its_owner_alone(fleet: Fleet) -> None:
    heard: dict[str, list[str]] = {name: [] for name in "abc"}

    def handler(name: str) -> Callable[[Change], None]:
        return lambda change: heard[name].append(change.row_id) if change.committed_at_ms is not None else None

    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(fleet.worker(name, handler=handler(name))) for name in "abc"]
        await until_workers(workers, "k", lambda: fleet.owned_once(workers) and fleet.held_once(workers))
        assert all(worker.owned("k") for worker in workers)
        for number in range(60):
            partition, version = await fleet.put(f"row{number}", "new")
            (owner,) = [worker for worker in workers if partition in worker.owned("k")]
            await owner.wait_for("k", partition, version, timeout_s=PATIENCE_S)
        told = [row_id for rows in heard.values() for row_id in rows]
        assert sorted(told) == sorted(f"row{number}" for number in range(60))
        assert all(heard.values())
        assert fleet.held_once(workers)


def answered(worker: Worker) -> int:
    """Fetches of partitions that brought something: on a slow machine one may be given up, and sent again."""
    stats = worker.stats()
    return stats.fetches - stats.fetch_failures


async def test_what_is_kept_in_a_rebalance_is_not_fetched_again(fleet: Fleet) -> None:
    async with fleet.worker("a") as first:
        await ready(first)
        assert answered(first) == PARTITIONS
        async with fleet.worker("b") as second:
            await until_workers([first, second], "k", lambda: fleet.owned_once([first, second]))
            await ready(first, second)
            moved = len(second.owned("k"))
            assert answered(second) == moved
            assert fleet.held_once([first, second])
        await until_workers([first], "k", lambda: fleet.owned_once([first]) and fleet.held_once([first]))
        assert answered(first) == PARTITIONS + moved


async def test_a_worker_that_leaves_gives_its_partitions_up_at_once(fleet: Fleet) -> None:
    async with fleet.worker("a") as first:
        async with fleet.worker("b") as second:
            await until_workers([first, second], "k", lambda: fleet.owned_once([first, second]))
        left_at = asyncio.get_running_loop().time()
        await until_workers([first], "k", lambda: fleet.owned_once([first]) and fleet.held_once([first]))
        # Far below the ten seconds that a lease lives.
        assert asyncio.get_running_loop().time() - left_at < 4.0


async def test_no_row_is_lost_when_a_worker_is_killed(fleet: Fleet) -> None:
    victim = fleet.process("victim")
    try:
        async with fleet.worker("a") as first, fleet.worker("b") as second:
            workers = [first, second]
            await asyncio.to_thread(victim.wait_until, lambda: any("ready" in line for line in list(victim.log)))
            await until_workers(workers, "k", lambda: sum(len(worker.owned("k")) for worker in workers) < PARTITIONS)
            victim.kill()
            for number in range(ROWS):  # some of these changes are the dead worker's to hear
                if number % 5 == 0:
                    await fleet.put(f"row{number}", "written while its owner was dead")
            await until_workers(workers, "k", lambda: fleet.owned_once(workers) and fleet.held_once(workers))
    finally:
        victim.kill()


async def test_a_killed_worker_starts_again_with_the_same_id(fleet: Fleet) -> None:
    victim = fleet.process("w")
    try:
        await asyncio.to_thread(victim.wait_until, lambda: any("ready" in line for line in list(victim.log)))
        victim.kill()
        async with fleet.worker("w") as worker:  # waits for the lease of the dead process to end
            await ready(worker)
            assert fleet.held_once([worker])
    finally:
        victim.kill()


async def test_a_worker_id_of_another_live_process_is_refused(fleet: Fleet) -> None:
    other = fleet.process("w")
    try:
        await asyncio.to_thread(other.wait_until, lambda: any("ready" in line for line in list(other.log)))
        with pytest.raises(InUseError, match=f"worker id 'w' is in use by process {other.pid} on host"):
            async with fleet.worker("w"):
                pytest.fail("it started")
        assert other.returncode is None
    finally:
        other.kill()


async def test_rows_stay_at_hand_and_are_brought_up_to_date_when_nats_is_killed(fleet: Fleet) -> None:
    async with fleet.worker("a") as first, fleet.worker("b") as second:
        workers = [first, second]
        await until_workers(workers, "k", lambda: fleet.owned_once(workers) and fleet.held_once(workers))
        owned = [worker.owned("k") for worker in workers]
        assert first.staleness() == 0
        fleet.nats.kill()
        await until_workers(workers, "k", lambda: all(worker.staleness() > 0 for worker in workers))
        assert fleet.held_once(workers)
        fleet.nats.restart()
        await fleet.write({f"row{number}": "after" for number in range(0, ROWS, 3)})
        await until_workers(workers, "k", lambda: fleet.held_once(workers))
        assert [worker.owned("k") for worker in workers] == owned
        partition, version = await fleet.put("row1", "last")
        (owner,) = [worker for worker in workers if partition in worker.owned("k")]
        await owner.wait_for("k", partition, version, timeout_s=PATIENCE_S)


async def test_a_worker_tells_how_it_is_and_how_old_its_rows_may_be(fleet: Fleet) -> None:
    worker = fleet.worker("a", heads_s=0.2)
    assert worker.health() == Health(False, False, 0.0, ())
    async with worker:
        await ready(worker)
        health = worker.health()
        (key,) = health.keys
        assert health.ready
        assert (key.key, key.owned, key.loaded, key.blocked_rows, key.paused) == ("k", PARTITIONS, PARTITIONS, 0, False)

        fleet.service.kill()  # NATS is there, and nobody answers
        await until_workers([worker], "k", lambda: worker.staleness("k") > 0)
        health = worker.health()
        assert (health.connected, health.lease_held, health.ready) == (True, True, False)
        assert fleet.held_once([worker])
        fleet.service.restart()
        await fleet.put("row1", "again")
        await until_workers([worker], "k", lambda: worker.health().ready)

        fleet.nats.kill()
        await until_workers([worker], "k", lambda: worker.staleness() > 0)
        assert not worker.health().connected
        fleet.nats.restart()
        await fleet.put("row1", "and again")
        await until_workers([worker], "k", lambda: worker.health().ready)
    assert not worker.health().ready


async def test_a_worker_stops_at_once_while_nats_is_down(fleet: Fleet) -> None:
    async with fleet.worker("a") as worker:
        await ready(worker)
        fleet.nats.kill()
        await until_workers([worker], "k", lambda: worker.staleness() > 0)
        stopping_at = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - stopping_at < 4.0
    fleet.nats.restart()
    async with fleet.worker("a") as worker:  # the lease it could not give back was this process's own
        await ready(worker)
        assert fleet.held_once([worker])


async def test_changes_made_while_nats_is_down_arrive_when_it_is_back(fleet: Fleet) -> None:
    async with fleet.worker("a") as worker:
        await ready(worker)
        fleet.nats.kill()
        for number in range(20):  # the database takes them, and the outbox keeps their events
            await fleet.put(f"row{number}", "written into the dark")
        fleet.nats.restart()
        await until_workers([worker], "k", lambda: fleet.held_once([worker]))


async def test_a_worker_outlives_the_config_service(fleet: Fleet) -> None:
    async with fleet.worker("a", heads_s=0.5) as worker:
        await ready(worker)
        fleet.service.kill()
        assert fleet.held_once([worker])
        async with fleet.worker("b") as late:  # has to fetch, and can't yet
            await until_workers([worker, late], "k", lambda: len(late.owned("k")) > 0)
            assert not late.row_count("k")
            fleet.service.restart()
            async with ConfigServiceClient(fleet.service.address) as fleet.client:
                await fleet.put("row1", "new")
                await until_workers([worker, late], "k", lambda: fleet.held_once([worker, late]))


async def test_events_that_are_lost_are_made_up_for(fleet: Fleet) -> None:
    async with fleet.worker("a", heads_s=0.3) as worker:
        await ready(worker)
        client = await nats.connect(fleet.nats.url)
        try:
            js = client.jetstream()
            # Events go out, but none gets to the worker: somebody has changed its filters.
            await js.add_consumer(
                names.notify_stream("s"),
                durable_name="ringcast-a",
                name="ringcast-a",
                deliver_policy=nats.js.api.DeliverPolicy.LAST_PER_SUBJECT,
                filter_subjects=[names.notify_subject("s", "elsewhere", 0)],
                inactive_threshold=300.0,
                ack_wait=30.0,
                max_ack_pending=4096,
            )
            await fleet.write({f"row{number}": "unheard" for number in range(0, ROWS, 7)})
            await until_workers([worker], "k", lambda: fleet.held_once([worker]))
            assert worker.stats().events <= 2 * PARTITIONS
        finally:
            await client.close()


async def test_a_consumer_that_vanished_is_created_again(fleet: Fleet) -> None:
    async with fleet.worker("a", heads_s=60.0) as worker:
        await ready(worker)
        client = await nats.connect(fleet.nats.url)
        try:
            js = client.jetstream()
            await js.delete_consumer(names.notify_stream("s"), "ringcast-a")
            await fleet.put("row1", "new")
            await until_workers([worker], "k", lambda: fleet.held_once([worker]))
            info = await js.consumer_info(names.notify_stream("s"), "ringcast-a")
            assert info.config.filter_subjects == [names.notify_key_subjects("s", "k")]  # one filter for all of them
        finally:
            await client.close()


async def test_a_worker_whose_lease_was_taken_stops_with_an_error(fleet: Fleet) -> None:
    """And it leaves alone what goes by its id: that is the other process's now."""
    thief = LeaseRecord(incarnation="another", host="elsewhere", pid=99, started_at_ms=1)

    async def work() -> None:
        async with fleet.worker("a", lease_refresh_s=0.2) as worker:
            await ready(worker)
            await leases.put("a", encode_record(thief))
            await asyncio.wait_for(asyncio.Event().wait(), PATIENCE_S)  # the error interrupts the body

    client = await nats.connect(fleet.nats.url)
    try:
        leases = await client.jetstream().key_value(names.LEASES_BUCKET)
        with pytest.raises(InUseError, match="process 99 on host elsewhere"):
            await work()
        entry = await leases.get("a")
        assert entry.value == encode_record(thief)
        nodes = await client.jetstream().key_value(names.nodes_bucket("s"))
        assert (await nodes.get(names.node_key("k", "a"))).value
        assert (await nodes.get(names.slot_key("k", 0))).value
        assert await client.jetstream().consumer_info(names.notify_stream("s"), names.consumer_name("ringcast", "a"))
    finally:
        await client.close()


async def test_a_lost_lease_is_taken_again_and_what_was_missed_is_made_up_for(fleet: Fleet) -> None:
    client = await nats.connect(fleet.nats.url)
    try:
        leases = await client.jetstream().key_value(names.LEASES_BUCKET)
        async with fleet.worker("a") as worker:
            await ready(worker)
            owned = worker.owned("k")
            await leases.delete("a")
            async with asyncio.timeout(PATIENCE_S):
                async for entry in await leases.watch("a"):
                    if entry is not None and entry.operation is None:
                        break
            await fleet.put("row1", "new")
            await until_workers([worker], "k", lambda: fleet.held_once([worker]))
            assert worker.owned("k") == owned
    finally:
        await client.close()


async def test_one_worker_too_many_is_refused(fleet: Fleet) -> None:
    client = await nats.connect(fleet.nats.url)
    try:
        js = client.jetstream()
        nodes, leases = await js.key_value(names.nodes_bucket("s")), await js.key_value(names.LEASES_BUCKET)
        await leases.put("crowd", encode_record(LeaseRecord(incarnation="c", host="h", pid=1, started_at_ms=1)))
        for slot in range(limits.MAX_WORKERS_PER_KEY):
            claim = SlotClaim(worker_id=f"c{slot}", lease="crowd")
            await nodes.put(names.slot_key("k", slot), encode_record(claim))
            node = NodeRecord(slot=slot, lease="crowd", incarnation="c")
            await nodes.put(names.node_key("k", f"c{slot}"), encode_record(node))
        with pytest.raises(LimitExceededError, match="200"):
            async with fleet.worker("a"):
                pytest.fail("it started")
    finally:
        await client.close()


async def test_full_mode_survives_a_restart_of_nats(
    nats_server: NatsServer, config_service: ConfigServiceProcess
) -> None:
    async with ConfigServiceClient(config_service.address) as client:
        await client.create_store("f", partition_count=16, mode=Mode.FULL)
        for number in range(40):
            await client.put("f", "k", f"row{number}", "1")
        async with Worker(servers=nats_server.url, store="f", keys=["k"], worker_id="w") as worker:
            await ready(worker)
            nats_server.kill()
            result = await client.put("f", "k", "row0", "2")
            assert worker.row_count("k") == 40
            nats_server.restart()
            await worker.wait_for("k", result.partition, result.version, timeout_s=PATIENCE_S)
            row = worker.get("k", "row0")
            assert row is not None
            assert row.value == "2"
