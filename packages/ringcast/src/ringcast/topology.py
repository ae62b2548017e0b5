"""The workers of a config key and the partitions that each of them owns, read from the buckets of a store.

It is what the workers themselves compute from the same data: a look from outside, at one moment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ringcast_wire import (
    ErrorCode,
    InvalidInputError,
    LeaseRecord,
    Mode,
    NodePhase,
    NodeRecord,
    StoreSettings,
    Strategy,
    UnknownKeyError,
    UnknownStoreError,
    names,
)

from ringcast._bus.tools import answered_within, ask, open_bus, read_bucket
from ringcast._protocol.assignment import owners
from ringcast._protocol.kv_mirror import Entry
from ringcast._protocol.membership import Membership

DEFAULT_SERVERS: Final = "nats://127.0.0.1:4222"
DEFAULT_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Member:
    """A worker that is registered for a config key. It owns partitions only while it is ``alive``.

    ``phase``: one that joins owns none yet, and one that leaves goes on serving until others take over.
    """

    worker_id: str
    slot: int
    alive: bool
    host: str | None
    pid: int | None
    partitions: tuple[int, ...]
    phase: NodePhase = NodePhase.ACTIVE


@dataclass(frozen=True, slots=True)
class Topology:
    """The owners of one config key. ``owners`` is by partition number; ``None``: there is no worker to own it."""

    store: str
    key: str
    settings: StoreSettings
    members: tuple[Member, ...]
    owners: tuple[str | None, ...]


async def read_topology(
    servers: str | Sequence[str] | None, store: str, key: str, *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> Topology:
    """Reads the owners of the partitions of ``key``. A key that has rows and no workers has no members and no owners.

    ``servers`` are NATS URLs; ``None``: the environment variable RINGCAST_SERVERS, or nats://127.0.0.1:4222. In mode
    FULL every worker owns everything and none is registered, so there are no members.

    Raises:
        UnknownStoreError: there is no such store.
        UnknownKeyError: the key has no workers, and the config service says that it was never written to.
        UnavailableError: NATS can't be reached or does not answer within ``timeout_s``.
        MismatchError: the store speaks another wire version or hash, or has a strategy that this build does not know.
        InvalidInputError: the store has the strategy sticky.
    """
    names.check_name("key", key)
    settings, nodes, leases = await _read(servers_of(servers), store, f"{key}.>", timeout_s)
    found = _topology(store, key, settings, nodes, leases)
    if not found.members:
        await _require_key(servers_of(servers), store, key, timeout_s)
    return found


async def read_topologies(
    servers: str | Sequence[str] | None, store: str, *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> list[Topology]:
    """The topology of every key of a store that has members, by name of the key. Raises as :func:`read_topology`."""
    settings, nodes, leases = await _read(servers_of(servers), store, ">", timeout_s)
    keys = sorted({entry.partition(".")[0] for entry in nodes if not names.is_ended_key(entry)})
    return [_topology(store, key, settings, nodes, leases) for key in keys]


async def _read(
    servers: Sequence[str], store: str, keys: str, timeout_s: float
) -> tuple[StoreSettings, dict[str, bytes], dict[str, bytes]]:
    names.check_name("store", store)
    async with (
        open_bus(servers, timeout_s=timeout_s, name="ringcast-topology") as client,
        answered_within(servers, timeout_s),
    ):
        meta = await read_bucket(client, names.meta_bucket(store), timeout_s=timeout_s)
        if meta is None:
            raise UnknownStoreError(f"store {store!r} does not exist", field="store")
        nodes = await read_bucket(client, names.nodes_bucket(store), keys, timeout_s=timeout_s) or {}
        leases = await read_bucket(client, names.LEASES_BUCKET, timeout_s=timeout_s) or {}
    settings = StoreSettings.from_kv(meta)
    if settings.strategy is Strategy.STICKY:
        raise InvalidInputError(
            f"the topology of store {store!r} can't be read: tables have the owners of its strategy sticky, and this "
            "build does not read them",
            field="store",
        )
    return settings, nodes, leases


async def _require_key(servers: Sequence[str], store: str, key: str, timeout_s: float) -> None:
    """Raises if the config service does not know the key. A service that is away can't say, which is no error here."""
    async with open_bus(servers, timeout_s=timeout_s, name="ringcast-topology") as client:
        reply = await ask(client, names.fetch_subject(store, key, names.FETCH_HEADS), timeout_s=timeout_s)
    if reply is not None and (reply.headers or {}).get(names.HEADER_ERROR) == ErrorCode.UNKNOWN_KEY:
        raise UnknownKeyError(reply.data.decode(), field="key")


def _topology(
    store: str, key: str, settings: StoreSettings, nodes: Mapping[str, bytes], leases: Mapping[str, bytes]
) -> Topology:
    membership = Membership()
    membership.nodes.replace({name: Entry(1, data) for name, data in nodes.items()})
    membership.leases.replace({name: Entry(1, data) for name, data in leases.items()})
    live = membership.members(key) if settings.mode is Mode.PARTITIONED else ()
    owner_of: tuple[str | None, ...] = owners(settings, live) if live else (None,) * settings.partition_count
    owned: dict[str, list[int]] = {}
    for partition, owner in enumerate(owner_of):
        if owner is not None:
            owned.setdefault(owner, []).append(partition)
    members = []
    for name in sorted(nodes):
        head, _, worker_id = name.partition(".")
        record = membership.nodes.get(name, NodeRecord) if head == key and "." not in worker_id else None
        if record is not None:
            lease = membership.leases.get(record.lease, LeaseRecord)
            members.append(_member(worker_id, record, lease, owned.get(worker_id, [])))
    return Topology(store, key, settings, tuple(members), owner_of)


def _member(worker_id: str, record: NodeRecord, lease: LeaseRecord | None, partitions: list[int]) -> Member:
    return Member(
        worker_id=worker_id,
        slot=record.slot,
        alive=lease is not None,
        host=lease.host if lease else None,
        pid=lease.pid if lease else None,
        partitions=tuple(partitions),
        phase=record.phase,
    )


def servers_of(servers: str | Sequence[str] | None) -> list[str]:
    """The URLs of NATS servers; ``None``: those of the environment, or of this machine."""
    if servers is None:
        servers = os.environ.get("RINGCAST_SERVERS") or DEFAULT_SERVERS
    return [part.strip() for part in servers.split(",")] if isinstance(servers, str) else list(servers)


__all__ = ["Member", "Topology", "read_topologies", "read_topology"]
