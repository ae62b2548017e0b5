"""Events and fetch replies as bytes and back, beside `json`, `orjson` and protobuf; and replies cut into chunks.

The protobuf message is the gRPC API's own list of rows, which has the same fields. Chunking stands beside slices that
are joined again with no header and no checksum: a floor, no rival.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from ringcast_wire import (
    WIRE_VERSION,
    Change,
    ChunkAssembler,
    Event,
    FetchReply,
    PartitionRows,
    Row,
    decode_event,
    decode_fetch_reply,
    encode,
    limits,
    split_chunks,
)
from ringcast_wire.grpc import pb

from benchmarks.micro.core_peer import beside

PEERS = ("json", "orjson", "protobuf")
TIMES = 200
MAX_PAYLOAD = 1 * limits.MIB


def event(changes: int) -> Event:
    """As the relay writes it, with values of 100 bytes."""
    listed = [Change(f"row-{number:06d}", number + 1, False, "v" * 100) for number in range(changes)]
    return Event(WIRE_VERSION, 0, changes, 1_700_000_000_000, listed)


def reply(rows: int) -> FetchReply:
    """A whole partition."""
    held = [Row(f"row-{number:06d}", "v" * 100, number + 1) for number in range(rows)]
    return FetchReply(WIRE_VERSION, [PartitionRows(7, rows, True, held)])


def as_json(message: Event | FetchReply) -> Any:
    """What the standard library can write: the same arrays."""
    if isinstance(message, Event):
        changes = [[change.row_id, change.version, change.deleted, change.value] for change in message.changes or []]
        return [message.wire_version, message.prev, message.rev, message.committed_at_ms, changes]
    rows = [[row.row_id, row.value, row.version, row.deleted] for row in message.partitions[0].rows]
    return [message.wire_version, [[7, message.partitions[0].revision, True, rows]]]


def as_protobuf(message: Event | FetchReply) -> pb.ListResponse:
    """The rows alone."""
    rows = (message.changes or []) if isinstance(message, Event) else message.partitions[0].rows
    return pb.ListResponse(rows=[pb.Row(row_id=row.row_id, value=row.value or "", version=row.version) for row in rows])


def read_protobuf(data: bytes) -> list[tuple[str, str, int]]:
    """Its fields become Python objects only when they are read."""
    return [(row.row_id, row.value, row.version) for row in pb.ListResponse.FromString(data).rows]


def repeated(call: Callable[[], object], times: int) -> Callable[[], object]:
    """Messages are small: one call alone would time the clock."""

    def run() -> object:
        for _ in range(times - 1):
            call()
        return call()

    return run


MESSAGES: dict[str, Event | FetchReply] = {
    "event of 1": event(1),
    "event of 16": event(16),
    "reply of 10,000": reply(10_000),
}
"""By the changes or rows in it."""


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("name", MESSAGES)
def test_encode(benchmark: Any, name: str, peer: str) -> None:
    """From the objects that the program has: for protobuf that means to build its messages as well."""
    message = MESSAGES[name]
    times = TIMES if isinstance(message, Event) else 1

    def theirs() -> bytes:
        if peer == "json":
            return json.dumps(as_json(message), separators=(",", ":")).encode()
        if peer == "orjson":
            return orjson.dumps(as_json(message))
        return as_protobuf(message).SerializeToString()

    found = beside(
        benchmark, f"encode {name}, {peer}", times, repeated(lambda: encode(message), times), repeated(theirs, times)
    )
    assert isinstance(found, bytes)
    assert theirs()


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("name", MESSAGES)
def test_decode(benchmark: Any, name: str, peer: str) -> None:
    """To typed and checked objects; JSON gives lists of whatever came, protobuf objects as its fields are read."""
    message = MESSAGES[name]
    times = TIMES if isinstance(message, Event) else 1
    read: Callable[[bytes], object] = decode_event if isinstance(message, Event) else decode_fetch_reply
    ours = encode(message)
    theirs = as_protobuf(message).SerializeToString() if peer == "protobuf" else orjson.dumps(as_json(message))
    readers: dict[str, Callable[[bytes], object]] = {
        "json": json.loads,
        "orjson": orjson.loads,
        "protobuf": read_protobuf,
    }
    decode = readers[peer]
    calls = repeated(lambda: read(ours), times), repeated(lambda: decode(theirs), times)
    assert beside(benchmark, f"decode {name}, {peer}", times, *calls) == message


@pytest.mark.parametrize("size", [100 * limits.KIB, 8 * limits.MIB])
def test_chunks(benchmark: Any, size: int) -> None:
    """A body cut into what a server takes, and put together again."""
    body = bytes(range(256)) * (size // 256)
    step = MAX_PAYLOAD - limits.CHUNK_HEADROOM_BYTES

    def ours() -> bytes | None:
        assembler, whole = ChunkAssembler(), None
        for chunk in split_chunks(body, MAX_PAYLOAD):
            whole = assembler.add(chunk.header, chunk.data)
        return whole

    def floor() -> bytes:
        view = memoryview(body)
        return b"".join([bytes(view[at : at + step]) for at in range(0, len(body), step)])

    assert beside(benchmark, f"chunks of {size} bytes, bare slices", size, ours, floor) == body
