"""Row partitioning from Python: every way in agrees, and what is wrong is said."""

from __future__ import annotations

import threading
from array import array
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from ringcast_core import MAX_PARTITIONS, row_partition, row_partitions, row_partitions_arrow

ROW_IDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
COUNTS = st.integers(1, MAX_PARTITIONS)
STRINGS = (pa.string(), pa.large_string(), pa.string_view())
BINARIES = (pa.binary(), pa.large_binary(), pa.binary_view())


def expected(data: bytes, partitions: int) -> int:
    unsigned = xxhash.xxh64_intdigest(data, seed=42)
    signed = unsigned - (1 << 64) if unsigned >> 63 else unsigned
    return int(signed % partitions)


@given(st.binary(max_size=600), COUNTS)
def test_one_row_is_the_floor_modulo_of_its_signed_hash(data: bytes, partitions: int) -> None:
    assert row_partition(data, partitions) == expected(data, partitions)


@given(st.lists(ROW_IDS), COUNTS)
def test_every_way_in_agrees(ids: list[str], partitions: int) -> None:
    want = [expected(row_id.encode(), partitions) for row_id in ids]
    assert [row_partition(row_id, partitions) for row_id in ids] == want
    found = row_partitions(ids, partitions)
    assert found == array("i", want)
    assert row_partitions(tuple(row_id.encode() for row_id in ids), partitions) == found
    assert row_partitions(iter(ids), partitions) == found
    for kind in STRINGS:
        assert pa.array(row_partitions_arrow(pa.array(ids, kind), partitions)).to_pylist() == want
    for kind in BINARIES:
        column = pa.array([row_id.encode() for row_id in ids], kind)
        assert pa.array(row_partitions_arrow(column, partitions)).to_pylist() == want


@given(st.lists(ROW_IDS, max_size=30), st.data())
def test_slices_and_chunks_of_a_column(ids: list[str], data: st.DataObject) -> None:
    cut = sorted(data.draw(st.lists(st.integers(0, len(ids)), min_size=2, max_size=2)))
    for kind in STRINGS:
        column = pa.array(ids, kind)
        want = list(row_partitions(ids, 256))
        inner = column[cut[0] : cut[1]]
        assert pa.array(row_partitions_arrow(inner, 256)).to_pylist() == want[cut[0] : cut[1]]
        chunked = pa.chunked_array([column[: cut[0]], inner, column[cut[1] :]], kind)
        assert pa.array(row_partitions_arrow(chunked, 256)).to_pylist() == want


def test_results_are_shared_without_a_copy() -> None:
    found = row_partitions_arrow(pa.array(["a", "b", "c"]), 256)
    first, second = pa.array(found), pa.array(found)
    assert len(found) == 3
    assert first.type == pa.int32()
    assert first.null_count == 0
    first.validate(full=True)
    assert first.buffers()[1].address == second.buffers()[1].address
    del found, second
    assert first.to_pylist() == list(row_partitions(["a", "b", "c"], 256))
    flat = row_partitions(["a", "b", "c"], 256)
    assert np.shares_memory(np.asarray(flat), np.asarray(flat))
    assert np.asarray(flat).dtype == np.int32


def test_an_unused_export_is_released() -> None:
    before = pa.total_allocated_bytes()
    column = pa.array([f"row-{n}" for n in range(10_000)])
    for _ in range(50):
        row_partitions_arrow(column, 16).__arrow_c_array__()
        row_partitions_arrow(pa.chunked_array([column, column]), 16)
    del column
    assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize("kind", [*STRINGS, *BINARIES], ids=str)
def test_empty_columns(kind: Any) -> None:
    assert len(row_partitions_arrow(pa.array([], kind), 7)) == 0
    assert len(row_partitions_arrow(pa.chunked_array([], kind), 7)) == 0
    assert pa.array(row_partitions_arrow(pa.chunked_array([], kind), 7)).type == pa.int32()
    assert list(row_partitions([], 7)) == []


