"""Workers under the agent of their host, as real processes: deaths, pauses and agents that go cost what they should."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import nats
import pytest
from nats.js.errors import KeyNotFoundError
from prometheus_client import CollectorRegistry
from ringcast import InUseError, Worker
from ringcast.metrics import PrometheusMetrics
from ringcast_client import ConfigServiceClient, RowWrite
from ringcast_testkit import (
    PATIENCE_S,
    AgentProcess,
    ConfigServiceProcess,
    History,
    NatsServer,
    WorkerProcess,
    until,
    until_workers,
)
from ringcast_wire import NodeRecord, SlotClaim, decode_record, encode_record, names
from ringcast_wire.leases import LeasesStub, pb, target

PARTITIONS = 32
ROWS = 200
PAUSE_S = 8.0
"""What a worker's process may stand still for: so it is claimed."""


class Host:
    """A store with rows, and an agent whose socket workers use."""

    def __init__(self, directory: Path, server: NatsServer, client: ConfigServiceClient) -> None:
        self.socket = directory / "leases.sock"
        self.nats = server
        self.client = client
        self.history = History()
        self.rows = {f"row{number}": "1" for number in range(ROWS)}
        options = ("--lease-socket", str(self.socket), "--id", "host-1")
        self.agent = AgentProcess(directory / "agent", nats_url=server.url, options=options)
        self.workers: list[WorkerProcess] = []

    def process(self, worker_id: str, **settings: Any) -> WorkerProcess:
        """A worker of this host, in a process of its own; started."""
        worker = WorkerProcess(
            worker_id,
            servers=self.nats.url,
            store="s",
            keys=("k",),
            history=self.history,
            agent=str(self.socket),
            **settings,
        )
        self.workers.append(worker)
        worker.start()
        return worker

    def worker(self, worker_id: str, **settings: Any) -> Worker:
        """A worker in this process, with a lease of its own unless it is told of an agent."""
        return Worker(servers=self.nats.url, store="s", keys=["k"], worker_id=worker_id, **settings)

    async def put(self, row_id: str, value: str) -> tuple[int, int]:
        """Writes a row; returns its partition and version."""
        self.rows[row_id] = value
        result = await self.client.put("s", "k", row_id, value)
        return result.partition, result.version

    async def registered(self, *worker_ids: str) -> None:
        """Waits until exactly these workers are registered."""

        def there() -> bool:
            found = self.agent.status()["leases"]["workers"]
            return sorted(one["worker_id"] for one in found if one["connected"]) == sorted(worker_ids)

        await asyncio.to_thread(self.agent.process.wait_until, there)

    async def consumers_of(self, worker_id: str) -> tuple[datetime, datetime]:
        """When the consumer of a worker was made, and when its watch was."""
        connection = await nats.connect(self.nats.url)
        try:
            js = connection.jetstream()
            consumer = await js.consumer_info(names.notify_stream("s"), names.consumer_name("ringcast", worker_id))
            watch = await js.consumer_info(f"KV_{names.nodes_bucket('s')}", names.watch_name("s", worker_id))
            return consumer.created, watch.created
        finally:
            await connection.close()

    def lease(self) -> str:
        """The agent's lease."""
        return str(self.agent.status()["leases"]["lease"])


def owns_all(worker: Worker) -> bool:
    return len(worker.owned("k")) == PARTITIONS


@pytest.fixture
async def host(tmp_path: Path, nats_server: NatsServer, config_service: ConfigServiceProcess) -> AsyncIterator[Host]:
    """A store with rows, and an agent that runs."""
    async with ConfigServiceClient(config_service.address) as client:
        await client.create_store("s", partition_count=PARTITIONS)
        host = Host(tmp_path, nats_server, client)
        async for _ in client.bulk_write("s", "k", [RowWrite(row_id, value) for row_id, value in host.rows.items()]):
            pass
        try:
            with host.agent:
                yield host
        finally:
            for worker in host.workers:
                worker.kill()


@pytest.fixture
async def buckets(host: Host) -> AsyncIterator[tuple[Any, Any]]:
    """The buckets of leases and of records."""
    client = await nats.connect(host.nats.url)
    js = client.jetstream()
    yield await js.key_value(names.LEASES_BUCKET), await js.key_value(names.nodes_bucket("s"))
    await client.close()


async def written(host: Host) -> list[str]:
    """What was ever written to the bucket of leases. Its ``keys()`` may miss what is on its way to it."""
    prefix = f"$KV.{names.LEASES_BUCKET}."
    client = await nats.connect(host.nats.url)
    info = await client.jetstream().stream_info(f"KV_{names.LEASES_BUCKET}", subjects_filter=">")
    await client.close()
    return [subject.removeprefix(prefix) for subject in info.state.subjects or {}]


