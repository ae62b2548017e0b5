"""Fetch replies as columns, held against the decoder that the rest of Ringcast uses."""

from __future__ import annotations

import gc

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark_ringcast._columns import SCHEMA, read_columns
from ringcast_wire import FetchReply, PartitionRows, ProtocolError, Row, decode_fetch_reply, encode

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
rows = st.builds(
    Row,
    row_id=texts,
    value=texts,
    version=st.integers(1, 2**63 - 1),
    deleted=st.booleans(),
    metadata=st.none() | st.dictionaries(texts, texts, max_size=3),
)
entries = st.builds(
    PartitionRows,
    partition=st.integers(0, 4095),
    revision=st.integers(0, 2**63 - 1),
    whole=st.booleans(),
    rows=st.lists(rows, max_size=8),
)


def expected(entry: PartitionRows) -> list[dict[str, object]]:
    return [
        {
            "row_id": row.row_id,
            "value": None if row.deleted else row.value,
            "version": row.version,
            "partition": entry.partition,
            "deleted": row.deleted,
            "metadata": list(row.metadata.items()) if row.metadata else None,
        }
        for row in entry.rows
    ]


@settings(deadline=None)  # pyarrow imports half of pandas with its first array
@given(st.lists(entries, max_size=3))
def test_columns_hold_what_the_reply_says(partitions: list[PartitionRows]) -> None:
    body = encode(FetchReply(1, partitions))
    found = read_columns(body)
    assert [(entry.partition, entry.revision, entry.whole) for entry in found] == [
        (entry.partition, entry.revision, entry.whole) for entry in partitions
    ]
    for entry, wanted in zip(found, decode_fetch_reply(body).partitions, strict=True):
        assert entry.batch.schema.equals(SCHEMA)
        entry.batch.validate(full=True)
        assert entry.batch.to_pylist() == expected(wanted)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "fetch reply of 0 bytes can't be read"),
        (encode(FetchReply(1, [PartitionRows(0, 1, True, [Row("a", "v", 1)])]))[:-3], "can't be read"),
        (msgspec.msgpack.encode([1, [[0, 1, True, [["a", None, 1, False, None]]]]]), "can't be read"),
        (encode(FetchReply(2, [])), "fetch reply has wire version 2: this build speaks 1"),
    ],
)
def test_damaged_replies(body: bytes, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        read_columns(body)
    assert gc.isenabled()


def test_the_garbage_collector_is_left_as_it_was() -> None:
    body = encode(FetchReply(1, []))
    gc.disable()
    try:
        read_columns(body)
        assert not gc.isenabled()
    finally:
        gc.enable()
    read_columns(body)
    assert gc.isenabled()


def test_a_batch_of_many_rows_is_one_batch() -> None:
    many = [Row(f"r{number}", "v", number + 1) for number in range(50_000)]
    (entry,) = read_columns(encode(FetchReply(1, [PartitionRows(3, 50_000, True, many)])))
    assert isinstance(entry.batch, pa.RecordBatch)
    assert entry.batch.num_rows == 50_000
    assert entry.batch.column("metadata").null_count == 50_000
