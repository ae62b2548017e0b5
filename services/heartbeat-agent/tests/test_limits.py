"""Every limit, at it and above it."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from dapr.proto.runtime.v1 import configuration_pb2, dapr_pb2_grpc
from ringcast import Change, InvalidInputError
from ringcast.aio import DaprClient
from ringcast_heartbeat_agent.client import Consumer, ConsumerError
from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.errors import DaprError, OverflowedError, StoppedError
from ringcast_heartbeat_agent.handlers import Handlers
from ringcast_heartbeat_agent.items import Item, Wanted, item_of
from ringcast_heartbeat_agent.subscription import Subscription
from ringcast_heartbeat_agent.telemetry import Measures
from ringcast_testkit import AgentProcess, ConfigServiceProcess, NatsServer
from ringcast_wire import limits


def item(value: str) -> Item:
    return item_of(Change("s", "list", 0, "a", value, 1))


def subscription(*, max_items: int = 3, max_bytes: int = 10_000) -> Subscription:
    return Subscription("s", Wanted(["list"]), max_items=max_items, max_bytes=max_bytes, api="grpc")


async def drained(each: Subscription) -> list[dict[str, str]]:
    """What a reader that comes late gets."""
    found = []
    async for batch in each.batches():
        found.append({name: item.value for name, item in batch.items()})
        if not each.waiting:
            each.end()
    return found


async def test_an_update_that_waits_is_replaced_by_a_newer_one_of_its_row() -> None:
    one = subscription()
    for number in range(100):
        one.offer("list", "a", item(str(number)))
        one.offer("list", "b", item(str(-number)))
    assert one.waiting == 2
    assert await drained(one) == [{"a": "99", "b": "-99"}]


async def test_too_many_rows_that_wait_end_a_subscription() -> None:
    one = subscription(max_items=3)
    for row_id in "abc":
        one.offer("list", row_id, item("1"))
    assert not one.ended
    one.offer("list", "d", item("1"))
    assert one.ended
    assert one.waiting == 0, "what waits is let go"
    with pytest.raises(OverflowedError, match=r"4 with \d+ bytes wait, at most 3 with 10000 may"):
        await drained(one)
    one.end()
    one.offer("list", "e", item("1"))
    assert isinstance(one.error, OverflowedError), "the first end stands"


async def test_too_many_bytes_that_wait_end_a_subscription() -> None:
    size = item("").size
    one = subscription(max_bytes=10_000)
    one.offer("list", "a", item("x" * 50_000))  # alone it is let in: a row may be larger than the queue
    assert not one.ended
    one.offer("list", "a", item("x"))  # smaller than the one that it replaces
    one.offer("list", "b", item("y" * (10_000 - 2 * size - 3)))
    assert not one.ended
    one.offer("list", "b", item("y" * (10_000 - 2 * size - 2)))
    assert one.ended


async def test_updates_are_gathered_into_messages_of_bounded_size() -> None:
    one = subscription(max_items=1_000, max_bytes=100 * limits.MIB)
    for number in range(600):
        one.offer("list", f"r{number}", item("x"))
    for number in range(3):
        one.offer("list", f"large{number}", item("x" * 700_000))
    sizes = [len(batch) for batch in await drained(one)]
    assert sizes == [256, 256, 89, 1, 1]


async def test_the_end_reaches_a_reader_that_waits() -> None:
    one = subscription()
    reader = asyncio.create_task(drained(one))
    await asyncio.sleep(0)
    one.end(StoppedError("why"))
    with pytest.raises(StoppedError, match="why"):
        await reader


def test_keys_of_a_request() -> None:
    assert len(Wanted([f"k{number % 100}/r{number}" for number in range(1_000)]).keys) == 100
    with pytest.raises(InvalidInputError, match="keys has 1001 entries: at most 1000 are allowed"):
        Wanted([f"list/r{number}" for number in range(1_001)])
    for entry in ("", "no spaces", "list/", "list/" + "x" * 513, "k" * 65):
        with pytest.raises(InvalidInputError):
            Wanted([entry])


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
            (store_name, ["a b"], "INTERNAL", f"failed to get [a b] from Configuration store {store_name}: keys 'a b'"),
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
        with pytest.raises(grpc.RpcError, match=r"the answer has \d+ bytes: at most 10000 are allowed"):
            stub.GetConfiguration(request)


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


def test_a_subscriber_that_does_not_read_is_told_and_hinders_nobody(
    tmp_path: Path, shared_nats: NatsServer, writer: Any, http_get: Any, store_name: str
) -> None:
    words = ("--queue-items", "8", "--token-file", "off")
    writer.create(store_name)
    agents = AgentProcess(tmp_path, nats_url=shared_nats.url, options=words)
    with agents as agent, stub_of(agent) as stub, stub_of(agent) as other:
        slow, _ = subscribe(stub, store_name, "list")
        quick, _ = subscribe(other, store_name, "list")
        seen = set()
        for number in range(60):
            writer.put(store_name, "list", f"r{number}", "x" * 500_000)
            while f"r{number}" not in seen:
                seen |= next(quick).items.keys()
        with pytest.raises(grpc.RpcError) as told:
            deque(slow)
        assert told.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "were not taken in time" in str(told.value.details())
        text = http_get(agent.metrics_url).body
        assert 'ringcast_agent_subscriptions_ended_total{api="grpc",reason="overflow"} 1.0' in text
        writer.put(store_name, "list", "last", "x")
        assert next(quick).items.keys() == {"last"}


async def test_reads_at_once_and_reads_that_wait(
    nats_server: NatsServer, config_service: ConfigServiceProcess, writer_to: Any, store_name: str
) -> None:
    await asyncio.to_thread(writer_to(config_service).create, store_name)
    unused = cast(Any, None)  # what reads have no need of
    async with DaprClient(nats_server.url) as reader:
        handlers = Handlers(Config(reads=2, waiting_reads=3), unused, reader, unused, unused, unused, Measures())
        config_service.pause()
        reads = [asyncio.create_task(handlers.get(store_name, ["list"])) for _ in range(5)]
        await asyncio.sleep(0)
        with pytest.raises(DaprError, match="3 reads wait already: at most that many may"):
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
