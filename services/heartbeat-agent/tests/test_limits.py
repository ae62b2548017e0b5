"""Every limit, at it and above it."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from dapr.proto.runtime.v1 import configuration_pb2, dapr_pb2, dapr_pb2_grpc, metadata_pb2, pubsub_pb2, state_pb2
from ringcast import LimitExceededError
from ringcast.dispatch import Consumer, ConsumerError
from ringcast.hosting import KeyReader
from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.dapr.handlers import Handlers
from ringcast_heartbeat_agent.dapr.subscription import Subscription
from ringcast_heartbeat_agent.dispatch.groups import Registration
from ringcast_heartbeat_agent.errors import DaprError
from ringcast_heartbeat_agent.opening import Opener
from ringcast_heartbeat_agent.telemetry import Measures
from ringcast_testkit import PATIENCE_S, AgentProcess, ConfigServiceProcess, NatsServer, attempt
from ringcast_wire import limits, names

SETTINGS, PING, GOAWAY = 4, 6, 7
"""Kinds of HTTP/2 frames."""


def frame(kind: int, payload: bytes) -> bytes:
    """A frame of the connection itself."""
    return len(payload).to_bytes(3) + bytes([kind, 0]) + bytes(4) + payload


def frames_of(connection: socket.socket) -> Iterator[tuple[int, bytes]]:
    """The frames that come."""
    with connection.makefile("rb") as stream:
        while head := stream.read(9):
            yield head[3], stream.read(int.from_bytes(head[:3]))


@contextmanager
def stub_of(agent: AgentProcess) -> Iterator[dapr_pb2_grpc.DaprStub]:
    with grpc.insecure_channel(agent.grpc_address) as channel:
        yield dapr_pb2_grpc.DaprStub(channel)


def subscribe(stub: Any, store: str, *keys: str) -> tuple[Any, str]:
    """A stream and the id of the subscription."""
    stream = stub.SubscribeConfiguration(configuration_pb2.SubscribeConfigurationRequest(store_name=store, keys=keys))
    return stream, next(stream).id


def test_what_requests_are_refused(shared_agent: AgentProcess, writer: Any, http_get: Any, store_name: str) -> None:
    writer.create(store_name)
    many = [f"list/r{number}" for number in range(1_001)]
    with stub_of(shared_agent) as stub:
        for store, keys, code, said in (
            ("nowhere", ["list"], "INVALID_ARGUMENT", "configuration store nowhere not found"),
            ("", ["list"], "INVALID_ARGUMENT", "configuration store  not found"),
            ("no spaces", [], "INVALID_ARGUMENT", "configuration store no spaces not found"),
            (store_name, many, "INTERNAL", "1001 entries"),
        ):
            for method, name in ((stub.GetConfiguration, "get"), (stub.GetConfigurationAlpha1, "get")):
                with pytest.raises(grpc.RpcError) as told:
                    method(configuration_pb2.GetConfigurationRequest(store_name=store, keys=keys))
                assert told.value.code() is grpc.StatusCode[code], name
                assert said in str(told.value.details())
            with pytest.raises(grpc.RpcError) as told:
                subscribe(stub, store, *keys)
            assert told.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert said.replace("to get", "to subscribe") in str(told.value.details())
        with pytest.raises(grpc.RpcError) as told:
            stub.GetConfiguration(
                configuration_pb2.GetConfigurationRequest(store_name=store_name, metadata={"x": "y" * limits.MIB})
            )
        assert told.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    at = f"{shared_agent.http_url}/v1.0/configuration/{store_name}"
    within = "&".join(f"key=list/{'x' * 500}{number}" for number in range(1_000))
    assert http_get(f"{at}?{within}").status == 204
    assert http_get(f"{at}?{within}&key=list/one").status == 500
    assert http_get(f"{at}?key={'x' * 2 * limits.MIB}").status == 400


def test_methods_of_dapr_that_are_not_served_say_so(shared_agent: AgentProcess) -> None:
    with stub_of(shared_agent) as stub:
        for method, request in (
            (stub.GetState, state_pb2.GetStateRequest(store_name="s", key="k")),
            (stub.PublishEvent, pubsub_pb2.PublishEventRequest(pubsub_name="p", topic="t")),
        ):
            with pytest.raises(grpc.RpcError) as told:
                method(request)
            assert told.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert "a Ringcast agent, which serves configuration and metadata" in str(told.value.details())
        with pytest.raises(grpc.RpcError) as told:
            stub.Shutdown(dapr_pb2.ShutdownRequest())
        assert told.value.code() is grpc.StatusCode.PERMISSION_DENIED
        stub.SetMetadata(metadata_pb2.SetMetadataRequest(key="who", value="me"))
        assert stub.GetMetadata(metadata_pb2.GetMetadataRequest()).extended_metadata["who"] == "me"
        for name, value in (("", "x"), ("ringcast.staleness_s", "0"), ("x" * 129, ""), ("x", "x" * 1_025)):
            with pytest.raises(grpc.RpcError, match="failed to set metadata") as told:
                stub.SetMetadata(metadata_pb2.SetMetadataRequest(key=name, value=value))
            assert told.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_clients_may_ping_as_often_as_those_of_dapr_do(shared_agent: AgentProcess) -> None:
    """The SDK for Java pings every 10 s, with no call under way too. Here it is as often as is allowed."""
    host, _, port = shared_agent.grpc_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, b""))
        acknowledged: set[bytes] = set()
        frames = frames_of(connection)
        for number in range(7):
            time.sleep(1.1)  # what is tested is the time between two pings
            told = bytes([number]) * 8
            connection.sendall(frame(PING, told))
            while told not in acknowledged:
                kind, payload = next(frames)
                assert kind != GOAWAY, payload
                if kind == PING:
                    acknowledged.add(payload)


def test_subscriptions_keys_and_answers(
    tmp_path: Path, shared_nats: NatsServer, writer: Any, http_get: Any, store_name: str
) -> None:
    words = ["--max-subscriptions", "2", "--max-keys", "2", "--max-response-bytes", "10000", "--linger", "0"]
    words += ["--token-file", "off", "--client-share", "1"]
    writer.create(store_name)
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=tuple(words)) as agent, stub_of(agent) as stub:
        first, _ = subscribe(stub, store_name, "one")
        with pytest.raises(grpc.RpcError, match="the agent follows 2 config keys: at most 2 are allowed"):
            subscribe(stub, store_name, "two", "three")
        second, _ = subscribe(stub, store_name, "one")
        with pytest.raises(grpc.RpcError, match="the agent has 2 subscriptions: at most 2 are allowed"):
            subscribe(stub, store_name, "one")
        first.cancel()  # a client that goes away makes room
        agent.process.wait_until(lambda: 'subscriptions{api="grpc"} 1.0' in http_get(agent.metrics_url).body)
        third, _ = subscribe(stub, store_name, "one")
        third.cancel()
        second.cancel()
        writer.put(store_name, "one", "a", "x" * 9_000)
        request = configuration_pb2.GetConfigurationRequest(store_name=store_name, keys=["one"])
        assert len(stub.GetConfiguration(request).items) == 1
        writer.put(store_name, "one", "b", "x" * 1_000)
        with pytest.raises(
            grpc.RpcError, match=r"the answer has \d+ bytes: at most 10000 are allowed. Read it in pages"
        ):
            stub.GetConfiguration(request)
        request.metadata["ringcast.limit"] = "0"
        with pytest.raises(grpc.RpcError, match=r"ringcast\.limit is '0': it must be 1 to 100000"):
            stub.GetConfiguration(request)


def test_an_answer_that_is_too_large_does_not_come_into_memory(
    tmp_path: Path, shared_nats: NatsServer, writer: Any, http_get: Any, store_name: str
) -> None:
    def peak_mib(agent: AgentProcess) -> int:
        lines = Path(f"/proc/{agent.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))

    writer.create(store_name)
    for key in ("one", "two"):
        for number in range(40):
            writer.put(store_name, key, f"r{number}", "x" * 900_000)
    words = ("--max-response-bytes", "1000000", "--token-file", "off")
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=words) as agent:
        at = f"{agent.http_url}/v1.0/configuration/{store_name}"
        assert http_get(f"{at}?key=one/r1").status == 200
        before = peak_mib(agent)
        for query in ("", "?key=two", "?" + "&".join(f"key=one/r{number}" for number in range(40))):
            with ThreadPoolExecutor(4) as threads:
                for answer in threads.map(http_get, [f"{at}{query}"] * 4):
                    assert (answer.status, "Read it in pages" in answer.body["message"]) == (500, True), answer
        assert peak_mib(agent) - before < 70, "four answers of 36 MB at once would be more"
        assert http_get(f"{at}?key=one/r2").status == 200


@attempt(
    "a user of the host",
    "use up all that the agent can serve",
    "refused beyond its share; others are served",
)
def test_one_user_has_a_share_of_everything(
    tmp_path: Path, shared_nats: NatsServer, writer: Any, store_name: str
) -> None:
    words = ("--max-subscriptions", "7", "--max-keys", "5", "--max-consumers", "3", "--token-file", "off")
    writer.create(store_name)
    user = f"client uid {os.getuid()} has"
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=words) as agent, stub_of(agent) as stub:
        kept = [subscribe(stub, store_name, "one", "two")]
        with pytest.raises(
            grpc.RpcError, match=rf"{user} 2 config keys: at most 2 are allowed, 0.5 \(client_share\) of 5"
        ):
            subscribe(stub, store_name, "three")
        kept += [subscribe(stub, store_name, "one") for _ in range(2)]
        with pytest.raises(grpc.RpcError, match=f"{user} 3 subscriptions: at most 3 are allowed"):
            subscribe(stub, store_name, "one")
        assert len({subscription_id for _, subscription_id in kept}) == 3

        async def two_consumers() -> None:
            place: dict[str, Any] = {"store": store_name, "key": "one", "group": "g"}
            one, two = (Consumer(agent.grpc_address, name=name, **place) for name in ("one", "two"))
            async with one, two:
                pass

        with pytest.raises(ConsumerError, match=f"{user} 1 consumers: at most 1 are allowed"):
            asyncio.run(two_consumers())


def test_keys_of_groups_and_of_subscribers_count_together(
    tmp_path: Path, shared_nats: NatsServer, writer: Any, store_name: str
) -> None:
    words = ("--max-keys", "2", "--client-share", "1", "--token-file", "off")
    writer.create(store_name)
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=words) as agent, stub_of(agent) as stub:
        kept = [subscribe(stub, store_name, "one"), subscribe(stub, store_name, "two")]

        async def consume(key: str) -> None:
            async with Consumer(agent.grpc_address, store=store_name, key=key, group="g", name="one"):
                pass

        asyncio.run(consume("one"))  # which is followed already
        with pytest.raises(ConsumerError, match="the agent follows 2 config keys: at most 2 are allowed"):
            asyncio.run(consume("three"))
        assert len({subscription_id for _, subscription_id in kept}) == 2


def test_a_subscription_that_gets_no_new_key_keeps_none_from_others(
    tmp_path: Path, shared_nats: NatsServer, writer: Any, store_name: str
) -> None:
    words = ("--max-keys", "4", "--max-consumers", "1", "--relist", "0.1", "--token-file", "off")
    writer.create(store_name)
    writer.put(store_name, "one", "a", "1")
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=words) as agent, stub_of(agent) as stub:
        grouped = stub.SubscribeConfiguration(
            configuration_pb2.SubscribeConfigurationRequest(store_name=store_name, metadata={"ringcast.group": "g"})
        )
        first = next(grouped).id
        stream, second = subscribe(stub, store_name)

        def postponed(subscription_id: str, why: str) -> bool:
            begin = (
                f'event=subscription.new_keys_postponed id={subscription_id} store={store_name} count=1 error="{why}'
            )
            return begin in "".join(agent.process.log)

        writer.put(store_name, "two", "b", "1")
        assert next(stream).items.keys() == {"two/b"}
        agent.process.wait_until(lambda: postponed(first, "the agent has 1 consumers: at most 1 are allowed"))
        writer.put(store_name, "three", "c", "1")  # which is more than the share of whoever subscribed
        agent.process.wait_until(lambda: postponed(second, f"client uid {os.getuid()} has 2 config keys"))
        writer.put(store_name, "two", "b", "2")
        assert next(stream).items["two/b"].value == "2"


async def test_looking_for_new_keys_joins_none_that_is_being_joined() -> None:
    """A first join may take long: the look for new keys must not join a second time, which a limit may refuse."""
    looks, joins = asyncio.Queue[str](), asyncio.Queue[str]()
    answer = asyncio.Event()

    class SlowDispatch:
        async def join(self, asked: Registration) -> Any:
            joins.put_nowait(asked.key)
            await answer.wait()
            raise LimitExceededError("it is full")

    class OneKey:
        async def stream_info(self, stream: str, subjects_filter: str) -> Any:
            looks.put_nowait(stream)
            return SimpleNamespace(state=SimpleNamespace(subjects={names.notify_subject("s", "one", 0): 1}))

    class NoObservers:
        async def attach(self, subscription: Subscription, key: str, *, with_rows: bool) -> None:
            subscription.followed.add(key)

        def detach(self, subscription: Subscription) -> None: ...

    unused = cast(Any, None)
    dispatch, js, observers = cast(Any, SlowDispatch()), cast(Any, OneKey()), cast(Any, NoObservers())
    handlers = Handlers(Config(relist_s=0.001), js, unused, Opener(""), observers, dispatch, unused, Measures())
    await handlers.subscribe("s", [], "grpc")  # it has begun, so new keys are looked for
    first = asyncio.create_task(handlers.subscribe("s", [], "grpc", {"ringcast.group": "g"}))
    assert await joins.get() == "one"
    relist = asyncio.create_task(handlers.run())
    while not looks.empty():
        looks.get_nowait()
    for _ in range(3):
        await looks.get()
    assert joins.empty()
    answer.set()
    with pytest.raises(DaprError, match="it is full"):
        await first
    relist.cancel()


async def test_reads_at_once_and_reads_that_wait(
    nats_server: NatsServer, config_service: ConfigServiceProcess, writer_to: Any, store_name: str
) -> None:
    await asyncio.to_thread(writer_to(config_service).create, store_name)
    unused = cast(Any, None)  # what reads have no need of
    async with AsyncExitStack() as stack:
        reader = KeyReader([nats_server.url], worker_id="reads")
        stack.push_async_callback(reader.close)
        handlers = Handlers(
            Config(reads=2, waiting_reads=3), unused, reader, Opener(""), unused, unused, unused, Measures()
        )
        config_service.pause()
        reads = [asyncio.create_task(handlers.get(store_name, ["list"])) for _ in range(5)]
        await asyncio.sleep(0)
        with pytest.raises(DaprError, match="3 reads wait already: no more are allowed"):
            await handlers.get(store_name, ["list"])
        reads[4].cancel()
        await asyncio.wait({reads[4]})
        reads[4] = asyncio.create_task(handlers.get(store_name, ["list"]))  # who gave up made room
        await asyncio.sleep(0)
        with pytest.raises(DaprError, match="3 reads wait already"):
            await handlers.get(store_name, ["list"])
        assert not any(read.done() for read in reads)
        config_service.resume()
        assert await asyncio.gather(*reads) == [{}] * 5
