"""The client against a real config service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from ringcast_client import (
    BatchResult,
    ConfigServiceClient,
    InvalidRowError,
    OnInvalid,
    RowWrite,
)
from ringcast_core import row_partition
from ringcast_testkit import ConfigServiceProcess, NatsServer
from ringcast_wire import (
    AlreadyExistsError,
    InvalidInputError,
    LimitExceededError,
    Mode,
    Strategy,
    UnavailableError,
    UnknownKeyError,
    UnknownStoreError,
    limits,
)

PARTITIONS = 8


async def _write(
    client: ConfigServiceClient, store: str, rows: list[RowWrite], on_invalid: OnInvalid = OnInvalid.REJECT_BATCH
) -> list[BatchResult]:
    return [result async for result in client.bulk_write(store, "list", rows, on_invalid=on_invalid, batch_rows=3)]


async def _ids(client: ConfigServiceClient, store: str) -> list[str]:
    return sorted([row.row_id async for row in client.list(store, "list")])


async def test_stores(client: ConfigServiceClient, store_name: str) -> None:
    made = await client.create_store(
        store_name, partition_count=5, mode=Mode.FULL, strategy=Strategy.RING, inline_max_bytes=0
    )
    assert (made.name, made.partition_count, made.mode, made.strategy) == (store_name, 5, Mode.FULL, Strategy.RING)
    assert (made.inline_max_bytes, made.keys) == (0, ())
    await client.put(store_name, "list", "a", "value")
    found = await client.get_store(store_name)
    assert [(key.name, key.rows, key.bytes) for key in found.keys] == [("list", 1, 6)]
    assert found in await client.list_stores()
    with pytest.raises(AlreadyExistsError, match=r"partition_count 5.*partition_count 6"):
        await client.create_store(store_name, partition_count=6, mode=Mode.FULL, strategy=Strategy.RING)
    with pytest.raises(FrozenInstanceError):
        made.name = "x"  # type: ignore[misc]


async def test_a_row_and_its_history(client: ConfigServiceClient, store: str) -> None:
    first = await client.put(store, "list", "a", "1", {"m": "n"})
    second = await client.put(store, "list", "a", "2")
    assert (first.partition, second.version - first.version) == (row_partition("a", PARTITIONS), 1)
    (row,) = await client.get(store, "list", ["a", "nothing"])
    assert (row.row_id, row.value, row.version, row.partition, row.metadata) == ("a", "2", 2, first.partition, {})
    deleted = await client.delete(store, "list", "a")
    assert (deleted.existed, deleted.partition, deleted.version) == (True, first.partition, 3)
    assert not (await client.delete(store, "list", "a")).existed
    assert await client.get(store, "list", ["a"]) == []
    history = [revision async for revision in client.history(store, "list", "a")]
    assert [(r.row.version, r.row.value, r.row.deleted, r.row.metadata) for r in history] == [
        (1, "1", False, {"m": "n"}),
        (2, "2", False, {}),
        (3, "", True, {}),
    ]
    assert [r.row.version async for r in client.history(store, "list", since=1, limit=1)] == [2]
    assert (await client.heads(store, "list"))[first.partition] == 3


async def test_list_by_partition_limit_and_with_tombstones(client: ConfigServiceClient, store: str) -> None:
    ids = [f"row-{number}" for number in range(2_500)]
    await _collect(client, store, ids)
    await client.delete(store, "list", "row-7")
    assert await _ids(client, store) == sorted(set(ids) - {"row-7"})
    home = row_partition("row-7", PARTITIONS)
    there = [row async for row in client.list(store, "list", partition=home, include_deleted=True)]
    assert sorted(row.row_id for row in there) == sorted(i for i in ids if row_partition(i, PARTITIONS) == home)
    assert [row.row_id for row in there if row.deleted] == ["row-7"]
    assert len([row async for row in client.list(store, "list", limit=11)]) == 11
    assert [row.row_id for row in await client.get(store, "list", ids[::-1])] == [i for i in ids[::-1] if i != "row-7"]


async def _collect(client: ConfigServiceClient, store: str, ids: list[str]) -> None:
    async for _ in client.bulk_write(store, "list", (RowWrite(row_id) for row_id in ids)):
        pass


async def test_bulk_write_in_batches_and_in_order(client: ConfigServiceClient, store: str) -> None:
    rows = [RowWrite(str(number), "v", {"n": str(number)}) for number in range(7)]
    write = client.bulk_write(store, "list", rows, batch_rows=3)
    results = [(result.first, result.rows, result.written) async for result in write]
    assert results == [(0, 3, 3), (3, 3, 3), (6, 1, 1)]
    assert (write.sent_rows, write.confirmed_rows) == (7, 7)
    (row,) = await client.get(store, "list", ["5"])
    assert row.metadata == {"n": "5"}
    (deletes,) = await _write(client, store, [RowWrite("0", delete=True), RowWrite("never", delete=True)])
    assert (deletes.written, deletes.deleted, deletes.unchanged) == (0, 1, 1)


async def test_bulk_write_from_an_asynchronous_source(client: ConfigServiceClient, store: str) -> None:
    async def source() -> AsyncIterator[RowWrite]:
        for number in range(5):
            await asyncio.sleep(0)
            yield RowWrite(str(number))

    assert [result.rows async for result in client.bulk_write(store, "list", source(), batch_rows=2)] == [2, 2, 1]
    assert await _ids(client, store) == list("01234")


async def test_a_batch_is_bounded_by_bytes_too(client: ConfigServiceClient, store: str) -> None:
    rows = [RowWrite(str(number), "x" * 600_000) for number in range(6)]
    results = [result.rows async for result in client.bulk_write(store, "list", rows)]
    assert results == [5, 1], "five rows of 600 KB fit 3 MiB"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (RowWrite("r" * 513), "row_id .* has 513 bytes: 1 to 512"),
        (RowWrite(""), "row_id '' has 0 bytes"),
        (RowWrite("a", "v" * limits.MAX_ROW_BYTES), "the row has 1048577 bytes, the limit is 1048576"),
        (RowWrite("a", 5), "value 5 is of type int: it must be text"),  # type: ignore[arg-type]
        (RowWrite("a", "\ud800"), "value .* is not valid Unicode"),
        (RowWrite("a", "nul\0"), "NUL"),
        (RowWrite("a", "", {"m": "x" * 20_000}), "metadata has 20001 bytes: at most 16384"),
        (RowWrite("", delete=True), "row_id '' has 0 bytes"),
    ],
)
async def test_an_invalid_row_stops_its_batch_or_is_left_out(
    client: ConfigServiceClient, store: str, bad: RowWrite, said: str
) -> None:
    rows = [*(RowWrite(str(number)) for number in range(4)), bad, RowWrite("5")]
    with pytest.raises(InvalidRowError, match=said) as caught:
        await _write(client, store, rows)
    assert caught.value.index == 4
    assert await _ids(client, store) == ["0", "1", "2"], "the first batch, and nothing of the second"
    results = await _write(client, store, rows, OnInvalid.SKIP_ROW)
    assert [(result.first, result.rows, result.written) for result in results] == [(0, 3, 3), (3, 3, 2)]
    assert [row.index for row in results[1].rejected] == [4]
    assert await _ids(client, store) == ["0", "1", "2", "3", "5"]


async def test_a_source_of_nothing_but_invalid_rows_ends(client: ConfigServiceClient, store: str) -> None:
    await client.put(store, "list", "a", "")
    results = await _write(client, store, [RowWrite("")] * 8, OnInvalid.SKIP_ROW)
    assert [row.index for result in results for row in result.rejected] == list(range(8))


async def test_an_error_of_the_source_comes_after_what_was_sent(client: ConfigServiceClient, store: str) -> None:
    def source() -> Iterator[RowWrite]:
        yield from (RowWrite(str(number)) for number in range(7))
        raise OSError("on purpose")

    results = aiter(client.bulk_write(store, "list", source(), batch_rows=3))
    assert [(await anext(results)).first, (await anext(results)).first] == [0, 3]
    with pytest.raises(OSError, match="on purpose"):
        await anext(results)
    assert await _ids(client, store) == list("012345")


async def test_leaving_a_bulk_write_early_ends_it(client: ConfigServiceClient, store: str) -> None:
    asked = []

    def source() -> Iterator[RowWrite]:
        for number in range(1_000_000):
            asked.append(number)
            yield RowWrite(str(number))

    results = aiter(client.bulk_write(store, "list", source(), batch_rows=10))
    await anext(results)
    await results.aclose()  # type: ignore[attr-defined]
    assert len(asked) < 1_000, "reading went on, unbounded"


async def test_what_is_unknown_or_too_much(client: ConfigServiceClient, store: str, store_name: str) -> None:
    with pytest.raises(UnknownStoreError, match="nowhere"):
        await client.get_store("nowhere")
    with pytest.raises(UnknownStoreError, match="nowhere"):
        await client.put("nowhere", "list", "a", "")
    with pytest.raises(UnknownStoreError, match="nowhere"):
        await _write(client, "nowhere", [RowWrite("a")])
    for call in (client.get(store, "never", ["a"]), client.delete(store, "never", "a"), client.heads(store, "never")):
        with pytest.raises(UnknownKeyError, match="never"):
            await call
    for rows in (client.list(store, "never"), client.history(store, "never")):
        with pytest.raises(UnknownKeyError, match="never"):
            await anext(rows)
    home = [i for i in map(str, range(200)) if row_partition(i, PARTITIONS) == 0][:9]
    with pytest.raises(LimitExceededError, match=r"partition 0 .* 8388608"):
        await _write(client, store, [RowWrite(row_id, "x" * 1_000_000) for row_id in home])


async def test_the_reason_of_a_refusal_is_never_lost(client: ConfigServiceClient, store_name: str) -> None:
    """The service ends the stream while the client is still sending: a race, so it is run many times."""
    large = "x" * 1_000_000
    for attempt in range(12):
        store = f"{store_name}-{attempt}"
        await client.create_store(store, partition_count=1)
        rows = [RowWrite(f"large-{number}", large) for number in range(8)] + [
            RowWrite(str(number), "x" * 50_000) for number in range(200)
        ]
        with pytest.raises(LimitExceededError, match=r"partition 0 .* 8388608"):
            async for _ in client.bulk_write(store, "list", rows, batch_rows=2, max_in_flight=16):
                pass


async def test_bad_input_is_refused_before_it_is_sent() -> None:
    async with ConfigServiceClient("127.0.0.1:1") as client:
        for call, said in (
            (client.create_store("no spaces", partition_count=1), "store 'no spaces' is not a valid name"),
            (client.create_store("s", partition_count=0), "partition_count 0 is out of range: 1 to 4096"),
            (client.create_store("s", partition_count=4097), "partition_count 4097 is out of range"),
            (client.create_store("s", partition_count=1, inline_max_bytes=5000), "inline_max_bytes 5000 .* 0 to 4096"),
            (client.put("s", "k/", "a", ""), "key 'k/' is not a valid name"),
            (client.put("s", "k", "", ""), "row_id '' has 0 bytes"),
            (client.get("s", "k", ["a", "b" * 600]), "row_id .* has 600 bytes"),
            (client.get("s", "k", "abc"), "row_ids 'abc' is a string: a list of row ids is wanted"),
            (anext(client.list("s", "k", partition=9999)), "partition 9999 is out of range"),
            (anext(client.list("s", "k", limit=0)), "limit 0 is out of range"),
            (anext(client.history("s", "k", since=-1)), "since -1 is out of range"),
        ):
            with pytest.raises(InvalidInputError, match=said):
                await call
        for options in ({"batch_rows": 0}, {"batch_rows": 1001}, {"batch_bytes": 2**30}, {"max_in_flight": 65}):
            with pytest.raises(InvalidInputError, match=f"{next(iter(options))} .* is out of range"):
                client.bulk_write("s", "k", [], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["nowhere", "host:0", "host:70000", "a b:1", ":1", "http://x:1"])
def test_a_malformed_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidInputError, match="is not an address: host:port is expected"):
        ConfigServiceClient(address)


async def test_a_service_that_is_down_is_named() -> None:
    async with ConfigServiceClient("127.0.0.1:1") as client:
        said = r"config service 127\.0\.0\.1:1 can't be reached: connection refused"
        with pytest.raises(UnavailableError, match=said):
            await client.list_stores()
        with pytest.raises(UnavailableError, match=said):
            await anext(client.list("s", "k"))
        with pytest.raises(UnavailableError, match=said):
            await _write(client, "s", [RowWrite("a")])
    with pytest.raises(RuntimeError, match="the client is not open"):
        await client.list_stores()


async def test_a_service_that_hangs_or_dies(tmp_path: Path, nats_server: NatsServer) -> None:
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    with ConfigServiceProcess(tmp_path, nats_url=nats_server.url, database=database) as service:
        async with ConfigServiceClient(service.address, timeout_s=0.5) as client:
            await client.create_store("s", partition_count=PARTITIONS)
            await client.put("s", "list", "a", "")
            service.pause()
            said = r"did not answer.* within 0\.5 s"
            with pytest.raises(UnavailableError, match=said):
                await client.get_store("s")
            with pytest.raises(UnavailableError, match=said):
                await anext(client.list("s", "list"))
            with pytest.raises(UnavailableError, match=said):
                await _write(client, "s", [RowWrite("b")])
            service.resume()
        feeding = asyncio.Event()

        async def source() -> AsyncIterator[RowWrite]:
            for number in range(6):
                yield RowWrite(str(number))
            await feeding.wait()
            for number in range(6):
                yield RowWrite(str(number))

        async with ConfigServiceClient(service.address) as client:
            write = client.bulk_write("s", "list", source(), batch_rows=3)
            results = aiter(write)
            assert [(await anext(results)).first, (await anext(results)).first] == [0, 3]
            service.kill()
            feeding.set()
            with pytest.raises(UnavailableError):
                await anext(results)
            assert write.confirmed_rows == 6
