"""An instance says in a metadata store that it is there, whatever keeps that."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from ringcast_meta import LocalCache, open_store
from ringcast_meta.cluster import MemberKind, MemberState, ServiceLoad, members_of
from ringcast_service import ConfigError
from ringcast_service.cluster import ClusterSettings
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, EtcdServer, NatsServer, ReservedPort, end_task
from ringcast_wire.grpc import ConfigServiceStub, pb


@pytest.fixture(params=["nats", "etcd"])
def cluster(request: pytest.FixtureRequest) -> tuple[str, Any]:
    """The address of a metadata store, and its server, which is not the one of the service."""
    if request.param == "nats":
        nats: NatsServer = request.getfixturevalue("nats_server")
        return f"{nats.url}/config_cluster", nats
    etcd: EtcdServer = request.getfixturevalue("etcd_server")
    return f"etcd://{etcd.address}/ringcast", etcd


def instance(directory: Path, nats_url: str, store: str) -> ConfigServiceProcess:
    database = f"sqlite:{directory / 'ringcast.db'}"
    return ConfigServiceProcess(directory, nats_url=nats_url, database=database, options=("--cluster-store", store))


async def test_instances_come_and_go(tmp_path: Path, nats_url: str, cluster: tuple[str, Any]) -> None:
    address, server = cluster
    one, two = instance(tmp_path / "one", nats_url, address), instance(tmp_path / "two", nats_url, address)
    async with open_store(address, create=True) as store, LocalCache(store) as cache:

        def there() -> dict[str, str]:
            """Key of each instance by its address."""
            return {json.loads(entry.value)["address"]: key for key, entry in cache.entries().items()}

        with one:
            with two:
                await cache.wait_until(lambda: set(there()) == {one.address, two.address}, PATIENCE_S)
                entry = cache.entries()[there()[one.address]]
                assert entry.leased
                (record,) = (
                    x.record for x in members_of(cache.entries()) if x.record and x.record.address == one.address
                )
                assert (record.kind, record.state) == (MemberKind.SERVICE, MemberState.ACTIVE)
                assert record.pid == one.process.pid
                assert one.metrics_url == f"http://{record.metrics}/metrics"
                assert record.started_at_ms <= record.reported_at_ms
                assert isinstance(record.load, ServiceLoad)
                # One that stops takes its entry away.
                two.process.signal(signal.SIGTERM)
                await cache.wait_until(lambda: set(there()) == {one.address}, PATIENCE_S)
                assert two.process.wait() == 0
            # The store comes back without what it had: the instance registers again.
            key = there()[one.address]
            server.pause()
            one.process.wait_until(
                lambda: any(f"event=cluster.registration_lost key={key}" in x for x in one.process.log)
            )
            async with grpc.aio.insecure_channel(one.address) as channel:
                await ConfigServiceStub(channel).ListStores(pb.ListStoresRequest(), timeout=PATIENCE_S)
            server.resume()
            one.process.wait_until(lambda: sum("event=cluster.registered" in line for line in one.process.log) == 2)
            await cache.wait_until(lambda: there() == {one.address: key} and cache.fresh, PATIENCE_S)
        # It was killed: its lease ends.
        await cache.wait_until(lambda: there() == {}, PATIENCE_S)


async def test_an_instance_reports_how_busy_it_is(tmp_path: Path, nats_server: NatsServer, nats_url: str) -> None:
    """Its load is registered in a NATS server that goes on while the one that it publishes to stands still."""
    address = f"{nats_url}/loads"
    async with open_store(address, create=True) as store, LocalCache(store) as cache:

        async def reports(is_so: Callable[[ServiceLoad], bool]) -> None:
            """Waits until the instance says so of its load."""

            def said() -> bool:
                records = [member.record for member in members_of(cache.entries()) if member.record is not None]
                return any(isinstance(record.load, ServiceLoad) and is_so(record.load) for record in records)

            await cache.wait_until(said, PATIENCE_S)

        with instance(tmp_path / "one", nats_server.url, address) as one:
            async with grpc.aio.insecure_channel(one.address) as channel:
                stub = ConfigServiceStub(channel)
                await stub.CreateStore(pb.CreateStoreRequest(name="s", partition_count=4), timeout=PATIENCE_S)
                await reports(lambda load: load.writes_per_s == 0 and load.open_calls == 0)

                async def put(value: str) -> None:
                    request = pb.PutRequest(store="s", key="k", row_id="r", value=value)
                    await stub.Put(request, timeout=PATIENCE_S)

                async def put_on() -> None:
                    for number in range(1_000_000):
                        await put(str(number))

                writing = asyncio.create_task(put_on())
                await reports(lambda load: load.writes_per_s > 0 and load.cpu > 0)
                await end_task(writing)
                stream = stub.Change()  # a client's, which it keeps open while it has nothing to write
                change = pb.RowChange(number=1, row_id="r", value="by a stream")
                await stream.write(pb.Changes(store="s", key="k", changes=[change]))
                await stream.read()
                await reports(lambda load: load.writes_per_s == 0 and load.open_calls == 1 and load.outbox_events == 0)
                nats_server.pause()
                try:
                    await put("not published")
                    await reports(lambda load: load.outbox_events > 0 and load.outbox_age_s > 0)
                finally:
                    nats_server.resume()
                await reports(lambda load: load.outbox_events == 0 and load.outbox_age_s == 0)
                stream.cancel()
                await reports(lambda load: load.open_calls == 0)


def test_a_store_that_is_away_keeps_no_instance_from_serving(tmp_path: Path, nats_url: str) -> None:
    with instance(tmp_path, nats_url, f"nats://{ReservedPort().address}/config_cluster") as service:
        sentence = "can't be reached: connection refused"
        service.process.wait_until(
            lambda: any("event=cluster.registration_failed" in x and sentence in x for x in service.process.log)
        )
        service.process.signal(signal.SIGTERM)
        assert service.process.wait() == 0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (ClusterSettings(store="redis://here/x"), "cluster_store: address 'redis://here/x' is not a metadata store"),
        (ClusterSettings(store="nats://h/b", address="h"), "cluster_address 'h' is not an address: HOST:PORT"),
        (ClusterSettings(store="nats://h/b", address="http://h:1"), "cluster_address 'http://h:1' is not an address"),
        (ClusterSettings(store="nats://h/b", address=f"{'h' * 256}:1"), "is not an address: HOST:PORT is expected, of"),
        (ClusterSettings(store="nats://h/b", address="fe80::1:7420"), "'fe80::1:7420' is not an address: HOST:PORT is"),
        (ClusterSettings(store="nats://h/b", address="h:65536"), "cluster_address 'h:65536' is not an address"),
        (ClusterSettings(store="nats://h/b", address="a:1,b:2"), "cluster_address 'a:1,b:2' is not an address"),
        (ClusterSettings(store="nats://h/b", address="u:pw@h:1"), "cluster_address 'u:pw@h:1' is not an address"),
        (ClusterSettings(store="nats://h/b", address="tls://0.0.0.0:1"), "'tls://0.0.0.0:1' means the host of each"),
        (ClusterSettings(store="nats://h/b", address="[::]:7420"), r"'\[::\]:7420' means the host of each client"),
        (ClusterSettings(store="memory:"), "cluster_store memory: is of one process"),
        (ClusterSettings(store="etcd://h:1/x", etcd_user="u"), "cluster_store: user is given without password"),
    ],
)
def test_settings_that_make_no_sense(settings: ClusterSettings, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        settings.check()


@pytest.mark.parametrize(
    ("address", "listens", "uses_tls", "reached"),
    [
        ("", "127.0.0.1:7420", False, "127.0.0.1:7420"),
        ("", "10.0.0.1:7420", True, "tls://10.0.0.1:7420"),
        ("", "0.0.0.0:7420", False, f"{socket.gethostname()}:7420"),
        ("", "[::]:7420", True, f"tls://{socket.gethostname()}:7420"),
        ("config.example.org:443", "0.0.0.0:7420", False, "config.example.org:443"),
        ("tls://[fd00::1]:443", "127.0.0.1:7420", False, "tls://[fd00::1]:443"),
    ],
)
def test_the_address_that_is_registered_is_one_that_others_reach(
    address: str, listens: str, uses_tls: bool, reached: str
) -> None:
    settings = ClusterSettings(store="nats://h:4222/config_cluster", address=address)
    settings.check()
    assert settings.reached_at(listens, uses_tls=uses_tls) == reached
