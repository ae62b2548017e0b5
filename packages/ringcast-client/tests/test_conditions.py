"""Conditions, idempotency keys, commits, and changes that were given up, by the client of the service."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from ringcast_client import ConfigServiceClient, InvalidRowError, KeyedWrite, RowWrite
from ringcast_client._bulk import write as bulk_writes
from ringcast_testkit import ConfigServiceProcess, NatsServer, PostgresServer, until_done
from ringcast_wire import (
    ConditionFailedError,
    InvalidInputError,
    OutcomeUnknownError,
    UnknownKeyError,
    UnknownStoreError,
    limits,
)


async def values(client: ConfigServiceClient, store: str, key: str = "k") -> dict[str, str]:
    return {row.row_id: row.value async for row in client.list(store, key)}


async def test_compare_and_set(client: ConfigServiceClient, store_name: str) -> None:
    await client.create_store(store_name, partition_count=4)
    first = await client.put(store_name, "k", "a", "1", if_absent=True)
    with pytest.raises(ConditionFailedError, match="at version 1: no row was expected") as error:
        await client.put(store_name, "k", "a", "2", if_absent=True)
    assert (error.value.found_version, error.value.field) == (first.version, "if_absent")
    second = await client.put(store_name, "k", "a", "2", if_version=first.version)
    with pytest.raises(ConditionFailedError) as error:
        await client.delete(store_name, "k", "a", if_version=first.version)
    assert error.value.found_version == second.version
    assert (await client.delete(store_name, "k", "a", if_version=second.version)).existed


async def test_conditions_of_changes(client: ConfigServiceClient, store_name: str) -> None:
    await client.create_store(store_name, partition_count=4)
    async with client.changes(store_name, "k") as writer:
        put = await writer.put("a", "1", if_absent=True)
        with pytest.raises(ConditionFailedError) as error:
            await writer.put("a", "2", if_version=put.version + 1)
        assert error.value.found_version == put.version
        again = [await writer.put("a", "2", if_version=put.version, idempotency_key="c1") for _ in range(2)]
        assert again[0] == again[1]
        with pytest.raises(ConditionFailedError):
            await writer.delete("a", if_version=put.version)
        assert [(await writer.delete("a", idempotency_key="c2")).existed for _ in range(2)] == [True, True]
        for wrong in ({"if_version": 0}, {"if_version": 1, "if_absent": True}, {"idempotency_key": ""}):
            with pytest.raises(InvalidInputError):
                await writer.put("a", "1", **wrong)


async def test_a_put_is_repeated_by_its_key(client: ConfigServiceClient, store_name: str) -> None:
    await client.create_store(store_name, partition_count=4)
    first = await client.put(store_name, "k", "a", "1", idempotency_key="p")
    await client.put(store_name, "k", "a", "2")
    assert await client.put(store_name, "k", "a", "1", idempotency_key="p") == first
    assert await values(client, store_name) == {"a": "2"}
    with pytest.raises(InvalidInputError, match="idempotency_key 'p' was used in store"):
        await client.put(store_name, "k", "a", "3", idempotency_key="p")
    gone = [await client.delete(store_name, "k", "a", idempotency_key="d") for _ in range(2)]
    assert gone[0] == gone[1]


async def test_a_commit_is_whole(client: ConfigServiceClient, store_name: str) -> None:
    await client.create_store(store_name, partition_count=4)
    made = await client.commit(
        store_name,
        [KeyedWrite("y", "a", "1", if_absent=True), KeyedWrite("x", "b", "1", {"by": "me"}), KeyedWrite("y", "c", "1")],
        idempotency_key="c",
    )
    assert [(row.key, row.row_id) for row in made] == [("y", "a"), ("x", "b"), ("y", "c")]
    swap = [KeyedWrite("y", "a", delete=True, if_version=made[0].version), KeyedWrite("x", "a", "1", if_absent=True)]
    await client.commit(store_name, swap)
    with pytest.raises(ConditionFailedError, match=f"{store_name}/x has row 'a'"):
        await client.commit(store_name, [KeyedWrite("x", "b", "lost"), *swap])
    assert await values(client, store_name, "x") == {"a": "1", "b": "1"}
    assert await values(client, store_name, "y") == {"c": "1"}
    with pytest.raises(UnknownKeyError):
        await client.commit(store_name, [KeyedWrite("x", "b", "lost"), KeyedWrite("none", "a", delete=True)])
    assert (await values(client, store_name, "x"))["b"] == "1"


async def test_what_a_commit_refuses(client: ConfigServiceClient, store_name: str) -> None:
    await client.create_store(store_name, partition_count=4)
    large = "x" * (limits.MAX_ROW_BYTES - 10)
    for writes, reason in (
        ([], "writes 0 is out of range: 1 to 1000"),
        ([KeyedWrite("k", str(n)) for n in range(1_001)], "writes 1001 is out of range"),
        ([KeyedWrite("k", str(n), large) for n in range(4)], "bytes of writes"),
        ([KeyedWrite("k", "a"), KeyedWrite("k", "a", delete=True)], "row 'a' of key 'k' comes twice"),
        ([KeyedWrite("no key", "a")], "key 'no key'"),
        ([KeyedWrite("k", "a", delete=True, if_absent=True)], "if_absent makes no sense in a delete"),
        ([KeyedWrite("k", "a", if_version=-1)], "if_version -1 is out of range"),
    ):
        with pytest.raises(InvalidInputError, match=reason):
            await client.commit(store_name, writes)
    with pytest.raises(UnknownStoreError):
        await client.commit("none-" + store_name[:50], [KeyedWrite("k", "a")])
    with pytest.raises(UnknownKeyError):
        await values(client, store_name)


async def test_a_bulk_write_is_repeated_by_its_job(client: ConfigServiceClient, store_name: str) -> None:
    await client.create_store(store_name, partition_count=4)
    rows = [RowWrite(f"r{n}", "1") for n in range(25)]

    async def write(rows: list[RowWrite], job_id: str) -> list[int]:
        return [batch.written async for batch in client.bulk_write(store_name, "k", rows, batch_rows=10, job_id=job_id)]

    assert await write(rows[:20], "night") == [10, 10]
    heads = await client.heads(store_name, "k")
    assert await write(rows, "night") == [10, 10, 5]  # what the first attempt reported, and the rest
    assert sum(await client.heads(store_name, "k")) == sum(heads) + 5
    with pytest.raises(InvalidInputError, match="idempotency_key 'night:0' was used"):
        await write([RowWrite("other"), *rows], "night")
    with pytest.raises(InvalidInputError, match="bytes of job_id"):
        await write(rows, "x" * 101)


async def test_a_batch_whose_answer_was_lost_does_not_fail_on_what_it_wrote_itself(
    client: ConfigServiceClient, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent again, since it may not have been written."""
    await client.create_store(store_name, partition_count=1)
    reply = bulk_writes._Stream.reply
    lost: list[object] = []

    async def losing(stream: bulk_writes._Stream, timeout_s: float) -> object:
        found = await reply(stream, timeout_s)
        if not lost:
            lost.append(found)
            raise bulk_writes.StatusLostError
        return found

    monkeypatch.setattr(bulk_writes._Stream, "reply", losing)
    rows = [RowWrite("a", "1", if_absent=True), RowWrite("b", "1", if_absent=True), RowWrite("c", "1")]
    results = [result async for result in client.bulk_write(store_name, "k", rows, batch_rows=2)]
    assert [result.written for result in results] == [2, 1]
    assert [(row.row_id, row.version) async for row in client.list(store_name, "k")][:2] == [("a", 1), ("b", 2)]
    assert lost


