"""The NATS configuration in infra/nats: it is valid, it is enough for Ringcast, and nobody may do more."""

from __future__ import annotations

import asyncio
import logging
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nats
import nkeys
import pytest
import trustme
from ringcast import Change, PoisonPolicy, UnavailableError, Worker
from ringcast.topology import read_topology
from ringcast_client import ConfigServiceClient, ReplayOutcome
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer, nats_server_binary, until, until_workers
from ringcast_wire import ConditionFailedError, Stage, limits, names
from ringcast_wire.owner_records import State, encode_state

from tests.integration.infra_nats import (
    NATS,
    WORKER_API,
    InfraNats,
    cluster_of_three,
    connected,
    environment,
    example_variables,
    make_accounts,
    use_tls,
)

PARTITIONS = 4


async def fill(service: ConfigServiceProcess) -> None:
    """A store whose partitions have about 2.5 MB each, so that a fetch is answered in several chunks."""
    async with ConfigServiceClient(service.address) as client:
        await client.create_store("gateway", partition_count=PARTITIONS)
        for number in range(40):
            await client.put("gateway", "blocklist", f"row{number}", str(number) * 150_000)


async def serves_workers(server: InfraNats, service: ConfigServiceProcess, **settings: Any) -> None:
    """Two workers share the rows, hear a change, and one takes over from the other."""
    await fill(service)
    async with ConfigServiceClient(service.address) as client, server.worker("worker-0", **settings) as first:
        async with server.worker("worker-1", **settings) as second:
            both = (first, second)
            await until_workers(both, "blocklist", lambda: shared_out(both))
            put = await client.put("gateway", "blocklist", "row7", "new")
            (owner,) = [worker for worker in both if put.partition in worker.owned("blocklist")]
            await owner.wait_for("blocklist", put.partition, put.version, timeout_s=PATIENCE_S)
            row = owner.get("blocklist", "row7")
            assert row is not None
            assert row.value == "new"
        await first.wait_until("blocklist", lambda: holds_all(first), timeout_s=PATIENCE_S)
    assert server.violations() == []


def shared_out(workers: Sequence[Worker]) -> bool:
    """Whether each of them owns something, nothing is owned twice, and all rows are there."""
    owned = [worker.owned("blocklist") for worker in workers]
    rows = sum(worker.row_count("blocklist") for worker in workers)
    return all(owned) and sum(map(len, owned)) == len(frozenset().union(*owned)) == PARTITIONS and rows == 40


def holds_all(worker: Worker) -> bool:
    return worker.row_count("blocklist") == 40 and len(worker.owned("blocklist")) == PARTITIONS


# --- The files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("main", ["nats.conf", "cluster.conf"])
@pytest.mark.parametrize("tls", [False, True])
def test_the_server_takes_the_configuration(tmp_path: Path, main: str, tls: bool) -> None:
    server = InfraNats(tmp_path)
    if tls:
        use_tls(server, tmp_path)
    result = check(server.configuration / main, server.env)
    assert result.returncode == 0, result.stderr
    assert "is valid" in result.stderr + result.stdout


def test_every_variable_is_in_the_example_and_the_server_needs_each(tmp_path: Path) -> None:
    used = {
        name for file in NATS.glob("*.conf") for name in re.findall(r"^[^#\n]*[ :]\$([A-Z]\w+)", file.read_text(), re.M)
    }
    used = {name for name in used if name.startswith("NATS_")}
    assert used == example_variables()
    env = environment(tmp_path)
    needed = used - {name for name in used if "TLS" in name or "CALLOUT" in name}
    for name in needed:
        result = check(NATS / "cluster.conf", {other: value for other, value in env.items() if other != name})
        assert result.returncode != 0
        assert f"'{name}'" in result.stderr
    assert len(needed) >= 12


@pytest.mark.parametrize("name", ["accounts.conf", "accounts-callout.conf"])
def test_the_accounts_are_what_the_script_prints(name: str) -> None:
    text = (NATS / name).read_text()
    words = shlex.split(text.splitlines()[0].partition("make_accounts.py ")[2])
    assert words
    result = make_accounts(*words)
    assert (result.returncode, result.stdout) == (0, text)


