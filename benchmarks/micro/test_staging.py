"""Rows that are staged as a release, beside a plain import of the same rows: one client, one service, alternately.

Each goes into a key that is not there yet, in SQLite and in PostgreSQL. A release is compared with the key first, as
``ringcast release stage`` does; neither is published.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any, Final

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from ringcast_client import ConfigServiceClient, RowWrite
from ringcast_testkit import ConfigServiceProcess, NatsServer

PARTITIONS: Final = 256
MEASURED_ROWS: Final = 100_000
ROUNDS: Final = 5
MOST: Final = 2.0
"""Staging is to take at most so many times as long as an import."""


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_staging_beside_an_import(
    benchmark: BenchmarkFixture, kind: str, tmp_path: Path, nats_server: NatsServer, request: Any
) -> None:
    enabled = bool(benchmark.enabled)
    count, rounds = (MEASURED_ROWS, ROUNDS) if enabled else (1_500, 1)
    database = (
        f"sqlite:{tmp_path / 'ringcast.db'}" if kind == "sqlite" else str(request.getfixturevalue("postgres_url"))
    )
    rows = [RowWrite(f"user{number}@example{number % 997}.com", "blocked") for number in range(count)]
    taken: dict[str, list[float]] = {"import": [], "stage": []}

    async def imported(client: ConfigServiceClient, key: str) -> None:
        assert sum([result.written async for result in client.bulk_write("bench", key, rows)]) == count

    async def staged(client: ConfigServiceClient, key: str) -> None:
        release = (await client.stage_release("bench", {key: rows})).release
        assert release is not None
        assert release.rows == count

    async def run(address: str) -> None:
        async with ConfigServiceClient(address) as client:
            await client.create_store("bench", partition_count=PARTITIONS)
            for turn in range(rounds):
                calls = [("import", imported), ("stage", staged)]
                for name, call in calls if turn % 2 else calls[::-1]:
                    start = time.perf_counter()
                    await call(client, f"{name}-{turn}")
                    taken[name].append(time.perf_counter() - start)

    benchmark.group = "releases"
    with ConfigServiceProcess(tmp_path, nats_url=nats_server.url, database=database) as service:
        benchmark.pedantic(lambda: asyncio.run(run(service.address)), rounds=1)
    ratio = statistics.median(s / i for s, i in zip(taken["stage"], taken["import"], strict=True))
    benchmark.extra_info.update(
        rows=count,
        import_s=round(statistics.median(taken["import"]), 2),
        stage_s=round(statistics.median(taken["stage"]), 2),
        ratio=round(ratio, 2),
    )
    if enabled:
        assert ratio <= MOST
