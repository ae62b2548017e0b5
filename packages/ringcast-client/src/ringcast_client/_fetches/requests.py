"""Fetch requests: a NATS subject and a payload, and the functions that make them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ringcast_wire import WIRE_VERSION, batch_payload, heads_payload, names, partition_payload


class FetchRequest(NamedTuple):
    """Where a request goes, and its encoded body; it may be sent more than once."""

    subject: str
    payload: bytes


def heads_request(store: str, key: str, at_ms: int | None = None) -> FetchRequest:
    """The revision of each partition of a key, as they are, or as they were at a moment (Unix time)."""
    return FetchRequest(names.fetch_subject(store, key, names.FETCH_HEADS), heads_payload(at_ms))


def partition_request(
    store: str,
    key: str,
    partition: int,
    since: int | None = None,
    history: str = "",
    as_of: int | None = None,
    *,
    reads: int = WIRE_VERSION,
) -> FetchRequest:
    """A whole partition, or what was written to it after a revision of a history (tombstones included).

    As it is, or as it was at the revision ``as_of``. ``reads``: the newest wire version of an answer that the
    caller can read.
    """
    payload = partition_payload(since, history, as_of, reads=reads)
    return FetchRequest(names.fetch_subject(store, key, partition), payload)


def batch_request(store: str, key: str, row_ids: Iterable[str], *, reads: int = WIRE_VERSION) -> FetchRequest:
    """Up to 1,000 rows by their ids, tombstones included. ``reads``: as of :func:`partition_request`."""
    payload = batch_payload(row_ids, reads=reads)
    return FetchRequest(names.fetch_subject(store, key, names.FETCH_BATCH), payload)