def test_the_accounts_of_any_number_of_workers_with_tokens_are_small() -> None:
    """200 workers of 4,096 partitions by name are 2 MB, which each server reads anew for each change."""
    named = make_accounts("--partitions", "4096", *(f"worker-{number}=gateway/blocklist" for number in range(200)))
    assert len(named.stdout) > 1_000_000
    stores = [word for number in range(50) for word in ("--tools-store", f"store-{number}")]
    for_all = make_accounts("--callout-from-environment", *stores)
    assert 0 < len(for_all.stdout) < 100_000
    assert "worker-" not in for_all.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["worker-0"], "'worker-0' is not of the form WORKER=STORE/KEY,KEY"),
        (["w.1=s/k"], "worker 'w.1' is not a valid name"),
        (["w=s/"], "key '' is not a valid name"),
        (["a-b=s/k", "a_b=s/k"], "would share the variable NATS_WORKER_A_B_PASSWORD"),
        (["config-service=s/k"], "has the name of a user that is no worker"),
        (["w=s/k", "--nkey", "x=U1"], "'x', which is no user here"),
        (["w=s/k", "--partitions", "0"], "1 to 4096"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(words: list[str], sentence: str) -> None:
    result = make_accounts(*words)
    assert (result.returncode, result.stdout) == (2, "")
    assert sentence in result.stderr


def check(file: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(nats_server_binary()), "-t", "-c", str(file)], env=env, capture_output=True, text=True, check=False
    )


# --- What works -------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[InfraNats]:
    with InfraNats(tmp_path) as running:
        yield running


