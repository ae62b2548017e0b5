"""Two builds of which the newer one reads a wire version more: nothing that one writes is lost on the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import nats
import pytest
from ringcast import Change, Worker
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer, PostgresServer, until
from ringcast_wire import NEWEST_WIRE_VERSION, names

from tests.integration.rolling.next_build import VERSION, next_build
from tests.integration.rolling.system import STORES, Build, System

TREE = Build("tree")


def test_a_store_is_pinned_to_what_all_its_processes_read(tmp_path: Path, postgres_url: str) -> None:
    """One worker of one store is not of the build that reads version 3 too, then it is, and is not again; then one
    service is not. All of it is under load: no call fails, and no row is wrong."""
    newer = next_build(tmp_path / "next", look_s=1.0)
    with System(tmp_path, postgres_url, newer, (TREE,), {"gateway-1": TREE}) as system:

        def become(gateway: int, orders: int) -> None:
            asyncio.run(_until(lambda: _pins(system), {"gateway": gateway, "orders": orders}))
            for store, version in (("gateway", gateway), ("orders", orders)):
                asyncio.run(_until_event(system, store, version))

        become(1, VERSION)
        system.roll("gateway-1", newer)
        become(VERSION, VERSION)
        system.roll("gateway-1", TREE)
        become(1, VERSION)
        system.roll("service-1", TREE)
        become(1, 1)
        verdict = system.judge()
    assert verdict.kept, verdict


async def _pins(system: System) -> dict[str, int]:
    addresses = ",".join(service.address for service in system.services.values())
    async with ConfigServiceClient(addresses, timeout_s=PATIENCE_S) as client:
        return {store: (await client.get_store(store)).wire_pin for store in STORES}


async def _until(read: Callable[[], Awaitable[object]], wanted: object) -> None:
    async def is_so() -> bool:
        return (await read()) == wanted

    await until(is_so)


async def _until_event(system: System, store: str, version: int) -> None:
    """Until an event of a store is of a version; clients write all the time."""
    nc = await nats.connect(system.nats.url)
    events = await nc.subscribe(names.notify_subject(store, "list", "*"))
    async with asyncio.timeout(PATIENCE_S):
        while (await events.next_msg(timeout=PATIENCE_S)).data[1] != version:
            pass
    await nc.close()


async def test_a_worker_fetches_what_it_can_not_read(
    tmp_path: Path, shared_postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is of this tree, and comes while its store is pinned to a version of a build to come, which takes a while to
    notice: here it never does. The answers to its fetches are of a version that it reads."""
    newer, database = next_build(tmp_path / "next", look_s=3_600.0), shared_postgres.create_database()
    told: dict[str, str | None] = {}

    async def take(change: Change) -> None:
        told[change.row_id] = change.value

    with NatsServer(tmp_path / "nats") as server:
        service = ConfigServiceProcess(tmp_path, nats_url=server.url, database=database)
        service.env = {**service.env, **newer.env}
        with service:
            async with ConfigServiceClient(service.address, timeout_s=PATIENCE_S) as client:
                await client.create_store("s", partition_count=4)
                await client.put("s", "k", "first", "1")
                worker = Worker(servers=server.url, store="s", keys=["k"], worker_id="old", handler=take)
                async with worker:
                    await until(lambda: told.get("first") == "1")
                    pin = f"UPDATE stores SET wire_pin = {VERSION}"
                    await asyncio.to_thread(shared_postgres.run, "psql", "-Xqc", pin, database)
                    caplog.set_level(logging.ERROR, "ringcast")
                    expected = f"event has wire version {VERSION}: this build speaks {NEWEST_WIRE_VERSION}"
                    number = 0

                    async def has_refused() -> bool:
                        nonlocal number
                        number += 1
                        await client.put("s", "k", f"row{number}", str(number))
                        return expected in caplog.text

                    await until(has_refused)
                    await client.delete("s", "k", "first")
                    wanted = {"first": None} | {f"row{each}": str(each) for each in range(1, number + 1)}
                    await until(lambda: told == wanted)
