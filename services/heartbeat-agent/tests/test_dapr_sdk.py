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
            writer.put(store_name, "one", "a", "1")
            assert seen.next()[1:3] == ("one/a", "1")
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


def test_an_outage_is_told_by_an_error(
    tmp_path: Path,
    nats_server: NatsServer,
    config_service: ConfigServiceProcess,
    writer_to: Callable[[ConfigServiceProcess], Any],
    http_get: Any,
    store_name: str,
) -> None:
    writer_to(config_service).create(store_name)
    options = ("--stale-after", "1", "--token-file", "off")
    with AgentProcess(tmp_path, nats_url=nats_server.url, options=options) as agent:
        assert http_get(f"{agent.http_url}/v1.0/healthz/outbound").status == 204
        with grpc.insecure_channel(agent.grpc_address) as channel:
            stub = dapr_pb2_grpc.DaprStub(channel)
            request = configuration_pb2.SubscribeConfigurationRequest(store_name=store_name, keys=["list"])
            stream = stub.SubscribeConfiguration(request)
            assert next(stream).id
            nats_server.kill()
            with pytest.raises(grpc.RpcError) as told:
                next(stream)
            assert told.value.code() is grpc.StatusCode.UNAVAILABLE
            assert f"updates of {store_name}/list have stopped: no word from NATS" in str(told.value.details())
            assert http_get(f"{agent.http_url}/v1.0/healthz").status == 204
            outbound = http_get(f"{agent.http_url}/v1.0/healthz/outbound")
            assert (outbound.status, outbound.body["errorCode"]) == (500, "ERR_OUTBOUND_HEALTH_NOT_READY")
            refused = stub.SubscribeConfiguration(request)
            with pytest.raises(grpc.RpcError, match="gets no updates"):
                next(refused)
            nats_server.restart()
            agent.process.wait_until(lambda: http_get(f"{agent.http_url}/v1.0/healthz/outbound").status == 204)
            assert next(stub.SubscribeConfiguration(request)).id


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
        seen.until(rows, timeout_s=5)  # below the time that a lease takes to end


@pytest.mark.parametrize("mode", ["PARTITIONED", "FULL"])
def test_which_rows_a_host_hears_of(
    tmp_path: Path,
    shared_nats: NatsServer,
    shared_agent: AgentProcess,
    sidecar: Any,
    writer: Any,
    updates: Any,
    http_get: Any,
    store_name: str,
    mode: str,
) -> None:
    """Two hosts share a PARTITIONED store; in a FULL one each hears of everything. A read sees every row."""
    writer.create(store_name, mode)
    rows = {f"r{number}": str(number) for number in range(4 * PARTITIONS)}

    def owned(agent: AgentProcess) -> int:
        """How many partitions of this store it has, by its metrics."""
        of_store = (line for line in http_get(agent.metrics_url).body.splitlines() if f'store="{store_name}"' in line)
        return sum(
            int(float(line.rpartition(" ")[2])) for line in of_store if line.startswith("config_partitions_owned{")
        )

    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=TRUSTED) as other:
        sidecar(shared_agent)
        with DaprClient() as here:
            sidecar(other)
            with DaprClient() as there:
                seen = {"here": updates(), "there": updates()}
                here.subscribe_configuration(store_name, ["list"], seen["here"])
                there.subscribe_configuration(store_name, ["list"], seen["there"])
                if mode == "PARTITIONED":
                    other.process.wait_until(lambda: owned(shared_agent) + owned(other) == PARTITIONS)
                for row_id, value in rows.items():
                    writer.put(store_name, "list", row_id, value)
                heard: dict[str, dict[str, str]] = {"here": {}, "there": {}}
                while sum(map(len, heard.values())) < (2 if mode == "FULL" else 1) * len(rows):
                    for host, found in heard.items():
                        while len(found) < len(rows) and (mode == "FULL" or seen[host].waiting):
                            update = seen[host].next()
                            found[update.name] = update.value
                assert {**heard["here"], **heard["there"]} == rows
                if mode == "FULL":
                    assert heard["here"] == heard["there"]
                else:
                    assert heard["here"]
                    assert heard["there"]
                    assert not heard["here"].keys() & heard["there"].keys()
                read = there.get_configuration(store_name, ["list"]).items
                assert {name: item.value for name, item in read.items()} == rows
                if mode == "PARTITIONED":
                    assert other.terminate() == 0
                    seen["here"].until(heard["there"])  # what its host has gained


def test_an_agent_is_killed_and_started_again(
    tmp_path: Path, shared_nats: NatsServer, sidecar: Any, writer: Any, updates: Any, store_name: str
) -> None:
    """Its clients see the end of the stream at once. Who subscribes again hears of everything, at the latest when the
    lease of the dead one has ended."""
    writer.create(store_name)
    request = configuration_pb2.SubscribeConfigurationRequest(store_name=store_name, keys=["list"])
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=("--token-file", "off")) as agent:
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
            rows = {f"r{number}": str(number) for number in range(2 * PARTITIONS)}
            for row_id, value in rows.items():
                writer.put(store_name, "list", row_id, value)
            seen.until(rows, timeout_s=20)


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
