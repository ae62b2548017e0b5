"""The example of docs/sticky.md, whose database refuses older tokens, and a call that outlives its fence."""

from __future__ import annotations

import asyncio
import re
import shutil
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import nats
import pytest
from ringcast import Change, Worker
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer, TcpProxy, until_done
from ringcast_wire import Strategy, UnknownStoreError, names

DOCUMENT = Path(__file__).parents[2] / "docs/sticky.md"
REVISIONS = 300
"""More than a worker writes in this test."""


@pytest.fixture(scope="module")
def example() -> SimpleNamespace:
    """What the example defines."""
    (code,) = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    defined: dict[str, object] = {}
    exec(compile(code, str(DOCUMENT), "exec"), defined)
    return SimpleNamespace(**defined)


async def test_a_call_that_outlives_its_fence_writes_nothing(
    example: SimpleNamespace,
    nats_server: NatsServer,
    config_service: ConfigServiceProcess,
    postgres_url: str,
) -> None:
    databases = {name: await asyncpg.connect(postgres_url) for name in "ab"}
    await databases["a"].execute(example.TABLES)
    begun, going_on, late = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop().create_future()
    written: asyncio.Queue[Change] = asyncio.Queue()

    async def slow(change: Change) -> None:
        """Goes on when it is cancelled, since its session is over: as what waits in a thread would."""
        begun.set()
        with suppress(asyncio.CancelledError):
            await going_on.wait()
        await going_on.wait()
        late.set_result((change, await example.write(databases["a"], change)))

    async def quick(change: Change) -> None:
        assert await example.write(databases["b"], change)
        written.put_nowait(change)

    with TcpProxy(nats_server.port) as proxy:
        place: dict[str, Any] = {"store": "gateway", "keys": ["limits"]}
        async with ConfigServiceClient(config_service.address) as client, asyncio.timeout(PATIENCE_S):
            await client.create_store(
                "gateway", partition_count=1, strategy=Strategy.STICKY, lease_ttl_ms=2_000, call_bound_ms=200
            )
            await client.put("gateway", "limits", "row", "1")
            through = f"nats://127.0.0.1:{proxy.port}"
            async with Worker(**place, worker_id="a", servers=through, handler=slow) as cut_off:
                await begun.wait()
                proxy.cut()
                async with Worker(**place, worker_id="b", servers=nats_server.url, handler=quick):
                    first = await written.get()
                    await client.put("gateway", "limits", "row", "2")
                    second = await written.get()
                    going_on.set()
                    change, was_written = await late
                    assert cut_off.stats("limits").calls_over_bound == 1
                proxy.resume()
    assert not was_written
    assert (first.value, second.value, change.value) == ("1", "2", "1")
    assert change.token < first.token == second.token
    assert await databases["a"].fetchval("SELECT value FROM limits WHERE name = 'row'") == "2"
    for database in databases.values():
        await database.close()


async def test_tokens_rise_where_nats_has_lost_the_bucket_of_owners(
    example: SimpleNamespace,
    nats_server: NatsServer,
    config_service: ConfigServiceProcess,
    postgres_url: str,
    tmp_path: Path,
) -> None:
    """Its revisions would begin again, and the database refuse each write for good."""
    database = await asyncpg.connect(postgres_url)
    await database.execute(example.TABLES)
    written: asyncio.Queue[tuple[Change, bool]] = asyncio.Queue()

    async def write(change: Change) -> None:
        written.put_nowait((change, await example.write(database, change)))

    async with ConfigServiceClient(config_service.address) as client, asyncio.timeout(2 * PATIENCE_S):
        await client.create_store(
            "gateway", partition_count=1, strategy=Strategy.STICKY, lease_ttl_ms=2_000, call_bound_ms=200
        )
        await client.put("gateway", "limits", "row", "1")
        nc = await nats.connect(nats_server.url)
        for _ in range(REVISIONS):
            await nc.jetstream().publish(f"$KV.{names.owners_bucket('gateway')}.{names.load_key('other')}", b"{}")
        await nc.close()
        place: dict[str, Any] = {"store": "gateway", "keys": ["limits"], "servers": nats_server.url, "handler": write}
        async with Worker(**place, worker_id="a"):
            first, was_written = await written.get()
        assert was_written
        assert first.token is not None
        assert first.token > REVISIONS
        await asyncio.to_thread(nats_server.kill)
        await asyncio.to_thread(shutil.rmtree, tmp_path / "nats/jetstream")
        await asyncio.to_thread(nats_server.start)
        await client.put("gateway", "limits", "row", "2")

        async def start() -> None:
            workers.append(Worker(**place, worker_id="b"))
            await workers[-1].start()

        workers: list[Worker] = []
        await until_done(start, UnknownStoreError)  # the service makes the store's streams again
        second, was_written = await written.get()
        await workers[-1].stop()
    assert was_written
    assert second.token is not None
    assert second.token > first.token
    assert await database.fetchval("SELECT value FROM limits WHERE name = 'row'") == "2"
    await database.close()


async def test_the_example_writes_and_deletes_in_order(example: SimpleNamespace, postgres_url: str) -> None:
    database = await asyncpg.connect(postgres_url)
    await database.execute(example.TABLES)

    def change(token: int, value: str | None) -> SimpleNamespace:
        return SimpleNamespace(partition=3, token=token, row_id="row", value=value, deleted=value is None)

    assert await example.write(database, change(5, "1"))
    assert await example.write(database, change(5, "2"))
    assert await example.write(database, change(7, None))
    assert not await example.write(database, change(5, "3")), "what the next owner deleted does not come back"
    assert await database.fetchval("SELECT count(*) FROM limits") == 0
    assert await database.fetchval("SELECT token FROM fences WHERE partition = 3") == 7
    await database.close()
