"""Instances that write to one database at the same time: new partitions, new keys, limits, and the same rows."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import pytest
from ringcast_config_service.repository import (
    Repository,
    StoreRecord,
    WriteOutcome,
    make_repository,
)
from ringcast_config_service.repository.postgres import write as postgres_write
from ringcast_wire import AlreadyExistsError, LimitExceededError, RingcastError, limits

Bench = Any  # of conftest.py

WRITERS = 6


@pytest.fixture(params=["postgres_bench", "serializable_bench"])
def raced(request: pytest.FixtureRequest) -> Bench:
    """PostgreSQL with its own locks, and in the way in which CockroachDB is used."""
    return request.getfixturevalue(request.param)


@pytest.fixture
async def instances(raced: Bench) -> AsyncIterator[Sequence[Repository]]:
    """Two repositories over the same database."""
    second = make_repository(raced.address)
    await second.open()
    yield (raced.repo, second)
    await second.close()


async def written(repo: Repository, bench: Bench, rows: Mapping[str, str | None], key: str = "k") -> Any:
    (outcome,) = (await repo.writer.write([bench.request(rows, key)], 5)).outcomes
    return outcome


async def test_the_first_writes_of_partitions(raced: Bench, instances: Sequence[Repository]) -> None:
    """Single rows and large groups, all at once, of a key of which no partition was written; then the same again."""
    seed = 11
    draw = random.Random(seed)
    for turn in range(3):
        key = f"k{turn}"
        await written(raced.repo, raced, {"first": "1"}, key)
        sizes = [1, 1, 3, 300, 300, 400]
        rows = [{f"r{draw.randrange(500)}": f"{turn}.{writer}" for _ in range(sizes[writer])} for writer in range(6)]
        outcomes = await asyncio.gather(
            *(written(instances[writer % 2], raced, rows[writer], key) for writer in range(WRITERS)),
            *(written(instances[writer % 2], raced, rows[writer], key) for writer in range(WRITERS)),
        )
        assert [outcome for outcome in outcomes if not isinstance(outcome, WriteOutcome)] == [], f"seed {seed}"
        live = await raced.live(key)
        assert live.keys() == {"first"}.union(*rows), f"seed {seed}"
        assert all(live[row_id] in {some.get(row_id) for some in rows} for row_id in live if row_id != "first")
        await raced.check_gap_free(key)
        found = {stats.name: stats for stats in (await raced.repo.stores.get_store("s")).keys}[key]
        assert (found.rows, found.bytes) == (len(live), sum(len(row) + len(value) for row, value in live.items()))


async def test_a_new_key_is_created_once(raced: Bench, instances: Sequence[Repository]) -> None:
    for turn in range(5):
        key = f"new{turn}"
        outcomes = await asyncio.gather(
            *(written(instances[writer % 2], raced, {f"r{writer}": "1", "all": "1"}, key) for writer in range(WRITERS))
        )
        assert [outcome for outcome in outcomes if not isinstance(outcome, WriteOutcome)] == []
        assert set(await raced.live(key)) == {"all", *(f"r{writer}" for writer in range(WRITERS))}
        await raced.check_gap_free(key)


async def test_the_last_key_of_a_store_is_given_once(raced: Bench, instances: Sequence[Repository]) -> None:
    for number in range(limits.MAX_KEYS_PER_STORE - 2):
        await written(raced.repo, raced, {"a": "1"}, f"k{number}")
    outcomes = await asyncio.gather(
        *(written(instances[writer % 2], raced, {"a": "1"}, f"last{writer}") for writer in range(WRITERS))
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, RingcastError)]
    assert [type(error) for error in refused] == [LimitExceededError] * (WRITERS - 2)
    assert len((await raced.repo.stores.get_store("s")).keys) == limits.MAX_KEYS_PER_STORE


async def test_the_last_store_is_given_once(
    raced: Bench, instances: Sequence[Repository], new_store: Callable[..., StoreRecord]
) -> None:
    for number in range(limits.MAX_STORES - 3):
        await raced.repo.stores.create_store(new_store(f"s{number}"))
    results = await asyncio.gather(
        *(instances[turn % 2].stores.create_store(new_store(f"last{turn}")) for turn in range(WRITERS)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, StoreRecord) for result in results) == 2
    assert sum(isinstance(result, LimitExceededError) for result in results) == WRITERS - 2
    assert len(await raced.repo.stores.list_stores()) == limits.MAX_STORES


async def test_one_of_two_settings_wins(
    raced: Bench, instances: Sequence[Repository], new_store: Callable[..., StoreRecord]
) -> None:
    wanted = [new_store("race", partition_count=count) for count in (4, 5, 4, 5)]
    results = await asyncio.gather(
        *(instances[turn % 2].stores.create_store(record) for turn, record in enumerate(wanted)), return_exceptions=True
    )
    assert sum(isinstance(result, AlreadyExistsError) for result in results) == 2


async def test_a_bulk_update_beside_another_store(postgres_bench: Bench, new_store: Callable[..., StoreRecord]) -> None:
    """Another instance writes single rows of another store all the time: neither gets in the other's way."""
    bench = postgres_bench
    second = make_repository(bench.address)
    await second.open()
    store = await second.stores.create_store(new_store("other", partition_count=64))
    done = asyncio.Event()

    async def single() -> int:
        count = 0
        while not done.is_set():
            rows: dict[str, str | None] = {f"r{count % 50}": str(count)}
            (outcome,) = (await second.writer.write([bench.request(rows, "kb", store)], 5)).outcomes
            assert isinstance(outcome, WriteOutcome)
            count += 1
        return count

    many = {f"row-{number:05d}": "v" for number in range(3_000)}
    await bench.write(many)
    try:
        async with asyncio.TaskGroup() as tasks:
            singles = tasks.create_task(single())
            for turn in range(8):
                assert (await bench.write(dict.fromkeys(many, str(turn)))).written == len(many)
            done.set()
    finally:
        await second.close()
    assert singles.result() > 8
    for repo in (bench.repo, second):
        assert repo.retries == dict.fromkeys(("40001", "40P01", "23505"), 0)


async def test_a_loser_of_the_race_for_new_partitions_loses_once(
    postgres_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others write a partition for the first time at each attempt; a write of all partitions still gets through."""
    bench = postgres_bench
    await bench.write({"first": "1"})
    second = make_repository(bench.address)
    await second.open()
    rows: dict[str, str | None] = {f"r{number}": "1" for number in range(40)}
    raced: list[str] = []
    store_heads = postgres_write._store_heads

    async def slow(db: Any, plan: Any, *words: Any) -> None:
        """Between the look at the heads and their insert, the other instance writes one of them."""
        if len(plan.rows) > 1:
            row_id = next(row for row in rows if row not in raced)
            raced.append(row_id)
            (outcome,) = (await second.writer.write([bench.request({row_id: "other"})], 5)).outcomes
            assert isinstance(outcome, WriteOutcome)
        await store_heads(db, plan, *words)

    monkeypatch.setattr(postgres_write, "_store_heads", slow)
    try:
        assert (await bench.write(rows)).written == len(rows)
    finally:
        await second.close()
    assert bench.repo.retries["23505"] == 1
    assert len(raced) == 1
    await bench.check_gap_free()
