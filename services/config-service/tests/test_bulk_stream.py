"""How bulk streams end, and clients that don't read."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import grpc
import pytest
from ringcast_config_service.grpc import bulk_stream
from ringcast_config_service.grpc import input as transport_input
from ringcast_config_service.grpc.admission import LIMITS, CallKind, Limit
from ringcast_config_service.grpc.bulk_stream import BulkStream
from ringcast_testkit import PATIENCE_S
from ringcast_wire.grpc import pb

Running = Any  # of conftest.py


def batch(store: str, sequence: int, rows: int = 1) -> pb.WriteBatch:
    return pb.WriteBatch(
        store=store, key="k", sequence=sequence, row_ids=[f"{sequence}-{n}" for n in range(rows)], values=["v"] * rows
    )


async def test_a_stream_ends_in_time(start: Any, nats_url: str, tmp_path: Path, store_name: str) -> None:
    async with start(nats_url, f"sqlite:{tmp_path / 'ringcast.db'}", change_stream_s=0.05) as service:
        await service.create(store_name)
        call = service.stub.Write()
        assert (await call.read()).last
        await call.write(batch(store_name, 1))  # too late: it is not written
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        assert not (await service.stub.GetStore(pb.GetStoreRequest(name=store_name))).keys


async def test_what_was_read_is_answered_before_the_end(
    start: Any, nats_url: str, tmp_path: Path, store_name: str
) -> None:
    async with start(nats_url, f"sqlite:{tmp_path / 'ringcast.db'}", change_stream_s=0.05) as service:
        await service.create(store_name)
        written = 0
        for _ in range(20):
            call = service.stub.Write()
            sending = asyncio.create_task(send_all(call, store_name))
            answered = 0
            while not (result := await call.read()).last:
                answered += 1
                assert result.sequence == answered
            written += answered
            sending.cancel()
            call.cancel()
            keys = (await service.stub.GetStore(pb.GetStoreRequest(name=store_name))).keys
            heads = await service.stub.Heads(pb.HeadsRequest(store=store_name, key="k")) if keys else None
            assert sum(heads.heads if heads else ()) == 100 * written
        assert written


async def send_all(call: Any, store: str) -> None:
    for sequence in range(1, 10_000):
        await call.write(batch(store, sequence, 100))


@pytest.mark.parametrize(("name", "limit"), [("BATCHES_IN_FLIGHT", 3), ("BYTES_IN_FLIGHT", 2 * 590 + 1)])
async def test_no_more_is_read_ahead_than_may_be(
    service: Running, store_name: str, monkeypatch: pytest.MonkeyPatch, name: str, limit: int
) -> None:
    """A batch has 100 rows of 590 bytes: three unanswered ones reach either limit, and all are answered."""
    unanswered: list[int] = []
    add = BulkStream._add

    def counting(stream: BulkStream, answer: Any) -> None:
        add(stream, answer)
        unanswered.append(len(stream._answers))

    monkeypatch.setattr(bulk_stream, name, limit)
    monkeypatch.setattr(BulkStream, "_add", counting)
    await service.create(store_name)
    call = service.stub.Write()
    for sequence in range(10, 70):
        await call.write(batch(store_name, sequence, 100))
    await call.done_writing()
    assert [result.sequence async for result in call] == list(range(10, 70))
    assert 1 <= max(unanswered) <= 3


async def test_a_stop_ends_streams_that_are_open(start: Any, nats_url: str, tmp_path: Path, store_name: str) -> None:
    async with start(nats_url, f"sqlite:{tmp_path / 'ringcast.db'}") as service:
        await service.create(store_name)
        call = service.stub.Write()
        await call.write(batch(store_name, 1))
        assert (await call.read()).written == 1
        stopping = asyncio.create_task(service.stop())
        assert (await call.read()).last
        call.cancel()
        await stopping


async def test_a_client_that_reads_nothing_loses_its_place(
    service: Running, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_input, "SEND_TIMEOUT_S", 0.1)
    monkeypatch.setattr("ringcast_service._calls._ABORT_TIMEOUT_S", 0.1)
    monkeypatch.setitem(LIMITS, CallKind.CHANGES, Limit(1, 1, 1))
    await service.create(store_name)
    silent = service.stub.Change()
    invalid = [pb.RowChange(number=number, row_id="x" * 600, value="v") for number in range(1_000)]
    for _ in range(2):  # the sentences of the refusals are more than a client has room for
        await silent.write(pb.Changes(store=store_name, key="k", changes=invalid))
    async with asyncio.timeout(PATIENCE_S):
        while True:
            call = service.stub.Change()
            with contextlib.suppress(grpc.aio.AioRpcError):
                await call.wait_for_connection()
                break
