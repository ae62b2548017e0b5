"""What a write does, decided without a database: revisions, tombstones, sizes, limits, events.

A repository locks the partition heads, reads the state that a group of requests touches, lets :func:`plan_writes`
decide, and stores the plan. So the arithmetic that workers rely on exists once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from ringcast_wire import (
    NO_POLICY,
    Change,
    Event,
    InvalidInputError,
    LimitExceededError,
    RingcastError,
    StorePolicy,
    UnavailableError,
    UnknownKeyError,
    UnknownStoreError,
    encode,
    limits,
    names,
    shown,
    version_for,
)

from ringcast_config_service.repository.audit import AuditFact, RowChanges, facts_of
from ringcast_config_service.repository.base import (
    NOBODY,
    Authorship,
    Bundle,
    IdempotencyMark,
    KeptRows,
    RowWrite,
    WriteOutcome,
    WriteRequest,
    new_history_id,
)
from ringcast_config_service.repository.conditions import condition_failed
from ringcast_config_service.repository.packing import pack_outcomes, unpack_metadata, unpack_outcomes
from ringcast_config_service.repository.policies import check_direct, check_key_count
from ringcast_config_service.repository.value_checks import EnforcedSchema


class KeyRef(NamedTuple):
    store: str
    name: str


class PartitionRef(NamedTuple):
    key: KeyRef
    partition: int


class RowRef(NamedTuple):
    key: KeyRef
    row_id: str


class MarkRef(NamedTuple):
    """Where an idempotency key stands."""

    store: str
    key: str


class Recorded(NamedTuple):
    """What a request with an idempotency key was, and what became of it (:func:`pack_outcomes`)."""

    digest: str
    outcomes: str


class Content(NamedTuple):
    """What a live row holds; ``metadata`` as it is stored (:func:`pack_metadata`)."""

    value: str
    metadata: str | None


class Head(NamedTuple):
    """A partition's revision, and its live rows and their bytes."""

    revision: int = 0
    rows: int = 0
    bytes: int = 0


class Caps(NamedTuple):
    """Live rows and bytes up to which a partition may grow; ``None``: its store has no such limit."""

    rows: int | None = None
    bytes: int | None = None


NO_CAPS: Final = Caps()


class Amount(NamedTuple):
    """Live rows and their bytes."""

    rows: int = 0
    bytes: int = 0


class PlannedRow(NamedTuple):
    """One write to one row. A tombstone has no value, no metadata and size 0.

    ``prev`` is the version that the row had before, 0 where none is stored. ``by`` is one object for all rows of a
    request.
    """

    key: KeyRef
    partition: int
    row_id: str
    value: str | None
    version: int
    metadata: dict[str, str] | None
    size: int
    prev: int
    by: Authorship = NOBODY

    @property
    def deleted(self) -> bool:
        return self.value is None


class PlannedEvent(NamedTuple):
    subject: str
    msg_id: str
    payload: bytes
    traceparent: str | None = None


