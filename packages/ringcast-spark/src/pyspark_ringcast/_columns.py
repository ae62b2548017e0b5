"""Fetch replies as Arrow record batches: the hot path of a read."""

from __future__ import annotations

import gc
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from ringcast_wire import WIRE_VERSION, ProtocolError

SCHEMA: Final = pa.schema(
    [
        pa.field("row_id", pa.string(), nullable=False),
        pa.field("value", pa.string()),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("deleted", pa.bool_(), nullable=False),
        pa.field("metadata", pa.map_(pa.string(), pa.string())),
    ]
)
"""What Spark makes of ``READ_SCHEMA``; it compares the two strictly."""


class Columns(NamedTuple):
    """Rows of one partition as of ``revision``. ``whole``: see :class:`ringcast_wire.PartitionRows`."""

    partition: int
    revision: int
    whole: bool
    batch: pa.RecordBatch


class _Rows(msgspec.Struct, array_like=True, gc=False):
    partition: int
    revision: int
    whole: bool
    rows: list[tuple[str, str, int, bool, dict[str, str] | None]]


class _Reply(msgspec.Struct, array_like=True, gc=False):
    wire_version: int
    partitions: list[_Rows]


_reply: Final = msgspec.msgpack.Decoder(_Reply)


def read_columns(body: bytes) -> list[Columns]:
    """The entries of an encoded fetch reply.

    Collecting garbage meanwhile would look at millions of new tuples, which live until the columns are made, time and
    again: it waits.

    Raises:
        ProtocolError: it is damaged, or of another wire version.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        reply = _decoded(body)
        return [Columns(entry.partition, entry.revision, entry.whole, _batch(entry)) for entry in reply.partitions]
    finally:
        if collecting:
            gc.enable()


def _decoded(body: bytes) -> _Reply:
    try:
        reply = _reply.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f"fetch reply of {len(body)} bytes can't be read: {error}") from error
    if reply.wire_version != WIRE_VERSION:
        raise ProtocolError(f"fetch reply has wire version {reply.wire_version}: this build speaks {WIRE_VERSION}")
    return reply


def _batch(entry: _Rows) -> pa.RecordBatch:
    if not entry.rows:
        return _EMPTY
    row_ids, values, versions, deleted, metadata = zip(*entry.rows, strict=True)
    count = len(entry.rows)
    texts = pa.array(values, pa.string())
    if any(deleted):
        gone = pa.array(deleted, pa.bool_())
        texts = pc.if_else(gone, pa.scalar(None, pa.string()), texts)
    else:
        gone = pa.repeat(False, count)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(row_ids, pa.string()),
            texts,
            pa.array(versions, pa.int64()),
            pa.repeat(pa.scalar(entry.partition, pa.int32()), count),
            gone,
            _metadata(metadata),
        ],
        schema=SCHEMA,
    )


def _metadata(found: tuple[dict[str, str] | None, ...]) -> pa.Array:
    if not any(found):
        return pa.nulls(len(found), SCHEMA.field("metadata").type)
    pairs = [None if not entries else list(entries.items()) for entries in found]
    return pa.array(pairs, SCHEMA.field("metadata").type)


# Not from a list: Arrow imports pandas for that, which takes longer than all else that is imported here.
_EMPTY: Final = pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in SCHEMA.types], schema=SCHEMA)
