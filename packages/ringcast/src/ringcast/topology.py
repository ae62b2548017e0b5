"""The workers of a config key and the partitions that each of them owns, read from the buckets of a store.

It is what the workers themselves compute from the same data: a look from outside, at one moment. In a store of
exclusive ownership it is what the table of the key says.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from ringcast_wire import (
    WIRE_VERSION,
    ErrorCode,
    LeaseRecord,
    Migration,
    Mode,
    NodePhase,
    NodeRecord,
    ProtocolError,
    StoreSettings,
    UnavailableError,
    UnknownKeyError,
    UnknownStoreError,
    decode_record,
    names,
)
from ringcast_wire.buckets import StoredRecord
from ringcast_wire.migrating import Step, counted, possible_members, unguarded
from ringcast_wire.owner_records import RECORD_AGE_S, Phase, Rule, Session, decode_state

from ringcast._bus.tools import (
    ToolBus,
    answered_within,
    ask,
    live_sessions,
    open_bus,
    read_bucket,
    read_stored_entries,
)
from ringcast._coordination.sticky.view import KeyRecords, key_records
from ringcast._coordination.store_settings import decode_metadata
from ringcast._protocol.assignment import owners
from ringcast._protocol.kv_mirror import Entry
from ringcast._protocol.membership import Membership

DEFAULT_SERVERS: Final = "nats://127.0.0.1:4222"
DEFAULT_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Member:
    """A worker that is registered for a config key. It owns partitions only while it is ``alive``.

    ``phase``: one that joins owns none yet, and one that leaves goes on serving until others take over. ``slot`` is
    ``None`` in a store of exclusive ownership and in mode FULL, which have none. In mode FULL each has all partitions.
    """

    worker_id: str
    slot: int | None
    alive: bool
    host: str | None
    pid: int | None
    partitions: tuple[int, ...]
    phase: NodePhase = NodePhase.ACTIVE
    capacity: int = 1
    """As a multiple of what another worker takes, in a store of exclusive ownership."""
    wire: int = WIRE_VERSION
    """The newest version of messages that it reads: events of the store are of none that a worker does not read."""


@dataclass(frozen=True, slots=True)
class Owned:
    """A partition in the table of exclusive ownership.

    ``token`` is what the calls of ``owner`` have; once a partition is handed over, ``next_owner`` has ``next_token``.
    ``phase``: ``held``, ``prepare`` (the owner serves, the next one prepares) or ``drain`` (the owner is to stop).
    """

    owner: str | None
    token: int
    phase: str = Phase.HELD.value
    next_owner: str | None = None
    next_token: int = 0


@dataclass(frozen=True, slots=True)
class Exclusive:
    """What a store of exclusive ownership has besides, for one key.

    ``epoch`` is the number of the table, 0 if there is none yet. ``partitions`` is by partition number. ``pins`` and
    ``drains`` are what operators want: see :mod:`ringcast.wishes`. ``unreadable``: why records can't be read, by name.
    """

    epoch: int
    leader: str | None
    partitions: tuple[Owned, ...]
    pins: Mapping[int, str] = field(default_factory=dict)
    drains: tuple[str, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    balance: str = "count"
    """What the workers are to have equal: ``count`` (of partitions) or ``load``."""
    loads: Mapping[str, float] = field(default_factory=dict)
    """The changes a second of what a worker owns, by worker, as far as it has reported any."""
    hot: Mapping[int, float] = field(default_factory=dict)
    """The partitions whose load alone is more than a worker should have, with their changes a second, hottest first."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """A worker that a store which migrates waits for. ``alive``: its lease lives.

    ``seen_s``: when it last gave a sign of life that NATS has kept, in Unix time by the clock of NATS. One that is not
    alive and does not come back is waited for until ``until_s`` at most: then its records are too old. ``None``: only
    for calls of a session, which is over soon after its lease.
    """

    worker_id: str
    alive: bool
    seen_s: float
    until_s: float | None


@dataclass(frozen=True, slots=True)
class Shadow:
    """What a store that migrates has besides, for one key.

    ``workers`` have a session: each of them could be an owner. ``owners`` is by partition number what the table has:
    who owns it where ``rule`` is ``owners``, else what a leader plans, which nobody obeys. ``None`` as long as there is
    no table for the step of this number. ``unguarded``: workers that may have calls that no table has let start, as
    the next step wants it. ``guarded``: those that say that they have none. ``calling``: under the rule ``nobody``,
    those that may still have calls of the rule before. ``awaited``: of all of these, for how long.
    """

    step: int
    leader: str | None
    workers: tuple[str, ...]
    owners: tuple[str | None, ...] | None
    rule: str | None = None
    unguarded: tuple[str, ...] = ()
    guarded: tuple[str, ...] = ()
    calling: tuple[str, ...] = ()
    awaited: Mapping[str, Awaited] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Topology:
    """The owners of one config key. ``owners`` is by partition number; ``None``: there is no worker to own it."""

    store: str
    key: str
    settings: StoreSettings
    members: tuple[Member, ...]
    owners: tuple[str | None, ...]
    exclusive: Exclusive | None = None
    """``None`` where the strategy of the store does not promise one owner at every moment."""
    shadow: Shadow | None = None
    """``None`` unless the store migrates."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Why registrations can't be read, by name, where ownership is not exclusive: workers pass over them, too, and what
    is here of owners is without them. Of a newer build they may be: use a tool of that one."""

    @property
    def moves(self) -> int | None:
        """How many partitions the plan of a store that migrates gives to others; ``None``: there is no plan."""
        if self.shadow is None or self.shadow.owners is None:
            return None
        return sum(now != then for now, then in zip(self.owners, self.shadow.owners, strict=True))


async def read_topology(
    servers: str | Sequence[str] | None, store: str, key: str, *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> Topology:
    """Reads the owners of the partitions of ``key``. A key that has rows and no workers has no members and no owners.

    ``servers`` are NATS URLs; ``None``: the environment variable RINGCAST_SERVERS, or nats://127.0.0.1:4222. In mode
    FULL every worker has everything, and no partition has an owner.

    Raises:
        UnknownStoreError: there is no such store.
        UnknownKeyError: the key has no workers, and the config service says that it was never written to.
        UnavailableError: NATS can't be reached or does not answer within ``timeout_s``.
        MismatchError: the store speaks another wire version or hash, or has a strategy that this build does not know.
    """
    names.check_name("key", key)
    read = await _read(servers_of(servers), store, f"{key}.>", timeout_s)
    found = _topology(read, store, key)
    if not found.members:
        await require_key(servers_of(servers), store, key, timeout_s)
    return found


async def topology_over(client: ToolBus, store: str, key: str, *, timeout_s: float) -> Topology:
    """As :func:`read_topology`, over a connection that is there; a key that nobody knows has no members here."""
    return _topology(await _read_over(client, names.check_name("store", store), f"{key}.>", timeout_s), store, key)


async def read_topologies(
    servers: str | Sequence[str] | None, store: str, *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> list[Topology]:
    """The topology of every key of a store that has members, by name of the key. Raises as :func:`read_topology`."""
    read = await _read(servers_of(servers), store, ">", timeout_s)
    tables = read.owners if read.settings.is_exclusive else ()
    named = [*tables, *(name for name in (*read.nodes, *read.left) if not names.is_ended_key(name))]
    keys = {name.partition(".")[0] for name in named if not name.startswith("~")}
    found = [_topology(read, store, key) for key in sorted(keys)]
    return [each for each in found if each.members or each.exclusive is None]


@dataclass(frozen=True, slots=True)
class _Buckets:
    """What was read. ``owners`` and ``wishes`` are empty where ownership is not exclusive, nor is to be."""

    settings: StoreSettings
    nodes: Mapping[str, bytes]
    leases: Mapping[str, bytes]
    owners: Mapping[str, bytes]
    wishes: Mapping[str, bytes]
    migration: Migration | None = None
    signs: Mapping[str, float] = field(default_factory=dict)
    """When what a worker of a store that migrates has written was stored: by ``registered/`` or ``said/`` and name."""
    left: frozenset[str] = frozenset()
    """Registrations that were deleted while calls of their workers may have run, or may begin again from a disk."""
    gone: frozenset[str] = frozenset()
    """Registrations, deleted ones too, of workers that an operator has since said are gone."""
    sessions: Mapping[str, bytes] = field(default_factory=dict)
    """Of workers of exclusive ownership that live under an agent, by their ids: these have no leases."""


async def _read(servers: Sequence[str], store: str, keys: str, timeout_s: float) -> _Buckets:
    names.check_name("store", store)
    async with (
        open_bus(servers, timeout_s=timeout_s, name="ringcast-topology") as client,
        answered_within(servers, timeout_s),
    ):
        return await _read_over(client, store, keys, timeout_s)


async def _read_over(client: ToolBus, store: str, keys: str, timeout_s: float) -> _Buckets:
    async def read(bucket: str, pattern: str = ">") -> dict[str, bytes] | None:
        return await read_bucket(client, bucket, pattern, timeout_s=timeout_s)

    meta = await read(names.meta_bucket(store))
    if meta is None:
        raise UnknownStoreError(f"store {store!r} does not exist", field="store")
    found = decode_metadata(meta)
    settings = found.settings
    leases = await read(names.LEASES_BUCKET) or {}
    if not settings.is_exclusive:
        if found.step is None or not found.step.is_on:
            return _Buckets(settings, await read(names.nodes_bucket(store), keys) or {}, leases, {}, {}, found.step)
        return await _read_migrating(client, store, settings, keys, leases, found.step, timeout_s)
    owners = await read(names.owners_bucket(store), keys)
    if owners is not None and keys != ">":
        owners |= await read(names.owners_bucket(store), names.load_key("*")) or {}
    wishes = await read(names.wishes_bucket(store), keys)
    if owners is None or wishes is None:
        raise UnavailableError(f"store {store!r} has no bucket of owners: its config service has not made it")
    assert settings.lease_ttl_ms is not None
    sessions = await live_sessions(client, store, settings.lease_ttl_ms, _hosted(owners), timeout_s=timeout_s)
    return _Buckets(settings, {}, leases, owners, wishes, sessions=sessions)


def _hosted(owners: Mapping[str, bytes]) -> set[str]:
    """The workers under the agent of a host, by what they say of themselves."""
    found = set()
    for name, data in owners.items():
        key, worker_id = name.partition(".")[0], name.rpartition(".")[2]
        with suppress(ProtocolError):  # the topology says why it can't be read
            if name == names.state_key(key, worker_id) and decode_state(data).agent:
                found.add(worker_id)
    return found


async def _read_migrating(
    client: ToolBus,
    store: str,
    settings: StoreSettings,
    keys: str,
    leases: Mapping[str, bytes],
    step: Migration,
    timeout_s: float,
) -> _Buckets:
    async def read(bucket: str, pattern: str) -> dict[str, StoredRecord]:
        return await read_stored_entries(client, bucket, pattern, timeout_s=timeout_s) or {}

    nodes, said = await read(names.nodes_bucket(store), keys), await read(names.owners_bucket(store), keys)
    said |= await read(names.owners_bucket(store), names.session_key("*"))
    left = frozenset(name for name, entry in nodes.items() if entry.data is None and entry.may_call)
    gone = _declared_gone(nodes, said)
    signs = {f"registered/{name}": entry.stored_s for name, entry in nodes.items() if entry.data or name in left}
    signs |= {f"said/{name}": entry.stored_s for name, entry in said.items() if entry.data}
    data = [{name: entry.data for name, entry in found.items() if entry.data} for found in (nodes, said)]
    return _Buckets(settings, data[0], leases, data[1], {}, step, signs, left, gone)


def _declared_gone(nodes: Mapping[str, StoredRecord], said: Mapping[str, StoredRecord]) -> frozenset[str]:
    found = set()
    for name, entry in nodes.items():
        key, _, worker_id = name.partition(".")
        state = said.get(names.state_key(key, worker_id)) if "." not in worker_id else None
        if state is not None and state.gone is not None and not counted({name: entry.revision}, {name: state.gone}):
            found.add(name)
    return frozenset(found)


async def require_key(servers: Sequence[str], store: str, key: str, timeout_s: float) -> None:
    """Raises if the config service does not know the key. A service that is away can't say, which is no error here."""
    async with open_bus(servers, timeout_s=timeout_s, name="ringcast-topology") as client:
        reply = await ask(client, names.fetch_subject(store, key, names.FETCH_HEADS), timeout_s=timeout_s)
    if reply is not None and (reply.headers or {}).get(names.HEADER_ERROR) == ErrorCode.UNKNOWN_KEY:
        raise UnknownKeyError(reply.data.decode(), field="key")


