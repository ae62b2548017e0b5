"""What the policies to which a release is held cost the call that begins to publish it.

A key of many rows, and releases that each add, change and delete rows of it. They only begin to be published, so each
finds the same rows; one of them without a policy.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from ringcast_config_service.repository import (
    Authorship,
    ListFilter,
    PlainWrites,
    PolicyChange,
    Repository,
    RowWrite,
    StageBatch,
    StagedRow,
    StoreRecord,
    WriteRequest,
    make_repository,
)
from ringcast_core import row_partition, row_partitions
from ringcast_wire import POLICY_RANGES, StorePolicy, StoreSettings

PARTITIONS: Final = 256
STORE: Final = StoreRecord("s", StoreSettings(partition_count=PARTITIONS), 0, 0)
BATCH: Final = 1_000
DAY_MS: Final = 86_400_000
POLICIES: Final = {
    "none": StorePolicy(),
    "rows": StorePolicy(max_release_growth_percent=50, max_release_shrink_percent=50),
    "partitions": StorePolicy(max_release_partition_growth_percent=50, max_release_partition_shrink_percent=100),
    "bytes": StorePolicy(max_release_byte_growth_percent=50, max_release_byte_shrink_percent=50),
    "unique": StorePolicy(
        unique_ignoring_case=True,
        unique_ignoring_outer_space=True,
        unique_ignoring_unicode_form=True,
        unique_ignoring_trailing_dot=True,
    ),
}


def name(number: int) -> str:
    return f"host-{number}.example"


async def fill(repo: Repository, count: int) -> None:
    for first in range(0, count, BATCH):
        ids = [name(number) for number in range(first, min(first + BATCH, count))]
        rows = PlainWrites(row_partitions(ids, PARTITIONS), ids, ["v" * 20] * len(ids), [len(row) + 20 for row in ids])
        await repo.writer.write([WriteRequest(STORE, "k", rows)], 1)


async def changes(repo: Repository, count: int) -> list[StagedRow]:
    """An eighth is deleted, as many are new, and the others change."""
    found = []
    async for page in repo.reader.list_rows("s", "k", ListFilter()):
        found += [(each.row.row_id, each.row.version) for each in page]
        if len(found) >= count:
            break
    eighth = count // 8
    rows: list[tuple[str, str | None, int]] = [(row_id, None, version) for row_id, version in found[:eighth]]
    rows += [(f"new-{number}.example", "w" * 20, 0) for number in range(eighth)]
    rows += [(row_id, "w" * 20, version) for row_id, version in found[eighth : count - eighth]]
    return [
        StagedRow("k", RowWrite(row_partition(row_id, PARTITIONS), row_id, value, None, len(row_id) + 20, version))
        for row_id, value, version in rows
    ]


def batches(rows: list[StagedRow], stage_id: str) -> Iterator[StageBatch]:
    left = iter(rows)
    made = list(iter(lambda: list(islice(left, BATCH)), []))
    for sequence, part in enumerate(made):
        yield StageBatch(stage_id, sequence, part, sequence == len(made) - 1)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_release_that_begins(benchmark: BenchmarkFixture, kind: str, tmp_path: Path, request: Any) -> None:
    address = f"sqlite:{tmp_path / 'bench.db'}" if kind == "sqlite" else str(request.getfixturevalue("postgres_url"))
    there, changed = (200_000, 20_000) if benchmark.enabled else (2_000, 800)
    taken: dict[str, float] = {}
    grown: dict[str, int] = {}

    async def run() -> None:
        repo = make_repository(address)
        await repo.open()
        await repo.stores.create_store(STORE)
        await fill(repo, there)
        rows = await changes(repo, changed)
        by = Authorship("bench", "")
        for what, policy in POLICIES.items():
            for batch in batches(rows, what):
                release = await repo.releases.stage(STORE, batch, by)
            await repo.policies.set_policy("s", PolicyChange(policy, frozenset()))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            start = time.perf_counter()
            await repo.releases.publish("s", release.number, DAY_MS, by)
            taken[what] = round(time.perf_counter() - start, 3)
            grown[what] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
            lifted = frozenset(each for each in POLICY_RANGES if getattr(policy, each) is not None)
            if lifted:
                await repo.policies.set_policy("s", PolicyChange(StorePolicy(), lifted))
        await repo.close()

    benchmark.group = "release checks"
    benchmark.pedantic(lambda: asyncio.run(run()), rounds=1)
    benchmark.extra_info.update({f"{what}_s": value for what, value in taken.items()})
    benchmark.extra_info.update({f"{what}_grown_mib": value for what, value in grown.items()})
