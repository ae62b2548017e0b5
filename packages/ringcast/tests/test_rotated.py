"""What ends a connection to NATS, or comes over it damaged, ends no worker."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import nats
import pytest
from ringcast import Worker
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer, until
from ringcast_wire import LeaseRecord, SlotClaim, encode_record, limits, names

SERVICE = {"user": "service", "password": "service"}
OPTIONS = ("--nats-user", "service", "--nats-password", "service")


def login(password: str) -> dict[str, Any]:
    """The server's settings with this password of the worker's."""
    return {"authorization": {"users": [SERVICE, {"user": "w", "password": password}]}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats"), **login("first")) as made:
        yield made


@pytest.fixture(scope="module")
def service(server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConfigServiceProcess]:
    directory = tmp_path_factory.mktemp("service")
    database = f"sqlite:{directory / 'ringcast.db'}"
    with ConfigServiceProcess(directory, nats_url=server.url, database=database, options=OPTIONS) as made:
        yield made


@dataclass
class Store:
    """A store of a test's own."""

    name: str
    server: NatsServer
    client: ConfigServiceClient

    def worker(self, name: str = "w", **settings: Any) -> Worker:
        settings = {"servers": self.server.url, "user": "w", "password": "first", **settings}
        return Worker(store=self.name, keys=["list"], worker_id=f"{self.name}-{name}", **settings)

    async def hears(self, one: Worker, value: str) -> None:
        """Writes a row, and waits until the worker has it."""
        written = await self.client.put(self.name, "list", "a", value)
        await one.wait_for("list", written.partition, written.version, timeout_s=PATIENCE_S)
        row = one.get("list", "a")
        assert row is not None
        assert row.value == value


@pytest.fixture
async def store(server: NatsServer, service: ConfigServiceProcess, store_name: str) -> AsyncIterator[Store]:
    async with ConfigServiceClient(service.address) as client:
        await client.create_store(store_name, partition_count=4)
        yield Store(store_name, server, client)


@pytest.mark.parametrize("parser", ["batch", "library"])
async def test_a_password_that_is_another_for_a_while_ends_no_worker(
    store: Store, server: NatsServer, caplog: pytest.LogCaptureFixture, parser: str
) -> None:
    async with store.worker(nats_parser=parser) as one:
        await store.hears(one, "1")
        refused = server.log_of("authentication error")
        await asyncio.to_thread(server.reload, **login("second"))
        await until(lambda: not one.health().connected and one.staleness() > 0)
        row = one.get("list", "a")  # which goes on being served
        assert row is not None
        await until(lambda: server.log_of("authentication error") > refused)  # it tries again with what it has
        await asyncio.to_thread(server.reload, **login("first"))
        await until(lambda: one.health().ready)
        await store.hears(one, "2")
    (lost,) = [record for record in caplog.records if record.getMessage().startswith("event=nats.disconnected")]
    assert "Authorization Violation" in getattr(lost, "error", "")


@pytest.mark.parametrize("parser", ["batch", "library"])
async def test_a_subject_that_is_no_utf8_costs_no_connection(
    store: Store, server: NatsServer, caplog: pytest.LogCaptureFixture, parser: str
) -> None:
    name = store.name.encode()

    def publish() -> None:
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as raw:
            raw.recv(4_096)
            raw.sendall(b'CONNECT {"verbose":false,"user":"service","pass":"service"}\r\n')
            for subject in (b"config.notify.%b.list.\xff" % name, b"$KV.config_nodes_%b.list.\xff" % name):
                raw.sendall(b"PUB %b 1\r\nx\r\n" % subject)
            raw.sendall(b"PING\r\n")
            while b"PONG" not in raw.recv(4_096):
                pass

    with caplog.at_level(logging.WARNING):
        async with store.worker(nats_parser=parser) as one:
            await one.wait_ready(timeout_s=PATIENCE_S)
            await asyncio.to_thread(publish)
            await until(lambda: one.stats().unreadable > 0)
            for number in range(3):
                await store.hears(one, str(number))
            assert one.health().ready
    assert not [record for record in caplog.records if record.getMessage().startswith("event=nats.disconnected")]


async def test_claims_of_every_slot_by_one_worker_keep_no_other_out(store: Store, server: NatsServer) -> None:
    async with store.worker() as one:
        await one.wait_ready(timeout_s=PATIENCE_S)
        rogue = await nats.connect(server.url, **SERVICE)
        lease = LeaseRecord(incarnation="x" * 16, host="h", pid=1, started_at_ms=1)
        js = rogue.jetstream()
        await js.publish(f"$KV.{names.LEASES_BUCKET}.rogue", encode_record(lease))
        claim = encode_record(SlotClaim(worker_id="rogue", lease="rogue"))
        bucket = names.nodes_bucket(store.name)
        for slot in range(limits.MAX_WORKERS_PER_KEY):
            await js.publish(f"$KV.{bucket}.{names.slot_key('list', slot)}", claim)
        async with store.worker("other") as other:
            await until(lambda: len(one.owned("list")) + len(other.owned("list")) == 4 and other.owned("list"))
            await until(lambda: one.health().ready and other.health().ready)
        await rogue.close()
