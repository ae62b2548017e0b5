"""Encodes the answer to a fetch while its rows are read, so that they are never all there as objects."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from ringcast_wire._common.versions import WIRE_VERSION
from ringcast_wire._messages.messages import Row

PlainRow = tuple[str, str, int]
"""Id, value and version of a row that is not deleted and has no metadata: what a row is encoded as then."""

_ARRAY_32: Final = struct.Struct(">BI")
_COUNT: Final = struct.Struct(">I")
_pack = msgspec.msgpack.Encoder().encode


class FetchReplyWriter:
    """Writes what :func:`~ringcast_wire.encode` makes of a ``FetchReply``, piece by piece; decoders see no difference.

    :meth:`begin` each of ``partitions`` entries, :meth:`add` its rows, then :meth:`finish` once. Not for use by several
    threads at once.
    """

    def __init__(self, partitions: int, version: int = WIRE_VERSION) -> None:
        self._body = bytearray(b"\x93" + _pack(version) + _ARRAY_32.pack(0xDD, partitions))
        self._left = partitions
        self._count_at = 0
        self._rows = 0

    def __len__(self) -> int:
        """The bytes so far."""
        return len(self._body)

    def begin(self, partition: int, revision: int, whole: bool) -> None:
        """Begins the next entry; its fields mean what they mean in ``PartitionRows``."""
        self._end()
        self._left -= 1
        self._body += b"\x94" + _pack(partition) + _pack(revision) + _pack(whole)
        self._body += _ARRAY_32.pack(0xDD, 0)
        self._count_at, self._rows = len(self._body) - _COUNT.size, 0

    def add(self, rows: Sequence[Row | PlainRow]) -> None:
        """Adds rows to the entry that was begun last."""
        count = len(rows)
        packed = memoryview(_pack(rows))
        header = 1 if count < 16 else 3 if count < 1 << 16 else 5
        self._body += packed[header:]
        self._rows += count

    def finish(self, history: str) -> bytearray:
        """The encoded reply, without a copy; nothing may be added any more."""
        self._end()
        if self._left:
            raise ValueError(f"{self._left} more entries were announced than were written")
        self._body += _pack(history)
        return self._body

    def _end(self) -> None:
        if self._count_at:
            _COUNT.pack_into(self._body, self._count_at, self._rows)
