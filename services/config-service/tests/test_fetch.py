"""Fetches of workers over NATS, as the wire contract has them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ringcast_core import row_partition
from ringcast_testkit import PATIENCE_S, NatsServer
from ringcast_wire import (
    WIRE_VERSION,
    BatchRequest,
    LimitExceededError,
    PartitionRequest,
    ProtocolError,
    RingcastError,
    UnavailableError,
    UnknownKeyError,
    UnknownStoreError,
    batch_payload,
    decode_event,
    decode_fetch_reply,
    decode_heads_reply,
    encode,
    full_payload,
    heads_payload,
    names,
    partition_payload,
)
from ringcast_wire.grpc import pb

Running = Any  # of conftest.py


async def test_every_kind(service: Running, store_name: str) -> None:
    await service.create(store_name)
    await service.write(store_name, [pb.RowWrite(row_id=f"r{n}", value=str(n)) for n in range(100)])
    await service.stub.Delete(pb.DeleteRequest(store=store_name, key="k", row_id="r1"))
    reply = decode_heads_reply(await service.fetch(store_name, "heads"))
    heads, history = reply.heads, reply.history
    assert sum(heads) == 101
    home = row_partition("r1", 8)

    (whole,) = decode_fetch_reply(await service.fetch(store_name, home)).partitions
    assert (whole.partition, whole.revision, whole.whole) == (home, heads[home], True)
    assert {row.row_id for row in whole.rows} == {
        f"r{n}" for n in range(100) if n != 1 and row_partition(f"r{n}", 8) == home
    }

    since = encode(PartitionRequest(since=heads[home] - 1, history=history))
    (delta,) = decode_fetch_reply(await service.fetch(store_name, home, since)).partitions
    assert (delta.whole, [(row.row_id, row.deleted) for row in delta.rows]) == (False, [("r1", True)])

    batch = encode(BatchRequest(WIRE_VERSION, ["r1", "r2", "none"]))
    entries = decode_fetch_reply(await service.fetch(store_name, "batch", batch)).partitions
    assert {row.row_id: row.deleted for entry in entries for row in entry.rows} == {"r1": True, "r2": False}
    assert all(entry.revision == heads[entry.partition] for entry in entries)

    full = decode_fetch_reply(await service.fetch(store_name, "full")).partitions
    assert sum(len(entry.rows) for entry in full) == 99


async def test_a_large_partition_comes_in_chunks(service: Running, store_name: str) -> None:
    await service.create(store_name, 1)
    for number in range(7):
        await service.put(store_name, f"r{number}", str(number) * 1_000_000)
    (found,) = decode_fetch_reply(await service.fetch(store_name, 0)).partitions
    assert [row.value[:2] for row in found.rows] == [f"{n}{n}" for n in range(7)]


@pytest.mark.parametrize(
    ("what", "payload", "error", "sentence"),
    [
        (8, b"", RingcastError, "partitions 0 to 7"),
        (0, b"\xc1 no message", ProtocolError, "partition request of 12 bytes can't be read"),
        ("batch", b"", ProtocolError, "batch request"),
        ("batch", encode(BatchRequest(WIRE_VERSION, [])), ProtocolError, "row_ids has 0 entries"),
        ("batch", encode(BatchRequest(WIRE_VERSION, ["x" * 600])), RingcastError, "600 bytes"),
        ("batch", encode(BatchRequest(99, ["a"])), ProtocolError, "wire version 99"),
        ("full", b"x", ProtocolError, "request for a whole key of 1 bytes can't be read"),
        ("other", b"", ProtocolError, "does not end with a partition number"),
        ("01", b"", ProtocolError, "does not end with a partition number"),
    ],
)
async def test_bad_requests(
    service: Running, store_name: str, what: int | str, payload: bytes, error: type[RingcastError], sentence: str
) -> None:
    await service.create(store_name)
    await service.put(store_name, "a")
    with pytest.raises(error, match=sentence):
        await service.fetch(store_name, what, payload)


async def test_an_answer_is_of_no_newer_version_than_its_asker_reads(
    service: Running, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a service answers that writes version 3 too: an asker that does not say what it reads is of a build before."""
    monkeypatch.setattr("ringcast_wire._common.versions.WIRE_VERSIONS", (WIRE_VERSION, 3))
    await service.create(store_name)
    await service.put(store_name, "a")
    await service.put(store_name, "a")
    home = row_partition("a", 8)
    history = decode_heads_reply(await service.fetch(store_name, "heads")).history
    found: dict[int, list[int]] = {}
    for reads in (1, 2, 3, 9):
        asked: list[tuple[int | str, bytes]] = [
            (home, partition_payload(reads=reads)),
            (home, partition_payload(1, history, reads=reads)),
            (home, partition_payload(as_of=1, history=history, reads=reads)),
            ("batch", batch_payload(["a"], reads=reads)),
            ("heads", heads_payload(reads=reads)),
            ("full", full_payload(reads=reads)),
        ]
        answers = [msgspec.msgpack.decode(await service.fetch(store_name, *words)) for words in asked]
        found[reads] = [answer[0] for answer in answers]
    assert found == {1: [1] * 6, 2: [1] * 6, 3: [3] * 6, 9: [3] * 6}
    silent: list[tuple[int | str, bytes]] = [
        (home, b""),
        ("batch", msgspec.msgpack.encode([1, ["a"]])),
        ("heads", b""),
        ("full", b""),
    ]
    assert [msgspec.msgpack.decode(await service.fetch(store_name, *words))[0] for words in silent] == [1] * 4