@pytest.mark.parametrize(
    ("column", "index"),
    [
        (pa.array(["a", None, "b"]), 1),
        (pa.array([None, "x", None, "y"])[1:], 1),
        (pa.chunked_array([["a", "b"], ["c", None]]), 3),
        (pa.array([None], pa.string_view()), 0),
        (pa.array(["a"] * 1000 + [None], pa.large_string()), 1000),
    ],
)
def test_a_null_is_refused_with_its_index(column: Any, index: int) -> None:
    with pytest.raises(ValueError, match=rf"^row_ids\[{index}\] must be a row id, got null$"):
        row_partitions_arrow(column, 256)


@pytest.mark.parametrize(
    "column", [pa.array([1]), pa.array(["a"]).dictionary_encode(), pa.table({"id": ["a"]}), pa.array([["a"]])], ids=str
)
def test_a_column_of_another_type_is_refused(column: Any) -> None:
    with pytest.raises(TypeError, match="row_ids must be an Arrow column of strings or binary"):
        row_partitions_arrow(column, 256)


def test_what_is_no_column_is_refused() -> None:
    source: Any = ["a"]
    with pytest.raises(TypeError, match="row_ids must be an Arrow array or chunked array, got list"):
        row_partitions_arrow(source, 256)


def test_a_capsule_of_another_kind_is_refused() -> None:
    class Wrong:
        def __arrow_c_array__(self, requested_schema: object = None) -> Any:
            schema, array = pa.array(["a"]).__arrow_c_array__()
            return array, schema

    with pytest.raises(ValueError, match="PyCapsule"):
        row_partitions_arrow(Wrong(), 256)


@pytest.mark.parametrize("partitions", [0, -1, 4097, 2**31, 2**70])
def test_partition_counts_outside_the_limits(partitions: int) -> None:
    message = f"^partitions must be between 1 and 4096, got {partitions}$"
    calls: list[tuple[Any, Any]] = [
        (row_partition, "a"),
        (row_partitions, ["a"]),
        (row_partitions_arrow, pa.array(["a"])),
    ]
    for call, argument in calls:
        with pytest.raises(ValueError, match=message):
            call(argument, partitions)


def test_a_lone_surrogate_is_refused_with_its_place() -> None:
    with pytest.raises(ValueError, match=r"^row_id must be encodable as UTF-8, got a lone surrogate$"):
        row_partition("\ud800", 8)
    with pytest.raises(ValueError, match=r"^row_ids\[2\] must be encodable as UTF-8, got a lone surrogate$"):
        row_partitions(["a", "b", "x\udfff"], 8)


@pytest.mark.parametrize("row_id", [None, 1, bytearray(b"a"), ["a"]], ids=repr)
def test_ids_of_another_type(row_id: Any) -> None:
    kind = type(row_id).__name__
    with pytest.raises(TypeError, match=f"^row_id must be str or bytes, got {kind}$"):
        row_partition(row_id, 8)
    with pytest.raises(TypeError, match=rf"^row_ids\[1\] must be str or bytes, got {kind}$"):
        row_partitions(["a", row_id], 8)


@pytest.mark.parametrize("one", ["abc", b"abc"])
def test_a_single_id_is_no_list_of_ids(one: Any) -> None:
    with pytest.raises(TypeError, match="row_ids must be a sequence of str or bytes, not one"):
        row_partitions(one, 8)


def test_subclasses_of_str_and_bytes_count() -> None:
    class Name(str):
        __slots__ = ()

    class Raw(bytes):
        __slots__ = ()

    assert list(row_partitions([Name("a"), Raw(b"a")], 64)) == [row_partition("a", 64)] * 2


def test_threads_share_one_list_while_it_changes() -> None:
    """The lock is released while hashing: the ids must be held on to, or this reads freed memory."""
    ids = [f"row-{n}" for n in range(20_000)]
    want = row_partitions(ids, 256)
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            ids[:] = [f"row-{n}" for n in range(20_000)]

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        # A call may see a list that another thread is about to swap, but never one that is half gone.
        assert all(row_partitions(ids, 256) == want for _ in range(30))
    finally:
        stop.set()
        thread.join()
