"""``ringcast up`` is killed without warning, again and again, while clients write: what was acknowledged stays."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from ringcast_client import ConfigServiceClient, RowWrite
from ringcast_testkit import ManagedProcess
from ringcast_wire import RingcastError

from tests.integration.cli_process import Cli

STORE, KEY, PARTITIONS = "s", "list", 8
WRITERS = 6


class Ledger:
    """What was sent and what was acknowledged, row by row. Every write of a row has a higher number than the last."""

    def __init__(self) -> None:
        self.sent: dict[str, int] = {}
        self.acknowledged: dict[str, tuple[int, int]] = {}
        self.count = 0
        self.enough = asyncio.Event()
        self.wanted = 0

    def acknowledge(self, row_id: str, number: int, version: int) -> None:
        """Remembers the value and the version that the service gave it."""
        self.acknowledged[row_id] = (number, version)
        self.count += 1
        if self.count >= self.wanted:
            self.enough.set()


@contextmanager
def running(cli: Cli, data: Path) -> Iterator[tuple[ManagedProcess, str]]:
    """A ``ringcast up`` on the same data as the last, and the address of its service."""
    ready = data.parent / "ready.json"
    ready.unlink(missing_ok=True)
    process = cli.start("up", "--data-dir", data, "--nats-port", 0, "--grpc-port", 0, "--ready-file", ready)
    try:
        process.wait_until(ready.exists)
        yield process, json.loads(ready.read_text())["service"]
    finally:
        process.kill()


async def write_on(process: ManagedProcess, address: str, ledger: Ledger, writer: int) -> None:
    """One row after the other, each again and again, until the process has ended.

    After a write that was not answered in time, on a busy machine, it takes other rows: that write may still come.
    """
    names = (f"{writer}.{number}" for number in itertools.count())
    name = next(names)
    async with ConfigServiceClient(address, timeout_s=5) as client:
        for turn in itertools.count():
            row_id = f"w{name}-{turn % 40}"
            try:
                if turn % 10 == 0:
                    await write_batch(client, ledger, f"b{name}")
                number = ledger.sent[row_id] = ledger.sent.get(row_id, 0) + 1
                result = await client.put(STORE, KEY, row_id, str(number))
            except RingcastError:
                if process.returncode is not None:
                    return
                name = next(names)
            else:
                ledger.acknowledge(row_id, number, result.version)


async def write_batch(client: ConfigServiceClient, ledger: Ledger, prefix: str) -> None:
    """Twenty rows that become visible together."""
    row_ids = [f"{prefix}-{index}" for index in range(20)]
    number = ledger.sent.get(row_ids[0], 0) + 1
    ledger.sent.update(dict.fromkeys(row_ids, number))
    rows = [RowWrite(row_id, str(number)) for row_id in row_ids]
    async for _ in client.bulk_write(STORE, KEY, rows):
        for row_id in row_ids:
            ledger.acknowledge(row_id, number, 0)


async def check(address: str, ledger: Ledger) -> None:
    """Every acknowledged write is there, or a later one of the same row; and no revision is missing or doubled."""
    async with ConfigServiceClient(address) as client:
        rows = {row.row_id: row async for row in client.list(STORE, KEY)}
        for row_id, (number, version) in ledger.acknowledged.items():
            assert row_id in rows, f"row {row_id} was acknowledged at version {version} and is gone"
            assert number <= int(rows[row_id].value) <= ledger.sent[row_id]
            assert rows[row_id].version >= version
        batches: dict[str, set[str]] = defaultdict(set)
        for row_id, row in rows.items():
            batches[row_id.rpartition("-")[0]].add(row.value)
        values = [values for name, values in batches.items() if name.startswith("b")]
        assert set(map(len, values)) <= {1}, "a batch is there whole or not at all"
        heads = await client.heads(STORE, KEY)
        seen: list[list[int]] = [[] for _ in heads]
        async for record in client.history(STORE, KEY):
            seen[record.row.partition].append(record.row.version)
        assert [sorted(versions) for versions in seen] == [list(range(1, head + 1)) for head in heads]


async def write_until_killed(process: ManagedProcess, address: str, ledger: Ledger, whom: str, wanted: int) -> None:
    """Kills one process in the middle of the writing; the others go with it."""
    children = psutil.Process(process.pid).children()
    ledger.wanted = ledger.count + wanted
    ledger.enough.clear()
    async with asyncio.TaskGroup() as tasks:
        for writer in range(WRITERS):
            tasks.create_task(write_on(process, address, ledger, writer))
        await ledger.enough.wait()
        victims = {"ringcast": process.pid, **{child.name(): child.pid for child in children}}
        (victim,) = [pid for name, pid in victims.items() if name.startswith(whom)]
        os.kill(victim, signal.SIGKILL)
    await asyncio.to_thread(process.wait)
    _, alive = await asyncio.to_thread(psutil.wait_procs, children, timeout=10)
    assert not alive


async def test_what_was_acknowledged_outlives_every_kill(lone_cli: Cli, tmp_path: Path) -> None:
    """The service is killed, or ``ringcast up`` with all its children, after a random number of writes."""
    moments = random.Random(1)
    ledger = Ledger()
    for whom in ("python", "ringcast", "python", "ringcast"):
        with running(lone_cli, tmp_path / "data") as (process, address):
            if not ledger.count:
                async with ConfigServiceClient(address) as client:
                    await client.create_store(STORE, partition_count=PARTITIONS)
            else:
                await check(address, ledger)
            await write_until_killed(process, address, ledger, whom, moments.randrange(50, 400))
    with running(lone_cli, tmp_path / "data") as (process, address):
        await check(address, ledger)
        assert process.terminate() == 0
    assert ledger.count >= 200