async def test_the_permissions_are_enough(server: InfraNats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with server.service(tmp_path) as service:
        await serves_workers(server, service)
        login = server.login("tools")
        monkeypatch.setenv("RINGCAST_USER", login["user"])
        monkeypatch.setenv("RINGCAST_PASSWORD", login["password"])
        monkeypatch.setenv("RINGCAST_JETSTREAM_API", WORKER_API)
        topology = await read_topology(server.url, "gateway", "blocklist")
        assert topology.settings.partition_count == PARTITIONS
        async with ConfigServiceClient(service.address) as client:
            await client.migrate_store("gateway", Stage.SHADOW, lease_ttl_ms=2_000, call_bound_ms=200)

        async def has_a_plan() -> bool:
            return (await read_topology(server.url, "gateway", "blocklist")).moves == 0

        async with server.worker("worker-0"):
            await until(has_a_plan)
        async with connected(server, "worker-1") as dead:
            said = f"$KV.{names.owners_bucket('gateway')}.{names.state_key('blocklist', 'worker-1')}"
            await dead.nc.request(said, encode_state(State(lease="worker-1", session=0)), timeout=PATIENCE_S)
        async with ConfigServiceClient(service.address) as client:
            await client.migrate_store("gateway", Stage.VALIDATE)
            with pytest.raises(ConditionFailedError, match="workers worker-1 of key 'blocklist' are not guarded"):
                await client.migrate_store("gateway", Stage.SWITCH)
            await client.migrate_store("gateway", Stage.SWITCH, gone=["worker-1"])
        assert server.violations() == []


async def test_dead_letters_are_left_replayed_and_discarded(server: InfraNats, tmp_path: Path) -> None:
    fine = False

    def refuse(change: Change) -> None:
        if not fine:
            raise ValueError(change.row_id)

    with server.service(tmp_path) as service:
        await fill(service)
        settings: dict[str, Any] = {"handler": refuse, "handler_tries": 1, "poison_policy": PoisonPolicy.DEAD_LETTER}
        async with server.worker("worker-0", **settings) as worker, ConfigServiceClient(service.address) as client:
            await worker.wait_ready(timeout_s=PATIENCE_S)
            assert worker.stats("blocklist").dead_letters == 40
            numbers = [letter.number async for letter in client.dead_letters("gateway", key="blocklist")]
            fine = True
            replayed = [each async for each in client.replay_dead_letters("gateway", numbers[:3])]
            assert [(each.outcome, each.worker_id) for each in replayed] == [(ReplayOutcome.HANDLED, "worker-0")] * 3
            assert await client.discard_dead_letters("gateway", numbers) == 37
    assert server.violations() == []


async def test_a_wrong_password_is_one_sentence_without_it(server: InfraNats) -> None:
    with pytest.raises(UnavailableError, match="Authorization Violation") as refused:
        async with server.worker("worker-0", password="wrong-secret", connect_timeout_s=4.0):
            pytest.fail("it started")
    assert "wrong-secret" not in str(refused.value)


async def test_an_nkey_logs_in_without_a_password(tmp_path: Path) -> None:
    pair, seed = nkey()
    (tmp_path / "seed").write_bytes(seed)
    server = InfraNats(tmp_path)
    made = make_accounts("--nkey", f"worker-0={pair}", "worker-0=gateway/blocklist")
    (server.configuration / "accounts.conf").write_text(made.stdout)
    with server, server.service(tmp_path) as service:
        await fill(service)
        seed_file = str(tmp_path / "seed")
        async with server.worker("worker-0", nkey_seed_file=seed_file) as worker:
            await worker.wait_ready(timeout_s=PATIENCE_S)
            assert holds_all(worker)


async def test_a_worker_with_an_nkey_is_added_without_a_restart(server: InfraNats, tmp_path: Path) -> None:
    pair, seed = nkey()
    (tmp_path / "seed").write_bytes(seed)
    words = shlex.split((NATS / "accounts.conf").read_text().splitlines()[0].partition("make_accounts.py ")[2])
    made = make_accounts("--nkey", f"worker-9={pair}", *words, "worker-9=gateway/blocklist")
    with server.service(tmp_path) as service:
        await fill(service)
        async with server.worker("worker-0") as first:
            await first.wait_ready(timeout_s=PATIENCE_S)
            (server.configuration / "accounts.conf").write_text(made.stdout)
            await asyncio.to_thread(send_signal, server, "reload")
            server.process.wait_until(lambda: any("Reloaded server configuration" in line for line in server.log()))
            async with server.worker("worker-9", nkey_seed_file=str(tmp_path / "seed")) as added:
                both = (first, added)
                await until_workers(both, "blocklist", lambda: shared_out(both))
    assert server.violations() == []


async def test_a_key_is_replaced_while_both_count_and_nobody_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (old, old_seed), (new, new_seed) = nkey(), nkey(1)
    seed_file = tmp_path / "seed"
    seed_file.write_bytes(old_seed)
    server = InfraNats(tmp_path)
    accounts = server.configuration / "accounts.conf"

    def let_in(keys: str) -> None:
        made = make_accounts("--nkey", f"worker-0={keys}", "worker-0=gateway/blocklist")
        made.check_returncode()
        accounts.write_text(made.stdout)

    def reload(times: int) -> None:
        send_signal(server, "reload")
        server.process.wait_until(
            lambda: sum("Reloaded server configuration" in line for line in server.log()) == times
        )

    let_in(old)
    with server, server.service(tmp_path) as service, caplog.at_level(logging.INFO):
        await fill(service)
        async with server.worker("worker-0", nkey_seed_file=str(seed_file)) as worker:
            await worker.wait_ready(timeout_s=PATIENCE_S)
            let_in(f"{old},{new}")
            await asyncio.to_thread(reload, 1)
            seed_file.write_bytes(new_seed)
            let_in(new)
            await asyncio.to_thread(reload, 2)
            await until(lambda: "event=nats.reconnected" in caplog.text)
            await until(lambda: worker.health().ready)
    assert "event=nats.login_refused" not in caplog.text
    assert server.violations() == []


async def test_a_server_in_lame_duck_mode_ends_by_itself(server: InfraNats) -> None:
    """As the StatefulSet's preStop asks it to."""
    await asyncio.to_thread(send_signal, server, "ldm")
    assert await asyncio.to_thread(server.process.wait, 60.0) == 0


def send_signal(server: InfraNats, name: str) -> None:
    subprocess.run([str(nats_server_binary()), "--signal", f"{name}={server.process.pid}"], check=True)


def nkey(number: int = 0) -> tuple[str, bytes]:
    """Public key and seed of a user; each number has others."""
    seed = nkeys.encode_seed(bytes(range(number, number + 32)), nkeys.PREFIX_BYTE_USER)
    return nkeys.from_seed(bytearray(seed)).public_key.decode(), bytes(seed)


async def test_the_service_answers_to_inboxes_only(
    nats_server: NatsServer, config_service: ConfigServiceProcess
) -> None:
    """Where workers share its account, nobody can have it publish its answer as an event."""
    async with ConfigServiceClient(config_service.address) as client:
        await client.create_store("gateway", partition_count=1)
        await client.put("gateway", "blocklist", "row", "value")
    nc = await nats.connect(nats_server.url)
    try:
        stream = names.notify_stream("gateway")
        before = (await nc.jetstream().stream_info(stream)).state.last_seq
        subject = names.fetch_subject("gateway", "blocklist", names.FETCH_HEADS)
        await nc.publish(subject, reply=names.notify_subject("gateway", "blocklist", 0))
        # Of the one instance that there is: the other was before it.
        answer = await nc.request(subject, timeout=PATIENCE_S)
        assert names.HEADER_CHUNK in (answer.headers or {})
        assert (await nc.jetstream().stream_info(stream)).state.last_seq == before
    finally:
        await nc.close()


async def test_a_worker_that_fills_what_it_may_takes_no_room_from_leases(tmp_path: Path) -> None:
    """Dead letters throw their oldest away; records of members are small, and have a limit."""
    server = InfraNats(tmp_path)
    file = server.configuration / "nats.conf"
    text = file.read_text()
    assert text.count("max_file_store: 20GB") == 1
    file.write_text(text.replace("max_file_store: 20GB", "max_file_store: 64MB"))
    sizes = ("--events-max-bytes", "8MiB", "--dead-letters-max-bytes", "8MiB", "--members-max-bytes", "2MiB")
    with server, server.service(tmp_path, *sizes, "--leases-max-bytes", "2MiB") as service:
        async with ConfigServiceClient(service.address) as client:
            await client.create_store("gateway", partition_count=4)
        workers = [
            await nats.connect(server.url, inbox_prefix=names.inbox_prefix(name), **server.login(name))
            for name in ("worker-0", "worker-1")
        ]
        hostile, healthy = workers
        try:
            for number in range(80):
                dead = names.dead_subject("gateway", "blocklist", 0)
                reply = await hostile.request(dead, b"x" * 900_000, timeout=10)
                assert b"error" not in reply.data, number
            nodes, record = f"$KV.{names.nodes_bucket('gateway')}", b"x" * (limits.MAX_RECORD_BYTES - 100)
            for key in ("blocklist", "suffixes"):
                for slot in range(limits.MAX_WORKERS_PER_KEY):
                    reply = await hostile.request(f"{nodes}.{names.slot_key(key, slot)}", record, timeout=10)
                    assert b"error" not in reply.data, slot
            for subject in (f"{nodes}.blocklist.worker-1", f"$KV.{names.LEASES_BUCKET}.worker-1"):
                reply = await healthy.request(subject, record, timeout=10)
                assert b"error" not in reply.data
        finally:
            for worker in workers:
                await worker.close()


# --- TLS --------------------------------------------------------------------------------------------------------------


async def test_everything_goes_over_tls(tmp_path: Path) -> None:
    server = InfraNats(tmp_path)
    authority = use_tls(server, tmp_path)
    with server, server.service(tmp_path, "--nats-tls-ca", authority) as service:
        await serves_workers(server, service, tls_ca_file=authority)
        trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
        with pytest.raises(UnavailableError, match="certificate verify failed"):
            async with server.worker("worker-0", tls_ca_file=str(tmp_path / "other.pem"), connect_timeout_s=4.0):
                pytest.fail("it trusted a stranger")


async def test_no_password_goes_to_a_server_without_tls(tmp_path: Path) -> None:
    """Whoever is in between and says that there is no TLS gets nothing but the beginning of a handshake."""
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    heard = bytearray()
    asked = asyncio.Event()

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576,"headers":true}\r\n')
        heard.extend(await reader.read(65_536))
        asked.set()
        writer.close()

    listener = await asyncio.start_server(pretend, "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        login = {"user": "u", "password": "secret-of-u", "tls_ca_file": str(tmp_path / "ca.pem")}
        with pytest.raises(UnavailableError):
            async with Worker(
                servers=f"nats://127.0.0.1:{port}",
                store="s",
                keys=["k"],
                connect_timeout_s=1.0,
                **login,  # type: ignore[arg-type]
            ):
                pytest.fail("it started")
        assert asked.is_set()
    assert heard[:1] == b"\x16"  # a TLS record
    assert b"secret-of-u" not in heard


# --- Three servers ----------------------------------------------------------------------------------------------------


async def test_three_servers_serve_workers_and_one_may_die(tmp_path: Path) -> None:
    with cluster_of_three(tmp_path) as cluster:
        urls = [server.url for server in cluster]
        service = cluster[0].service(tmp_path, "--nats-replicas", "3", "--nats", ",".join(urls))
        with service:
            await serves_workers(cluster[0], service, servers=urls)
            async with (
                cluster[1].worker("worker-2", servers=urls) as worker,
                ConfigServiceClient(service.address) as client,
            ):
                await worker.wait_ready(timeout_s=PATIENCE_S)
                cluster[2].kill()
                put = await client.put("gateway", "blocklist", "row1", "after")
                await worker.wait_for("blocklist", put.partition, put.version, timeout_s=PATIENCE_S)
        assert [server.violations() for server in cluster] == [[], [], []]