async def test_a_batch_is_sent_again_where_an_instance_drains_after_its_status_was_lost(
    client: ConfigServiceClient, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance that drains ends streams at once, and why is not always heard: the batch goes over a third stream."""
    await client.create_store(store_name, partition_count=2)
    reply, streams = bulk_writes._Stream.reply, list[bulk_writes._Stream]()

    async def draining(stream: bulk_writes._Stream, timeout_s: float) -> object:
        if stream not in streams:
            streams.append(stream)
        if len(streams) == 1:
            raise bulk_writes.StatusLostError
        if len(streams) == 2:
            stream.was_last = True
            return None
        return await reply(stream, timeout_s)

    monkeypatch.setattr(bulk_writes._Stream, "reply", draining)
    results = [each async for each in client.bulk_write(store_name, "k", [RowWrite("row", "v")])]
    assert sum(each.written + each.unchanged for each in results) == 1
    assert len(streams) == 3
    assert await values(client, store_name) == {"row": "v"}


async def test_conditions_in_a_bulk_write(client: ConfigServiceClient, store_name: str) -> None:
    await client.create_store(store_name, partition_count=4)
    put = await client.put(store_name, "k", "a", "1")

    async def write(*rows: RowWrite) -> None:
        async for _ in client.bulk_write(store_name, "k", rows):
            pass

    await write(RowWrite("a", "2", if_version=put.version), RowWrite("b", "1", if_absent=True))
    with pytest.raises(ConditionFailedError) as error:
        await write(RowWrite("c", "1"), RowWrite("b", "2", if_absent=True))
    assert error.value.found_version == 1
    assert await values(client, store_name) == {"a": "2", "b": "1"}
    with pytest.raises(InvalidRowError, match="if_version 0 is out of range"):
        await write(RowWrite("c", "1", if_version=0))
    with pytest.raises(InvalidInputError, match="'c' comes twice, and a row with a condition must not"):
        await write(RowWrite("c", "1", if_absent=True), RowWrite("c", "2"))


@pytest.mark.parametrize("how", ["changes", "put"])
async def test_what_was_given_up_does_not_overtake_what_came_after(
    nats_server: NatsServer, tmp_path: Path, how: str
) -> None:
    """One of two instances hangs with a write that it has received; the other takes a newer one."""
    with PostgresServer() as postgres:
        url = postgres.create_database()
        with (
            ConfigServiceProcess(tmp_path / "a", nats_url=nats_server.url, database=url) as a,
            ConfigServiceProcess(tmp_path / "b", nats_url=nats_server.url, database=url) as b,
        ):
            async with (
                ConfigServiceClient(a.address, timeout_s=1) as hanging,
                ConfigServiceClient(b.address) as other,
                hanging.changes("g", "k") as writer,
            ):
                await other.create_store("g", partition_count=4)
                for number in range(3):
                    # A second is short for a busy machine, and is meant for the one that hangs alone.
                    await until_done(partial(writer.put, "flag", "old"), OutcomeUnknownError)
                    a.pause()
                    try:
                        with pytest.raises(OutcomeUnknownError, match="whether the write was stored is not known"):
                            await (
                                writer.put("flag", "late")
                                if how == "changes"
                                else hanging.put("g", "k", "flag", "late")
                            )
                        new = await other.put("g", "k", "flag", f"new{number}")
                    finally:
                        a.resume()
                    # Over the same stream, behind the late one.
                    await until_done(partial(writer.put, "mark", str(number)), OutcomeUnknownError)
                    (row,) = await other.get("g", "k", ["flag"])
                    assert (row.value, row.version) == (f"new{number}", new.version)
