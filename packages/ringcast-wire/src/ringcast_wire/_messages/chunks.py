"""Replies larger than the server's payload limit travel as numbered chunks.

Each chunk carries one header, ``Ringcast-Chunk: <index>/<total>/<crc32 of the whole, hex>``. An assembler hands out the
whole body or an error, never a part of it.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from ringcast_wire._common.errors import LimitExceededError, ProtocolError, shown
from ringcast_wire._common.limits import CHUNK_HEADROOM_BYTES, KIB, MAX_REPLY_BYTES

_HEADER: Final = re.compile(r"(\d{1,5})/(\d{1,5})/([0-9a-f]{8})", re.ASCII)
_MIN_CHUNK: Final = 1 * KIB


class Chunk(NamedTuple):
    """One message of a chunked body: the value of its ``Ringcast-Chunk`` header, and its bytes."""

    header: str
    data: bytes


def split_chunks(body: bytes | bytearray, max_payload: int) -> Iterator[Chunk]:
    """Cuts ``body`` into chunks that fit a server with that payload limit (bytes), in order.

    An empty body is one chunk.

    Raises:
        LimitExceededError: the body is larger than a reply may be.
    """
    if len(body) > MAX_REPLY_BYTES:
        raise LimitExceededError(f"reply has {len(body)} bytes: at most {MAX_REPLY_BYTES} are allowed")
    size = max(_MIN_CHUNK, max_payload - CHUNK_HEADROOM_BYTES)
    total = max(1, -(-len(body) // size))
    checksum = f"{zlib.crc32(body):08x}"
    view = memoryview(body)
    for index in range(total):
        yield Chunk(f"{index}/{total}/{checksum}", bytes(view[index * size : (index + 1) * size]))


class ChunkAssembler:
    """Puts the chunks of one reply together, in whatever order they come.

    Bounded by ``max_bytes``; not for use by several threads at once.
    """

    def __init__(self, max_bytes: int = MAX_REPLY_BYTES) -> None:
        self._max_bytes = max_bytes
        self._parts: dict[int, bytes] = {}
        self._total: int | None = None
        self._checksum = ""
        self._size = 0

    @property
    def missing(self) -> int | None:
        """How many chunks are still to come, or ``None`` before the first."""
        return None if self._total is None else self._total - len(self._parts)

    def add(self, header: str | None, data: bytes) -> bytes | None:
        """Takes a chunk; returns the whole body with the last of them. A repeated chunk is ignored.

        Raises:
            ProtocolError: the header is malformed or contradicts an earlier one, or the checksum is wrong.
            LimitExceededError: the body would be larger than ``max_bytes``.
        """
        index, total, checksum = _parse_header(header)
        if self._total is None:
            self._total, self._checksum = total, checksum
        elif (self._total, self._checksum) != (total, checksum):
            raise ProtocolError(f"chunk {header} belongs to another reply than the {len(self._parts)} before it")
        if index not in self._parts:
            self._size += len(data)
            if self._size > self._max_bytes:
                raise LimitExceededError(f"reply has over {self._size} bytes: at most {self._max_bytes} are allowed")
            self._parts[index] = data
        return self._join() if len(self._parts) == total else None

    def _join(self) -> bytes:
        body = b"".join(self._parts[index] for index in range(len(self._parts)))
        if f"{zlib.crc32(body):08x}" != self._checksum:
            raise ProtocolError(f"reply of {len(body)} bytes does not match its checksum {self._checksum}")
        return body


def _parse_header(header: str | None) -> tuple[int, int, str]:
    match = _HEADER.fullmatch(header or "")
    if match is None:
        raise ProtocolError(f"chunk header {shown(header)} is not of the form <index>/<total>/<crc32>")
    index, total = int(match[1]), int(match[2])
    if not 0 <= index < total:
        raise ProtocolError(f"chunk header {shown(header)} is out of range: the index must be below the total")
    return index, total, match[3]
