"""What a group of requests touches, in the order in which everyone locks it."""

from __future__ import annotations

from collections.abc import Iterable

from ringcast_config_service.repository.base import WriteRequest
from ringcast_config_service.repository.writes import (
    CurrentState,
    KeyRef,
    MarkRef,
    PartitionRef,
    is_unchecked,
)


def touched_partitions(requests: Iterable[WriteRequest]) -> list[PartitionRef]:
    """The partitions that a group writes to, in the one order in which everyone locks them."""
    found: dict[KeyRef, set[int]] = {}
    for request in requests:
        found.setdefault(KeyRef(request.store.name, request.key), set()).update(request.partitions)
    return sorted(PartitionRef(key, partition) for key, partitions in found.items() for partition in partitions)


def touched_rows(requests: Iterable[WriteRequest]) -> dict[PartitionRef, list[str]]:
    """The ids of the rows that a group writes to, by their partitions; one that is written twice may be there twice."""
    found: dict[PartitionRef, list[str]] = {}
    for request in requests:
        key = KeyRef(request.store.name, request.key)
        of_key: dict[int, list[str]] = {}
        for row in request.rows:
            of_key.setdefault(row.partition, []).append(row.row_id)
        for partition, ids in of_key.items():
            found.setdefault(PartitionRef(key, partition), []).extend(ids)
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
