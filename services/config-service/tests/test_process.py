"""The service as a user runs it: start, signals, faults, two instances, and a crash in the middle of an import."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import grpc
import nats
import pytest
from grpc_health.v1 import health_pb2
from ringcast_config_service.__main__ import main
from ringcast_config_service.config import Config
from ringcast_config_service.repository import HistoryFilter, ListFilter, make_repository
from ringcast_service import settings_from
from ringcast_testkit import (
    PATIENCE_S,
    ConfigServiceProcess,
    ManagedProcess,
    NatsServer,
    nats_server_binary,
)
from ringcast_wire import decode_event, names
from ringcast_wire.grpc import ConfigServiceStub, pb

Running = Any  # of conftest.py

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(autouse=True)
def free_metrics_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default port is one for all; the environment of each process here says another."""
    monkeypatch.setenv("RINGCAST_CONFIG_SERVICE_METRICS_LISTEN", "127.0.0.1:0")


def start(*words: object, env: dict[str, str] | None = None) -> ManagedProcess:
    return ManagedProcess("config-service", [*map(str, words)], env=env, program=ConfigServiceProcess.program)


def run(*words: object, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Runs the command until it ends; exit status and output."""
    child = start(*words, env=env)
    try:
        return child.wait(40), "".join(child.log)
    finally:
        child.kill()


@asynccontextmanager
async def client(address: str) -> AsyncIterator[ConfigServiceStub]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield ConfigServiceStub(channel)


async def import_rows(stub: ConfigServiceStub, store: str, prefix: str, batches: int, size: int = 100) -> list[int]:
    """A bulk import; the numbers of the batches that were acknowledged before it ended or failed."""
    acknowledged: list[int] = []

    async def requests() -> AsyncIterator[pb.WriteBatch]:
        for batch in range(batches):
            rows = [pb.RowWrite(row_id=f"{prefix}-{batch}-{n}", value=str(batch)) for n in range(size)]
            yield pb.WriteBatch(store=store, key="k", sequence=batch, rows=rows)

    try:
        async for result in stub.Write(requests()):
            acknowledged.append(result.sequence)  # noqa: PERF401
    except grpc.aio.AioRpcError as error:
        # gRPC's own client says INTERNAL when the connection breaks while it sends.
        if error.code() is not grpc.StatusCode.UNAVAILABLE and "execute_batch" not in (
            error.debug_error_string() or ""
        ):
            raise
    return acknowledged


# --- Start ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "Missing option '--database'"),
        (("--database", "sqlite:x", "--listen", "nowhere"), "listen 'nowhere' is not an address: host:port is expe"),
        (("--database", "sqlite:x", "--listen", "h:99999"), "with a port of 0 to 65535"),
        (("--database", "sqlite:x", "--listen", "u@h:1"), "listen 'h:1' is not an address: host:port is expected"),
        (("--database", "sqlite:x", "--listen", "a/b:1"), "listen 'a/b:1' is not an address: host:port is expected"),
        (("--database", "sqlite:x", "--metrics-listen", "7421"), "metrics_listen '7421' is neither off nor host:port"),
        (("--database", "sqlite:x", "--tombstone-retention", "soon"), "duration 'soon' can't be read"),
        (("--database", "sqlite:x", "--nats-replicas", "9"), "nats_replicas is 9: it must be 1 to 5"),
        (("--database", "sqlite:x", "--fetches", "0"), "fetches is 0: it must be 1 to 1024"),
        (("--database", "sqlite:x", "--waiting-fetches", "0"), "waiting_fetches is 0: it must be 1 to 65536"),
        (("--database", "sqlite:x", "--relay-batch", "10001"), "relay_batch is 10001: it must be 1 to 10000"),
        (("--database", "sqlite:x", "--provision-interval", "0s"), "provision_interval_s is 0.0: it must be above 0"),
        (("--database", "sqlite:x", "--lock-timeout", "2h"), "lock_timeout_ms is 7200000: it must be 1ms to 1h"),
        (("--database", "sqlite:x", "--events-max-age", "1m"), "events_max_age_s is 60.0: it must be 2m or more"),
        (
            ("--database", "sqlite:x", "--members-max-bytes", "1KiB"),
            "members_max_bytes is 1024: it must be 1MiB or more",
        ),
        (("--database", "sqlite:x", "--nats", ","), "nats is empty"),
        (("--config-file", "none.toml"), "none.toml can't be read"),
        (("--frob",), "No such option"),
    ],
)
def test_bad_usage(words: Sequence[str], sentence: str) -> None:
    code, said = run(*words)
    assert code == 2
    assert sentence in said
    assert "Traceback" not in said


def numbers(settings: Any) -> dict[str, float]:
    """Every number of the settings, by its name."""
    found: dict[str, float] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            found |= numbers(value)
        elif isinstance(value, int | float):
            found[field.name] = value
    return found


def test_every_number_of_the_settings_has_an_option() -> None:
    """All that have a unit or count are doubled: no number stays as it was."""
    words = ["--database", "sqlite:x"]
    for option in main.params:
        if isinstance(option.default, int | float) and not isinstance(option.default, bool):
            words += [option.opts[0], str(2 * option.default)]
        elif found := re.fullmatch(r"(\d+)([a-zA-Z]+)", str(option.default)):
            words += [option.opts[0], f"{2 * int(found[1])}{found[2]}"]
    given = main.make_context("ringcast-config-service", words).params
    before, after = numbers(Config(database="sqlite:x")), numbers(settings_from(Config, given))
    assert len(before) > 20
    assert {name: value for name, value in after.items() if value != 2 * before[name]} == {}


def test_starts_that_fail(nats_url: str, tmp_path: Path) -> None:
    there = ("--nats", nats_url, "--listen", "127.0.0.1:0", "--start-timeout", "0.5")
    database = f"sqlite:{tmp_path / 'x.db'}"
    for words, sentence in (
        ((*there, "--database", f"sqlite:{tmp_path}/none/x.db"), "its directory does not exist"),
        ((*there, "--database", "oracle://x"), "'oracle' is of no known kind"),
        ((*there, "--database", "postgresql://u:secret@127.0.0.1:1/x"), "the database can't be reached"),
        (
            ("--nats", "nats://127.0.0.1:1", *there[2:], "--database", database),
            "NATS at nats://127.0.0.1:1 can't be reached",
        ),
    ):
        code, said = run(*words)
        assert code == 1
        (line,) = [line for line in said.splitlines() if line.startswith("ringcast-config-service: ")]
        assert sentence in line
        assert "Traceback" not in said
        assert "secret" not in said


def test_a_taken_port(nats_url: str, tmp_path: Path) -> None:
    with ConfigServiceProcess(tmp_path, nats_url=nats_url, database=f"sqlite:{tmp_path / 'x.db'}") as service:
        words = ("--nats", nats_url, "--database", f"sqlite:{tmp_path / 'y.db'}", "--listen", service.address)
        code, said = run(*words)
    assert code == 1
    assert f"the gRPC address {service.address} can't be used: is it in use?" in said
    assert "Traceback" not in said


def test_a_taken_metrics_port(nats_url: str, tmp_path: Path) -> None:
    with ConfigServiceProcess(tmp_path, nats_url=nats_url, database=f"sqlite:{tmp_path / 'x.db'}") as service:
        address = service.metrics_url.removeprefix("http://").removesuffix("/metrics")
        words = ("--nats", nats_url, "--database", f"sqlite:{tmp_path / 'y.db'}", "--listen", "127.0.0.1:0")
        code, said = run(*words, "--metrics-listen", address)
    assert code == 1
    assert f"ringcast-config-service: metrics_listen {address} can't be used: Address already in use" in said
    assert "Traceback" not in said


def test_a_nats_server_without_room(tmp_path: Path) -> None:
    """It greets, says that it is full and closes: a login that is written meanwhile only breaks."""
    with (
        NatsServer(tmp_path / "nats", max_connections=1) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as taken,
    ):
        taken.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
        while b"PONG" not in taken.recv(4_096):
            pass
        database = f"sqlite:{tmp_path / 'x.db'}"
        code, said = run(
            "--nats", server.url, "--listen", "127.0.0.1:0", "--start-timeout", "3", "--database", database
        )
    assert code == 1
    assert f"NATS at {server.url} can't be reached: nats: 'maximum connections exceeded'" in said


def test_a_nats_server_without_jetstream(tmp_path: Path) -> None:
    """It is waited for, since a server that starts, or whose cluster has no leader yet, looks the same."""
    (tmp_path / "nats.json").write_text(json.dumps({"host": "127.0.0.1", "port": -1}))
    with NatsServer(tmp_path / "nats") as server:
        server.terminate()
        plain = ManagedProcess("nats-server", [nats_server_binary(), "-a", "127.0.0.1", "-p", str(server.port), "-V"])
        words = ["--nats", server.url, "--database", f"sqlite:{tmp_path / 'x.db'}", "--listen", "127.0.0.1:0"]
        ready_file = tmp_path / "ready.json"
        waiting = start(*words, "--ready-file", ready_file)
        try:
            plain.wait_until(lambda: any("$JS.API.INFO" in line for line in list(plain.log)))
            code, said = run(*words, "--start-timeout", "1")
            plain.kill()
            server.restart()
            waiting.wait_until(ready_file.exists)
        finally:
            plain.kill()
            waiting.kill()
    assert code == 1
    assert "has no JetStream" in said


def test_settings_from_a_file_and_the_environment(nats_url: str, tmp_path: Path) -> None:
    """Flag before environment before file before default."""
    (tmp_path / "c.toml").write_text(
        f'nats = "{nats_url}"\ndatabase = "sqlite:{tmp_path}/file.db"\nlisten = "127.0.0.1:0"\n'
        f'tombstone-retention = "1h"\nready-file = "{tmp_path}/file.json"\n'
    )
    env = {"RINGCAST_CONFIG_SERVICE_DATABASE": f"sqlite:{tmp_path}/env.db"}
    ready = tmp_path / "flag.json"
    child = start("--config-file", tmp_path / "c.toml", "--ready-file", ready, env=env)
    try:
        child.wait_until(ready.exists)
        found = json.loads(ready.read_text())
        assert found["pid"] == child.pid
        assert found["grpc"].startswith("127.0.0.1:")
        assert found["metrics"].startswith("127.0.0.1:")
        assert (tmp_path / "env.db").exists()
        assert not (tmp_path / "file.db").exists()
        assert child.terminate() == 0
    finally:
        child.kill()
    assert not ready.exists()
    (tmp_path / "bad.toml").write_text("databse = 1")
    code, said = run("--config-file", tmp_path / "bad.toml")
    assert (code, "unknown settings: databse" in said) == (2, True)


def test_the_log_can_be_json(nats_url: str, tmp_path: Path) -> None:
    options = ("--log-format", "json", "--log-level", "debug")
    database = f"sqlite:{tmp_path / 'x.db'}"
    with ConfigServiceProcess(tmp_path, nats_url=nats_url, database=database, options=options) as service:
        assert service.terminate() == 0
        lines = [json.loads(line) for line in service.process.log]
    assert any(line["logger"].startswith("ringcast_config_service") and "event" in line for line in lines)
    assert all({"time", "level", "logger"} <= line.keys() for line in lines)


# --- Stop -------------------------------------------------------------------------------------------------------------


async def test_a_signal_while_it_waits_for_nats(tmp_path: Path) -> None:
    words = ["--nats", "nats://127.0.0.1:1", "--database", f"sqlite:{tmp_path / 'x.db'}"]
    child = start(*words)
    try:
        await asyncio.to_thread(child.wait_until, lambda: any("event=nats.error" in line for line in list(child.log)))
        assert await asyncio.to_thread(child.terminate) == 0
    finally:
        child.kill()


async def test_an_import_under_way_is_finished_or_refused_at_a_stop(
    nats_url: str, tmp_path: Path, store_name: str
) -> None:
    """SIGTERM twice in the middle of an import: exit 0, and what was acknowledged is there after a restart."""
    database = f"sqlite:{tmp_path / 'x.db'}"
    with ConfigServiceProcess(
        tmp_path, nats_url=nats_url, database=database, options=("--stop-timeout", "1")
    ) as service:
        async with client(service.address) as stub:
            await stub.CreateStore(pb.CreateStoreRequest(name=store_name, partition_count=8))
            running = asyncio.create_task(import_rows(stub, store_name, "r", 5_000))
            await some_rows(stub, store_name)
            service.process.signal(signal.SIGTERM)
            service.process.signal(signal.SIGTERM)
            assert await asyncio.to_thread(service.process.wait) == 0
            acknowledged = await running
        assert 0 < len(acknowledged) < 5_000
        assert "Traceback" not in "".join(service.process.log)
        await check_import(database, store_name, {"r": acknowledged})


async def some_rows(stub: ConfigServiceStub, store: str) -> None:
    """Returns once an import has stored something."""
    async with asyncio.timeout(PATIENCE_S):
        while not (await stub.GetStore(pb.GetStoreRequest(name=store))).keys:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def check_import(database: str, store: str, acknowledged: dict[str, list[int]], *, size: int = 100) -> None:
    """Acknowledged batches are whole, others whole or not there, and every revision stands in the history once."""
    repo = make_repository(database)
    await repo.open()
    try:
        counts: dict[tuple[str, int], int] = {}
        async for page in repo.reader.list_rows(store, "k", ListFilter()):
            for found in page:
                prefix, batch, _ = found.row.row_id.split("-")
                counts[prefix, int(batch)] = counts.get((prefix, int(batch)), 0) + 1
        assert set(counts.values()) == {size}
        assert {(prefix, batch) for prefix, batches in acknowledged.items() for batch in batches} <= set(counts)
        revisions: dict[int, list[int]] = {}
        async for revision_page in repo.reader.history(store, "k", HistoryFilter()):
            for revision in revision_page:
                revisions.setdefault(revision.partition, []).append(revision.row.version)
        for partition, head in enumerate((await repo.reader.heads(store, "k")).heads):
            assert revisions.get(partition, []) == list(range(1, head + 1))
        assert await repo.events.outbox_spans() == []
    finally:
        await repo.close()


# --- Faults -----------------------------------------------------------------------------------------------------------


async def test_killed_in_the_middle_of_an_import(nats_url: str, tmp_path: Path, store_name: str) -> None:
    """SIGKILL, restart, three times: no acknowledged batch is lost, and the stream tells of every revision."""
    database = f"sqlite:{tmp_path / 'x.db'}"
    acknowledged: dict[str, list[int]] = {}
    with ConfigServiceProcess(tmp_path, nats_url=nats_url, database=database) as service:
        for turn in range(3):
            async with client(service.address) as stub:
                await stub.CreateStore(pb.CreateStoreRequest(name=store_name, partition_count=4))
                before = await total(stub, store_name)
                running = asyncio.create_task(import_rows(stub, store_name, f"r{turn}", 5_000))
                async with asyncio.timeout(PATIENCE_S):
                    while await total(stub, store_name) < before + 500:  # noqa: ASYNC110
                        await asyncio.sleep(0.005)
                service.kill()
                acknowledged[f"r{turn}"] = await running
            await asyncio.to_thread(service.restart)
        async with client(service.address) as stub:
            heads = (await stub.Heads(pb.HeadsRequest(store=store_name, key="k"))).heads
        service.terminate()
        await check_import(database, store_name, acknowledged)
    nc = await nats.connect(nats_url)
    for partition, head in enumerate(heads):
        subject = names.notify_subject(store_name, "k", partition)
        subscription = await nc.jetstream().subscribe(subject, ordered_consumer=True)
        events: dict[int, int] = {}
        # What an earlier life left may come after what its successor commits: they take turns.
        while _told_from(head, events) > 0:
            event = decode_event((await subscription.next_msg(timeout=PATIENCE_S)).data)
            assert event.rev not in events, "an event was stored twice"
            events[event.rev] = event.prev
        assert max(events) == head
    await nc.close()


def _told_from(head: int, events: dict[int, int]) -> int:
    """The revision from which events, previous ones by revision, tell of every one up to the head."""
    while head in events:
        head = events[head]
    return head


async def total(stub: ConfigServiceStub, store: str) -> int:
    return sum(key.rows for key in (await stub.GetStore(pb.GetStoreRequest(name=store))).keys)


async def test_two_instances_on_one_database(nats_url: str, postgres_url: str, tmp_path: Path, store_name: str) -> None:
    """Both write, one dies by SIGKILL; the other publishes what it left, and nothing is lost or told twice."""
    acknowledged: dict[str, list[int]] = {}
    one = ConfigServiceProcess(tmp_path / "1", nats_url=nats_url, database=postgres_url)
    two = ConfigServiceProcess(tmp_path / "2", nats_url=nats_url, database=postgres_url)
    with one, two:
        async with client(one.address) as first, client(two.address) as second:
            await first.CreateStore(pb.CreateStoreRequest(name=store_name, partition_count=8))
            imports = [
                asyncio.create_task(import_rows(stub, store_name, prefix, batches))
                for stub, prefix, batches in ((first, "a", 5_000), (second, "b", 40))
            ]
            await some_rows(second, store_name)
            one.kill()
            acknowledged["a"], acknowledged["b"] = await asyncio.gather(*imports)
            assert acknowledged["b"] == list(range(40))
            heads = (await second.Heads(pb.HeadsRequest(store=store_name, key="k"))).heads
        assert two.terminate() == 0
    await check_import(postgres_url, store_name, acknowledged)
    nc = await nats.connect(nats_url)
    js = nc.jetstream()
    for partition, head in enumerate(heads):
        subject = names.notify_subject(store_name, "k", partition)
        info = await js.stream_info(names.notify_stream(store_name), subjects_filter=subject)
        subscription = await js.subscribe(subject, ordered_consumer=True)
        count = (info.state.subjects or {})[subject]
        events = [decode_event((await subscription.next_msg(timeout=PATIENCE_S)).data) for _ in range(count)]
        revisions = [event.rev for event in events]
        assert max(revisions) == head
        assert len(set(revisions)) == len(revisions), "an event was stored twice"
    await nc.close()


async def test_the_database_connection_is_named(start: Any, nats_url: str, postgres_url: str) -> None:
    """An operator sees in pg_stat_activity whose connections these are."""
    async with start(nats_url, postgres_url):
        connection = await asyncpg.connect(postgres_url)
        found = await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'ringcast-config-service' "
            "AND datname = current_database()"
        )
        await connection.close()
    assert found >= 2


def test_a_start_imports_no_libraries_of_what_is_off() -> None:
    """Of the auth callout, and of certificates of callers: they would take a fifth of it."""
    code = "import sys, ringcast_config_service.__main__; sys.exit(len({'nacl', 'cryptography'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