async def test_a_worker_under_an_agent_has_no_lease_of_its_own(host: Host, buckets: tuple[Any, Any]) -> None:
    _, nodes = buckets
    async with host.worker("w", agent=host.socket) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        # An agent that a busy machine leaves waiting may have lost its lease for a moment, and the worker has its own.
        await until_workers([worker], "k", lambda: worker.health().by_agent)
        assert (await asyncio.to_thread(worker.health)).lease_held
        assert worker.health().lease_held
        record = decode_record((await nodes.get(names.node_key("k", "w"))).value, NodeRecord)
        assert record.lease == host.lease()
        assert await written(host) == [host.lease()]
        (told,) = host.agent.status()["leases"]["workers"]
        assert (told["worker_id"], told["store"], told["keys"], told["connected"]) == ("w", "s", ["k"], True)
    await host.registered()
    assert await written(host) == [host.lease()]


async def test_a_killed_worker_is_noticed_by_its_closed_socket(host: Host, buckets: tuple[Any, Any]) -> None:
    """Its records are deleted, and its lease, which is the host's, goes on."""
    async with host.worker("peer") as peer:
        victim = host.process("victim")
        await asyncio.to_thread(victim.wait_ready)
        await until_workers([peer], "k", lambda: not owns_all(peer))
        record = await buckets[1].get(names.node_key("k", "victim"))
        victim.kill()
        await until_workers([peer], "k", lambda: owns_all(peer))
        await peer.wait_ready(timeout_s=PATIENCE_S)
        with pytest.raises(KeyNotFoundError) as gone:
            await buckets[1].get(names.node_key("k", "victim"))
        # Not by the key's history: a watch takes what is still on its way for nothing.
        assert gone.value.op == "DEL"
        assert gone.value.entry.revision > record.revision
        assert host.agent.status()["leases"]["held"]


class Moves:
    """What a worker has been told of its partitions."""

    def __init__(self) -> None:
        self.count = 0
        self._held: frozenset[int] = frozenset()

    @property
    def settings(self) -> dict[str, Any]:
        """For a worker."""
        return {"on_assigned": self._assigned, "on_revoked": self._revoked}

    def settled(self, worker: Worker) -> bool:
        """Whether the worker has a part of all, and all has been told of it."""
        owned = worker.owned("k")
        return self._held == owned and 0 < len(owned) < PARTITIONS

    def _assigned(self, _key: str, partitions: frozenset[int]) -> None:
        self.count += 1
        self._held |= partitions

    def _revoked(self, _key: str, partitions: frozenset[int]) -> None:
        self.count += 1
        self._held -= partitions


def shared(told: dict[Worker, Moves]) -> bool:
    """Whether the workers share everything out, and have been told so."""
    return sum(len(one.owned("k")) for one in told) == PARTITIONS and all(told[one].settled(one) for one in told)


async def test_a_pause_of_eight_seconds_costs_no_rebalance(host: Host) -> None:
    moves = Moves()
    async with host.worker("peer", **moves.settings) as peer:
        victim = host.process("victim")
        await asyncio.to_thread(victim.wait_ready)
        paused_s = math.inf
        while paused_s > PAUSE_S + 1.0:  # a machine that has much to do may stretch it beyond what is claimed
            await host.registered("victim")
            await until_workers([peer], "k", lambda: moves.settled(peer))
            before, began_s = moves.count, time.monotonic()
            victim.pause()
            await asyncio.sleep(PAUSE_S)
            victim.resume()
            paused_s = time.monotonic() - began_s
        await host.put("row1", "after the pause")
        await asyncio.to_thread(victim.dump)
        assert moves.count == before
        assert host.agent.status()["leases"]["deleted_records"] == 0


async def test_a_worker_that_is_silent_for_too_long_is_given_up_and_comes_back(host: Host) -> None:
    """What changed meanwhile it has when it is back."""
    async with host.worker("peer") as peer:
        victim = host.process("victim")
        await asyncio.to_thread(victim.wait_ready)
        await until_workers([peer], "k", lambda: not owns_all(peer))
        victim.pause()
        await until_workers([peer], "k", lambda: owns_all(peer))
        for number in range(0, ROWS, 2):
            await host.put(f"row{number}", "written in the pause")
        assert host.agent.status()["leases"]["workers"] == []
        victim.resume()
        await until_workers([peer], "k", lambda: not owns_all(peer))
        await host.registered("victim")

        async def whole() -> None:
            while True:
                found = await asyncio.to_thread(victim.dump)
                theirs = {row_id: value for row_id, (value, _, _) in found.get("k", {}).items()}
                held = {row.row_id: row.value for row in peer.rows("k")}
                if not held.keys() & theirs.keys() and held | theirs == host.rows:
                    return

        await asyncio.wait_for(whole(), PATIENCE_S)


