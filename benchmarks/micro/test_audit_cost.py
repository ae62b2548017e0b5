"""What the audit log costs a write: the repositories as they are, beside themselves without the entry.

Both write the same groups of requests, alternately, to a file and to a server of their own kind. The chaining of the
entries is not in these figures; its cost for each entry is measured apart.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from ringcast_config_service.repository import (
    AuditFact,
    Authorship,
    Repository,
    RowWrite,
    StoreRecord,
    WriteRequest,
    make_repository,
)
from ringcast_core import row_partition
from ringcast_wire import StoreSettings

from benchmarks.unaudited import without_audit

PARTITIONS: Final = 64
STORE: Final = StoreRecord("bench", StoreSettings(partition_count=PARTITIONS), 0, 0)
BY: Final = Authorship("deploy", "a release of the list")
GROUPS: Final = {"one row": (1, 1), "64 single rows": (64, 1), "8 batches of 125 rows": (8, 125)}
"""Requests of a group, and rows of each."""
ROUNDS: Final = 200


def request(number: int, rows: int) -> WriteRequest:
    """Puts of rows that are mostly there, so that most writes are updates."""
    ids = [f"row-{(number * rows + row) % 5_000}" for row in range(rows)]
    return WriteRequest(
        STORE,
        "k",
        [RowWrite(row_partition(row_id, PARTITIONS), row_id, f"v{number}", None, 20) for row_id in ids],
        by=BY,
    )


async def write(repo: Repository, numbers: Iterator[int], requests: int, rows: int) -> float:
    group = [request(next(numbers), rows) for _ in range(requests)]
    start = time.perf_counter()
    written = await repo.writer.write(group, 1)
    assert not [outcome for outcome in written.outcomes if isinstance(outcome, Exception)]
    return time.perf_counter() - start


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_write(benchmark: BenchmarkFixture, kind: str, group: str, tmp_path: Path, request: Any) -> None:
    address = f"sqlite:{tmp_path / 'bench.db'}" if kind == "sqlite" else str(request.getfixturevalue("postgres_url"))
    rounds = ROUNDS if benchmark.enabled else 2
    audited: list[float] = []
    plain: list[float] = []
    sealing: list[float] = []

    async def run() -> None:
        repo = make_repository(address)
        await repo.open()
        await repo.stores.create_store(STORE)
        numbers = iter(range(1 << 40))
        for _ in range(10 if benchmark.enabled else 1):
            await write(repo, numbers, *GROUPS[group])
        for turn in range(rounds):
            for kept in (True, False) if turn % 2 else (False, True):
                if kept:
                    audited.append(await write(repo, numbers, *GROUPS[group]))
                else:
                    with without_audit():
                        plain.append(await write(repo, numbers, *GROUPS[group]))
        await repo.audit.seal()
        await repo.audit.add([AuditFact("p", "WriteRows", "s", "k", details='{"written":1}')] * 1_000)
        start = time.perf_counter()
        sealed = await repo.audit.seal()
        sealing.append((time.perf_counter() - start) / sealed)
        assert sealed == 1_000
        await repo.close()

    benchmark.group = "audit"
    benchmark.pedantic(lambda: asyncio.run(run()), rounds=1)
    differences = [one - other for one, other in zip(audited, plain, strict=True)]
    benchmark.extra_info.update(
        without_us=round(statistics.median(plain) * 1e6),
        with_us=round(statistics.median(audited) * 1e6),
        added_us=round(statistics.median(differences) * 1e6),
        chained_us_an_entry=round(sealing[0] * 1e6, 1),
    )
