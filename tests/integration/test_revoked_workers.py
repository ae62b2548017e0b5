"""Workers and an agent with tokens, by the auth callout, whose token is revoked: real ones, with partitions."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import nats.errors
import pytest
from nats.aio.client import Client
from ringcast import Worker
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, AgentProcess, attempt, until, until_workers
from ringcast_testkit.dispatch import following
from ringcast_wire import names

from tests.integration.callout_nats import SCOPE, CalloutNats
from tests.integration.infra_nats import WORKER_API

PARTITIONS = 32
ROWS = 64
EVERY_ROW = sorted(f"row{number}" for number in range(ROWS))
FLEET = 8
KEY = "blocklist"


async def filled(client: ConfigServiceClient) -> None:
    await client.create_store("gateway", partition_count=PARTITIONS)
    for number in range(ROWS):
        await client.put("gateway", KEY, f"row{number}", str(number))


def rows_of(workers: list[Worker]) -> list[str]:
    return sorted(row.row_id for worker in workers for row in worker.rows(KEY))


async def logs_in(server: CalloutNats, user: str) -> bool:
    try:
        client: Client = await nats.connect(
            server.url, allow_reconnect=False, inbox_prefix=names.inbox_prefix(user), **server.login(user)
        )
    except nats.errors.Error as error:
        if "Authorization Violation" not in str(error):
            raise
        return False
    await client.close()
    return True


@pytest.mark.parametrize("way", ["command", "file"])
@attempt(
    "workers whose token was revoked",
    "go on, and log in again",
    "within seconds their connections end; they say `login_refused`, and others have their partitions",
)
async def test_workers_of_a_revoked_token_are_out_and_others_take_over(way: str, tmp_path: Path) -> None:
    """``way``: by ``RevokeToken``, with the line still in the file, or by its removal from the file."""
    with CalloutNats(tmp_path, workers={"worker-0": SCOPE, "fleet-*": SCOPE}) as server:
        async with AsyncExitStack() as stack:
            service = stack.enter_context(server.service(tmp_path))
            client = await stack.enter_async_context(ConfigServiceClient(service.address))
            await filled(client)
            stays = await stack.enter_async_context(server.worker("worker-0"))
            fleet = [await stack.enter_async_context(server.worker(f"fleet-{n}")) for n in range(FLEET)]
            everybody = [stays, *fleet]
            await until_workers(
                everybody,
                KEY,
                lambda: rows_of(everybody) == EVERY_ROW and all(worker.owned(KEY) for worker in everybody),
            )
            if way == "command":
                assert await client.revoke_token(principal="fleet-all") == 1
            else:
                server.remove("fleet-all")
            await until(lambda: all(worker.health().login_refused for worker in fleet))
            assert not stays.health().login_refused
            await until_workers([stays], KEY, lambda: len(stays.owned(KEY)) == PARTITIONS)
            await until_workers([stays], KEY, lambda: rows_of([stays]) == EVERY_ROW)
            change = await client.put("gateway", KEY, "row0", "after")
            await stays.wait_for(KEY, change.partition, change.version, timeout_s=PATIENCE_S)
            assert not any(worker.health().ready for worker in fleet)
            assert not await logs_in(server, "fleet-9")
            assert await logs_in(server, "worker-0")


async def test_an_agent_of_a_revoked_token_is_out(tmp_path: Path) -> None:
    server = CalloutNats(tmp_path, workers={})
    secret = server.add("host-1", f"gateway/{KEY}", kind="agent")
    words = ("--id", "host-1", "--jetstream-api", WORKER_API, "--nats-user", "host-1", "--nats-password", secret)
    with server, server.service(tmp_path) as service:
        async with ConfigServiceClient(service.address) as client:
            await filled(client)
            with AgentProcess(tmp_path / "agent", nats_url=server.url, options=words) as agent:
                async with following(agent, "gateway", key=KEY) as one:
                    await one.values({f"row{number}": str(number) for number in range(ROWS)})
                await client.revoke_token(principal="host-1")
                said = "event=nats.login_refused"
                await asyncio.to_thread(
                    agent.process.wait_until, lambda: any(said in line for line in list(agent.process.log))
                )
                assert not await logs_in(server, "host-1")