def _topology(read: _Buckets, store: str, key: str) -> Topology:
    settings, nodes, leases = read.settings, read.nodes, read.leases
    if settings.is_exclusive:
        records = key_records(read.owners, read.wishes.get(names.wishes_key(key)), key, settings.partition_count)
        return _topology_of_table(store, key, settings, records, leases, read.sessions)
    membership = Membership()
    membership.nodes.replace({name: Entry(1, data) for name, data in nodes.items()})
    membership.leases.replace({name: Entry(1, data) for name, data in leases.items()})
    live = membership.members(key) if settings.mode is Mode.PARTITIONED else ()
    owner_of: tuple[str | None, ...] = owners(settings, live) if live else (None,) * settings.partition_count
    step = read.migration
    is_on = step is not None and step.is_on
    migrating = key_records(read.owners, None, key, settings.partition_count) if is_on else None
    table = migrating.table if migrating is not None else None
    if table is not None and table.rule is Rule.OWNERS:
        owner_of = tuple(_worker(each.owner) for each in table.entries)
    owned: dict[str, list[int]] = {}
    for partition, owner in enumerate(owner_of):
        if owner is not None:
            owned.setdefault(owner, []).append(partition)
    members, unreadable = [], {}
    for name in sorted(nodes):
        head, _, worker_id = name.partition(".")
        if head != key or "." in worker_id:
            continue
        try:
            record = decode_record(nodes[name], NodeRecord)
        except ProtocolError as error:
            unreadable[name] = str(error)
            continue
        lease = membership.leases.get(record.lease, LeaseRecord)
        if settings.mode is Mode.FULL:
            everything = range(settings.partition_count) if lease is not None else ()
            members.append(replace(_member(worker_id, record, lease, everything), slot=None))
        else:
            members.append(_member(worker_id, record, lease, owned.get(worker_id, [])))
    left = {name.partition(".")[2] for name in read.left if name.partition(".")[0] == key and name.count(".") == 1}
    enrolled = {each for each in {*(member.worker_id for member in members), *left} if f"{key}.{each}" not in read.gone}
    shadow = None
    if step is not None and migrating is not None:
        shadow = _shadow(step, migrating, members, enrolled, read.signs)
    return Topology(store, key, settings, tuple(members), owner_of, shadow=shadow, unreadable=unreadable)