@dataclass(slots=True)
class CurrentState:
    """What the database holds of everything that a group of requests touches, read with the heads locked.

    ``stores``: names that exist. ``keys``: ids of the keys that exist. ``key_counts``: keys of each store.
    ``partition_counts``: of the stores as they are now. ``deleted``: why keys that exist take no writes.
    ``histories``: the history id of each key, for one that does not exist the one that it is to be created with.
    ``remembered``: the histories that keys had when their ids were learned, for those not read for this group.
    ``heads``: of the partitions that were ever written; ``caps``: of those of them whose store has limits.
    ``policies``: of the stores with a key that does not exist. ``releases_only``: stores that take no direct writes.
    ``schema_ids``: of the schemas that are enforced for keys. ``schemas``: those of them that a request was not checked
    against before.
    ``left``: what all partitions of a store may grow by together, for stores in which that has to be looked at.
    ``live``: size of each row touched that is there and not a tombstone. ``versions``: of each row touched that is
    there, tombstones too. ``contents``: of those with a ``live`` size that a request with ``skip_unchanged`` touches.
    ``recorded``: of the requests' idempotency keys that are there.
    """

    stores: set[str] = field(default_factory=set)
    keys: dict[KeyRef, int] = field(default_factory=dict)
    key_counts: dict[str, int] = field(default_factory=dict)
    partition_counts: dict[KeyRef, int] = field(default_factory=dict)
    deleted: dict[KeyRef, RingcastError] = field(default_factory=dict)
    histories: dict[KeyRef, str] = field(default_factory=dict)
    ordinals: dict[str, int] = field(default_factory=dict)
    """Of the histories of stores: those of their new keys have the same."""
    remembered: dict[KeyRef, str] = field(default_factory=dict)
    heads: dict[PartitionRef, Head] = field(default_factory=dict)
    caps: dict[PartitionRef, Caps] = field(default_factory=dict)
    policies: dict[str, StorePolicy] = field(default_factory=dict)
    releases_only: set[str] = field(default_factory=set)
    schema_ids: dict[KeyRef, int] = field(default_factory=dict)
    schemas: dict[KeyRef, EnforcedSchema] = field(default_factory=dict)
    left: dict[str, tuple[StorePolicy, Amount]] = field(default_factory=dict)
    live: dict[RowRef, int] = field(default_factory=dict)
    versions: dict[RowRef, int] = field(default_factory=dict)
    contents: dict[RowRef, Content] = field(default_factory=dict)
    recorded: dict[MarkRef, Recorded] = field(default_factory=dict)

    def add_key(
        self, key: KeyRef, key_id: int | None, history: str | None, partition_count: int, error: RingcastError | None
    ) -> bool:
        """Takes note of a key whose store is there; ``error``: either is deleted. Returns whether the key is there."""
        self.stores.add(key.store)
        self.partition_counts[key] = partition_count
        self.histories[key] = history or new_history_id(self.ordinals.get(key.store, 0))
        if error is not None:
            self.deleted[key] = error
        elif key_id is not None:
            self.keys[key] = key_id
            return True
        return False


@dataclass(slots=True)
class Plan:
    """What to store: keys to create, new heads, last state of each row, every revision, the events and their traces,
    the idempotency keys with their outcomes, and what the audit log says of it all (from ``changes``). ``grown``: by
    how much the rows of each store in ``CurrentState.left`` grow; ``over``: stores in which that was too much.
    """

    outcomes: list[WriteOutcome | RingcastError] = field(default_factory=list)
    new_keys: list[KeyRef] = field(default_factory=list)
    heads: dict[PartitionRef, Head] = field(default_factory=dict)
    traceparents: dict[PartitionRef, str] = field(default_factory=dict)
    rows: dict[RowRef, PlannedRow] = field(default_factory=dict)
    history: list[PlannedRow] = field(default_factory=list)
    events: list[PlannedEvent] = field(default_factory=list)
    recorded: dict[MarkRef, Recorded] = field(default_factory=dict)
    changes: list[RowChanges] = field(default_factory=list)
    audit: list[AuditFact] = field(default_factory=list)
    grown: dict[str, Amount] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)


def is_unchecked(key: KeyRef, request: WriteRequest, state: CurrentState) -> bool:
    """Whether a schema is enforced for the key of a request that its values were not checked against."""
    return state.schema_ids.get(key, request.schema_id) != request.schema_id


def plan_writes(requests: Sequence[WriteRequest], state: CurrentState, now_ms: int) -> Plan:
    """Decides a group of requests, in order, each (or each bundle) as a whole or not at all.

    To be called when the heads are locked: :mod:`~ringcast_config_service.permits` counts on it.
    """
    planner = _Planner(state)
    plan = planner.plan
    failed = set()
    for _, unit in groupby(requests, _unit):
        parts = list(unit)
        chain = parts[0].chain
        try:
            if chain is not None and (chain.failed or chain in failed):
                raise UnavailableError("an earlier batch of this stream failed: this one was not written")
            plan.outcomes += planner.add_unit(parts)
        except RingcastError as error:
            failed.add(chain)
            plan.outcomes += [error] * len(parts)
    plan.events = list(events_of(plan, plan.rows.values(), state, requests, now_ms))
    plan.audit = facts_of(plan.changes)
    return plan


