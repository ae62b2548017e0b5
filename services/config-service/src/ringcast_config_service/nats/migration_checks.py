"""Whether an operator may take a step of a migration: as the workers of the store say on NATS.

The proof of ``docs/sticky.md`` relies on answers that are not out of date, as ``ringcast_wire.bucket_reads`` has them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from nats.js import JetStreamContext
from ringcast_wire import (
    ConditionFailedError,
    Migration,
    ProtocolError,
    Stage,
    names,
    stage_name,
)
from ringcast_wire.bucket_reads import read_keys
from ringcast_wire.ended_sessions import Span, believed, decode_gone
from ringcast_wire.migrating import Step, counted, may_end, may_finish, possible_members, unguarded
from ringcast_wire.owner_records import State, Table, check_numbers, decode_state, decode_table

from ringcast_config_service.nats.latest import Latest, read_newest
from ringcast_config_service.repository import StoreRecord

_MOST: Final = 8
"""Workers that an error names."""


@dataclass
class KeyWorkers:
    """What NATS has of one key."""

    registered: dict[str, int] = field(default_factory=dict)
    """Revisions of their registrations."""
    records: dict[str, bytes] = field(default_factory=dict)
    """The registrations themselves."""
    left: dict[str, int] = field(default_factory=dict)
    """Workers whose registrations were deleted while calls of them may have run, or may begin again from a disk."""
    deleted: set[str] = field(default_factory=set)
    """Workers of which a registration or a state was deleted."""
    states: dict[str, State] = field(default_factory=dict)
    said_at: dict[str, int] = field(default_factory=dict)
    """Revisions of the states, also of those that can't be read or were deleted."""
    gone: dict[str, int] = field(default_factory=dict)
    """Workers that an operator says are gone, as of which revision of their registrations."""
    table: Table | None = None
    ended: dict[str, dict[str, Span]] = field(default_factory=dict)
    """What agents say of processes that have ended, by agent, then by worker."""
    unreadable: list[str] = field(default_factory=list)
    """Records that can't be read."""

    @property
    def enrolled(self) -> set[str]:
        """The workers that are registered, or have left while calls of them may have run."""
        return counted({**self.left, **self.registered}, self.gone)

    @property
    def members(self) -> set[str]:
        """The workers that take part, or may have calls that no table has let start."""
        registered = counted(self.registered, self.gone)
        return possible_members(registered, self.states, believed(self.ended, self.states))

    def lacking(self, step: Step, stage: Stage) -> frozenset[str]:
        """The workers that keep the store from ``VALIDATE`` or ``SWITCH``."""
        if stage is Stage.VALIDATE:
            return frozenset(self.enrolled - self.states.keys())
        return unguarded(step, self.members | self.enrolled, self.states)


async def check_step(js: JetStreamContext, store: StoreRecord, stage: Stage) -> None:
    """Looks whether a store may go to a stage from the step of its record, which is on NATS.

    Raises:
        ConditionFailedError: a worker is not ready for it.
        UnavailableError: NATS does not say.
    """
    before = store.migration
    if before is None or stage is Stage.SHADOW or (stage is Stage.OFF and not before.is_back):
        return
    step = Step.of(before)
    for key, workers in sorted((await read_workers(js, store)).items()):
        if stage is Stage.OFF:
            _check_end(store, key, workers, step)
            continue
        if stage is Stage.FINISH:
            if not may_finish(step, workers.members, workers.table):
                raise _refusal(store, before, stage, f"key {key!r} has no owners yet")
            continue
        if lacking := workers.lacking(step, stage):
            what = "take no part in the migration" if stage is Stage.VALIDATE else "are not guarded"
            raise _refusal(store, before, stage, f"{_listed(lacking)} of key {key!r} {what}")


def _check_end(store: StoreRecord, key: str, workers: KeyWorkers, step: Step) -> None:
    assert store.migration is not None
    if workers.unreadable:
        raise _refusal(store, store.migration, Stage.OFF, f"{workers.unreadable[0]} can't be read")
    members = workers.members | workers.enrolled
    if not may_end(step, members, workers.states, workers.table):
        guarded = {name for name, state in workers.states.items() if name in members and state.guarded}
        why = f"{_listed(guarded)} of key {key!r} are still guarded" if guarded else f"key {key!r} is not back yet"
        raise _refusal(store, store.migration, Stage.OFF, why)


def _listed(workers: set[str] | frozenset[str]) -> str:
    named = sorted(workers)
    more = f" and {len(named) - _MOST} more" if len(named) > _MOST else ""
    return f"workers {', '.join(named[:_MOST])}{more}"


def _refusal(store: StoreRecord, before: Migration, stage: Stage, why: str) -> ConditionFailedError:
    return ConditionFailedError(
        f"store {store.name!r} can't go from {stage_name(before.stage)} to {stage_name(stage)} yet: {why}",
        field="stage",
        found_version=before.number,
    )


async def read_workers(js: JetStreamContext, store: StoreRecord) -> dict[str, KeyWorkers]:
    """The workers of each key. Registrations first: who registers later has read the step.

    Raises:
        UnavailableError: no server answers that has all that was written before.
    """
    nodes = await read_bucket(js, names.nodes_bucket(store.name))
    owners = await read_bucket(js, names.owners_bucket(store.name))
    found: defaultdict[str, KeyWorkers] = defaultdict(KeyWorkers)
    for key, worker_id in _workers(nodes.entries):
        found[key].registered[worker_id], found[key].records[worker_id] = nodes.entries[names.node_key(key, worker_id)]
    for key, worker_id in _workers(nodes.markers):
        marker = nodes.markers[names.node_key(key, worker_id)]
        found[key].deleted.add(worker_id)
        if marker.may_call:
            found[key].left[worker_id] = marker.revision
    for name, marker in owners.markers.items():
        key, _, rest = name.partition(".")
        if rest.startswith("state."):
            worker_id = rest.removeprefix("state.")
            found[key].deleted.add(worker_id)
            found[key].said_at[worker_id] = marker.revision
            if marker.gone is not None:
                found[key].gone[worker_id] = marker.gone
    for name, (revision, data) in owners.entries.items():
        key, _, rest = name.partition(".")
        if key.startswith("~"):
            continue
        workers = found[key]
        try:
            if rest.startswith("state."):
                workers.said_at[rest.removeprefix("state.")] = revision
                state = decode_state(data)
                check_numbers(state, revision)
                workers.states[rest.removeprefix("state.")] = state
            elif rest.startswith("gone."):
                workers.ended[rest.removeprefix("gone.")] = decode_gone(data, revision)
            elif name == names.table_key(key):
                table = decode_table(data, store.settings.partition_count)
                check_numbers(table, revision)
                workers.table = table
        except ProtocolError:
            workers.unreadable.append(name)  # a worker whose state can't be read has said nothing
    return found


def _workers(nodes: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The key and the worker of each registration among entries of the bucket of members."""
    for name in nodes:
        key, _, worker_id = name.partition(".")
        if not key.startswith("~") and "." not in worker_id:
            yield key, worker_id


async def read_bucket(js: JetStreamContext, bucket: str) -> Latest:
    """The entries of the keys of a bucket with their revisions, as of this call or later; those of a key as they were
    at one moment.

    Raises:
        UnavailableError: no server answers that has all that was written before.
    """
    found = Latest({}, {}, {})
    keys = {name.partition(".")[0] for name in await read_keys(js._nc, bucket) or ()}
    for key in sorted(key for key in keys if not key.startswith("~")):
        some = await read_newest(js, bucket, f"{key}.>")
        found.entries.update(some.entries)
        found.markers.update(some.markers)
    return found
