"""Fetch requests: a NATS subject and a payload, and the functions that make them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ringcast_wire import WIRE_VERSION, BatchRequest, HeadsRequest, PartitionRequest, encode, names


class FetchRequest(NamedTuple):
    """Where a request goes, and its encoded body; it may be sent more than once."""

    subject: str
    payload: bytes


def heads_request(store: str, key: str, at_ms: int | None = None) -> FetchRequest:
    """The revision of each partition of a key, as they are, or as they were at a moment (Unix time)."""
    payload = b"" if at_ms is None else encode(HeadsRequest(WIRE_VERSION, at_ms))
    return FetchRequest(names.fetch_subject(store, key, names.FETCH_HEADS), payload)


def partition_request(
    store: str, key: str, partition: int, since: int | None = None, history: str = "", as_of: int | None = None
) -> FetchRequest:
    """A whole partition, or what was written to it after a revision of a history (tombstones included).

    As it is, or as it was at the revision ``as_of``.
    """
    whole_as_it_is = since is None and as_of is None
    payload = b"" if whole_as_it_is else encode(PartitionRequest(WIRE_VERSION, since, history, as_of))
    return FetchRequest(names.fetch_subject(store, key, partition), payload)


def batch_request(store: str, key: str, row_ids: Iterable[str]) -> FetchRequest:
    """Up to 1,000 rows by their ids, tombstones included."""
    payload = encode(BatchRequest(WIRE_VERSION, list(row_ids)))
    return FetchRequest(names.fetch_subject(store, key, names.FETCH_BATCH), payload)
