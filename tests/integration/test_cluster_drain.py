"""Two real services are drained and restarted, one after the other, under clients that know both."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import nats
import nats.errors
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from ringcast_client import ConfigServiceClient, RowWrite
from ringcast_client.blocking import BlockingBulkWrite, BlockingStoreCalls, ServiceConnection
from ringcast_meta import LocalCache, open_store
from ringcast_meta.cluster import service_addresses
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer, TcpProxy, until
from ringcast_wire import InvalidInputError, OutcomeUnknownError, RingcastError, UnavailableError, names
from ringcast_wire.grpc import ConfigServiceStub, ServiceLogin, pb, says_elsewhere

from tests.integration.cli_process import Cli

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
PUTS = 1_500
BULK_ROWS = 20_000
LONG_S = 30.0
"""Half of what calls get that are under way where a connection was replaced."""
PAUSE_S = 0.01
"""Between calls of one client: some are always under way, yet do not keep the machine busy while a roll waits."""


@pytest.fixture
def nats_url(nats_server: NatsServer) -> str:
    """A server of its own: the processes of other tests are not in this cluster."""
    return nats_server.url


def instance(tmp_path: Path, name: str, nats_url: str, *words: str) -> ConfigServiceProcess:
    """One of the instances over the same file."""
    options = ("--cluster-store", f"{nats_url}/config_cluster", *words)
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    return ConfigServiceProcess(tmp_path / name, nats_url=nats_url, database=database, options=options)


def cli_of(tmp_path: Path, nats_url: str) -> Cli:
    return Cli(tmp_path, cluster_store=f"{nats_url}/config_cluster", timeout_s="60")


async def id_of(cache: LocalCache, service: ConfigServiceProcess) -> str:
    """The id of an instance, once it has registered."""

    def found() -> list[str]:
        pid = f'"pid":{service.process.pid},'.encode()
        return [key for key, entry in cache.entries().items() if pid in entry.value]

    await cache.wait_until(lambda: len(found()) == 1, PATIENCE_S)
    return found()[0].partition(".")[2]


@asynccontextmanager
async def watched(nats_url: str) -> AsyncIterator[LocalCache]:
    async with open_store(f"{nats_url}/config_cluster", create=True) as store, LocalCache(store) as cache:
        yield cache


async def drain(cli: Cli, member_id: str) -> None:
    done = await asyncio.to_thread(cli.ok, "cluster", "drain", member_id, "--wait")
    assert f"service {member_id} is to drain; it is drained" in done.out


async def to_the_end(listing: Any) -> None:
    while await listing.read():
        pass


async def test_no_call_fails_while_two_services_are_rolled(tmp_path: Path, nats_url: str) -> None:
    cli = cli_of(tmp_path, nats_url)
    one, two = instance(tmp_path, "one", nats_url), instance(tmp_path, "two", nats_url)
    written: list[str] = []
    rolled = asyncio.Event()
    with one, two:
        async with (
            watched(nats_url) as cache,
            ConfigServiceClient(f"{one.address},{two.address}", timeout_s=PATIENCE_S) as client,
            ConfigServiceClient(lambda: service_addresses(cache.entries()), timeout_s=PATIENCE_S) as finding,
        ):
            for service in (one, two):
                await id_of(cache, service)
            await client.create_store("gateway", partition_count=8)

            async def puts(number: int) -> None:
                """A third over each way to write; the last goes on until both were restarted."""
                at = 0
                while at < PUTS // 6 or not rolled.is_set():
                    row_id = f"row-{number}-{at}"
                    await (client, finding)[number % 2].put("gateway", "list", row_id, "v")
                    written.append(row_id)
                    at += 1
                    await asyncio.sleep(PAUSE_S)

            async def changes() -> None:
                at = 0
                async with client.changes("gateway", "list") as writer:
                    while at < PUTS // 6 or not rolled.is_set():
                        await writer.put(f"change-{at}", "v")
                        written.append(f"change-{at}")
                        at += 1
                        await asyncio.sleep(PAUSE_S)

            async def bulk() -> None:
                async def rows() -> AsyncIterator[RowWrite]:
                    at = 0
                    while at < BULK_ROWS or not rolled.is_set():
                        yield RowWrite(f"bulk-{at}", "v")
                        written.append(f"bulk-{at}")
                        at += 1
                        if at % 100 == 0:
                            await asyncio.sleep(PAUSE_S)

                results = [each async for each in finding.bulk_write("gateway", "bulk", rows(), batch_rows=100)]
                assert results

            async with asyncio.TaskGroup() as tasks:
                for number in range(6):
                    tasks.create_task(puts(number))
                tasks.create_task(changes())
                tasks.create_task(bulk())
                for service in (one, two):
                    await drain(cli, await id_of(cache, service))
                    service.process.signal(signal.SIGTERM)
                    assert await asyncio.to_thread(service.process.wait, PATIENCE_S) == 0
                    await asyncio.to_thread(service.start)
                    await id_of(cache, service)
                rolled.set()
            stored = {row.row_id for key in ("list", "bulk") async for row in client.list("gateway", key)}
            assert stored == set(written)
            assert len(written) >= PUTS + BULK_ROWS
            # Whoever was drained has left no wish behind.
            await cache.wait_until(lambda: all(not key.startswith("wishes.") for key in cache.entries()), PATIENCE_S)


async def test_what_a_drained_service_does_and_does_not(tmp_path: Path, nats_url: str) -> None:
    cli = cli_of(tmp_path, nats_url)
    with instance(tmp_path, "one", nats_url, "--drain-grace", "100ms") as service:
        async with (
            watched(nats_url) as cache,
            ConfigServiceClient(service.address, timeout_s=PATIENCE_S) as client,
            grpc.aio.insecure_channel(service.address) as channel,
        ):
            await client.create_store("gateway", partition_count=8)
            big = "x" * 100_000
            async for _ in client.bulk_write("gateway", "list", [RowWrite(f"r{n}", big) for n in range(400)]):
                pass
            stub: Any = ConfigServiceStub(channel)
            health: Any = health_pb2_grpc.HealthStub(channel)
            member = await id_of(cache, service)
            # A list whose client has stopped to read, so that it does not end by itself.
            listing = stub.List(pb.ListRequest(store="gateway", key="list"))
            assert (await listing.read()).rows
            await drain(cli, member)
            assert (await health.Check(health_pb2.HealthCheckRequest())).status == NOT_SERVING
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.ListStores(pb.ListStoresRequest())
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            assert says_elsewhere(refused.value)
            with pytest.raises(grpc.aio.AioRpcError, match="the rest of the answer is not sent"):
                await to_the_end(listing)
            # It is made again within its time-out, and what the last one says is that nothing was done.
            async with ConfigServiceClient(service.address, timeout_s=4) as hasty:
                refusals = await asyncio.gather(
                    *(hasty.put("gateway", "list", "a", "v") for _ in range(20)), return_exceptions=True
                )
            for refusal in refusals:
                assert isinstance(refusal, UnavailableError)
                assert not isinstance(refusal, OutcomeUnknownError)
                assert "is draining, and the call was not begun: call another" in str(refusal)
            connection = await nats.connect(nats_url)
            try:
                heads = f"config.fetch.gateway.list.{names.FETCH_HEADS}"
                with pytest.raises(nats.errors.NoRespondersError):
                    await connection.request(heads, b"", timeout=PATIENCE_S)
                sentence = cli.refused("cluster", "drain", "nobody")
                assert sentence.startswith("no process 'nobody' is there: there are ")
                assert sentence.endswith("; workers are drained by `ringcast drain`")
                again = await asyncio.to_thread(cli.ok, "cluster", "drain", member)
                assert "is to drain already; it is drained" in again.out
                back = await asyncio.to_thread(cli.ok, "cluster", "activate", member, "--wait", "--json")
                assert (back.document["id"], back.document["state"]) == (member, "active")
                await client.put("gateway", "list", "a", "v")
                assert (await connection.request(heads, b"", timeout=PATIENCE_S)).data
                assert (await health.Check(health_pb2.HealthCheckRequest())).status == SERVING
            finally:
                await connection.close()


async def test_no_call_fails_behind_one_address_when_an_instance_there_drains(tmp_path: Path, nats_url: str) -> None:
    """As behind a Service of Kubernetes: it leads new connections to other instances, and leaves those that are open
    where they are. The one that drains says so, and a new connection is made."""
    cli = cli_of(tmp_path, nats_url)
    one, two = instance(tmp_path, "one", nats_url), instance(tmp_path, "two", nats_url)
    with one, two, TcpProxy(port_of(one)) as proxy:
        address = f"127.0.0.1:{proxy.port}"
        with ServiceConnection(address, ServiceLogin()) as blocking:
            async with watched(nats_url) as cache, ConfigServiceClient(address, timeout_s=PATIENCE_S) as client:
                await id_of(cache, two)
                await client.create_store("gateway", partition_count=8)
                stores = BlockingStoreCalls(blocking.stub, PATIENCE_S)
                await asyncio.to_thread(stores.update_store, "gateway", inline_max_bytes=0)
                async with client.changes("gateway", "list") as writer:
                    await writer.put("change-1", "v")
                    before = proxy.accepted
                    await drain(cli, await id_of(cache, one))
                    # The Service has not noticed: the new connections lead to the same instance.
                    reading = asyncio.create_task(client.get("gateway", "list", ["change-1"]))
                    changing = asyncio.create_task(writer.put("change-2", "v"))
                    writing = asyncio.create_task(client.put("gateway", "list", "row-1", "v"))
                    loading = asyncio.create_task(load(client, "row-2"))
                    updating = asyncio.create_task(
                        asyncio.to_thread(stores.update_store, "gateway", inline_max_bytes=1)
                    )
                    await until(lambda: proxy.accepted >= before + 3)
                    proxy.redirect(port_of(two), keep_open=True)
                    async with asyncio.timeout(PATIENCE_S):
                        assert [row.value for row in await reading] == ["v"]
                        assert (await updating).inline_max_bytes == 1
                        await asyncio.gather(changing, writing, loading)
                listed = {row.row_id async for row in client.list("gateway", "list")}
                assert listed == {"change-1", "change-2", "row-1", "row-2"}
                encoded = [pb.WriteBatch(store="gateway", key="list", sequence=1, rows=[pb.RowWrite(row_id="row-3")])]
                write = BlockingBulkWrite(blocking.stub, PATIENCE_S)
                (done,) = await asyncio.to_thread(lambda: list(write.results(encoded)))
                assert done.result.written == 1


async def test_blocking_calls_go_on_beside_an_instance_that_ends_its_streams(tmp_path: Path, nats_url: str) -> None:
    """The other address is down. What ends a stream runs on a thread of the channel, which whoever looks for another
    instance waits for."""
    cli, down = cli_of(tmp_path, nats_url), "127.0.0.1:1"
    batch = pb.WriteBatch(store="gateway", key="list", sequence=1, rows=[pb.RowWrite(row_id="row", value="v")])
    with instance(tmp_path, "one", nats_url) as service:
        async with watched(nats_url) as cache, ConfigServiceClient(service.address, timeout_s=PATIENCE_S) as client:
            await client.create_store("gateway", partition_count=8)
            member = await id_of(cache, service)
            with ServiceConnection([service.address, down], ServiceLogin()) as blocking:
                await drain(cli, member)

                def write() -> None:
                    (done,) = BlockingBulkWrite(blocking.stub, PATIENCE_S).results([batch])
                    assert done.result.sequence == 1

                writes = [asyncio.create_task(asyncio.to_thread(write)) for _ in range(8)]
                done = await asyncio.to_thread(cli.ok, "cluster", "activate", member, "--wait")
                assert "active" in done.out
                async with asyncio.timeout(2 * PATIENCE_S):
                    await asyncio.gather(*writes)


async def test_a_client_closes_at_once_after_its_connection_was_replaced(tmp_path: Path, nats_url: str) -> None:
    """While a list is read over the former connection, by a reader that has paused."""
    cli = cli_of(tmp_path, nats_url)
    one, two = instance(tmp_path, "one", nats_url, "--drain-grace", "1h"), instance(tmp_path, "two", nats_url)
    with one, two, TcpProxy(port_of(one)) as proxy:
        async with watched(nats_url) as cache:
            await id_of(cache, two)
            client = ConfigServiceClient(f"127.0.0.1:{proxy.port}", timeout_s=PATIENCE_S)
            async with client:
                await client.create_store("gateway", partition_count=8)
                big = "x" * 100_000
                async for _ in client.bulk_write("gateway", "list", [RowWrite(f"r{n}", big) for n in range(400)]):
                    pass
                listing = client.list("gateway", "list")
                assert (await anext(listing)).value == big
                wanted = await asyncio.to_thread(cli.ok, "cluster", "drain", await id_of(cache, one))
                assert "is to drain" in wanted.out
                proxy.redirect(port_of(two), keep_open=True)
                await client.put("gateway", "list", "a", "v")
                began_s = asyncio.get_running_loop().time()
            assert asyncio.get_running_loop().time() - began_s < LONG_S
            await listing.aclose()


def port_of(service: ConfigServiceProcess) -> int:
    return int(service.address.rpartition(":")[2])


async def load(client: ConfigServiceClient, row_id: str) -> None:
    results = [each async for each in client.bulk_write("gateway", "list", [RowWrite(row_id, "v")])]
    assert sum(each.written for each in results) == 1


async def test_a_client_of_several_addresses_says_which_none_answers(nats_url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="service 'b' is not an address"):
        ConfigServiceClient("a:1,b")
    with pytest.raises(InvalidInputError, match="service has 65 addresses: 1 to 64 are allowed"):
        ConfigServiceClient([f"host:{port}" for port in range(1, 66)])
    with instance(tmp_path, "one", nats_url) as service:
        gone = service.address
        service.process.kill()
        async with ConfigServiceClient(["127.0.0.1:1", gone], timeout_s=2) as client:
            with pytest.raises(RingcastError, match=f"no config service can be reached: 127.0.0.1:1, {gone}"):
                await client.list_stores()
        service.start()
        # One of both is there: reads and writes find it, whichever was tried first.
        for _ in range(4):
            async with ConfigServiceClient(["127.0.0.1:1", gone], timeout_s=PATIENCE_S) as client:
                assert await client.list_stores() == []
    async with ConfigServiceClient(list, timeout_s=0.5) as client:
        with pytest.raises(UnavailableError, match="no config service can be reached: "):
            await client.list_stores()