def _shadow(
    step: Migration, records: KeyRecords, members: Sequence[Member], enrolled: set[str], signs: Mapping[str, float]
) -> Shadow:
    """``enrolled``: workers that are registered, or have left while calls may have run, and are not said to be gone."""
    table, states = records.table, records.states
    is_current = table is not None and table.step == step.number
    said = {Session(name, state.lease, state.session) for name, state in states.items() if state.session}
    workers = said if table is None or table.rule is not Rule.PEERS else said & set(table.peers)
    not_guarded = unguarded(Step.of(step), possible_members(enrolled, states, records.ended), states)
    guarded = {name for name in enrolled if name in states and states[name].guarded}
    calling = {each.worker_id for each in table.peers if not records.has_stopped(each)} if table is not None else set()
    if table is None or table.rule is not Rule.NOBODY:
        calling = set()
    alive = {member.worker_id for member in members if member.alive}
    by_records = {*not_guarded, *guarded}
    awaited = {
        name: _awaited(records.key, name, name in alive, signs, by_records=name in by_records)
        for name in {*by_records, *calling}
    }
    return Shadow(
        step.number,
        records.term.leader if records.term is not None else None,
        tuple(sorted(session.worker_id for session in workers)) if is_current else (),
        tuple(_worker(entry.owner) for entry in table.entries) if table is not None and is_current else None,
        table.rule.value if table is not None and is_current else None,
        tuple(sorted(not_guarded)),
        tuple(sorted(guarded)),
        tuple(sorted(calling)),
        awaited,
    )