def _unit(request: WriteRequest) -> WriteRequest | Bundle:
    """The same for all requests that are decided together."""
    return request.bundle or request


@dataclass(slots=True)
class Tally:
    """A head that is being counted up; an object a partition, where a new head a row would take most of the time."""

    revision: int
    rows: int
    bytes: int

    def head(self) -> Head:
        return Head(self.revision, self.rows, self.bytes)


_OF_LIMITS: Final = {"max_rows": "rows", "max_bytes": "bytes of live rows"}


class _Planner:
    def __init__(self, state: CurrentState) -> None:
        self.plan = Plan()
        self._state = state

    def add_unit(self, parts: Sequence[WriteRequest]) -> list[WriteOutcome]:
        """Applies a request, or all requests of a bundle, or raises and leaves the plan as it was."""
        first = parts[0]
        if first.mark is not None and (found := self._recorded(first.store.name, first.mark)) is not None:
            return found
        first.permit.check()
        outcomes = [self.add(first)] if len(parts) == 1 else self._add_bundle(parts)
        if first.mark is not None:
            ref = MarkRef(first.store.name, first.mark.key)
            self.plan.recorded[ref] = Recorded(first.mark.digest, pack_outcomes(outcomes))
        return outcomes

    def _add_bundle(self, parts: Sequence[WriteRequest]) -> list[WriteOutcome]:
        plan = self.plan
        heads, rows, traceparents = plan.heads.copy(), plan.rows.copy(), plan.traceparents.copy()
        grown = plan.grown.copy()
        new_keys, history, changes = len(plan.new_keys), len(plan.history), len(plan.changes)
        try:
            return [self.add(part) for part in parts]
        except RingcastError:
            plan.heads, plan.rows, plan.traceparents, plan.grown = heads, rows, traceparents, grown
            del plan.new_keys[new_keys:], plan.history[history:], plan.changes[changes:]
            raise

    def _recorded(self, store: str, mark: IdempotencyMark) -> list[WriteOutcome] | None:
        """What became of a request with the same idempotency key, if there was one."""
        ref = MarkRef(store, mark.key)
        found = self.plan.recorded.get(ref) or self._state.recorded.get(ref)
        if found is None:
            return None
        if found.digest != mark.digest:
            raise InvalidInputError(
                f"idempotency_key {shown(mark.key)} was used in store {store!r} for another write: nothing was written",
                field="idempotency_key",
            )
        return unpack_outcomes(found.outcomes)

    def add(self, request: WriteRequest) -> WriteOutcome:
        """Applies one request to the plan, or raises and leaves the plan as it was."""
        key = KeyRef(request.store.name, request.key)
        is_new = self._check_key(key, request)
        if self._state.schemas and is_unchecked(key, request, self._state):
            self._state.schemas[key].check(request)
        tallies: dict[int, Tally] = {}
        refs = [RowRef(key, row.row_id) for row in request.rows]
        planned = [self._row(ref, row, tallies, request) for ref, row in zip(refs, request.rows, strict=True)]
        heads = {PartitionRef(key, partition): tally.head() for partition, tally in tallies.items()}
        self._check_sizes(heads)
        if self._state.left:
            self._check_limits(key.store, heads)
        done = [row for row in planned if row is not None]
        if is_new and done:
            self.plan.new_keys.append(key)
        ranges = [(ref.partition, self._head(ref).revision + 1, head.revision) for ref, head in heads.items()]
        self.plan.heads.update(heads)
        if request.traceparent is not None:
            for ref in heads:  # an event has one parent: the first request that wrote to its partition
                self.plan.traceparents.setdefault(ref, request.traceparent)
        self.plan.rows.update((ref, row) for ref, row in zip(refs, planned, strict=True) if row is not None)
        self.plan.history.extend(done)
        deleted = sum(row.value is None for row in done)
        if done:
            self.plan.changes.append(RowChanges(request.by, *key, len(done) - deleted, deleted, ranges))
        return WriteOutcome(
            written=len(done) - deleted,
            deleted=deleted,
            unchanged=len(planned) - len(done),
            versions=[0 if row is None else row.version for row in planned],
        )

    def _check_key(self, key: KeyRef, request: WriteRequest) -> bool:
        """Whether the key is to be created."""
        if (error := self._state.deleted.get(key)) is not None:
            raise type(error)(str(error), field=error.field)
        if key.store not in self._state.stores:
            raise UnknownStoreError(f"there is no store {key.store!r}", field="store")
        if not request.of_release:
            check_direct(key.store, self._state.releases_only)
        partitions = request.store.partition_count
        if self._state.partition_counts.get(key, partitions) != partitions:
            raise UnavailableError(f"store {key.store!r} was purged and created again just now: try again")
        if key in self._state.keys or key in self.plan.new_keys:
            return False
        if all(row.value is None for row in request.rows):
            raise UnknownKeyError(f"store {key.store!r} has no config key {key.name!r}", field="key")
        count = self._state.key_counts.get(key.store, 0) + sum(new.store == key.store for new in self.plan.new_keys)
        check_key_count(count, key.store, key.name, self._state.policies.get(key.store, NO_POLICY))
        return True

    def _head(self, ref: PartitionRef) -> Head:
        return self.plan.heads.get(ref) or self._state.heads.get(ref) or Head()

    def _is_same(self, ref: RowRef, row: RowWrite) -> bool:
        """Whether a row that is there holds what is to be written."""
        planned = self.plan.rows.get(ref)
        if planned is not None:
            return (planned.value, planned.metadata) == (row.value, row.metadata or None)
        content = self._state.contents.get(ref)
        return (
            content is not None
            and content.value == row.value
            and unpack_metadata(content.metadata) == (row.metadata or None)
        )

    def _row(self, ref: RowRef, row: RowWrite, tallies: dict[int, Tally], request: WriteRequest) -> PlannedRow | None:
        """The next revision of a row, or ``None`` where nothing is to be written."""
        planned = self.plan.rows.get(ref)
        if planned is None:
            before, prev = self._state.live.get(ref), self._state.versions.get(ref, 0)
        else:
            before, prev = None if planned.value is None else planned.size, planned.version
        live = 0 if before is None else prev
        if row.condition is not None and not _holds(row.condition, live, prev):
            if request.skip_conflicts:
                return None
            raise condition_failed(f"{ref.key.store}/{ref.key.name}", ref.row_id, row.condition, live)
        if before is None:
            if row.value is None:
                return None
        elif request.skip_unchanged and row.value is not None and self._is_same(ref, row):
            return None
        tally = tallies.get(row.partition)
        if tally is None:
            tally = tallies[row.partition] = Tally(*self._head(PartitionRef(ref.key, row.partition)))
        after = 0 if row.value is None else row.size
        tally.revision += 1
        tally.rows += (row.value is not None) - (before is not None)
        tally.bytes += after - (before or 0)
        metadata = row.metadata or None
        version, by = tally.revision, request.by
        return PlannedRow(ref.key, row.partition, row.row_id, row.value, version, metadata, after, prev, by)

    def _check_sizes(self, heads: dict[PartitionRef, Head]) -> None:
        """Refuses to let a partition grow over the limit; one that is over may still shrink."""
        for ref, head in heads.items():
            if head.bytes > limits.MAX_PARTITION_BYTES and head.bytes > self._head(ref).bytes:
                raise LimitExceededError(
                    f"partition {ref.partition} of {ref.key.store}/{ref.key.name} would have {head.bytes} bytes of "
                    f"live rows, the limit is {limits.MAX_PARTITION_BYTES}",
                    field="value",
                )

    def _check_limits(self, store: str, heads: dict[PartitionRef, Head]) -> None:
        """Refuses to let a store grow over the limits of its policies; one that is over may still shrink."""
        if (found := self._state.left.get(store)) is None:
            return
        policy, left = found
        before = self.plan.grown.get(store, Amount())
        rows, size = before
        for ref, head in heads.items():
            was = self._head(ref)
            rows += head.rows - was.rows
            size += head.bytes - was.bytes
        for name, limit, free, grown, more in (
            ("max_rows", policy.max_rows, left.rows, rows, rows - before.rows),
            ("max_bytes", policy.max_bytes, left.bytes, size, size - before.bytes),
        ):
            if limit is not None and more > 0 and grown > free:
                self.plan.over.add(store)
                raise LimitExceededError(
                    f"store {store!r} would have {limit - free + grown} {_OF_LIMITS[name]}, and its policy {name} "
                    f"allows {limit}",
                    field=name,
                )
        self.plan.grown[store] = Amount(rows, size)


