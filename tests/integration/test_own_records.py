"""A worker notices that a record of its own is gone though nothing has told of it, and writes it again."""

from __future__ import annotations

import asyncio

import nats
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError
from ringcast import Worker
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer
from ringcast_wire import names

STREAM = f"KV_{names.nodes_bucket('s')}"


async def sequence(js: JetStreamContext, name: str) -> int | None:
    """Where a record stands, if it does."""
    try:
        return (await js.get_msg(STREAM, subject=f"$KV.{names.nodes_bucket('s')}.{name}", direct=True)).seq
    except NotFoundError:
        return None


async def written_after(connection: Client, js: JetStreamContext, name: str, before: int) -> None:
    """Returns once a record was written again."""
    async with asyncio.timeout(PATIENCE_S):
        while ((await sequence(js, name)) or 0) <= before:
            await connection.flush()


async def test_a_record_that_is_lost_in_silence_is_written_again(
    nats_server: NatsServer, config_service: ConfigServiceProcess
) -> None:
    async with ConfigServiceClient(config_service.address) as client:
        await client.create_store("s", partition_count=8)
        await client.put("s", "k", "row", "value")
    config_service.kill()  # it would take back what lets a record be removed without a marker
    connection = await nats.connect(nats_server.url)
    try:
        js = connection.jetstream()
        config = (await js.stream_info(STREAM)).config
        await js.delete_stream(STREAM)
        await js.add_stream(config.evolve(deny_delete=False, deny_purge=False))
        async with Worker(servers=nats_server.url, store="s", keys=["k"], worker_id="w"):
            for name in (names.node_key("k", "w"), names.slot_key("k", 0)):
                await written_after(connection, js, name, 0)
                at = await sequence(js, name)
                assert at is not None
                await js.delete_msg(STREAM, at)
                await written_after(connection, js, name, at)
    finally:
        await connection.close()