async def test_a_killed_agent_that_starts_again_goes_on_with_its_lease(host: Host) -> None:
    """Under load: nobody's partitions move, and no row is lost."""
    ones, others = Moves(), Moves()
    async with (
        host.worker("peer", **ones.settings) as peer,
        host.worker("w", agent=host.socket, **others.settings) as worker,
    ):
        both = [peer, worker]
        await until_workers(both, "k", lambda: shared({peer: ones, worker: others}))
        before, lease = (ones.count, others.count), host.lease()
        assert lease.startswith("host-1.")
        enough = asyncio.Event()
        written = asyncio.create_task(_write_on(host, enough))
        await asyncio.to_thread(host.agent.kill)
        await until_workers(both, "k", lambda: not worker.health().by_agent)
        await asyncio.to_thread(host.agent.start)
        await until_workers(both, "k", lambda: worker.health().by_agent)
        await host.registered("w")
        enough.set()
        await written
        await until_workers(both, "k", lambda: {r.row_id: r.value for one in both for r in one.rows("k")} == host.rows)
        assert (ones.count, others.count) == before
        assert host.lease() == lease


async def _write_on(host: Host, enough: asyncio.Event) -> None:
    number = 0
    while not enough.is_set():
        number += 1
        await host.put(f"row{number % ROWS}", str(number))


async def test_workers_outlive_their_agent_and_go_back_to_the_next_one(host: Host, buckets: tuple[Any, Any]) -> None:
    leases, nodes = buckets
    ones, others = Moves(), Moves()

    async def recorded(lease: str) -> None:
        async for entry in await nodes.watch(names.node_key("k", "w")):
            if entry is not None and decode_record(entry.value, NodeRecord).lease == lease:
                return

    async def gone(lease: str) -> None:
        """A record ends in silence: there is no event for it, only a look."""
        while True:
            try:
                await leases.get(lease)
            except KeyNotFoundError:
                return
            await asyncio.sleep(0.1)

    async with (
        host.worker("peer", **ones.settings) as peer,
        host.worker("w", agent=host.socket, **others.settings) as worker,
    ):
        await until_workers([peer, worker], "k", lambda: shared({peer: ones, worker: others}))
        before, lease = (ones.count, others.count), host.lease()
        await asyncio.to_thread(host.agent.kill)
        await asyncio.wait_for(recorded("w"), PATIENCE_S)
        assert worker.health().lease_held
        assert not worker.health().by_agent
        await asyncio.wait_for(gone(lease), PATIENCE_S)  # the host's lease has ended, and nothing follows
        host.socket.with_name("leases.sock.state").unlink()  # as after a reboot
        await asyncio.to_thread(host.agent.start)
        assert host.lease() != lease
        await asyncio.wait_for(recorded(host.lease()), PATIENCE_S)
        await asyncio.wait_for(gone("w"), PATIENCE_S)
        assert worker.health().by_agent
        partition, version = await host.put("row1", "at last")
        (owner,) = [one for one in (peer, worker) if partition in one.owned("k")]
        await owner.wait_for("k", partition, version, timeout_s=PATIENCE_S)
        assert (ones.count, others.count) == before


async def test_a_worker_that_dies_with_its_agent_leaves_no_record_even_if_it_had_just_registered(
    host: Host, buckets: tuple[Any, Any]
) -> None:
    """The next agent keeps the same lease alive: a record that it did not look for would count for ever."""
    async with grpc.aio.insecure_channel(target(str(host.socket))) as channel:
        call = LeasesStub(channel).Hold()
        register = pb.Register(version=1, worker_id="w1", incarnation="i", pid=1, store="s", keys=["k"])
        await call.write(pb.HoldRequest(register=register))
        lease = (await call.read()).registered.lease
        await asyncio.to_thread(host.agent.kill)
        call.cancel()
    nodes = buckets[1]
    claim = SlotClaim(worker_id="w1", lease=lease)
    record = NodeRecord(slot=0, lease=lease, incarnation="i")
    for name, written_by_it in ((names.slot_key("k", 0), claim), (names.node_key("k", "w1"), record)):
        await nodes.put(name, encode_record(written_by_it))
    await asyncio.to_thread(host.agent.start)
    assert host.lease() == lease
    for name in (names.slot_key("k", 0), names.node_key("k", "w1")):
        await until(partial(is_deleted, nodes, name))


async def is_deleted(bucket: Any, name: str) -> bool:
    try:
        await bucket.get(name)
    except KeyNotFoundError:
        return True
    return False


