"""Streams of single changes, message by message."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from ringcast_config_service.grpc import change_stream
from ringcast_core import row_partition
from ringcast_wire import ErrorCode, limits
from ringcast_wire.grpc import SERVICE_NAME, error_from_rpc, pb

Running = Any  # of conftest.py


def changes(store: str, *values: str, first: int = 0) -> pb.Changes:
    """Changes of r0, r1 and so on, numbered from ``first``."""
    rows = (pb.RowChange(number=first + at, row_id=f"r{first + at}", value=value) for at, value in enumerate(values))
    return pb.Changes(store=store, key="k", changes=rows)


async def results(call: Any, count: int) -> list[pb.ChangeResult]:
    """So many answers, which may come in any number of messages."""
    found: list[pb.ChangeResult] = []
    while len(found) < count:
        found += (await call.read()).results
    return sorted(found, key=lambda one: one.number)


async def to_the_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def refusal(call: Any) -> tuple[ErrorCode, str | None, str]:
    """What the stream ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await to_the_end(call)
    error = error_from_rpc(caught.value)
    return error.code, error.field, str(error)


async def test_each_is_answered_by_itself(service: Running, store_name: str) -> None:
    await service.create(store_name)
    call = service.stub.Change()
    await call.write(changes(store_name, "a", "b"))
    both = await results(call, 2)
    assert [(one.number, one.partition, one.error) for one in both] == [
        (number, row_partition(f"r{number}", 8), "") for number in range(2)
    ]
    bad = changes(store_name, "c", "", "d", first=2)
    bad.changes[1].row_id = ""
    await call.write(bad)
    answered = await results(call, 3)
    assert [(one.error, one.field) for one in answered] == [("", ""), ("INVALID_INPUT", "row_id"), ("", "")]
    assert answered[1].message.startswith("row_id '' has 0 bytes")
    await call.write(pb.Changes(store="nowhere", key="k", changes=[pb.RowChange(number=9, row_id="a")]))
    (unknown,) = await results(call, 1)
    assert (unknown.number, unknown.error) == (9, "UNKNOWN_STORE")
    gone = [pb.RowChange(number=number, row_id="r0", delete=True) for number in (1, 2)]
    await call.write(pb.Changes(store=store_name, key="k", changes=gone))
    deleted, absent = await results(call, 2)
    assert deleted.version > 0
    assert absent.version == 0
    await call.write(pb.Changes(store=store_name, key="k"))  # nothing is nothing
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_what_ends_a_stream(service: Running, store_name: str) -> None:
    await service.create(store_name)
    call = service.stub.Change()
    await call.write(changes(store_name, *["v"] * (limits.MAX_BATCH_ROWS + 1)))
    said = "changes has 1001 entries: at most 1000 are allowed"
    assert await refusal(call) == (ErrorCode.INVALID_INPUT, "changes", said)
    damaged = changes(store_name, "XX").SerializeToString().replace(b"XX", b"\xff\xfe")
    call = service.channel.stream_stream(f"/{SERVICE_NAME}/Change")()
    await call.write(changes(store_name, "v").SerializeToString())
    await call.write(damaged)
    assert pb.ChangeResults.FromString(await call.read()).results[0].number == 0  # what came before is answered
    code, _, said = await refusal(call)
    assert (code, said.endswith("bad UTF-8")) == (ErrorCode.INVALID_INPUT, True)
    assert [key.rows for key in (await service.stub.GetStore(pb.GetStoreRequest(name=store_name))).keys] == [1]


async def test_nothing_more_is_read_while_too_much_is_unanswered(
    service: Running, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_stream, "MAX_UNANSWERED", 4)
    await service.create(store_name)
    call = service.stub.Change()
    for first in range(0, 120, 3):
        await call.write(changes(store_name, "a", "b", "c", first=first))
    assert [one.number for one in await results(call, 120)] == list(range(120))


async def test_a_stream_ends_in_time_and_at_a_stop(start: Any, nats_url: str, tmp_path: Path, store_name: str) -> None:
    async with start(nats_url, f"sqlite:{tmp_path / 'ringcast.db'}", change_stream_s=0.05) as service:
        await service.create(store_name)
        call = service.stub.Change()
        assert (await call.read()).last
        await call.write(changes(store_name, "v"))  # too late: it is not written
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        assert not (await service.stub.GetStore(pb.GetStoreRequest(name=store_name))).keys
    async with start(nats_url, f"sqlite:{tmp_path / 'ringcast.db'}") as service:
        call = service.stub.Change()
        await call.write(changes(store_name, "v"))
        await results(call, 1)
        stopping = asyncio.create_task(service.stop())
        assert (await call.read()).last
        call.cancel()
        await stopping


async def test_a_client_that_goes_away(service: Running, store_name: str) -> None:
    await service.create(store_name)
    for _ in range(20):
        call = service.stub.Change()
        await call.write(changes(store_name, *"abcdef"))
        call.cancel()
    call = service.stub.Change()
    await call.write(changes(store_name, "v"))
    await results(call, 1)
    (key,) = (await service.stub.GetStore(pb.GetStoreRequest(name=store_name))).keys
    assert key.rows in range(1, 7)  # each of what the others sent is written or not
