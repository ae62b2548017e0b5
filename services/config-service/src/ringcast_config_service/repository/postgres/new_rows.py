"""A plan for many plain rows that are all new, column by column: an object of each row would take most of the time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import compress
from typing import NamedTuple

from ringcast_wire import RingcastError, limits

from ringcast_config_service.repository.audit import RowChanges, facts_of
from ringcast_config_service.repository.base import NOBODY, Authorship, PlainWrites, WriteOutcome, WriteRequest
from ringcast_config_service.repository.writes import (
    CurrentState,
    Head,
    KeyRef,
    PartitionRef,
    Plan,
    PlannedRow,
    Tally,
    events_of,
    is_unchecked,
)


class NewRows(NamedTuple):
    """Plain rows of one request, none of which is stored, the version that each gets, and who writes them."""

    key: KeyRef
    rows: PlainWrites
    versions: list[int]
    by: Authorship = NOBODY

    def piece(self, start: int, end: int) -> NewRows:
        """Some of them."""
        return NewRows(self.key, self.rows[start:end], self.versions[start:end], self.by)

    def of(self, partitions: Collection[int]) -> NewRows:
        """Those in some partitions."""
        rows = self.rows
        there = [partition in partitions for partition in rows.partitions]
        kept = PlainWrites(
            list(compress(rows.partitions, there)),
            list(compress(rows.row_ids, there)),
            list(compress(rows.values, there)),
            list(compress(rows.sizes, there)),
        )
        return NewRows(self.key, kept, list(compress(self.versions, there)), self.by)

    def planned(self) -> Iterator[PlannedRow]:
        """Row by row."""
        for row, version in zip(self.rows, self.versions, strict=True):
            yield PlannedRow(self.key, row.partition, row.row_id, row.value, version, None, row.size, 0, self.by)


def plan_new(requests: Sequence[WriteRequest], state: CurrentState, now_ms: int) -> tuple[Plan, list[NewRows]] | None:
    """What :func:`plan_writes` would, for plain puts of rows that are not stored.

    The plan has neither rows nor history, which are the new rows. ``None`` where it takes a closer look: a row comes
    twice, there is more to a request than its rows, or one may be refused.
    """
    plan, new = Plan(), []
    tallies: dict[PartitionRef, Tally] = {}
    ids: dict[KeyRef, set[str]] = {}
    for request in requests:
        key, rows = KeyRef(request.store.name, request.key), request.rows
        if not isinstance(rows, PlainWrites) or not _may_be_written(request, key, state):
            return None
        known = ids.setdefault(key, set())
        before = len(known)
        known.update(rows.row_ids)
        if len(known) < before + len(rows):
            return None
        versions, ranges = _add(rows, key, tallies, state)
        added = NewRows(key, rows, versions, request.by)
        plan.changes.append(RowChanges(request.by, *key, len(rows), 0, ranges))
        new.append(added)
        plan.outcomes.append(WriteOutcome(written=len(rows), deleted=0, unchanged=0, versions=added.versions))
        if request.traceparent is not None:
            for partition in request.partitions:
                plan.traceparents.setdefault(PartitionRef(key, partition), request.traceparent)
    if any(tally.bytes > limits.MAX_PARTITION_BYTES for tally in tallies.values()):
        return None
    plan.heads = {ref: tally.head() for ref, tally in tallies.items()}
    plan.events = list(events_of(plan, _listed(new, tallies, state), state, requests, now_ms))
    plan.audit = facts_of(plan.changes)
    return plan, new


def _may_be_written(request: WriteRequest, key: KeyRef, state: CurrentState) -> bool:
    """Whether nothing speaks against a request that can be seen without its rows."""
    if request.mark is not None or request.bundle is not None or (request.chain is not None and request.chain.failed):
        return False
    if key.store in state.releases_only and not request.of_release:
        return False
    if is_unchecked(key, request, state):
        return False
    if key not in state.keys or key in state.deleted or state.partition_counts[key] != request.store.partition_count:
        return False
    try:
        request.permit.check()
    except RingcastError:
        return False
    return True


def _add(
    rows: PlainWrites, key: KeyRef, tallies: dict[PartitionRef, Tally], state: CurrentState
) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Counts the heads up; returns the versions of the rows, and (partition, first, last) of them."""
    of_key: dict[int, Tally] = {}
    for partition in set(rows.partitions):
        ref = PartitionRef(key, partition)
        of_key[partition] = tallies.setdefault(ref, Tally(*state.heads.get(ref, Head())))
    before = {partition: tally.revision for partition, tally in of_key.items()}
    versions = []
    for partition, size in zip(rows.partitions, rows.sizes, strict=True):
        tally = of_key[partition]
        tally.revision += 1
        tally.rows += 1
        tally.bytes += size
        versions.append(tally.revision)
    return versions, [(partition, before[partition] + 1, tally.revision) for partition, tally in of_key.items()]


def _listed(new: Iterable[NewRows], tallies: dict[PartitionRef, Tally], state: CurrentState) -> Iterable[PlannedRow]:
    """The new rows of those partitions of which the events list them."""
    listed: dict[KeyRef, set[int]] = {}
    for ref, tally in tallies.items():
        if tally.revision - state.heads.get(ref, Head()).revision <= limits.MAX_EVENT_CHANGES:
            listed.setdefault(ref.key, set()).add(ref.partition)
    for rows in new:
        if partitions := listed.get(rows.key):
            yield from rows.of(partitions).planned()
