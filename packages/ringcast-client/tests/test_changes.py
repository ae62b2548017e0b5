"""Single changes over one stream, against a real config service."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from ringcast_client import ConfigServiceClient, DeleteResult
from ringcast_core import row_partition
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer, TcpProxy
from ringcast_wire import InvalidInputError, UnavailableError, UnknownKeyError, UnknownStoreError, limits

PARTITIONS = 8


@pytest.fixture(scope="module")
def service(brief_service: ConfigServiceProcess) -> ConfigServiceProcess:
    return brief_service


async def test_puts_and_deletes(client: ConfigServiceClient, store: str) -> None:
    async with client.changes(store, "list") as writer:
        with pytest.raises(UnknownKeyError):
            await client.get(store, "list", ["a"])
        put = await writer.put("a", "1", {"by": "ops"})
        assert (put.partition, put.version) == (row_partition("a", PARTITIONS), 1)
        assert (await writer.put("a", "2")).version == 2
        assert await writer.delete("a") == DeleteResult(True, put.partition, 3)
        assert await writer.delete("a") == DeleteResult(False, put.partition, 0)
    history = [revision.row async for revision in client.history(store, "list", "a")]
    assert [(row.version, row.value, row.metadata, row.deleted) for row in history] == [
        (1, "1", {"by": "ops"}, False),
        (2, "2", {}, False),
        (3, "", {}, True),
    ]


async def test_each_change_is_written_once_and_in_order_whatever_ends_the_streams(
    client: ConfigServiceClient, store: str
) -> None:
    rows, rounds = 40, 60
    async with client.changes(store, "list") as writer, asyncio.timeout(PATIENCE_S):
        for number in range(rounds):
            done = await asyncio.gather(*(writer.put(f"row{row}", str(number)) for row in range(rows)))
            assert len({(put.partition, put.version) for put in done}) == rows
            await asyncio.sleep(0)
    for row in range(rows):
        values = [revision.row.value async for revision in client.history(store, "list", f"row{row}")]
        assert values == [str(number) for number in range(rounds)]
    assert sum(await client.heads(store, "list")) == rows * rounds


async def test_one_that_is_refused_does_not_hold_up_the_others(
    shared_service: ConfigServiceProcess, store_name: str
) -> None:
    """Of a service whose streams last: four of these rows take longer to send than the others give them."""
    block = "x" * (limits.MAX_ROW_BYTES - 10)
    async with ConfigServiceClient(shared_service.address) as client:
        store = (await client.create_store(store_name, partition_count=PARTITIONS)).name
        async with client.changes(store, "list") as writer:
            # All in one partition, which they would outgrow.
            home = [name for name in (f"r{number}" for number in range(500)) if row_partition(name, PARTITIONS) == 0]
            big = (writer.put(row_id, block) for row_id in home[:9])
            found = await asyncio.gather(*big, writer.put(home[9], "small"), return_exceptions=True)
            assert [type(one).__name__ for one in found] == ["PutResult"] * 8 + ["LimitExceededError", "PutResult"]
            with pytest.raises(InvalidInputError, match="row_id"):
                await writer.put("", "")
        async with client.changes("nowhere", "list") as writer:
            with pytest.raises(UnknownStoreError, match="'nowhere'"):
                await writer.put("a", "")
        async with client.changes(store, "other") as writer:
            assert (await writer.put("a", "")).version == 1


async def test_what_is_refused_at_once(client: ConfigServiceClient) -> None:
    with pytest.raises(InvalidInputError, match="store"):
        client.changes("a.b", "list")
    with pytest.raises(InvalidInputError, match="max_in_flight 0 is out of range: 1 to 1000 is allowed"):
        client.changes("a", "list", max_in_flight=0)
    writer = client.changes("a", "list")
    with pytest.raises(RuntimeError, match="the writer is not open"):
        await writer.put("a", "")
    async with ConfigServiceClient("127.0.0.1:1") as nobody, nobody.changes("a", "list") as writer:
        for _ in range(2):
            with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1 can't be reached: connection refused"):
                await writer.put("a", "")


async def test_no_more_than_so_many_are_under_way(brief_service: ConfigServiceProcess, store: str) -> None:
    with TcpProxy(int(brief_service.address.rpartition(":")[2])) as network:
        async with (
            ConfigServiceClient(f"127.0.0.1:{network.port}") as client,
            client.changes(store, "list", max_in_flight=2) as writer,
        ):
            await writer.put("first", "")
            network.silence()
            tasks = [asyncio.create_task(writer.put(f"r{number}", "")) for number in range(5)]
            for _ in range(10):
                await asyncio.sleep(0)
            assert len(writer._pending) == 2
            tasks[-1].cancel()  # one that waits for its turn
            network.resume()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(one).__name__ for one in found] == ["PutResult"] * 4 + ["CancelledError"]


async def test_closing_waits_for_what_was_asked_for(client: ConfigServiceClient, store: str) -> None:
    async with client.changes(store, "list", max_in_flight=3) as writer:
        tasks = [asyncio.create_task(writer.put(f"r{number}", "")) for number in range(20)]
        await asyncio.sleep(0)
    assert all(task.done() and task.exception() is None for task in tasks)
    with pytest.raises(RuntimeError, match="the writer is not open"):
        await writer.put("a", "")
    writer = client.changes(store, "list", max_in_flight=3)
    await writer.__aenter__()
    tasks = [asyncio.create_task(writer.put(f"r{number}", "")) for number in range(20)]
    await asyncio.sleep(0)
    error = ZeroDivisionError()  # of the block, which is left at once
    await writer.__aexit__(type(error), error, None)
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(one) for one in found} == {UnavailableError}


async def test_a_service_that_hangs_dies_and_comes_back(tmp_path: Path, nats_server: NatsServer) -> None:
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    options = ("--stop-timeout", "60")  # far more than a stop is waited for here
    with ConfigServiceProcess(tmp_path, nats_url=nats_server.url, database=database, options=options) as service:
        async with (
            ConfigServiceClient(service.address, timeout_s=0.5) as client,
            client.changes("s", "list") as writer,
        ):
            await client.create_store("s", partition_count=PARTITIONS)
            await writer.put("a", "1")
            service.pause()
            with pytest.raises(UnavailableError, match=r"did not answer within 0\.5 s"):
                await writer.put("b", "1")
            service.resume()
            await writer.put("c", "1")
            service.kill()
            with pytest.raises(UnavailableError):
                await writer.put("d", "1")
            service.start()
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        await writer.put("e", "1")
                    except UnavailableError:
                        continue
                    break
            await asyncio.to_thread(service.terminate)  # which a stream that is open and idle does not hold up
            service.start()
            rows = [row.row_id async for row in client.list("s", "list")]
            assert {"a", "c", "e"} <= set(rows)