async def test_unknown_names(service: Running, store_name: str) -> None:
    await service.create(store_name)
    for what in (0, "full", "heads"):
        with pytest.raises(UnknownStoreError, match="there is no store 'none'"):
            await service.fetch("none", what)
        with pytest.raises(UnknownKeyError, match="has no config key 'k'"):
            await service.fetch(store_name, what)


async def test_a_full_fetch_that_is_too_large(service: Running, store_name: str) -> None:
    await service.create(store_name, 64)
    value = "x" * 1_000_000
    for first in range(0, 68, 17):  # what one connection may have waiting is bounded
        await asyncio.gather(*(service.put(store_name, f"r{number}", value) for number in range(first, first + 17)))
    with pytest.raises(LimitExceededError, match="a full fetch may have 50331648: fetch partition by partition"):
        await service.fetch(store_name, "full")
    batch = encode(BatchRequest(WIRE_VERSION, [f"r{number}" for number in range(68)]))
    with pytest.raises(LimitExceededError, match="a reply may have 67108864: ask for fewer"):
        await service.fetch(store_name, "batch", batch)


async def test_more_fetches_than_can_wait(start: Any, nats_url: str, tmp_path: Path, store_name: str) -> None:
    """With one at work and one waiting, the rest of a burst is told so, and nobody is left without an answer."""
    async with start(nats_url, f"sqlite:{tmp_path / 'x.db'}", fetches=1, waiting_fetches=1) as service:
        await service.create(store_name)
        await service.put(store_name, "a")
        results = await asyncio.gather(*(service.fetch(store_name, 0) for _ in range(60)), return_exceptions=True)
    assert {type(result) for result in results} == {bytes, UnavailableError}
    assert "1 fetches wait already" in str(next(r for r in results if isinstance(r, UnavailableError)))


