"""Reads of what subscribers are behind with: where they fail, health, metadata and metrics say so."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from dapr.proto.runtime.v1 import configuration_pb2, dapr_pb2_grpc, metadata_pb2
from ringcast_testkit import PATIENCE_S, AgentProcess, ConfigServiceProcess, NatsServer
from ringcast_testkit.dispatch import following
from ringcast_wire import names

PARTITIONS = 16
AGENT = ("--nats-user", "agent", "--nats-password", "agent", "--token-file", "off")


def users(*denied: str) -> dict[str, Any]:
    """The service may do anything, the agent all but publish to some subjects."""
    allowed = {"publish": {"allow": [">"], "deny": list(denied)}} if denied else {}
    return {
        "authorization": {
            "users": [
                {"user": "service", "password": "service"},
                {"user": "agent", "password": "agent", "permissions": allowed},
            ]
        }
    }


def extended(stub: Any) -> dict[str, str]:
    """What the agent says of itself."""
    return dict(stub.GetMetadata(metadata_pb2.GetMetadataRequest()).extended_metadata)


def test_reads_that_fail_are_in_the_health(
    tmp_path: Path, writer_to: Callable[[ConfigServiceProcess], Any], http_get: Any, store_name: str
) -> None:
    """The key is followed all the while, and nothing else is wrong."""
    denied = [names.fetch_subject(store_name, "list", partition) for partition in range(PARTITIONS)]
    login = ("--nats-user", "service", "--nats-password", "service")
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    with (
        NatsServer(tmp_path / "nats", **users(*denied)) as server,
        ConfigServiceProcess(tmp_path / "service", nats_url=server.url, database=database, options=login) as service,
        AgentProcess(tmp_path / "agent", nats_url=server.url, options=AGENT) as agent,
        grpc.insecure_channel(agent.grpc_address) as channel,
    ):
        writer = writer_to(service)
        writer.create(store_name, "FULL")
        writer.put(store_name, "list", "a", "1")
        stub = dapr_pb2_grpc.DaprStub(channel)
        outbound, seen = f"{agent.http_url}/v1.0/healthz/outbound", dict[str, str]()
        assert http_get(outbound).status == 204
        stream = stub.SubscribeConfiguration(
            configuration_pb2.SubscribeConfigurationRequest(
                store_name=store_name, keys=["list"], metadata={"ringcast.rows": "true"}
            )
        )
        assert next(stream).id
        told = threading.Event()

        def take() -> None:
            with contextlib.suppress(grpc.RpcError):  # it is cancelled in the end
                for update in stream:
                    seen.update({name: item.value for name, item in update.items.items()})
                    told.set()

        taking = threading.Thread(target=take)
        taking.start()
        try:
            agent.process.wait_until(lambda: http_get(outbound).status == 500)
            assert agent.status()["workers"][0]["staleness_s"] == 0
            said = http_get(outbound).body["message"]
            assert f"subscribers of {store_name}/list are behind, and reads have failed for" in said
            agent.process.wait_until(lambda: int(extended(stub)["ringcast.staleness_s"]) > 0)
            assert int(extended(stub)[f"ringcast.staleness_s.{store_name}/list"])
            metrics = http_get(agent.metrics_url).body.splitlines()
            (stale,) = (line for line in metrics if line.startswith("ringcast_agent_staleness_seconds "))
            assert float(stale.split()[1]) > 0
            assert not seen
            server.reload(**users())
            assert told.wait(PATIENCE_S)
            agent.process.wait_until(lambda: http_get(outbound).status == 204)
            assert seen == {"a": "1"}
        finally:
            stream.cancel()
            taking.join()


async def test_reads_of_groups_that_fail_are_in_the_health(
    tmp_path: Path, writer_to: Callable[[ConfigServiceProcess], Any], http_get: Any, store_name: str
) -> None:
    """Of one that begins anew; the key is followed for another all the while."""
    denied = [names.fetch_subject(store_name, "list", partition) for partition in range(PARTITIONS)]
    login = ("--nats-user", "service", "--nats-password", "service")
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    with (
        NatsServer(tmp_path / "nats", **users()) as server,
        ConfigServiceProcess(tmp_path / "service", nats_url=server.url, database=database, options=login) as service,
        AgentProcess(tmp_path / "agent", nats_url=server.url, options=(*AGENT, "--linger", "0.2")) as agent,
    ):
        writer, outbound = writer_to(service), f"{agent.http_url}/v1.0/healthz/outbound"

        def health(status: int) -> str:
            agent.process.wait_until(lambda: http_get(outbound).status == status)
            return str(http_get(outbound).body)

        await asyncio.to_thread(writer.create, store_name)
        async with following(agent, store_name, group="another") as another:
            async with following(agent, store_name, changes_only=True) as one:
                await asyncio.to_thread(writer.put, store_name, "list", "a", "1")
                await one.values({"a": "1"})
            await asyncio.to_thread(agent.process.wait_until, lambda: len(agent.status()["groups"]) == 1)
            await asyncio.to_thread(writer.put, store_name, "list", "a", "2")
            await another.values({"a": "2"})
            await asyncio.to_thread(server.reload, **users(*denied))
            async with following(agent, store_name, changes_only=True) as one:
                async with asyncio.timeout(PATIENCE_S):
                    said = await asyncio.to_thread(health, 500)
                    while "groups of" not in said:  # the connection was lost for a moment
                        said = await asyncio.to_thread(health, 500)
                assert f"groups of {store_name}/list are behind, and reads have failed for" in said
                assert not one.deliveries
                await asyncio.to_thread(server.reload, **users())
                await one.values({"a": "2"})
                await asyncio.to_thread(health, 204)
