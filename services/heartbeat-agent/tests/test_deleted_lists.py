"""A store or a key that is deleted under subscribers and consumers: each is told, and nothing comes as deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc
import grpc.aio
import pytest
from dapr.proto.runtime.v1 import configuration_pb2, dapr_pb2_grpc
from ringcast.dispatch import Consumer, ConsumerError, Delivery
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, AgentProcess, ConfigServiceProcess

SENTENCE = r"(store|config key) '.*' was deleted at .* UTC, it can be restored until .* UTC"


@pytest.fixture
async def client(shared_service: ConfigServiceProcess) -> Any:
    async with ConfigServiceClient(shared_service.address) as opened:
        yield opened


async def delete(client: ConfigServiceClient, what: str, store: str) -> None:
    await (client.delete_store(store) if what == "store" else client.delete_key(store, "list"))


async def restore(client: ConfigServiceClient, what: str, store: str) -> None:
    await (client.restore_store(store) if what == "store" else client.restore_key(store, "list"))


async def to_the_end(updates: Any) -> None:
    """Reads a subscription; no row comes as deleted."""
    while (update := await updates.read()) is not grpc.aio.EOF:
        assert not update.items


@pytest.mark.parametrize("what", ["store", "key"])
async def test_a_subscription_ends_with_the_reason(
    shared_agent: AgentProcess, client: ConfigServiceClient, write: Any, store_name: str, what: str
) -> None:
    await write(a="1")
    request = configuration_pb2.SubscribeConfigurationRequest(store_name=store_name, keys=["list"])
    async with grpc.aio.insecure_channel(shared_agent.grpc_address) as channel, asyncio.timeout(PATIENCE_S):
        stub: Any = dapr_pb2_grpc.DaprStub(channel)
        updates = stub.SubscribeConfiguration(request)
        assert (await updates.read()).id
        await write(a="2")
        assert (await updates.read()).items["a"].value == "2"
        await delete(client, what, store_name)
        with pytest.raises(grpc.aio.AioRpcError, match=SENTENCE):
            await to_the_end(updates)
        with pytest.raises(grpc.aio.AioRpcError, match=SENTENCE):
            await stub.GetConfiguration(configuration_pb2.GetConfigurationRequest(store_name=store_name, keys=["list"]))
        with pytest.raises(grpc.aio.AioRpcError, match=SENTENCE):
            await to_the_end(stub.SubscribeConfiguration(request))
        await restore(client, what, store_name)
        updates = stub.SubscribeConfiguration(request)
        assert (await updates.read()).id
        await write(a="3")
        assert (await updates.read()).items["a"].value == "3"


@pytest.mark.parametrize("what", ["store", "key"])
async def test_a_consumer_ends_with_the_reason(
    shared_agent: AgentProcess, client: ConfigServiceClient, write: Any, store_name: str, what: str
) -> None:
    await write(a="1", b="2")
    place: dict[str, Any] = {"store": store_name, "key": "list", "group": "g", "name": "one"}
    seen: list[Delivery] = []

    async def consume(until: str, reached: asyncio.Event) -> None:
        async with Consumer(shared_agent.grpc_address, **place) as consumer:
            async for delivery in consumer:
                seen.append(delivery)
                delivery.ack()
                if delivery.value == until:
                    reached.set()

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        both = asyncio.Event()
        consuming = tasks.create_task(refused(consume("2", both)))
        await both.wait()
        await delete(client, what, store_name)
        await consuming
        await refused(consume("", both))
        assert not any(delivery.deleted for delivery in seen)
        await restore(client, what, store_name)
        await write(a="3")
        changed = asyncio.Event()
        consuming = tasks.create_task(consume("3", changed))
        await changed.wait()
        consuming.cancel()


async def refused(consuming: Coroutine[Any, Any, None]) -> None:
    """A consumer that ends with the reason, and does not register again."""
    with pytest.raises(ConsumerError, match=SENTENCE) as caught:
        await consuming
    assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION
