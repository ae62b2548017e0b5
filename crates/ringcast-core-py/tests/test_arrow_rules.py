"""Producers that break the rules of the Arrow C interfaces: a real export is damaged through its C structure."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from ringcast_core import row_partitions_arrow

GetPointer = ctypes.pythonapi.PyCapsule_GetPointer
GetPointer.restype = ctypes.c_void_p
GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class CArray(ctypes.Structure):
    _fields_ = (
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    )


GET_NEXT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
GET_LAST_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


class CStream(ctypes.Structure):
    _fields_ = (
        ("get_schema", ctypes.c_void_p),
        ("get_next", GET_NEXT),
        ("get_last_error", GET_LAST_ERROR),
    )


class Damaged:
    """An Arrow array whose exported structure `damage` has changed."""

    def __init__(self, column: Any, damage: Callable[[CArray], None]) -> None:
        self.column = column
        self.damage = damage

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        schema, array = self.column.__arrow_c_array__()
        self.damage(CArray.from_address(GetPointer(array, b"arrow_array")))
        return schema, array


def set_field(name: str, value: int) -> Callable[[CArray], None]:
    return lambda array: setattr(array, name, value)


def set_buffer(index: int, address: int | None) -> Callable[[CArray], None]:
    def damage(array: CArray) -> None:
        array.buffers[index] = address

    return damage


def misalign(array: CArray) -> None:
    array.buffers[1] = array.buffers[1] + 1


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (set_field("length", -1), "a negative length"),
        (set_field("offset", -1), "a negative length"),
        (set_field("n_buffers", 1), "too few buffers"),
        (set_field("n_buffers", -1), "a negative length"),
        (set_buffer(1, None), "a missing buffer"),
        (set_buffer(2, None), "a missing buffer"),
        (misalign, "a misaligned buffer"),
    ],
)
@pytest.mark.parametrize("kind", [pa.string(), pa.large_binary()], ids=str)
def test_a_broken_array_is_refused(kind: Any, damage: Callable[[CArray], None], reason: str) -> None:
    column = pa.array(["a", "b"], pa.string()).cast(kind)
    message = f"^row_ids break the rules of the Arrow C data interface: {reason}$"
    with pytest.raises(ValueError, match=message):
        row_partitions_arrow(Damaged(column, damage), 256)


def test_offsets_that_fall_are_refused_with_their_row() -> None:
    def offsets(*values: int) -> Any:
        buffers = [None, pa.array(values, pa.int32()).buffers()[1], pa.py_buffer(b"abcdef")]
        return pa.Array.from_buffers(pa.string(), len(values) - 1, buffers)

    assert len(row_partitions_arrow(offsets(0, 2, 4, 6), 256)) == 3
    with pytest.raises(ValueError, match=r"^row_ids is malformed: entry 1 points outside the data$"):
        row_partitions_arrow(offsets(0, 4, 2, 6), 256)
    with pytest.raises(ValueError, match=r"^row_ids is malformed: entry 3 points outside the data$"):
        row_partitions_arrow(pa.chunked_array([offsets(0, 2, 4), offsets(0, 1, 0, 6)]), 256)


def test_a_released_array_is_refused() -> None:
    class Reused:
        def __init__(self) -> None:
            self.capsules = pa.array(["a"]).__arrow_c_array__()

        def __arrow_c_array__(self, requested_schema: object = None) -> Any:
            return self.capsules

    reused = Reused()
    assert len(row_partitions_arrow(reused, 8)) == 1
    with pytest.raises(ValueError, match="an array that was released already"):
        row_partitions_arrow(reused, 8)


def test_a_failing_stream_is_quoted() -> None:
    words = ctypes.create_string_buffer(b"the disk is gone")
    get_next = GET_NEXT(lambda stream, array: 5)
    get_last_error = GET_LAST_ERROR(lambda stream: ctypes.addressof(words))

    class Failing:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            capsule: object = pa.chunked_array([["a"]]).__arrow_c_stream__()
            stream = CStream.from_address(GetPointer(capsule, b"arrow_array_stream"))
            stream.get_next = get_next
            stream.get_last_error = get_last_error
            return capsule

    with pytest.raises(ValueError, match=r"can't be read from their Arrow stream \(status 5\): the disk is gone$"):
        row_partitions_arrow(Failing(), 8)
