"""Bulk writes over streams that the service ends all the time, and many calls at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from ringcast_client import BulkWrite, ConfigServiceClient, OnInvalid, PutResult, RowWrite
from ringcast_testkit import ConfigServiceProcess
from ringcast_wire import InvalidInputError


@pytest.fixture(scope="module")
def service(brief_service: ConfigServiceProcess) -> ConfigServiceProcess:
    return brief_service


async def to_the_end(writing: BulkWrite) -> None:
    async for _ in writing:
        pass


@pytest.mark.parametrize("max_in_flight", [1, 4, 64])
async def test_each_batch_is_written_once_and_in_order(
    client: ConfigServiceClient, store: str, max_in_flight: int
) -> None:
    """A revision more for each row says that it was written once; the last of a row that comes often is the newest."""
    batches, size = 400, 10
    rows = (RowWrite("often" if at == 0 else f"r{b}-{at}", str(b)) for b in range(batches) for at in range(size))
    writing = client.bulk_write(store, "list", rows, batch_rows=size, max_in_flight=max_in_flight)
    results = [result async for result in writing]
    assert [result.first for result in results] == list(range(0, batches * size, size))
    assert {result.written for result in results} == {size}
    assert sum(await client.heads(store, "list")) == batches * size
    versions = [revision.row.value async for revision in client.history(store, "list", "often")]
    assert versions == [str(number) for number in range(batches)]
    assert (writing.sent_rows, writing.confirmed_rows) == (batches * size, batches * size)


async def test_a_source_that_is_slower_than_the_life_of_a_stream(client: ConfigServiceClient, store: str) -> None:
    async def rows() -> AsyncIterator[RowWrite]:
        for number in range(6):
            yield RowWrite(f"r{number}", "v")
            await asyncio.sleep(0.12 if number % 2 else 0)  # longer than the 50 ms of a stream

    async for result in client.bulk_write(store, "list", rows(), batch_rows=1):
        assert result.written == 1
    assert sum(await client.heads(store, "list")) == 6


async def test_a_reader_of_the_results_that_is_slower(client: ConfigServiceClient, store: str) -> None:
    rows = (RowWrite(f"r{number}", "v") for number in range(40))
    async for result in client.bulk_write(store, "list", rows, batch_rows=1):
        if result.first % 10 == 0:
            await asyncio.sleep(0.12)  # longer than the 50 ms of a stream
    assert sum(await client.heads(store, "list")) == 40


async def test_what_is_refused_ends_it_at_its_batch(client: ConfigServiceClient, store: str) -> None:
    def rows() -> Iterator[RowWrite]:
        for number in range(500):
            yield RowWrite("" if number == 321 else f"r{number}", "v")

    writing = client.bulk_write(store, "list", rows(), batch_rows=7)
    with pytest.raises(InvalidInputError, match="row_id"):
        await to_the_end(writing)
    assert writing.confirmed_rows == 315
    assert sum(await client.heads(store, "list")) == 315
    skipping = client.bulk_write(store, "other", rows(), batch_rows=1, on_invalid=OnInvalid.SKIP_ROW)
    results = [result async for result in skipping]
    assert [(row.index, row.row_id) for result in results for row in result.rejected] == [(321, "")]
    assert sum(await client.heads(store, "other")) == 499


async def test_the_failure_of_the_source_is_raised_after_what_it_gave(client: ConfigServiceClient, store: str) -> None:
    def rows() -> Iterator[RowWrite]:
        for number in range(100):
            yield RowWrite(f"r{number}", "v")
        raise OSError("the disk is gone")

    writing = client.bulk_write(store, "list", rows(), batch_rows=1)
    with pytest.raises(OSError, match="the disk is gone"):
        await to_the_end(writing)
    assert writing.confirmed_rows == 100


async def test_thousands_of_calls_at_once_wait_for_their_turn(client: ConfigServiceClient, store: str) -> None:
    found = await asyncio.gather(*(client.put(store, "list", f"r{number}", "v") for number in range(2_000)))
    assert all(isinstance(one, PutResult) for one in found)
    assert sum(await client.heads(store, "list")) == 2_000