def _awaited(key: str, worker_id: str, alive: bool, signs: Mapping[str, float], *, by_records: bool) -> Awaited:
    held = [signs.get(f"registered/{names.node_key(key, worker_id)}", 0.0)]
    held.append(signs.get(f"said/{names.state_key(key, worker_id)}", 0.0))
    seen_s = max(*held, signs.get(f"said/{names.session_key(worker_id)}", 0.0))
    return Awaited(worker_id, alive, seen_s, max(held) + RECORD_AGE_S if by_records else None)


def _topology_of_table(
    store: str,
    key: str,
    settings: StoreSettings,
    records: KeyRecords,
    leases: Mapping[str, bytes],
    sessions: Mapping[str, bytes],
) -> Topology:
    hosted = {name: data for name, data in sessions.items() if (state := records.states.get(name)) and state.agent}
    membership = Membership()
    membership.leases.replace({name: Entry(1, data) for name, data in {**hosted, **leases}.items()})
    table = records.table
    partitions = (
        tuple(
            Owned(_worker(entry.owner), entry.token, entry.phase.value, _worker(entry.next), entry.next_token)
            for entry in (table.entries if table is not None else ())
        )
        or (Owned(None, 0),) * settings.partition_count
    )
    owned: dict[str, list[int]] = {}
    for number, each in enumerate(partitions):
        if each.owner is not None:
            owned.setdefault(each.owner, []).append(number)
    members = []
    for worker_id in sorted(records.workers()):
        lease, state = membership.leases.get(worker_id, LeaseRecord), records.states.get(worker_id)
        takes_part = worker_id in owned or (state is not None and state.seen > 0)
        phase = NodePhase.ACTIVE if takes_part else NodePhase.JOINING
        members.append(
            Member(
                worker_id=worker_id,
                slot=None,
                alive=lease is not None and state is not None and state.session > 0,
                host=lease.host if lease else None,
                pid=lease.pid if lease else None,
                partitions=tuple(owned.get(worker_id, ())),
                phase=NodePhase.LEAVING if state is not None and state.leaving else phase,
                capacity=state.capacity if state is not None else 1,
                wire=state.wire if state is not None else WIRE_VERSION,
            )
        )
    exclusive = Exclusive(
        epoch=table.epoch if table is not None else 0,
        leader=records.term.leader if records.term is not None else None,
        partitions=partitions,
        pins=dict(records.wishes.pins),
        drains=tuple(sorted(records.wishes.drains)),
        unreadable=records.unreadable,
        balance=records.wishes.balance,
        loads={worker_id: load.total / 1000 for worker_id, load in sorted(records.loads.items())},
        hot={one.partition: one.rate for one in records.hot()},
    )
    return Topology(store, key, settings, tuple(members), tuple(each.owner for each in partitions), exclusive)


def _worker(session: Session | None) -> str | None:
    return session.worker_id if session is not None else None


def _member(worker_id: str, record: NodeRecord, lease: LeaseRecord | None, partitions: Iterable[int]) -> Member:
    return Member(
        worker_id=worker_id,
        slot=record.slot,
        alive=lease is not None,
        host=lease.host if lease else None,
        pid=lease.pid if lease else None,
        partitions=tuple(partitions),
        phase=record.phase,
        wire=record.wire,
    )


def servers_of(servers: str | Sequence[str] | None) -> list[str]:
    """The URLs of NATS servers; ``None``: those of the environment, or of this machine."""
    if servers is None:
        servers = os.environ.get("RINGCAST_SERVERS") or DEFAULT_SERVERS
    return [part.strip() for part in servers.split(",")] if isinstance(servers, str) else list(servers)


__all__ = [
    "Awaited",
    "Exclusive",
    "Member",
    "Owned",
    "Shadow",
    "Topology",
    "read_topologies",
    "read_topology",
]
