"""What the policies of a store cost a write: a store with limits beside one without, in one database.

Both get the same groups of requests, alternately. Rows that are new take from the caps of their partitions, and now and
then from the budget of the store. What the rate costs a request is measured apart.
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
from ringcast_config_service.caller import LOCAL
from ringcast_config_service.repository import (
    PlainWrites,
    PolicyChange,
    Repository,
    RowWrite,
    StoreRecord,
    WriteRequest,
    make_repository,
)
from ringcast_config_service.telemetry import Measures
from ringcast_config_service.writes.rates import CALL_WAIT_S, WriteRates
from ringcast_core import row_partition, row_partitions
from ringcast_wire import StorePolicy, StoreSettings

PARTITIONS: Final = 64
SETTINGS: Final = StoreSettings(partition_count=PARTITIONS)
STORES: Final = {name: StoreRecord(name, SETTINGS, 0, 0) for name in ("plain", "limited")}
POLICY: Final = StorePolicy(max_rows=10_000_000, max_bytes=1 << 40, max_keys=50)
ROUNDS: Final = 200


def updates(store: StoreRecord, number: int, requests: int) -> list[WriteRequest]:
    """Puts of single rows that are mostly there."""
    ids = [f"row-{(number * requests + row) % 5_000}" for row in range(requests)]
    return [
        WriteRequest(store, "k", [RowWrite(row_partition(row_id, PARTITIONS), row_id, f"v{number}", None, 20)])
        for row_id in ids
    ]


def new_rows(store: StoreRecord, number: int, requests: int) -> list[WriteRequest]:
    """Batches of 1,000 rows that are new, as a bulk write has them."""
    made = []
    for batch in range(requests):
        ids = [f"new-{number}-{batch}-{row}" for row in range(1_000)]
        rows = PlainWrites(row_partitions(ids, PARTITIONS), ids, ["v" * 20] * 1_000, [len(row) + 20 for row in ids])
        made.append(WriteRequest(store, "bulk", rows))
    return made


GROUPS: Final = {"one row": (updates, 1), "64 single rows": (updates, 64), "8 batches of 1,000 new rows": (new_rows, 8)}


async def write(repo: Repository, store: StoreRecord, numbers: Iterator[int], group: str) -> float:
    make, requests = GROUPS[group]
    made = make(store, next(numbers), requests)
    start = time.perf_counter()
    written = await repo.writer.write(made, 1)
    assert not [outcome for outcome in written.outcomes if isinstance(outcome, Exception)]
    return time.perf_counter() - start


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_write(benchmark: BenchmarkFixture, kind: str, group: str, tmp_path: Path, request: Any) -> None:
    address = f"sqlite:{tmp_path / 'bench.db'}" if kind == "sqlite" else str(request.getfixturevalue("postgres_url"))
    rounds = (ROUNDS if GROUPS[group][0] is updates else ROUNDS // 5) if benchmark.enabled else 2
    taken: dict[str, list[float]] = {name: [] for name in STORES}

    async def run() -> None:
        repo = make_repository(address)
        await repo.open()
        numbers = {name: iter(range(1 << 40)) for name in STORES}
        for store in STORES.values():
            await repo.stores.create_store(store)
            await write(repo, store, numbers[store.name], group)
        await repo.policies.set_policy("limited", PolicyChange(POLICY))
        for turn in range(rounds):
            for name in ("plain", "limited") if turn % 2 else ("limited", "plain"):
                taken[name].append(await write(repo, STORES[name], numbers[name], group))
        await repo.close()

    benchmark.group = "policies"
    benchmark.pedantic(lambda: asyncio.run(run()), rounds=1)
    plain, limited = taken["plain"], taken["limited"]
    benchmark.extra_info.update(
        without_us=round(statistics.median(plain) * 1e6),
        with_us=round(statistics.median(limited) * 1e6),
        ratio=round(statistics.median(one / other for one, other in zip(limited, plain, strict=True)), 3),
    )


def test_the_rate_of_a_request(benchmark: BenchmarkFixture) -> None:
    """One that need not wait, which is what most do."""
    store = StoreRecord("s", SETTINGS, 0, 0, policy=StorePolicy(max_rows_per_second=1_000_000_000))
    count = 10_000 if benchmark.enabled else 10

    async def run() -> None:
        rates = WriteRates(Measures())
        for _ in range(count):
            await rates.take(store, 1, LOCAL, CALL_WAIT_S)

    benchmark.group = "policies"
    benchmark.pedantic(lambda: asyncio.run(run()), rounds=3)
    if benchmark.stats is not None:
        benchmark.extra_info["us_a_request"] = round(benchmark.stats.stats.min / count * 1e6, 2)
