"""Clients that wait for less long than a store with a low rate takes, against a real config service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from ringcast_client import ConfigServiceClient, RowWrite
from ringcast_testkit import ConfigServiceProcess
from ringcast_wire import LimitExceededError, StorePolicy

BURST = 1_000


async def slow_down(client: ConfigServiceClient, store: str, rate: int) -> None:
    """From now on a store takes so many rows a second, and none in advance."""
    await client.set_store_policy(store, StorePolicy(max_rows_per_second=rate, burst_rows=BURST))
    burst = [RowWrite(f"r{number}", "1") for number in range(BURST)]
    assert [batch.written async for batch in client.bulk_write(store, "burst", burst)] == [BURST]


@pytest.fixture
async def hasty(service: ConfigServiceProcess) -> AsyncIterator[ConfigServiceClient]:
    async with ConfigServiceClient(service.address, timeout_s=5.0) as client:
        yield client


async def test_changes_beyond_the_rate_are_refused_in_time_and_take_nothing_from_later_ones(
    client: ConfigServiceClient, store: str, hasty: ConfigServiceClient
) -> None:
    """They waited here for longer than their client, took the rows of those behind them, and were not written."""
    await slow_down(client, store, rate=1)
    async with hasty.changes(store, "list") as writer:
        asked = (writer.put(f"r{number}", "1") for number in range(50))
        found = await asyncio.gather(*asked, return_exceptions=True)
        refused = [each for each in found if isinstance(each, BaseException)]
        assert all(isinstance(each, LimitExceededError) for each in refused), refused
        done = {f"r{number}" for number, each in enumerate(found) if not isinstance(each, BaseException)}
        assert 1 <= len(done) <= 10
        await writer.put("later", "1")
    assert {row.row_id async for row in client.list(store, "list")} == done | {"later"}


async def test_a_bulk_write_waits_for_longer_than_one_answer_may_take(
    client: ConfigServiceClient, store: str, hasty: ConfigServiceClient
) -> None:
    await slow_down(client, store, rate=180)
    rows = [RowWrite(f"r{number}", "1") for number in range(1_000)]
    assert [batch.written async for batch in hasty.bulk_write(store, "list", rows)] == [1_000]
