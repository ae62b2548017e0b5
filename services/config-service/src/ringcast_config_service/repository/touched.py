"""What a group of requests touches, in the order in which everyone locks it."""

from __future__ import annotations

from collections.abc import Iterable

from ringcast_config_service.repository.base import WriteRequest
from ringcast_config_service.repository.writes import (
    CurrentState,
    KeyRef,
    MarkRef,
    PartitionRef,
    RowRef,
    is_unchecked,
)


def touched_partitions(requests: Iterable[WriteRequest]) -> list[PartitionRef]:
    """The partitions that a group writes to, in the one order in which everyone locks them."""
    found: dict[KeyRef, set[int]] = {}
    for request in requests:
        found.setdefault(KeyRef(request.store.name, request.key), set()).update(request.partitions)
    return sorted(PartitionRef(key, partition) for key, partitions in found.items() for partition in partitions)


def touched_rows(requests: Iterable[WriteRequest]) -> dict[RowRef, int]:
    """The rows that a group writes to, and their partitions."""
    found: dict[RowRef, int] = {}
    for request in requests:
        key = KeyRef(request.store.name, request.key)
        for row in request.rows:
            found[RowRef(key, row.row_id)] = row.partition
    return found


def touched_marks(requests: Iterable[WriteRequest]) -> list[MarkRef]:
    """The idempotency keys of a group, in the one order in which everyone stores them."""
    marked = ((request.store.name, request.mark) for request in requests if request.mark is not None)
    return sorted({MarkRef(store, mark.key) for store, mark in marked})


def unchecked_keys(requests: Iterable[WriteRequest], state: CurrentState) -> set[KeyRef]:
    """The keys with an enforced schema that a request was not checked against before."""
    if not state.schema_ids:
        return set()
    keys = ((KeyRef(request.store.name, request.key), request) for request in requests)
    return {key for key, request in keys if is_unchecked(key, request, state)}