async def test_deletes_past_their_retention(start: Any, nats_url: str, tmp_path: Path, store_name: str) -> None:
    """Once the tombstones are compacted, a worker that was away longer gets the whole partition."""
    database = f"sqlite:{tmp_path / 'x.db'}"
    async with start(nats_url, database, tombstone_retention_ms=1000, compaction_interval_s=0.05) as service:
        await service.create(store_name, 1)
        await service.write(store_name, [pb.RowWrite(row_id="a", value="1"), pb.RowWrite(row_id="b", value="1")])
        await service.stub.Delete(pb.DeleteRequest(store=store_name, key="k", row_id="a"))
        history = decode_heads_reply(await service.fetch(store_name, "heads")).history
        since = encode(PartitionRequest(since=2, history=history))
        (delta,) = decode_fetch_reply(await service.fetch(store_name, 0, since)).partitions
        assert (delta.whole, [(row.row_id, row.deleted) for row in delta.rows]) == (False, [("a", True)])
        async with asyncio.timeout(PATIENCE_S):
            while not delta.whole:
                (delta,) = decode_fetch_reply(await service.fetch(store_name, 0, since)).partitions
        assert (delta.revision, [(row.row_id, row.deleted) for row in delta.rows]) == (3, [("b", False)])
        since = encode(PartitionRequest(since=3, history=history))
        (none,) = decode_fetch_reply(await service.fetch(store_name, 0, since)).partitions
        assert (none.whole, none.rows) == (False, [])


async def test_a_message_that_nobody_waits_for(service: Running, store_name: str) -> None:
    await service.create(store_name)
    await service.put(store_name, "a")
    await service.nc.publish(names.fetch_subject(store_name, "k", 0), b"")
    assert await service.fetch(store_name, 0)


async def test_a_small_payload_limit(start: Any, tmp_path: Path, store_name: str) -> None:
    """A server with a limit of 64 KiB: replies come in more chunks, and an event that is too large says less."""
    with NatsServer(tmp_path / "nats", max_payload=65_536) as server:
        async with start(server.url, f"sqlite:{tmp_path / 'x.db'}") as service:
            await service.create(store_name, 1, inline_max_bytes=4096)
            js = service.nc.jetstream()
            await service.write(store_name, [pb.RowWrite(row_id=f"r{n}", value="x" * 4000) for n in range(50)])
            (found,) = decode_fetch_reply(await service.fetch(store_name, 0)).partitions
            assert len(found.rows) == 50
            subscription = await js.subscribe(names.notify_subject(store_name, "k", 0))
            event = decode_event((await subscription.next_msg(timeout=PATIENCE_S)).data)
            assert (event.prev, event.rev, event.changes) == (0, 50, None)


async def test_large_batches_wait_apart_within_the_budget_of_large_answers(
    service: Running, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While both hands for large answers are busy, large batches wait before their rows are read; small ones go on."""
    await service.create(store_name)
    rows = {f"r{number}": str(number) * 500_000 for number in range(6)}
    for row_id, value in rows.items():
        await service.put(store_name, row_id, value)
    reader = service.app.core.handlers._repository.reader
    read_rows, held, go_on = reader.read_rows, asyncio.Semaphore(0), asyncio.Event()
    under_way = 0

    async def slowly(store: str, key: str, row_ids: Any, most_bytes: int) -> Any:
        nonlocal under_way
        found = await read_rows(store, key, row_ids, most_bytes)
        if len(row_ids) > 1:
            under_way += 1
            held.release()
            await go_on.wait()
        return found

    monkeypatch.setattr(reader, "read_rows", slowly)
    large = encode(BatchRequest(WIRE_VERSION, list(rows)))
    fetches = [asyncio.create_task(service.fetch(store_name, "batch", large)) for _ in range(5)]
    for _ in range(2):
        await asyncio.wait_for(held.acquire(), PATIENCE_S)
    small = encode(BatchRequest(WIRE_VERSION, ["r0"]))
    for _ in range(5):
        (entry,) = decode_fetch_reply(await service.fetch(store_name, "batch", small)).partitions
        assert entry.rows[0].value == rows["r0"]
    assert under_way == 2  # the others wait, unread
    go_on.set()
    for fetched in await asyncio.gather(*fetches):
        entries = decode_fetch_reply(fetched).partitions
        assert {row.row_id: row.value for entry in entries for row in entry.rows} == rows
