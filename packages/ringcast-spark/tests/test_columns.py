"""Fetch replies as columns, held against the decoder that the rest of Ringcast uses."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import ringcast_core
from hypothesis import given
from hypothesis import strategies as st
from pyspark_ringcast._common.columns import SCHEMA, read_reply
from ringcast_wire import WIRE_VERSION, FetchReply, PartitionRows, ProtocolError, Row, decode_fetch_reply, encode

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
metadata = st.none() | st.dictionaries(texts, texts, max_size=3)
rows = st.builds(
    Row,
    row_id=texts,
    value=texts,
    version=st.integers(-(2**63), 2**63 - 1),
    deleted=st.booleans(),
    metadata=metadata,
)
entries = st.builds(
    PartitionRows,
    partition=st.integers(-(2**31), 2**31 - 1),
    revision=st.integers(-(2**63), 2**63 - 1),
    whole=st.booleans(),
    rows=st.lists(rows, max_size=8),
)

Found = list[tuple[int, int, bool, list[dict[str, object]]]]


def expected(body: bytes) -> Found | None:
    """What the other decoder finds, if it is not refused and every number fits its column."""
    try:
        reply = decode_fetch_reply(body)
    except ProtocolError:
        return None
    numbers = [number for one in reply.partitions for number in (one.revision, *(row.version for row in one.rows))]
    if any(number >= 2**63 for number in numbers):
        return None
    if any(not -(2**31) <= one.partition < 2**31 for one in reply.partitions):
        return None
    return [
        (one.partition, one.revision, one.whole, [columns_of(one, row) for row in one.rows]) for one in reply.partitions
    ]


def columns_of(entry: PartitionRows, row: Row) -> dict[str, object]:
    return {
        "row_id": row.row_id,
        "value": None if row.deleted else row.value,
        "version": row.version,
        "partition": entry.partition,
        "deleted": row.deleted,
        "metadata": list(row.metadata.items()) if row.metadata else None,
    }


def read(body: bytes) -> Found | None:
    try:
        reply = read_reply(body, "s/k")
    except ProtocolError as error:
        damaged = f"fetch reply of s/k, {len(body)} bytes: reply can't be read at byte "
        assert str(error).startswith((damaged, "fetch reply of s/k has wire version "))  # noqa: PT017
        return None
    assert reply.batch.schema.equals(SCHEMA)
    reply.batch.validate(full=True)
    there: Iterator[Any] = iter(reply.batch.to_pylist())
    found = [(one.partition, one.revision, one.whole, [next(there) for _ in range(one.rows)]) for one in reply.entries]
    assert next(there, None) is None
    return found


@given(st.lists(entries, max_size=3))
def test_columns_hold_what_the_reply_says(partitions: list[PartitionRows]) -> None:
    body = encode(FetchReply(WIRE_VERSION, partitions))
    found = read(body)
    assert found is not None
    assert found == expected(body)


# What no build of ours sends today: appended fields, defaults left out, keys given twice, numbers of any size.
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | texts | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


def mostly(usual: st.SearchStrategy[Any], other: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 15).flatmap(lambda drawn: other if drawn == 15 else usual)


numbers = mostly(st.integers(-(2**63), 2**63 - 1), st.integers(2**63, 2**64 - 1))
any_row = st.tuples(texts, mostly(texts, values), numbers, st.booleans(), mostly(metadata, values))
any_entry = st.tuples(
    mostly(st.integers(0, 4095), st.integers(-(2**33), 2**33)), numbers, st.booleans(), st.lists(any_row, max_size=3)
)


@st.composite
def loose_bodies(draw: st.DrawFn) -> bytes:
    def reshaped(fields: tuple[object, ...], optional: int) -> list[object]:
        """Without some of the fields, or with some more."""
        missing = draw(mostly(st.integers(0, optional), st.integers(0, len(fields))))
        return [*fields[: len(fields) - missing], *(draw(st.lists(values, max_size=2)) if not missing else [])]

    partitions = []
    for partition, revision, whole, found in draw(st.lists(any_entry, max_size=3)):
        partitions.append(reshaped((partition, revision, whole, [reshaped(row, 2) for row in found]), 0))
    version = draw(mostly(st.just(WIRE_VERSION), st.integers(0, 3)))
    return msgspec.msgpack.encode(reshaped((version, partitions), 0))


@given(loose_bodies())
def test_what_is_accepted_is_what_the_other_decoder_accepts(body: bytes) -> None:
    assert read(body) == expected(body)


SAMPLE = encode(
    FetchReply(
        WIRE_VERSION,
        [
            PartitionRows(
                3, 700, True, [Row("a", "v" * 40, 1), Row("é", "日本語", 70_000, metadata={"k": "v", "l": "é"})]
            ),
            PartitionRows(4095, 2**40, False, [Row("gone", "", 2**40, deleted=True), Row("", "", 5)]),
        ],
    )
)


def damaged(seed: int) -> bytes:
    """The sample after a few of the things that happen to bytes."""
    draw = random.Random(seed)
    body = bytearray(SAMPLE)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(body) or 1)
        match draw.randrange(5):
            case 0 if body:
                body[at] = draw.randrange(256)
            case 1 if body:
                body[at] ^= 1 << draw.randrange(8)
            case 2:
                del body[at : at + draw.randint(1, 4)]
            case 3:
                body[at:at] = draw.randbytes(draw.randint(1, 4))
            case _:
                body[at:at] = body[at : at + draw.randint(1, 12)]
    return bytes(body)


def test_damaged_replies_are_refused_or_read_alike() -> None:
    outcomes = {True: 0, False: 0}
    for seed in range(6_000):
        body = damaged(seed)
        found = read(body)
        assert found == expected(body), f"seed {seed}: {body!r}"
        outcomes[found is None] += 1
    assert min(outcomes.values()) > 200, "nothing was refused, or nothing else"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "fetch reply of s/k, 0 bytes: reply can't be read at byte 0: it ends too early"),
        (SAMPLE[:-3], "it ends too early"),
        (SAMPLE + b"\0", "something follows its end"),
        (msgspec.msgpack.encode([1, [[0, 1, True, [["a", None, 1, False, None]]]]]), "value must be str, got nil"),
        (encode(FetchReply(3, [])), "^fetch reply of s/k has wire version 3: this build speaks 1; upgrade it$"),
        (msgspec.msgpack.encode([3, "of another form"]), "^fetch reply of s/k has wire version 3: this build speaks 1"),
        (encode(FetchReply(1, [PartitionRows(0, 1, True, [Row("a", "v", 2**63)])])), "version must fit"),
    ],
)
def test_refusals_say_what_is_wrong(body: bytes, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        read_reply(body, "s/k")


def test_the_core_reads_the_version_that_the_wire_speaks() -> None:
    assert ringcast_core.WIRE_VERSION == WIRE_VERSION


MANY = [Row(f"r{number}", "v", number + 1) for number in range(50_000)]


def test_an_answer_about_one_partition_has_one_entry() -> None:
    with pytest.raises(ProtocolError, match="fetch reply about one partition has 2 entries"):
        _ = read_reply(SAMPLE, "s/k").entry


def test_a_batch_of_many_rows_is_one_batch() -> None:
    reply = read_reply(encode(FetchReply(1, [PartitionRows(3, 50_000, True, MANY)])), "s/k")
    assert isinstance(reply.batch, pa.RecordBatch)
    assert reply.batch.num_rows == 50_000
    assert reply.batch.column("metadata").null_count == 50_000


def test_columns_outlive_what_they_came_from() -> None:
    """Each array keeps the memory of all alive by itself, whichever thread lets go of it last."""
    body = encode(FetchReply(1, [PartitionRows(3, 50_000, True, MANY)]))
    kept: list[pa.Array] = []

    def work() -> None:
        kept.extend(read_reply(bytes(bytearray(body)), "s/k").batch.column("row_id").slice(10, 3) for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kept) == 20
    assert {tuple(column.to_pylist()) for column in kept} == {("r10", "r11", "r12")}
