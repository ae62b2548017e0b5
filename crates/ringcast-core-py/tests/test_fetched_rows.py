"""Fetch replies as Arrow columns: the hand-over. What is in them is tested beside the decoder they are held against."""

from __future__ import annotations

import gc
import threading

import pyarrow as pa
import pytest
from ringcast_core import FetchedRows, read_fetch_reply

# Two entries: a row with metadata and a tombstone of partition 3, and one row of partition 4.
REPLY = (
    b"\x92\x01\x92"
    b"\x94\x03\x09\xc3\x92\x95\xa1a\xa1v\x01\xc2\x81\xa1k\xa2\xc3\xa9\x95\xa1b\xa1w\x02\xc3\xc0"
    b"\x94\x04\x07\xc2\x91\x93\xa1c\xa0\x03"
)
ROWS = [
    {"row_id": "a", "value": "v", "version": 1, "partition": 3, "deleted": False, "metadata": [("k", "é")]},
    {"row_id": "b", "value": None, "version": 2, "partition": 3, "deleted": True, "metadata": None},
    {"row_id": "c", "value": "", "version": 3, "partition": 4, "deleted": False, "metadata": None},
]
SCHEMA = pa.schema(
    [
        pa.field("row_id", pa.string(), nullable=False),
        pa.field("value", pa.string()),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("deleted", pa.bool_(), nullable=False),
        pa.field("metadata", pa.map_(pa.string(), pa.string())),
    ]
)


def test_rows_become_a_record_batch() -> None:
    found = read_fetch_reply(REPLY)
    assert found.entries == [(3, 9, True, 2), (4, 7, False, 1)]
    assert len(found) == 3
    batch = pa.record_batch(found)
    batch.validate(full=True)
    assert batch.schema.equals(SCHEMA, check_metadata=True)
    assert batch.to_pylist() == ROWS
    assert [batch.column(name).null_count for name in SCHEMA.names] == [0, 1, 0, 0, 0, 2]


def test_a_reply_without_rows() -> None:
    for body, entries in ((b"\x92\x01\x90", []), (b"\x92\x01\x91\x94\x00\x00\xc3\x90", [(0, 0, True, 0)])):
        found = read_fetch_reply(body)
        assert (found.entries, len(found)) == (entries, 0)
        batch = pa.record_batch(found)
        batch.validate(full=True)
        assert (batch.schema, batch.num_rows) == (SCHEMA, 0)


def test_rows_may_be_handed_over_often_and_kept_in_parts() -> None:
    found = read_fetch_reply(REPLY)
    first, second = pa.record_batch(found), pa.record_batch(found)
    assert first.column("row_id").buffers()[2].address == second.column("row_id").buffers()[2].address
    column = first.column("metadata")
    del found, first, second
    gc.collect()
    assert column.to_pylist() == [[("k", "é")], None, None]


def test_capsules_that_nobody_takes_are_released() -> None:
    for _ in range(1000):
        capsules = read_fetch_reply(REPLY).__arrow_c_array__(None)
        assert len(capsules) == 2


def test_threads_read_at_the_same_time() -> None:
    bodies = [REPLY] * 200
    found: list[FetchedRows] = []
    threads = [threading.Thread(target=lambda: found.extend(map(read_fetch_reply, bodies))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(one) for one in found] == [3] * 800


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", r"^reply can't be read at byte 0: it ends too early$"),
        (REPLY[:-1], r"at byte \d+: it ends too early$"),
        (b"\x92\x02\x90", r"^reply can't be read at byte 2: it has wire version 2, this build speaks 1$"),
        (b"\x92\x01\xdd\xff\xff\xff\xff", r"at byte 7: it ends too early$"),
    ],
)
def test_damaged_replies_are_refused(body: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_fetch_reply(body)


def test_only_bytes_are_read() -> None:
    for body in ("text", None, [1], bytearray(REPLY)):
        with pytest.raises(TypeError):
            read_fetch_reply(body)  # type: ignore[arg-type]
