"""Fetch replies as Arrow record batches: the hot path of a read."""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa
from ringcast_core import WIRE_VERSION, read_fetch_reply
from ringcast_wire import ProtocolError, check_version_of

READS: Final = WIRE_VERSION
"""The newest wire version that :func:`read_reply` reads. Each request for rows says so: no answer is of a newer one."""

METADATA: Final = pa.map_(pa.string(), pa.string())
SCHEMA: Final = pa.schema(
    [
        pa.field("row_id", pa.string(), nullable=False),
        pa.field("value", pa.string()),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("deleted", pa.bool_(), nullable=False),
        pa.field("metadata", METADATA),
    ]
)
"""What Spark makes of the schema of a read without options; it compares the two strictly."""
FEED_SCHEMA: Final = pa.schema(
    [
        *SCHEMA,
        pa.field("change_type", pa.string(), nullable=False),
        pa.field("written_at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("author", pa.string()),
        pa.field("reason", pa.string()),
    ]
)
"""The same for a change feed."""


class Entry(NamedTuple):
    """The next ``rows`` rows are of one partition as of ``revision``.

    ``whole``: see :class:`ringcast_wire.PartitionRows`.
    """

    partition: int
    revision: int
    whole: bool
    rows: int


class Reply(NamedTuple):
    """The rows of all entries of a fetch reply, one entry behind the other."""

    entries: list[Entry]
    batch: pa.RecordBatch

    @property
    def entry(self) -> Entry:
        """The entry of an answer about one partition; raises ``ProtocolError`` if it is another."""
        if len(self.entries) != 1:
            raise ProtocolError(f"fetch reply about one partition has {len(self.entries)} entries")
        return self.entries[0]


def read_reply(body: bytes, place: str) -> Reply:
    """Reads an encoded fetch reply about ``place``, a key of a store; other threads run meanwhile.

    Raises:
        ProtocolError: it is damaged, or of another wire version.
    """
    try:
        found = read_fetch_reply(body)
    except ValueError as error:
        check_version_of(body, f"fetch reply of {place}")
        raise ProtocolError(f"fetch reply of {place}, {len(body)} bytes: {error}") from error
    return Reply([Entry(*entry) for entry in found.entries], pa.record_batch(found))
