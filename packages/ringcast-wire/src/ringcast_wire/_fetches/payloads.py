"""The bodies of fetches: each says which versions of an answer its asker reads.

What is asked for without further ado has no body, as long as the asker reads the first version alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from ringcast_wire._common.versions import NEWEST_WIRE_VERSION, WIRE_VERSION
from ringcast_wire._messages.messages import BatchRequest, FullRequest, HeadsRequest, PartitionRequest, encode


def partition_payload(
    since: int | None = None, history: str = "", as_of: int | None = None, *, reads: int = NEWEST_WIRE_VERSION
) -> bytes:
    """For a partition: whole, or what changed ``since`` a revision, as in :class:`~ringcast_wire.PartitionRequest`."""
    if since is None and as_of is None and reads == WIRE_VERSION:
        return b""
    return encode(PartitionRequest(WIRE_VERSION, since, history, as_of, reads))


def heads_payload(at_ms: int | None = None, *, reads: int = NEWEST_WIRE_VERSION) -> bytes:
    """For the revision of each partition, as in :class:`~ringcast_wire.HeadsRequest`."""
    return b"" if at_ms is None and reads == WIRE_VERSION else encode(HeadsRequest(WIRE_VERSION, at_ms, reads))


def batch_payload(row_ids: Iterable[str], *, reads: int = NEWEST_WIRE_VERSION) -> bytes:
    """For named rows, 1 to 1,000."""
    return encode(BatchRequest(WIRE_VERSION, list(row_ids), reads))


def full_payload(*, reads: int = NEWEST_WIRE_VERSION) -> bytes:
    """For a whole key."""
    return b"" if reads == WIRE_VERSION else encode(FullRequest(WIRE_VERSION, reads))
