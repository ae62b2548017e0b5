"""The ``dapr`` package from PyPI, as it is, against an agent."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from dapr.aio.clients import DaprClient as AsyncDaprClient
from dapr.clients import DaprClient
from dapr.proto.runtime.v1 import configuration_pb2, dapr_pb2_grpc
from ringcast import Worker
from ringcast_core import row_partition
from ringcast_testkit import PATIENCE_S, AgentProcess, ConfigServiceProcess, NatsServer

PARTITIONS = 16
TRUSTED = ("--trusted-users", str(os.getuid()))  # the SDK sends no token when it subscribes


def test_the_whole_life_of_a_subscription(
    shared_agent: AgentProcess, sidecar: Any, writer: Any, updates: Any, store_name: str
) -> None:
    sidecar(shared_agent)
    writer.create(store_name)
    put = writer.put(store_name, "list", "a", "1", owner="me")
    told = {"ringcast.key": "list", "ringcast.partition": str(row_partition("a", PARTITIONS))}
    with DaprClient() as client:
        items = client.get_configuration(store_name, ["list"]).items
        assert {name: (item.value, item.version) for name, item in items.items()} == {"a": ("1", str(put.version))}
        assert dict(items["a"].metadata or {}) == {"owner": "me", "ringcast.deleted": "false", **told}

        seen = updates()
        subscription = client.subscribe_configuration(store_name, ["list"], seen)
        assert subscription
        changed = writer.put(store_name, "list", "a", "2", owner="you")
        assert seen.next() == (
            subscription, "a", "2", str(changed.version), {"owner": "you", "ringcast.deleted": "false", **told}
        )  # fmt: skip
        gone = writer.delete(store_name, "list", "a")
        assert seen.next() == (subscription, "a", "", str(gone.version), {"ringcast.deleted": "true", **told})
        assert client.get_configuration(store_name, ["list"]).items == {}

        assert client.unsubscribe_configuration(store_name, subscription) is True
        assert client.unsubscribe_configuration(store_name, subscription) is False
        again = updates()
        second = client.subscribe_configuration(store_name, ["list"], again)
        writer.put(store_name, "list", "b", "3")
        assert again.next()[:3] == (second, "b", "3")
        assert seen.waiting == 0, "an ended subscription hears of nothing"
        components = client.get_metadata().registered_components
        assert [each.type for each in components if each.name == store_name] == ["configuration.ringcast"]


def test_names_of_items(shared_agent: AgentProcess, sidecar: Any, writer: Any, updates: Any, store_name: str) -> None:
    """An update has the name that a read of the same keys gives the row."""
    sidecar(shared_agent)
    writer.create(store_name)
    with DaprClient() as client:
        for keys, wanted in (
            (["one"], {"a/b": "1", "c": "2"}),
            (["one/a/b", "one/never"], {"one/a/b": "1"}),
            (["one", "two"], {"one/a/b": "1", "one/c": "2", "two/c": "3"}),
            (["one/a/b", "one", "two/c"], {"one/a/b": "1", "one/c": "2", "two/c": "3"}),
        ):
            seen = updates()
            subscription = client.subscribe_configuration(store_name, keys, seen)
            for key, row_id, value in (("one", "a/b", "1"), ("one", "c", "2"), ("two", "c", "3"), ("two", "x", "4")):
                writer.put(store_name, key, row_id, value)
            writer.delete(store_name, "two", "x")
            seen.until({**wanted, **({"two/x": ""} if "two" in keys else {})})
            read = client.get_configuration(store_name, keys).items
            assert {name: item.value for name, item in read.items()} == wanted
            client.unsubscribe_configuration(store_name, subscription)


def test_no_keys_are_all_keys(
    tmp_path: Path, shared_nats: NatsServer, sidecar: Any, writer: Any, updates: Any, store_name: str
) -> None:
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=("--relist", "0.2", *TRUSTED)) as agent:
        sidecar(agent)
        writer.create(store_name)
        with DaprClient() as client:
            assert client.get_configuration(store_name, []).items == {}
            seen = updates()
            client.subscribe_configuration(store_name, [], seen)
            shared = updates()
            client.subscribe_configuration(store_name, [], shared, {"ringcast.group": "g"})
            writer.put(store_name, "one", "a", "1")
            assert seen.next()[1:3] == ("one/a", "1")
            assert shared.next()[1:3] == ("one/a", "1"), "a row of a key that came after the subscription"
            assert {name: item.value for name, item in client.get_configuration(store_name, []).items.items()} == {
                "one/a": "1"
            }
            writer.put(store_name, "two", "b", "2")
            assert seen.next()[1:3] == ("two/b", "2")
            writer.put(store_name, "two", "b", "3")
            seen.until({"two/b": "3"})


async def test_the_asynchronous_client(shared_agent: AgentProcess, sidecar: Any, writer: Any, store_name: str) -> None:
    """Reads and unsubscribes; its ``subscribe_configuration`` runs the synchronous reader over an asynchronous stub and
    can work with no sidecar, so the stream is opened on the stub of the same package."""
    sidecar(shared_agent)
    await asyncio.to_thread(writer.create, store_name)
    async with AsyncDaprClient() as client:
        assert (await client.get_configuration(store_name=store_name, keys=["list"])).items == {}
        request = configuration_pb2.SubscribeConfigurationRequest(store_name=store_name, keys=["list"])
        stream = client._stub.SubscribeConfiguration(request)
        first = await anext(aiter(stream))
        assert first.id
        assert not first.items
        put = await asyncio.to_thread(writer.put, store_name, "list", "a", "1")
        second = await anext(aiter(stream))
        assert (second.id, second.items["a"].value, second.items["a"].version) == (first.id, "1", str(put.version))
        read = await client.get_configuration(store_name=store_name, keys=["list/a"])
        assert read.items["list/a"].value == "1"
        gone = await asyncio.to_thread(writer.delete, store_name, "list", "a")
        third = (await anext(aiter(stream))).items["a"]
        assert (third.value, third.version, third.metadata["ringcast.deleted"]) == ("", str(gone.version), "true")
        assert (await client.get_configuration(store_name=store_name, keys=["list"])).items == {}
        assert await client.unsubscribe_configuration(store_name=store_name, id=first.id) is True
        assert [each async for each in stream] == []
        assert await stream.code() is grpc.StatusCode.OK
        assert await client.unsubscribe_configuration(store_name=store_name, id=first.id) is False


async def test_the_asynchronous_client_when_the_agent_is_killed_and_started_again(
    tmp_path: Path, shared_nats: NatsServer, sidecar: Any, writer: Any, store_name: str
) -> None:
    """One client through both lives: its stream ends with an error, and another one goes on."""
    await asyncio.to_thread(writer.create, store_name)
    request = configuration_pb2.SubscribeConfigurationRequest(store_name=store_name, keys=["list"])
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=TRUSTED) as agent:
        sidecar(agent)
        async with AsyncDaprClient() as client, asyncio.timeout(2 * PATIENCE_S):
            stream = client._stub.SubscribeConfiguration(request, wait_for_ready=True)
            first = await anext(aiter(stream))
            await asyncio.to_thread(agent.kill)
            with pytest.raises(grpc.aio.AioRpcError) as told:
                await anext(aiter(stream))
            assert told.value.code() is grpc.StatusCode.UNAVAILABLE
            await asyncio.to_thread(agent.restart)
            stream = client._stub.SubscribeConfiguration(request, wait_for_ready=True)
            again = await anext(aiter(stream))
            assert first.id != again.id
            await asyncio.to_thread(writer.put, store_name, "list", "a", "1")
            assert (await anext(aiter(stream))).items["a"].value == "1"
            assert (await client.get_configuration(store_name=store_name, keys=["list"])).items["a"].value == "1"
            assert await client.unsubscribe_configuration(store_name=store_name, id=again.id) is True


def test_nats_is_killed_and_comes_back(
    tmp_path: Path,
    nats_server: NatsServer,
    config_service: ConfigServiceProcess,
    writer_to: Callable[[ConfigServiceProcess], Any],
    sidecar: Any,
    updates: Any,
    store_name: str,
) -> None:
    """The stream goes on, and what was written meanwhile comes."""
    writer = writer_to(config_service)
    writer.create(store_name)
    with AgentProcess(tmp_path, nats_url=nats_server.url, options=TRUSTED) as agent:
        sidecar(agent)
        with DaprClient() as client:
            seen = updates()
            subscription = client.subscribe_configuration(store_name, ["list"], seen)
            writer.put(store_name, "list", "a", "1")
            assert seen.next()[:3] == (subscription, "a", "1")
            nats_server.kill()
            writer.put(store_name, "list", "a", "2")
            writer.put(store_name, "list", "b", "3")
            nats_server.restart()
            seen.until({"a": "2", "b": "3"}, timeout_s=30)
            writer.put(store_name, "list", "b", "4")
            assert seen.next()[:3] == (subscription, "b", "4")
            config_service.kill()
            config_service.restart()
            writer.put(store_name, "list", "b", "5")
            seen.until({"b": "5"})


def test_streams_live_through_an_outage_that_is_told_by_metadata_and_health(
    tmp_path: Path,
    nats_server: NatsServer,
    config_service: ConfigServiceProcess,
    writer_to: Callable[[ConfigServiceProcess], Any],
    http_get: Any,
    store_name: str,
) -> None:
    writer = writer_to(config_service)
    writer.create(store_name)
    with AgentProcess(
        tmp_path, nats_url=nats_server.url, options=("--stale-after", "0.3", "--token-file", "off")
    ) as agent:
        outbound, metadata = f"{agent.http_url}/v1.0/healthz/outbound", f"{agent.http_url}/v1.0/metadata"
        assert http_get(outbound).status == 204
        with grpc.insecure_channel(agent.grpc_address) as channel:
            stub = dapr_pb2_grpc.DaprStub(channel)
            request = configuration_pb2.SubscribeConfigurationRequest(store_name=store_name, keys=["list"])
            stream = stub.SubscribeConfiguration(request)
            assert next(stream).id
            writer.put(store_name, "list", "a", "1")
            assert next(stream).items["a"].value == "1"

            nats_server.kill()
            writer.put(store_name, "list", "a", "2")
            agent.process.wait_until(lambda: "event=observer.stale" in "".join(agent.process.log))
            assert http_get(f"{agent.http_url}/v1.0/healthz").status == 204
            told = http_get(outbound)
            assert (told.status, told.body["errorCode"]) == (500, "ERR_OUTBOUND_HEALTH_NOT_READY")
            assert "NATS can't be reached" in told.body["message"]
            agent.process.wait_until(lambda: int(http_get(metadata).body["extended"]["ringcast.staleness_s"]) >= 1)
            assert f"ringcast.staleness_s.{store_name}/list" in http_get(metadata).body["extended"]
            assert 'ended_total{api="grpc"' not in http_get(agent.metrics_url).body
            second = stub.SubscribeConfiguration(request)  # a stream begins in an outage as well
            assert next(second).id

            nats_server.restart()
            assert next(stream).items["a"].value == "2"
            assert next(second).items["a"].value == "2"
            agent.process.wait_until(lambda: http_get(outbound).status == 204)
            assert http_get(metadata).body["extended"]["ringcast.staleness_s"] == "0"
            config_service.kill()
            config_service.restart()
            writer.put(store_name, "list", "a", "3")
            assert next(stream).items["a"].value == "3"


def test_a_stopping_agent_tells_its_clients_and_gives_its_partitions_up(
    tmp_path: Path, shared_nats: NatsServer, shared_agent: AgentProcess, sidecar: Any, writer: Any, updates: Any,
    store_name: str,
) -> None:  # fmt: skip
    writer.create(store_name)
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=("--token-file", "off")) as agent:
        with grpc.insecure_channel(agent.grpc_address) as channel:
            stream = dapr_pb2_grpc.DaprStub(channel).SubscribeConfiguration(
                configuration_pb2.SubscribeConfigurationRequest(store_name=store_name, keys=["list"])
            )
            assert next(stream).id
            agent.process.signal(signal.SIGTERM)
            with pytest.raises(grpc.RpcError) as told:
                next(stream)
            assert told.value.code() is grpc.StatusCode.UNAVAILABLE
            assert told.value.details() == "the agent is stopping"
        assert agent.process.wait() == 0
    sidecar(shared_agent)
    with DaprClient() as client:
        seen = updates()
        client.subscribe_configuration(store_name, ["list"], seen)
        rows = {f"r{number}": str(number) for number in range(2 * PARTITIONS)}
        for row_id, value in rows.items():
            writer.put(store_name, "list", row_id, value)
        seen.until(rows, timeout_s=9)  # below the time that a lease takes to end


@pytest.mark.parametrize("mode", ["PARTITIONED", "FULL"])
def test_a_subscriber_hears_of_every_row_on_each_of_two_hosts_and_beside_a_worker(
    tmp_path: Path,
    shared_nats: NatsServer,
    shared_agent: AgentProcess,
    sidecar: Any,
    writer: Any,
    updates: Any,
    store_name: str,
    mode: str,
) -> None:
    """Whatever it names: all of a key, or rows of it. The workers go on sharing the key out as if it were not there."""
    writer.create(store_name, mode)
    rows = {f"r{number}": str(number) for number in range(4 * PARTITIONS)}
    owned: list[int] = []

    async def work(stop: asyncio.Event) -> None:
        async with Worker(store=store_name, keys=["list"], servers=shared_nats.url, worker_id=store_name) as worker:
            await worker.wait_ready()
            owned.append(len(worker.owned("list")))
            await stop.wait()
            owned.append(len(worker.owned("list")))

    with (
        AgentProcess(tmp_path, nats_url=shared_nats.url, options=TRUSTED) as other,
        ThreadPoolExecutor(1) as threads,
        asyncio.Runner() as runner,
    ):
        stop = asyncio.Event()
        worker = threads.submit(runner.run, work(stop))
        shared_agent.process.wait_until(lambda: bool(owned) or worker.done())
        sidecar(shared_agent)
        with DaprClient() as here:
            sidecar(other)
            with DaprClient() as there:
                seen = {"here": updates(), "there": updates(), "named": updates()}
                here.subscribe_configuration(store_name, ["list"], seen["here"])
                there.subscribe_configuration(store_name, ["list"], seen["there"])
                there.subscribe_configuration(store_name, ["list/r3", "list/r5"], seen["named"])
                for row_id, value in rows.items():
                    writer.put(store_name, "list", row_id, value)
                seen["here"].until(rows)
                seen["there"].until(rows)
                seen["named"].until({"list/r3": "3", "list/r5": "5"})
                read = there.get_configuration(store_name, ["list"]).items
                assert {name: item.value for name, item in read.items()} == rows
        runner.get_loop().call_soon_threadsafe(stop.set)
        worker.result(timeout=PATIENCE_S)
    assert owned == [PARTITIONS, PARTITIONS]


def test_an_agent_is_killed_and_a_stream_of_the_next_begins_at_once(
    tmp_path: Path, shared_nats: NatsServer, sidecar: Any, writer: Any, updates: Any, store_name: str
) -> None:
    """Its clients see the end of the stream at once. Who subscribes again gets an id at once, though the dead one's
    lease has not ended, and what is committed from then on, deletions too."""
    writer.create(store_name)
    rows = {f"r{number}": str(number) for number in range(2 * PARTITIONS)}
    for row_id, value in rows.items():
        writer.put(store_name, "list", row_id, value)
    request = configuration_pb2.SubscribeConfigurationRequest(store_name=store_name, keys=["list"])
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=("--id", store_name, *TRUSTED)) as agent:
        with grpc.insecure_channel(agent.grpc_address) as channel:
            stream = dapr_pb2_grpc.DaprStub(channel).SubscribeConfiguration(request)
            assert next(stream).id
            agent.kill()
            with pytest.raises(grpc.RpcError) as told:
                next(stream)
            assert told.value.code() is grpc.StatusCode.UNAVAILABLE
        agent.restart()
        sidecar(agent)
        with DaprClient() as client:
            seen = updates()
            assert client.subscribe_configuration(store_name, ["list"], seen)
            writer.delete(store_name, "list", "r0")
            writer.put(store_name, "list", "r1", "new")
            seen.until({"r0": "", "r1": "new"})
            request.metadata["ringcast.rows"] = "true"
            stream = client._stub.SubscribeConfiguration(request)
            assert next(stream).id
            told_rows: dict[str, str] = {}
            while len(told_rows) < len(rows) - 1:
                told_rows.update((name, item.value) for name, item in next(stream).items.items())
            assert told_rows == {**{name: rows[name] for name in list(rows)[2:]}, "r1": "new"}
            stream.cancel()


def test_an_import_ends_no_stream_and_a_slow_subscriber_gets_the_newest_of_every_row(
    tmp_path: Path, shared_nats: NatsServer, writer: Any, http_get: Any, store_name: str
) -> None:
    """Many more rows change than may wait for a subscriber, some twice, and some are deleted."""
    writer.create(store_name)
    rows = 20_000
    options = ("--queue-items", "500", "--token-file", "off")
    request = configuration_pb2.SubscribeConfigurationRequest(store_name=store_name, keys=["list"])
    with (
        AgentProcess(tmp_path, nats_url=shared_nats.url, options=options) as agent,
        grpc.insecure_channel(agent.grpc_address) as one,
        grpc.insecure_channel(agent.grpc_address, options=[("grpc.use_local_subchannel_pool", 1)]) as two,
    ):
        slow = dapr_pb2_grpc.DaprStub(one).SubscribeConfiguration(request, timeout=2 * PATIENCE_S)
        quick = dapr_pb2_grpc.DaprStub(two).SubscribeConfiguration(request, timeout=2 * PATIENCE_S)
        assert next(slow).id
        assert next(quick).id
        writer.put_many(store_name, "list", ((f"r{number}", "1" * 200) for number in range(rows)))
        agent.process.wait_until(
            lambda: "ringcast_agent_subscriptions_behind 0.0" not in http_get(agent.metrics_url).body
        )
        writer.put_many(store_name, "list", ((f"r{number}", "2") for number in range(100)))
        writer.delete(store_name, "list", "r7")
        wanted = {f"r{number}": "2" if number < 100 else "1" * 200 for number in range(rows) if number != 7}
        for stream in (slow, quick):
            found: dict[str, str] = {}
            versions: dict[str, int] = {}
            # Of a row that came and went before the agent had the key nothing need be told.
            while {name: value for name, value in found.items() if value} != wanted:
                try:
                    items = next(stream).items
                except grpc.RpcError:  # nothing more came in time
                    assert sorted(found.items()) == sorted(wanted.items())
                    raise
                for name, item in items.items():
                    assert int(item.version) >= versions.get(name, 0), "a row went back"
                    versions[name], found[name] = int(item.version), item.value
        assert 'ended_total{api="grpc"' not in http_get(agent.metrics_url).body


def test_clients_that_come_and_go(
    tmp_path: Path, shared_nats: NatsServer, writer: Any, http_get: Any, store_name: str
) -> None:
    """Keys are left at once here, so that clients meet keys that are just being joined or left. Nothing is kept."""
    writer.create(store_name)

    def once(number: int) -> str:
        key = f"k{number % 2}"
        with grpc.insecure_channel(agent.grpc_address) as channel:
            stream = dapr_pb2_grpc.DaprStub(channel).SubscribeConfiguration(
                configuration_pb2.SubscribeConfigurationRequest(store_name=store_name, keys=[key])
            )
            if number % 5 == 0:
                stream.cancel()
                return ""
            name: str = next(stream).id
            return name

    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=("--linger", "0", "--token-file", "off")) as agent:
        with ThreadPoolExecutor(4) as threads:
            names = [name for name in threads.map(once, range(60)) if name]
        assert len(set(names)) == 48
        for gauge in ('subscriptions{api="grpc"}', "keys_followed"):
            agent.process.wait_until(
                lambda gauge=gauge: f"ringcast_agent_{gauge} 0.0" in http_get(agent.metrics_url).body  # type: ignore[misc]
            )
