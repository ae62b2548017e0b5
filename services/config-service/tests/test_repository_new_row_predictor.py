"""Large writes whose rows are taken for new without a look: right where they are, and right where they are not."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from ringcast_config_service.repository import HistoryFilter, RowWrite, StoreRecord, WriteRequest
from ringcast_config_service.repository.postgres.new_row_predictor import LEAST_ROWS, NewRowPredictor
from ringcast_core import row_partition
from ringcast_wire import StoreSettings, limits

Bench = Any  # of conftest.py


def some(first: int, count: int = LEAST_ROWS, value: str = "v") -> dict[str, str]:
    return {f"r{number}": value for number in range(first, first + count)}


async def load(bench: Bench) -> dict[str, str]:
    """Groups of new rows, until the next is taken for new as well."""
    rows: dict[str, str] = {}
    for turn in range(3):
        new = some(turn * LEAST_ROWS)
        assert (await bench.write(new)).written == len(new)
        rows |= new
    assert bench.repo.writer.new_row_predictor.expects([bench.request(some(10_000))])
    assert not bench.repo.writer.new_row_predictor.expects([bench.request(some(10_000, 10))]), "few rows"
    assert not bench.repo.writer.new_row_predictor.expects([bench.request({**some(10_000), "r1": None})]), (
        "a delete among them"
    )
    return rows


async def test_rows_that_are_new_and_one_that_is_not(postgres_bench: Bench) -> None:
    bench = postgres_bench
    rows = await load(bench)
    assert bench.repo.writer.new_row_predictor.missed == 0
    mixed = {**some(5_000), "r7": "changed"}
    outcome = await bench.write(mixed)
    assert (outcome.written, bench.repo.writer.new_row_predictor.missed) == (len(mixed), 1)
    assert await bench.live() == rows | mixed
    seen = [
        revision.row.value
        async for page in bench.repo.reader.history("s", "k", HistoryFilter(row_id="r7"))
        for revision in page
    ]
    assert seen == ["v", "changed"]
    await bench.check_gap_free()
    assert not bench.repo.writer.new_row_predictor.expects([bench.request(some(20_000))]), "it is cautious for a while"


async def test_what_is_sent_again_is_left_alone(postgres_bench: Bench) -> None:
    bench = postgres_bench
    rows = await load(bench)
    heads = await bench.repo.reader.heads("s", "k")
    (outcome,) = await bench.group([replace(bench.request(rows), skip_unchanged=True)])
    assert (outcome.written, outcome.unchanged, bench.repo.writer.new_row_predictor.missed) == (0, len(rows), 1)
    assert await bench.repo.reader.heads("s", "k") == heads


async def test_a_row_that_was_deleted_comes_back(postgres_bench: Bench) -> None:
    bench = postgres_bench
    rows = await load(bench)
    assert (await bench.write({"r3": None})).deleted == 1
    again = {**some(5_000), "r3": "back"}
    assert (await bench.write(again)).written == len(again)
    assert bench.repo.writer.new_row_predictor.missed == 1
    assert await bench.live() == rows | again
    await bench.check_gap_free()


async def test_rows_that_a_group_writes_twice(postgres_bench: Bench) -> None:
    bench = postgres_bench
    rows = await load(bench)
    outcomes = await bench.group([bench.request(some(5_000, value=value)) for value in "abc"])
    assert [outcome.written for outcome in outcomes] == [LEAST_ROWS] * 3
    assert bench.repo.writer.new_row_predictor.missed == 0
    assert await bench.live() == rows | some(5_000, value="c")
    await bench.check_gap_free()


async def test_a_full_partition_whose_rows_change_is_not_refused(postgres_bench: Bench) -> None:
    """Were they new, there would be no room for them."""
    bench = postgres_bench
    await load(bench)
    count = bench.store.partition_count
    ids = (row_id for number in itertools.count() if row_partition(row_id := f"full{number}", count) == 0)
    full = list(itertools.islice(ids, LEAST_ROWS))
    for letter in "xy":
        value = letter * (limits.MAX_PARTITION_BYTES * 2 // 3 // LEAST_ROWS)
        assert (await bench.write(dict.fromkeys(full, value))).written == LEAST_ROWS
    assert bench.repo.writer.new_row_predictor.missed == 1
    await bench.check_gap_free()


def request() -> WriteRequest:
    store = StoreRecord("s", StoreSettings(partition_count=1), 256, 1)
    return WriteRequest(store, "k", [RowWrite(0, f"r{number}", "v", None, 3) for number in range(LEAST_ROWS)])


def test_what_is_taken_for_new() -> None:
    requests, found = [request()], NewRowPredictor()
    for _ in range(2):
        assert not found.expects(requests)
        found.learn(requests, all_new=True)
    assert found.expects(requests)
    found.learn(requests, all_new=False)
    assert not found.expects(requests)


@pytest.mark.parametrize("misses", [1, 3])
def test_a_wrong_guess_is_not_made_again_soon(misses: int) -> None:
    requests, found = [request()], NewRowPredictor()
    for _ in range(misses):
        found.miss(requests)
    waited = 0
    while not found.expects(requests):
        found.learn(requests, all_new=True)
        waited += 1
    assert (found.missed, waited) == (misses, 10)
