"""A store whose events are of a version that only a build to come reads: what tools and jobs of this tree do then."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import nats
import pytest
from pyspark_ringcast._batch.read import ReadTask, read_task, take_snapshot
from pyspark_ringcast._client.fetch import shared_client
from pyspark_ringcast._common.offsets import Range
from pyspark_ringcast._common.options import parse_options
from pyspark_ringcast._stream.read import read_ranges
from ringcast import Change, Worker
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer, until
from ringcast_wire import NEWEST_WIRE_VERSION, names

from tests.integration.cli_process import Cli
from tests.integration.rolling.next_build import VERSION, next_build

PARTITIONS = 4
UNREAD = f"event has wire version {VERSION}: this build speaks {NEWEST_WIRE_VERSION}; upgrade it"


@dataclass
class Newer:
    """A store of a config service of the next build; its key `k` has the rows ``row0`` to ``row<rows - 1>``."""

    nats: str
    service: str
    store: str
    rows: int = 0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NatsServer, ConfigServiceProcess, Path]]:
    """The service, which never looks what others read, and its database."""
    directory = tmp_path_factory.mktemp("newer")
    build = next_build(directory / "next", look_s=3_600.0)
    with NatsServer(directory / "nats") as server:
        service = ConfigServiceProcess(directory, nats_url=server.url)
        service.env = {**service.env, **build.env}
        with service:
            yield server, service, directory / "ringcast.db"


@pytest.fixture
async def newer(running: tuple[NatsServer, ConfigServiceProcess, Path], store_name: str) -> Newer:
    """It is pinned by hand, and the last event of each partition is of the version that it is pinned to."""
    server, service, database = running
    made = Newer(server.url, service.address, store_name)
    async with ConfigServiceClient(service.address, timeout_s=PATIENCE_S) as client:
        await client.create_store(store_name, partition_count=PARTITIONS)
        await asyncio.to_thread(_pin, database, store_name)
        await _write(made, client)
    return made


def _pin(database: Path, store: str) -> None:
    with closing(sqlite3.connect(database, timeout=PATIENCE_S)) as connection, connection:
        connection.execute("UPDATE stores SET wire_pin = ? WHERE name = ?", (VERSION, store))


async def _write(made: Newer, client: ConfigServiceClient) -> None:
    nc = await nats.connect(made.nats)
    js = nc.jetstream()

    async def is_newer() -> bool:
        await client.put(made.store, "k", f"row{made.rows}", str(made.rows))
        made.rows += 1
        for partition in range(PARTITIONS):
            try:
                found = await js.get_last_msg(
                    names.notify_stream(made.store), names.notify_subject(made.store, "k", partition)
                )
            except nats.js.errors.NotFoundError:
                return False
            assert found.data is not None
            if found.data[1] != VERSION:
                return False
        return True

    await until(is_newer)
    await nc.close()


async def test_a_spark_job_of_this_build_is_answered_in_the_version_that_it_reads(newer: Newer) -> None:
    given = {"store": newer.store, "key": "k", "servers": newer.nats, "service": newer.service}
    wanted = {f"row{number}": str(number) for number in range(newer.rows)}

    def batch() -> dict[str, str]:
        snapshot = take_snapshot(parse_options(given))
        tasks = [ReadTask(tuple(range(PARTITIONS))), ReadTask((0, 1, 2, 3), ("row0", "row1"))]
        found = [row for batch in read_task(snapshot, tasks[0]) for row in batch.to_pylist()]
        named = [row for batch in read_task(snapshot, tasks[1]) for row in batch.to_pylist()]
        assert {row["row_id"] for row in named} == {"row0", "row1"}
        return {row["row_id"]: row["value"] for row in found}

    def stream(changes: str) -> dict[str, str]:
        options = parse_options({**given, "changes": changes})
        heads = take_snapshot(options).heads
        ranges = [Range(number, 0, head, loading=False, head=head) for number, head in enumerate(heads)]
        found = read_ranges(options, ranges, shared_client(options))
        return {row["row_id"]: row["value"] for batch in found for row in batch.to_pylist()}

    assert await asyncio.to_thread(batch) == wanted
    for changes in ("latest", "every"):
        assert await asyncio.to_thread(stream, changes) == wanted


async def test_an_observer_that_nobody_counts_loses_nothing(newer: Newer, caplog: pytest.LogCaptureFixture) -> None:
    """It is registered nowhere, so its store stays pinned past what it reads: it fetches each change, and says why."""
    told: dict[str, str | None] = {}

    async def take(change: Change) -> None:
        told[change.row_id] = change.value

    worker = Worker(servers=newer.nats, store=newer.store, keys=["k"], worker_id="o", handler=take, observe=True)
    wanted: dict[str, str | None] = {f"row{number}": str(number) for number in range(newer.rows)}
    async with worker, ConfigServiceClient(newer.service, timeout_s=PATIENCE_S) as client:
        await until(lambda: told == wanted)
        for number in range(newer.rows):
            await client.put(newer.store, "k", f"row{number}", "changed")
        await client.delete(newer.store, "k", "row0")
        await until(lambda: told == {**dict.fromkeys(wanted, "changed"), "row0": None})
    assert UNREAD in caplog.text


async def test_why_says_that_it_can_not_read_an_event(newer: Newer, tmp_path: Path) -> None:
    """It has its revision from the message id, and does not take it for missing."""
    cli = Cli(tmp_path, servers=newer.nats, service=newer.service, timeout_s=str(PATIENCE_S))
    found = (await asyncio.to_thread(cli.ok, "why", newer.store, "k", "row0", "--json")).document
    assert found["conclusion"]["place"] == "owner", "it is published, and there is no worker"
    assert found["published"] >= found["stored"]["version"]
    assert found["unread_event"] == UNREAD
    lines = (await asyncio.to_thread(cli.ok, "why", newer.store, "k", "row0")).out.splitlines()
    revision, partition = found["published"], found["partition"]
    why = f"(its newest event can't be read: {UNREAD})"
    assert lines[1] == f"published  partition {partition} up to revision {revision} {why}"
