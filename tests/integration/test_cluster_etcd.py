"""Registrations and drains of services and agents in etcd; leases, members and settings of workers stay in NATS."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nats
from ringcast import Worker
from ringcast_client import ConfigServiceClient
from ringcast_meta import LocalCache, open_store
from ringcast_meta.cluster import members_of, service_addresses
from ringcast_testkit import PATIENCE_S, AgentProcess, ConfigServiceProcess, EtcdServer, NatsServer, until
from ringcast_testkit.dispatch import following

from tests.integration.cli_process import Cli


async def test_service_agent_worker_and_tools_with_etcd(
    tmp_path: Path, nats_server: NatsServer, etcd_server: EtcdServer
) -> None:
    address, socket = f"etcd://{etcd_server.address}/ringcast", tmp_path / "leases.sock"
    registers = ("--cluster-store", address)
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    service = ConfigServiceProcess(tmp_path / "service", nats_url=nats_server.url, database=database, options=registers)
    agent = AgentProcess(
        tmp_path / "agent",
        nats_url=nats_server.url,
        options=(*registers, "--id", "host", "--lease-socket", str(socket)),
    )
    cli = Cli(tmp_path, cluster_store=address, servers=nats_server.url, timeout_s="60")
    with service, agent:
        async with open_store(address) as store, LocalCache(store) as cache:

            def states() -> dict[str, str]:
                """What services and agents say of themselves, by kind."""
                return {str(each.kind): str(each.record.state) for each in members_of(cache.entries()) if each.record}

            await cache.wait_until(lambda: states() == {"service": "active", "agent": "active"}, PATIENCE_S)
            # Who is not told where a service is finds one there, as the command does.
            async with ConfigServiceClient(lambda: service_addresses(cache.entries()), timeout_s=PATIENCE_S) as client:
                await client.create_store("gateway", partition_count=4)
                await client.put("gateway", "list", "a", "1")
                await client.put("gateway", "apart", "a", "1")
                settings: dict[str, Any] = {
                    "servers": nats_server.url,
                    "store": "gateway",
                    "keys": ["apart"],
                    "worker_id": "w",
                }
                async with Worker(agent=str(socket), **settings) as worker, following(agent, "gateway") as consumer:
                    await worker.wait_ready(timeout_s=PATIENCE_S)
                    # An agent that a busy machine leaves waiting may have lost its lease for a moment.
                    await until(lambda: worker.health().by_agent)
                    await consumer.values({"a": "1"})
                    shown = (await asyncio.to_thread(cli.ok, "cluster", "list", "--json")).documents
                    found = {each["kind"]: each for each in shown}
                    assert found["agent"]["id"] == "host"
                    assert found["service"]["address"] == service.address
                    assert "w" in {each["id"] for each in shown if each["kind"] == "worker"}

                    await asyncio.to_thread(cli.ok, "cluster", "drain", "host", "--wait")
                    assert states()["agent"] == "drained"
                    await until(lambda: not worker.health().by_agent)
                    assert worker.health().lease_held
                    await asyncio.to_thread(cli.ok, "cluster", "activate", "host", "--wait")
                    await until(lambda: worker.health().by_agent)

                    # While etcd is away all that is served goes on, and afterwards it is as before.
                    etcd_server.kill()
                    written = await client.put("gateway", "apart", "a", "2")
                    await worker.wait_for("apart", written.partition, written.version, timeout_s=PATIENCE_S)
                    await client.put("gateway", "list", "a", "2")
                    await consumer.values({"a": "2"})
                    await asyncio.to_thread(etcd_server.start)
                    await cache.wait_until(lambda: cache.fresh and len(states()) == 2, PATIENCE_S)

                # One that stops is gone at once; one that is started is there again.
                assert await asyncio.to_thread(agent.terminate) == 0
                await cache.wait_until(lambda: states() == {"service": "active"}, PATIENCE_S)
                await asyncio.to_thread(agent.start)
                await cache.wait_until(lambda: states() == {"service": "active", "agent": "active"}, PATIENCE_S)
    connection = await nats.connect(nats_server.url)
    try:
        streams = {stream.config.name for stream in await connection.jetstream().streams_info()}
    finally:
        await connection.close()
    assert "KV_config_leases" in streams
    assert not {name for name in streams if "cluster" in str(name)}