async def test_an_agent_that_stands_still_costs_no_rebalance(host: Host) -> None:
    ones, others = Moves(), Moves()
    async with (
        host.worker("peer", **ones.settings) as peer,
        host.worker("w", agent=host.socket, **others.settings) as worker,
    ):
        await until_workers([peer, worker], "k", lambda: shared({peer: ones, worker: others}))
        before = (ones.count, others.count)
        host.agent.pause()
        try:
            await until_workers([worker], "k", lambda: not worker.health().by_agent)
            await asyncio.sleep(12.0)  # its lease ends meanwhile
            assert worker.health().lease_held
        finally:
            host.agent.resume()
        await until_workers([worker], "k", lambda: worker.health().by_agent)
        await host.registered("w")
        assert (ones.count, others.count) == before


async def test_when_the_hosts_lease_was_lost_everything_is_verified(
    host: Host, buckets: tuple[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with host.worker("w", agent=host.socket) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        await buckets[0].delete(host.lease())
        await until_workers(
            [worker], "k", lambda: any("event=lease.regranted" in record.message for record in caplog.records)
        )
        assert host.agent.status()["leases"]["losses"] == 1
        partition, version = await host.put("row1", "new")
        await worker.wait_for("k", partition, version, timeout_s=PATIENCE_S)
        assert owns_all(worker)


async def test_a_worker_id_of_another_process_of_the_host_is_refused_with_its_pid(host: Host) -> None:
    other = host.process("w")
    await asyncio.to_thread(other.wait_ready)
    with pytest.raises(InUseError, match=f"worker id 'w' is in use by process {other.process.pid} on this host"):
        async with host.worker("w", agent=host.socket):
            pytest.fail("it started")
    assert other.running


async def test_a_worker_id_that_lives_by_another_lease_is_refused(host: Host) -> None:
    """One process has a lease of its own, the other an agent: their records tell them of each other.

    Consumer and watch have the worker's id in their names: whoever is refused, or stopped before, has not touched them.
    """
    other = host.process("w")
    await asyncio.to_thread(other.wait_ready)
    before = await host.consumers_of("w")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2.0), host.worker("w"):
            pytest.fail("it started")
    assert await host.consumers_of("w") == before
    with pytest.raises(InUseError, match="worker id 'w' is in use by another process on host"):
        async with host.worker("w"):
            pytest.fail("it started")
    assert await host.consumers_of("w") == before
    assert other.running
    await host.put("row1", "new")
    assert len((await asyncio.to_thread(other.dump))["k"]) == ROWS


async def test_without_an_agent_a_worker_starts_with_its_own_lease(
    host: Host, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    nowhere = tmp_path / "nowhere.sock"
    async with host.worker("w", agent=nowhere) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        assert worker.health().lease_held
        assert not worker.health().by_agent
        options = ("--lease-socket", str(nowhere), "--id", "host-2")
        with AgentProcess(tmp_path / "late", nats_url=host.nats.url, options=options):
            await until_workers([worker], "k", lambda: worker.health().by_agent)
            assert owns_all(worker)
    told = [record for record in caplog.records if "event=agent.unusable" in record.message]
    assert len(told) == 1


async def test_the_next_agent_waits_for_the_one_before_it(host: Host, tmp_path: Path) -> None:
    """As an upgrade does: the socket, the lease and the registrations are handed over."""
    moves = Moves()
    async with host.worker("w", agent=host.socket, **moves.settings) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        before, lease = moves.count, host.lease()
        options = ("--lease-socket", str(host.socket), "--id", "host-1")
        following = AgentProcess(tmp_path / "next", nats_url=host.nats.url, options=options)
        starting = asyncio.create_task(asyncio.to_thread(following.start))
        try:
            assert await asyncio.to_thread(host.agent.terminate) == 0
            await starting
            assert following.status()["leases"]["lease"] == lease
            await until_workers([worker], "k", lambda: worker.health().by_agent)
            assert moves.count == before
        finally:
            await asyncio.wait({starting})
            following.kill()


async def test_heartbeats_of_the_agent_that_fail_count_as_the_workers(host: Host) -> None:
    registry = CollectorRegistry()
    labels = {"store": "s", "key": "k", "worker_id": "counted"}
    async with host.worker("counted", agent=str(host.socket), metrics=PrometheusMetrics(registry)) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        await until_workers([worker], "k", lambda: worker.health().by_agent)
        await host.registered("counted")

        def failures() -> float:
            return registry.get_sample_value("config_heartbeat_failures_total", labels) or 0

        before = failures()
        host.nats.pause()
        try:
            await until_workers([worker], "k", lambda: failures() > before)
        finally:
            host.nats.resume()
        await until_workers([worker], "k", lambda: worker.health().ready)
