"""Whether an operator may take a step of a migration: as the workers of the store say on NATS.

The proof of ``docs/sticky.md`` relies on answers that are not out of date. A server says with each answer up to which
message of the bucket it is; the one that takes writes in says how many there are.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from nats.js import JetStreamContext
from nats.js.errors import NotFoundError
from ringcast_wire import (
    ConditionFailedError,
    Migration,
    ProtocolError,
    Stage,
    UnavailableError,
    names,
    stage_name,
)
from ringcast_wire.ended_sessions import Span, believed, decode_gone
from ringcast_wire.migrating import Step, may_end, may_finish, possible_members, unguarded
from ringcast_wire.owner_records import State, Table, check_numbers, decode_state, decode_table

from ringcast_config_service.repository import StoreRecord

_TRIES: Final = 20
_PAUSE_S: Final = 0.1
_ANSWER_S: Final = 5.0
_MOST: Final = 8
"""Workers that an error names."""
_MARKERS: Final = ("KV-Operation", "Nats-Marker-Reason")


@dataclass
class KeyWorkers:
    """What NATS has of one key."""

    registered: set[str] = field(default_factory=set)
    states: dict[str, State] = field(default_factory=dict)
    table: Table | None = None
    said: dict[str, dict[str, Span]] = field(default_factory=dict)
    """What agents say of processes that have ended, by agent, then by worker."""
    unreadable: list[str] = field(default_factory=list)
    """Records that can't be read."""

    @property
    def members(self) -> set[str]:
        """The workers that may have calls that no table has let start."""
        return possible_members(self.registered, self.states, believed(self.said, self.states))


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
    for key, workers in sorted((await _read(js, store)).items()):
        if stage is Stage.OFF:
            _check_end(store, key, workers, step)
            continue
        if stage is Stage.FINISH:
            if not may_finish(step, workers.members, workers.table):
                raise _refusal(store, before, stage, f"key {key!r} has no owners yet")
            continue
        lacking = (
            workers.registered - workers.states.keys()
            if stage is Stage.VALIDATE
            else unguarded(step, workers.members, workers.states)
        )
        if lacking:
            what = "take no part in the migration" if stage is Stage.VALIDATE else "are not guarded"
            raise _refusal(store, before, stage, f"{_listed(lacking)} of key {key!r} {what}")


def _check_end(store: StoreRecord, key: str, workers: KeyWorkers, step: Step) -> None:
    assert store.migration is not None
    if workers.unreadable:
        raise _refusal(store, store.migration, Stage.OFF, f"{workers.unreadable[0]} can't be read")
    if not may_end(step, workers.members, workers.states, workers.table):
        guarded = {name for name, state in workers.states.items() if name in workers.registered and state.guarded}
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


async def _read(js: JetStreamContext, store: StoreRecord) -> dict[str, KeyWorkers]:
    """The workers of each key. Registrations first: who registers later has read the step."""
    nodes = await read_bucket(js, names.nodes_bucket(store.name))
    owners = await read_bucket(js, names.owners_bucket(store.name))
    found: defaultdict[str, KeyWorkers] = defaultdict(KeyWorkers)
    for name in nodes:
        key, _, worker_id = name.partition(".")
        if not key.startswith("~") and "." not in worker_id:
            found[key].registered.add(worker_id)
    for name, (revision, data) in owners.items():
        key, _, rest = name.partition(".")
        if key.startswith("~"):
            continue
        workers = found[key]
        try:
            if rest.startswith("state."):
                state = decode_state(data)
                check_numbers(state, revision)
                workers.states[rest.removeprefix("state.")] = state
            elif rest.startswith("gone."):
                workers.said[rest.removeprefix("gone.")] = decode_gone(data, revision)
            elif name == names.table_key(key):
                table = decode_table(data, store.settings.partition_count)
                check_numbers(table, revision)
                workers.table = table
        except ProtocolError:
            workers.unreadable.append(name)  # a worker whose state can't be read has said nothing
    return found


async def read_bucket(js: JetStreamContext, bucket: str) -> dict[str, tuple[int, bytes]]:
    """The entries of the keys of a bucket with their revisions, as of this call or later.

    Raises:
        UnavailableError: no server answers that has all that was written before.
    """
    stream, prefix = f"KV_{bucket}", f"$KV.{bucket}."
    try:
        state = (await js.stream_info(stream, subjects_filter=f"{prefix}>")).state
    except NotFoundError:
        return {}
    found: dict[str, tuple[int, bytes]] = {}
    keys = {subject.removeprefix(prefix).partition(".")[0] for subject in state.subjects or ()}
    for key in sorted(key for key in keys if not key.startswith("~")):
        for _ in range(_TRIES):
            entries, up_to = await _read_key(js, stream, prefix, key)
            if up_to >= state.last_seq:
                break
            await asyncio.sleep(_PAUSE_S)
        else:
            raise UnavailableError(f"bucket {bucket} is read from a server that lags behind: try again")
        found |= entries
    return found


async def _read_key(
    js: JetStreamContext, stream: str, prefix: str, key: str
) -> tuple[dict[str, tuple[int, bytes]], int]:
    """What one server has of a key at one moment, and the last message of the bucket that it knows of."""
    nc = js._nc  # the client of JetStream has no call for this
    inbox = nc.new_inbox()
    answers = await nc.subscribe(inbox)
    found: dict[str, tuple[int, bytes]] = {}
    last = "0"
    try:
        question = json.dumps({"multi_last": [f"{prefix}{key}.>"]}).encode()
        await nc.publish(f"$JS.API.DIRECT.GET.{stream}", question, reply=inbox)
        while True:
            message = await answers.next_msg(_ANSWER_S)
            headers = message.headers or {}
            status = headers.get("Status")
            if status == "204" and headers.get("Nats-Last-Sequence") == last:
                return found, int(headers["Nats-UpTo-Sequence"])
            if status == "404":
                return {}, 0  # there was an entry a moment ago: either the server lags behind, or it has just aged out
            if status is not None:
                raise UnavailableError(f"{stream} can't be read: {status} {headers.get('Description', '')}".rstrip())
            if headers.get("Nats-Last-Sequence") != last:
                raise UnavailableError(f"an answer about {stream} is incomplete: try again")
            last = headers["Nats-Sequence"]
            if not any(name in headers for name in _MARKERS):
                found[headers["Nats-Subject"].removeprefix(prefix)] = int(last), message.data
    finally:
        await answers.unsubscribe()
