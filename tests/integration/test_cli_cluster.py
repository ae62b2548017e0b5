"""``ringcast cluster`` against real services that register in real stores."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from ringcast_cli._common.client import service_client
from ringcast_cli._common.config import resolve
from ringcast_client import ConfigServiceClient
from ringcast_meta import open_store
from ringcast_meta.cluster import MemberKind, MemberRecord, MemberState, ServiceLoad, encode_member
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, EtcdServer, NatsServer, ReservedPort, until
from ringcast_wire import UnavailableError

from tests.integration.cli_process import COMMAND, Cli
from tests.integration.infra_nats import InfraNats, make_accounts


@pytest.fixture(params=["nats", "etcd"])
def place(request: pytest.FixtureRequest) -> tuple[str, Any]:
    """The address of an empty store, and its server."""
    if request.param == "nats":
        nats: NatsServer = request.getfixturevalue("nats_server")
        return f"{nats.url}/config_cluster", nats
    etcd: EtcdServer = request.getfixturevalue("etcd_server")
    return f"etcd://{etcd.address}/ringcast", etcd


def registered(directory: Path, nats_url: str, store: str, *words: str) -> ConfigServiceProcess:
    """An instance on SQLite; the end of ``with`` ends it."""
    database = f"sqlite:{directory / 'ringcast.db'}"
    options = ("--cluster-store", store, *words)
    return ConfigServiceProcess(directory, nats_url=nats_url, database=database, options=options)


def processes(cli: Cli) -> list[dict[str, Any]]:
    """The services and agents that `cluster list` has."""
    documents = cli.ok("cluster", "list", "--json").documents
    assert documents[-1]["kind"] == "fleet"
    return [each for each in documents if each["kind"] in ("service", "agent")]


def wait_registered(service: ConfigServiceProcess) -> None:
    service.process.wait_until(lambda: any("event=cluster.registered" in line for line in service.process.log))


def test_list_and_top(tmp_path: Path, nats_url: str, place: tuple[str, Any]) -> None:
    address, server = place
    cli = Cli(tmp_path, cluster_store=address, timeout_s="60")
    # Both are on one database, so one of them leads maintenance.
    with registered(tmp_path, nats_url, address) as one, registered(tmp_path, nats_url, address) as two:
        wait_registered(one)
        wait_registered(two)
        found = {each["address"]: each for each in processes(cli)}
        assert set(found) == {one.address, two.address}
        assert {each["state"] for each in found.values()} == {"active"}
        assert sorted(each["leads"] for each in found.values()) == [False, True]
        assert found[one.address]["load"]["of"] == "service"
        assert found[one.address]["report_age_s"] < PATIENCE_S
        table = cli.ok("cluster", "list").out
        assert found[one.address]["id"] in table
        assert table.count("active, leads ") == 1
        assert "0 writes/s, outbox 0 (0s), 0 fetches wait, 0 calls, cpu" in table
        # One that stands still says nothing any more, and nothing good is said of it meanwhile.
        watch = cli.start("cluster", "top", "--json", "--every", "0.2")
        try:
            watch.wait_until(lambda: len(list(watch.log)) > 2)
            server.pause()
            watch.wait_until(lambda: any('"fresh":false' in line for line in list(watch.log)))
            server.resume()
            watch.signal(signal.SIGINT)
            assert watch.wait() == 0
        finally:
            watch.kill()
        pictures = [json.loads(line) for line in list(watch.log) if line.startswith("{")]
        assert pictures[0]["fresh"]
        assert {each["address"] for each in pictures[0]["members"]} == {one.address, two.address}


def test_commands_find_a_service_that_takes_calls(tmp_path: Path, nats_url: str, place: tuple[str, Any]) -> None:
    address, _ = place
    cli = Cli(tmp_path, cluster_store=address, servers=nats_url, timeout_s="60")
    nobody = ReservedPort().address
    with registered(tmp_path, nats_url, address) as one:
        wait_registered(one)
        cli.ok("store", "create", "s", "--partitions", 4)
        # An address that is given counts, however it is given.
        for refused in (
            cli.refused("put", "s", "list", "a", "1", "--service", nobody, "--timeout", "3"),
            Cli(tmp_path, cluster_store=address, service=nobody, timeout_s="3").refused("get", "s", "list", "a"),
        ):
            assert refused.startswith(f"config service {nobody} can't be reached: ")
        with registered(tmp_path, nats_url, address) as two:
            wait_registered(two)
            drained = {each["address"]: each["id"] for each in processes(cli)}[one.address]
            cli.ok("cluster", "drain", drained, "--wait")
            one.process.signal(signal.SIGTERM)
            assert one.process.wait(PATIENCE_S) == 0
            cli.ok("put", "s", "list", "a", "1")
            away = Cli(tmp_path, servers=nats_url, timeout_s="60")
            assert away.ok("get", "s", "list", "a", "--cluster-store", address).out == "1\n"
            assert away.ok("--cluster-store", address, "get", "s", "list", "a").out == "1\n"
            assert f"ok       config service {two.address}: it serves reads and writes" in cli("doctor", "--all").out
            (last,) = processes(cli)
            cli.ok("cluster", "drain", last["id"], "--wait")
            sentence = (
                f"no config service that takes calls is registered in {address}: start one with that --cluster-store,"
                " or name one with --service"
            )
            assert cli.refused("get", "s", "list", "a") == sentence
            assert f"FAILURE  config services: {sentence}" in cli("doctor").out


async def test_a_command_that_goes_on_finds_those_that_come(tmp_path: Path, nats_server: NatsServer) -> None:
    address = f"{nats_server.url}/config_cluster"
    config = resolve({"cluster_store": address, "timeout_s": 60.0}, {"HOME": str(tmp_path)})
    one, two = (registered(tmp_path, nats_server.url, address) for _ in range(2))
    with one:
        await asyncio.to_thread(wait_registered, one)
        async with service_client(config) as client:
            await client.create_store("s", partition_count=4)
            assert client.address == one.address
            with two:
                one.process.signal(signal.SIGTERM)
                assert await asyncio.to_thread(one.process.wait, PATIENCE_S) == 0

                async def elsewhere() -> bool:
                    with suppress(UnavailableError):  # until it looks again, the other one is all that it knows
                        await client.list_stores()
                    return client.address == two.address

                await until(elsewhere)


def test_top_in_a_terminal_ends_with_ctrl_c(tmp_path: Path, nats_server: NatsServer) -> None:
    address = f"{nats_server.url}/config_cluster"
    with registered(tmp_path / "one", nats_server.url, address) as one:
        wait_registered(one)
        env = Cli(tmp_path, cluster_store=address, timeout_s="60").env | {"TERM": "xterm", "COLUMNS": "200"}
        ours, theirs = pty.openpty()
        shown = bytearray()
        process = subprocess.Popen(
            [*COMMAND, "cluster", "top", "--every", "0.2"], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=env
        )
        os.close(theirs)

        def read() -> None:
            try:
                while data := os.read(ours, 65_536):
                    shown.extend(data)
            except OSError:
                pass  # the other end is closed

        reader = threading.Thread(target=read)
        reader.start()
        try:
            asyncio.run(until(lambda: shown.count(b"1 processes") > 2))
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
            process.wait()
            reader.join()
            os.close(ours)
        assert (process.returncode, said) == (0, b"")
        assert one.address.encode() in shown
        assert shown.endswith(b"\x1b[?25h") or b"\x1b[?1049l" in shown  # the screen is as it was before


def test_a_stale_or_unreadable_record_is_called_so(tmp_path: Path, nats_server: NatsServer) -> None:
    address = f"{nats_server.url}/config_cluster"
    cli = Cli(tmp_path, cluster_store=address, timeout_s="60")
    load = ServiceLoad(writes_per_s=1, outbox_events=0, outbox_age_s=0, waiting_fetches=0, open_calls=0, cpu=0)
    where = {"address": "a:1", "host": "h", "pid": 1, "version": "1"}
    old = MemberRecord(
        kind=MemberKind.SERVICE,
        id="old",
        state=MemberState.ACTIVE,
        started_at_ms=1_000,
        reported_at_ms=2_000,
        load=load,
        **where,  # type: ignore[arg-type]
    )

    async def write() -> None:
        async with open_store(address, create=True) as store:
            await store.create("services.old", encode_member(old))
            await store.create("services.newer", b'{"format": 2}')

    asyncio.run(write())
    newer, stale = processes(cli)
    assert (stale["state"], stale["last_state"], stale["stale"]) == ("unknown", "active", True)
    assert (newer["state"], newer["problem"]) == ("unknown", "the record has format 2: this build reads up to 1")
    shown = cli.ok("cluster", "list")
    assert "unknown (was active)" in shown.out
    assert "service old has not reported for" in shown.err
    assert "service newer: the record has format 2" in shown.err


def test_a_record_that_is_none_keeps_no_command_from_a_service_and_steers_no_terminal(
    tmp_path: Path, nats_server: NatsServer
) -> None:
    address = f"{nats_server.url}/config_cluster"
    cli = Cli(tmp_path, cluster_store=address, servers=nats_server.url, timeout_s="60")
    load = ServiceLoad(writes_per_s=1, outbox_events=0, outbox_age_s=0, waiting_fetches=0, open_calls=0, cpu=0)
    elsewhere = MemberRecord(
        kind=MemberKind.SERVICE,
        id="x",
        address="http://user:secret@host:1",
        host="h",
        pid=1,
        version="1",
        state=MemberState.ACTIVE,
        started_at_ms=1_000,
        reported_at_ms=time.time_ns() // 1_000_000,
        load=load,
    )

    async def write() -> None:
        connection = await nats.connect(nats_server.url)
        try:
            stream = connection.jetstream()  # no store of ours writes such a key
            await stream.publish("$KV.config_cluster.services.\ax", b"{")
            await stream.publish("$KV.config_cluster.services.x", encode_member(elsewhere))
        finally:
            await connection.close()

    with registered(tmp_path, nats_server.url, address) as one:
        wait_registered(one)
        asyncio.run(write())
        cli.ok("store", "create", "s", "--partitions", 4)
        cli.ok("put", "s", "list", "a", "1")
        listed = cli.ok("cluster", "list")
        assert "service \\x07x: the record can't be read" in listed.err
        assert "service x: the record has no address that can be called" in listed.err
        assert "secret" not in listed.out + listed.err
        assert "\a" not in listed.out + listed.err
        assert "there are \\x07x, " in cli.refused("cluster", "drain", "nobody")


def test_what_can_not_be_read_is_one_sentence(tmp_path: Path, nats_url: str) -> None:
    cli = Cli(tmp_path)
    assert cli.refused("cluster", "list").startswith("cluster_store is not given: --cluster-store or RINGCAST_")
    for words in (("cluster", "list"), ("cluster", "top"), ("top",)):
        sentence = cli.refused(*words, "--cluster-store", f"{nats_url}/nothing")
        assert sentence == "bucket 'nothing': NATS answers 'stream not found' (10059)"


def test_the_rights_of_the_accounts_are_enough(tmp_path: Path) -> None:
    server = InfraNats(tmp_path / "nats", env={"NATS_CLUSTER_TOOLS_PASSWORD": "pw-of-cluster-tools"})
    accounts = server.configuration / "accounts.conf"
    words = accounts.read_text().splitlines()[0].partition("make_accounts.py ")[2].split()
    accounts.write_text(make_accounts("--cluster-tools", *words).stdout)
    with server:
        address = f"{server.url}/config_cluster"
        login = {"user": "cluster-tools", "password": "pw-of-cluster-tools"}
        cli = Cli(tmp_path, cluster_store=address, servers=server.url, timeout_s="60", **login)
        with server.service(tmp_path / "service", "--cluster-store", address) as service:
            wait_registered(service)
            asyncio.run(with_a_worker(server, cli, service))
        assert server.violations() == []


async def with_a_worker(server: InfraNats, cli: Cli, service: ConfigServiceProcess) -> None:
    """The user may ask the workers, too. The service is found by what it has registered."""
    async with ConfigServiceClient(service.address) as client:
        await client.create_store("gateway", partition_count=4)
        await client.put("gateway", "blocklist", "row", "value")
    async with server.worker("worker-0") as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        await until(lambda: len(worker.owned("blocklist")) == 4)
        found = (await asyncio.to_thread(cli.ok, "cluster", "list", "--json")).documents
    assert [each["kind"] for each in found] == ["service", "worker", "fleet"]
    assert found[0]["address"] == service.address
    assert (found[1]["id"], found[1]["partitions"]) == ("worker-0", 4)
    assert (found[2]["whole"], found[2]["missing"]) == (True, [])