def _holds(condition: int, live: int, stored: int) -> bool:
    """Whether a row is as :class:`RowWrite` says. ``live``: its version, 0 for none; ``stored``: a tombstone's too."""
    return live == condition if condition >= 0 else not live and stored in (0, -condition)


def written_back(plan: Plan, kept: KeptRows) -> list[tuple[int, PlannedRow]]:
    """What is written of rows that a release has kept, with the place of each."""
    written = [place for place, version in versions_of(plan, kept.places) if version]
    return list(zip(written, plan.history, strict=True))


def versions_of(plan: Plan, places: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Each place of the rows of requests that were not refused, and the version that its row was written with, or 0."""
    outcomes = zip(places, plan.outcomes, strict=True)
    done = [(each, outcome.versions) for each, outcome in outcomes if isinstance(outcome, WriteOutcome)]
    return [place for each, versions in done for place in zip(each, versions, strict=True)]


def events_of(
    plan: Plan, written: Iterable[PlannedRow], state: CurrentState, requests: Sequence[WriteRequest], now_ms: int
) -> Iterable[PlannedEvent]:
    """One event a partition written, with its rows in order of their versions unless they are too many.

    ``written``: the last state of each row. Those of a partition with too many may all be left out.
    """
    stores = {request.store.name: request.store for request in requests}
    (release,) = {request.release for request in requests} or {0}  # a step of a release writes by itself
    by_partition: dict[tuple[KeyRef, int], list[PlannedRow]] = {ref: [] for ref in plan.heads}
    for row in written:
        by_partition[row.key, row.partition].append(row)
    for place, rows in by_partition.items():
        ref = PartitionRef(*place)
        key = ref.key
        store = stores[key.store]
        inline, version, history = store.inline_max_bytes, version_for(store.wire_pin), state.histories.get(key, "")
        prev, rev = (state.heads.get(ref) or Head()).revision, plan.heads[ref].revision
        listed = 0 < len(rows) <= limits.MAX_EVENT_CHANGES
        changes = sorted((_change(row, inline) for row in rows), key=_version) if listed else None
        payload = encode(Event(version, prev, rev, now_ms, changes, history, release))
        if len(payload) > limits.MAX_EVENT_BYTES:
            payload = encode(Event(version, prev, rev, now_ms, None, history, release))
        yield PlannedEvent(
            names.notify_subject(key.store, key.name, ref.partition),
            names.event_msg_id(key.store, key.name, ref.partition, rev, history),
            payload,
            plan.traceparents.get(ref),
        )


def _version(change: Change) -> int:
    return change.version


def _change(row: PlannedRow, inline_max_bytes: int) -> Change:
    """How an event tells of a row; the value rides along where it and the metadata are small."""
    if row.value is None:
        return Change(row.row_id, row.version, True)
    if inline_max_bytes and row.size - len(row.row_id.encode()) <= inline_max_bytes:
        return Change(row.row_id, row.version, False, row.value, row.metadata)
    return Change(row.row_id, row.version)
