"""Stores of exclusive ownership: no group serves them, in one sentence; subscriptions without a group read them."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from dapr.proto.runtime.v1 import configuration_pb2, dapr_pb2_grpc
from ringcast.dispatch import Consumer, ConsumerError
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, AgentProcess, ConfigServiceProcess
from ringcast_wire import Strategy

SENTENCE = (
    "store '.*' has the strategy sticky, which no groups of an agent serve: use a worker, or subscribe without a group"
)


@pytest.fixture
async def exclusive(shared_service: ConfigServiceProcess, store_name: str) -> str:
    async with ConfigServiceClient(shared_service.address) as client:
        await client.create_store(store_name, partition_count=4, strategy=Strategy.STICKY)
        await client.put(store_name, "list", "a", "1")
    return store_name


@pytest.mark.parametrize("mode", ["reliable", "lossy"])
async def test_a_consumer_is_refused_for_good(shared_agent: AgentProcess, exclusive: str, mode: str) -> None:
    place: dict[str, Any] = {"store": exclusive, "key": "list", "group": "g", "name": "one", "mode": mode}
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(2):  # the second time the agent has refused the key before
            with pytest.raises(ConsumerError, match=SENTENCE):
                async with Consumer(shared_agent.grpc_address, **place) as consumer:
                    await anext(aiter(consumer))


async def test_a_subscription_in_a_group_is_refused_and_one_without_reads(
    shared_agent: AgentProcess, exclusive: str
) -> None:
    grouped = configuration_pb2.SubscribeConfigurationRequest(
        store_name=exclusive, keys=["list"], metadata={"ringcast.group": "g"}
    )
    alone = configuration_pb2.SubscribeConfigurationRequest(store_name=exclusive, keys=["list"])
    async with grpc.aio.insecure_channel(shared_agent.grpc_address) as channel, asyncio.timeout(PATIENCE_S):
        stub: Any = dapr_pb2_grpc.DaprStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match=SENTENCE):
            await stub.SubscribeConfiguration(grouped).read()
        updates = stub.SubscribeConfiguration(alone)
        assert (await updates.read()).id
        found = await stub.GetConfiguration(
            configuration_pb2.GetConfigurationRequest(store_name=exclusive, keys=["list"])
        )
        assert found.items["a"].value == "1"
        updates.cancel()
