"""A release that changes every row of a key is published and undone, beside an import of as many new rows.

All in one database, as the service does it, without workers. A ratio is of CPU time, of this process and the
database's: it hardly depends on what else the machine does. The steps of an undo come one after the other, and in each
of them the database waits for this process or the other way round. So the CPU time of both is what an undo takes on a
quiet machine, and it has a goal.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from ringcast_config_service.repository import (
    Authorship,
    PlainWrites,
    Repository,
    RowWrite,
    StageBatch,
    StagedRow,
    StoreRecord,
    WriteRequest,
    make_repository,
)
from ringcast_core import row_partitions
from ringcast_wire import ReleaseState, StoreSettings

from benchmarks.cpu import cpu_seconds

PARTITIONS: Final = 1_024
BATCH: Final = 1_000
GROUP: Final = 8
"""Batches of an import that one transaction writes."""
MEASURED_ROWS: Final = 100_000
ROUNDS: Final = 3
GOAL_S: Final = 5.0
"""For as many rows as are measured."""
DAY_MS: Final = 86_400_000
BY: Final = Authorship("bench", "measured")
OLD, NEW = "allowed", "blocked"


class Round:
    """A store with a key, and a release of it; ``cpu_s`` says what CPU time was used by now."""

    def __init__(self, repo: Repository, number: int, rows: list[tuple[int, str]], cpu_s: Callable[[], float]) -> None:
        self._repo = repo
        self._store = StoreRecord(f"bench{number}", StoreSettings(partition_count=PARTITIONS), 0, 0)
        self._rows = rows
        self._cpu_s = cpu_s
        self._versions: list[int] = []
        self.cpu: dict[str, float] = {}
        self.seconds: dict[str, float] = {}

    async def run(self) -> None:
        await self._repo.stores.create_store(self._store)
        await self._timed("import", self._import)
        await self._stage()
        await self._repo.releases.publish(self._store.name, 1, DAY_MS, BY)
        await self._timed("publish", self._work)
        await self._repo.releases.undo(self._store.name, 1, BY)
        await self._timed("undo", self._work)
        done = await self._repo.releases.get(self._store.name, 1)
        assert (done.state, done.undone, done.skipped) == (ReleaseState.UNDONE, len(self._rows), 0)

    async def _timed(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        started_s, cpu_s = time.perf_counter(), self._cpu_s()
        await work()
        self.seconds[what], self.cpu[what] = time.perf_counter() - started_s, self._cpu_s() - cpu_s

    async def _import(self) -> None:
        requests = []
        for first in range(0, len(self._rows), BATCH):
            partitions, ids = zip(*self._rows[first : first + BATCH], strict=True)
            sizes = [len(row_id) + len(OLD) for row_id in ids]
            plain = PlainWrites(partitions, ids, [OLD] * len(ids), sizes)
            requests.append(WriteRequest(self._store, "k", plain, by=BY))
        for first in range(0, len(requests), GROUP):
            for outcome in (await self._repo.writer.write(requests[first : first + GROUP], 1)).outcomes:
                assert not isinstance(outcome, Exception)
                self._versions += outcome.versions

    async def _stage(self) -> None:
        rows = [
            StagedRow("k", RowWrite(partition, row_id, NEW, None, len(row_id) + len(NEW), version))
            for (partition, row_id), version in zip(self._rows, self._versions, strict=True)
        ]
        batches = [rows[first : first + BATCH] for first in range(0, len(rows), BATCH)]
        for sequence, part in enumerate(batches):
            batch = StageBatch("stage", sequence, part, sequence == len(batches) - 1)
            await self._repo.releases.stage(self._store, batch, BY)

    async def _work(self) -> None:
        while not (await self._repo.releases.step(self._store.name, 1, self._repo.histories.generation)).done:
            pass


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_an_undo_beside_an_import(benchmark: BenchmarkFixture, kind: str, tmp_path: Path, request: Any) -> None:
    enabled = bool(benchmark.enabled)
    count, rounds = (MEASURED_ROWS, ROUNDS) if enabled else (5_000, 1)
    address, server = f"sqlite:{tmp_path / 'bench.db'}", os.getpid()
    if kind == "postgres":
        address = str(request.getfixturevalue("postgres_url"))
        server = int((Path(address.partition("?host=")[2]) / "postmaster.pid").read_text().split()[0])
    ids = [f"user{number}@example{number % 997}.com" for number in range(count)]
    rows = sorted(zip(row_partitions(ids, PARTITIONS), ids, strict=True))
    made: list[Round] = []

    def cpu_s() -> float:
        used = cpu_seconds(server)
        return used["benchmark"] + (used["postgresql"] if kind == "postgres" else 0.0)

    async def run() -> None:
        repo = make_repository(address)
        await repo.open()
        for number in range(rounds):
            made.append(Round(repo, number, rows, cpu_s))
            await made[-1].run()
        await repo.close()

    benchmark.group = "releases"
    benchmark.pedantic(lambda: asyncio.run(run()), rounds=1)
    cpu = {what: statistics.median(each.cpu[what] for each in made) for what in ("import", "publish", "undo")}
    seconds = {what: statistics.median(each.seconds[what] for each in made) for what in cpu}
    benchmark.extra_info.update({f"{what}_us_a_row": round(used / count * 1e6, 1) for what, used in cpu.items()})
    benchmark.extra_info.update({f"{what}_s": round(took, 2) for what, took in seconds.items()})
    benchmark.extra_info.update(
        rows=count,
        undo_over_import=round(statistics.median(each.cpu["undo"] / each.cpu["import"] for each in made), 2),
        load_average=round(os.getloadavg()[0], 1),
    )
    if enabled:
        assert cpu["undo"] <= GOAL_S, f"the undo of {count} rows took {cpu['undo']:.1f} s of CPU time"
