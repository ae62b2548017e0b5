"""How far the groups of consumers have come in each partition, and which host holds it: read and reset from outside.

Groups are the heartbeat agents'. What is read here is what their seals say; see the agent's README.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ringcast_wire import (
    GroupSeal,
    HeadsReply,
    InUseError,
    InvalidInputError,
    LeaseRecord,
    ProtocolError,
    UnavailableError,
    UnknownStoreError,
    decode_heads_reply,
    decode_record,
    encode_record,
    names,
)

from ringcast._bus.tools import ToolBus, answered_within, ask, open_bus, read_bucket, read_bucket_entries, write_entry
from ringcast.topology import DEFAULT_TIMEOUT_S, servers_of

_TRIES: Final = 5
_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """How far a group has come in one partition.

    Every change up to ``revision`` of ``history`` is settled, but the versions of ``pending``. ``lease`` is that of the
    process that delivers the partition, ``None`` if none does; ``alive``: whether that process lives. ``behind``: how
    many revisions are not settled, ``None`` where that can't be known (the history is another now, for instance).
    """

    partition: int
    history: str
    revision: int
    pending: tuple[int, ...]
    lease: str | None
    alive: bool
    host: str | None
    pid: int | None
    sealed_at_ms: int
    behind: int | None


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """A group of a config key, by the partitions that it has ever delivered.

    ``unreadable``: those besides whose position this build can't read, as a newer agent writes it. An agent of this
    build hands all rows of such a partition over again.
    """

    store: str
    key: str
    group: str
    partitions: tuple[HeldPartition, ...]
    unreadable: tuple[int, ...] = ()


async def read_groups(
    servers: str | Sequence[str] | None,
    store: str,
    key: str | None = None,
    group: str | None = None,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> list[GroupPosition]:
    """The groups of a store, of one key, or one group of a key, by name.

    Raises:
        UnknownStoreError: there is no such store.
        UnavailableError: NATS does not answer within ``timeout_s``, or the store has no bucket of groups.
    """
    names.check_name("store", store)
    for field, value in (("key", key), ("group", group)):
        if value is not None:
            names.check_name(field, value)
    urls = servers_of(servers)
    async with open_bus(urls, timeout_s=timeout_s, name="ringcast-groups") as client:
        async with answered_within(urls, timeout_s):
            seals = await _seals(client, store, names.seal_key(key or "*", group or "*", "*"), timeout_s)
            leases = await read_bucket(client, names.LEASES_BUCKET, timeout_s=timeout_s) or {}
        found: dict[tuple[str, str], dict[int, GroupSeal | None]] = {}
        for (of_key, name, partition), (_, seal) in sorted(seals.items(), key=lambda item: item[0]):
            found.setdefault((of_key, name), {})[partition] = seal
        heads = {of_key: await _heads(client, store, of_key, timeout_s) for of_key in sorted({at[0] for at in found})}
    return [
        GroupPosition(
            store,
            of_key,
            name,
            tuple(
                _partition(number, seal, leases, heads[of_key]) for number, seal in of_group.items() if seal is not None
            ),
            tuple(number for number, seal in of_group.items() if seal is None),
        )
        for (of_key, name), of_group in found.items()
    ]


async def reset_group(
    servers: str | Sequence[str] | None,
    store: str,
    key: str,
    group: str,
    *,
    force: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> int:
    """Has a group begin again with every row; returns in how many partitions.

    An agent that delivers a partition finds out when it writes the next seal of it: with ``force`` it lets go of what
    it has and begins again.

    Raises:
        InUseError: a process that lives delivers the group, or may since a position can't be read, and ``force`` is
            not set.
        InvalidInputError: there is no such group.
        UnavailableError: NATS does not answer, does not allow it, or the group goes on writing.
    """
    for field, value in (("store", store), ("key", key), ("group", group)):
        names.check_name(field, value)
    urls = servers_of(servers)
    async with (
        open_bus(urls, timeout_s=timeout_s, name="ringcast-groups") as client,
        answered_within(urls, timeout_s),
    ):
        return await _reset(client, store, key, group, force, timeout_s)


async def _reset(client: ToolBus, store: str, key: str, group: str, force: bool, timeout_s: float) -> int:
    done: set[int] = set()
    for _ in range(_TRIES):
        seals = await _seals(client, store, names.seal_key(key, group, "*"), timeout_s)
        if not seals:
            raise InvalidInputError(f"no host has delivered group {group} of {store}/{key}", field="group")
        if not force:
            _check_free(
                f"{group} of {store}/{key}", seals, await read_bucket(client, names.LEASES_BUCKET, timeout_s=timeout_s)
            )
        left = [(place[2], revision) for place, (revision, _) in seals.items() if place[2] not in done]
        for start in range(0, len(left), _AT_ONCE):
            some = left[start : start + _AT_ONCE]
            results = await asyncio.gather(*(_forget(client, store, key, group, *one, timeout_s) for one in some))
            done |= {partition for (partition, _), was_reset in zip(some, results, strict=True) if was_reset}
        if len(done) == len(seals):
            return len(done)
    raise UnavailableError(
        f"group {group} of {store}/{key} goes on writing: {len(done)} partitions are reset, try again"
    )


def _check_free(
    what: str, seals: Mapping[tuple[str, str, int], tuple[int, GroupSeal | None]], leases: Mapping[str, bytes] | None
) -> None:
    for (_, _, partition), (_, seal) in sorted(seals.items(), key=lambda item: item[0]):
        if seal is None:
            raise InUseError(
                f"the position of group {what} in partition {partition} can't be read by this build: whether a process "
                "delivers it is not known; use a newer ringcast, or force",
                field="group",
            )
        record = _lease(seal, leases or {})
        if record is not None:
            raise InUseError(
                f"group {what} is delivered by process {record.pid} on host {record.host} (partition {partition}, for "
                "one): end its consumers there first, or use force",
                field="group",
            )


async def _forget(
    client: ToolBus, store: str, key: str, group: str, partition: int, revision: int, timeout_s: float
) -> bool:
    """Has one partition begin again; says whether its seal was still the one that was read."""
    bucket, name = names.groups_bucket(store), names.seal_key(key, group, partition)
    seal = GroupSeal(history="", revision=0, sealed_at_ms=int(time.time() * 1000))
    return await write_entry(client, bucket, name, encode_record(seal), last=revision, timeout_s=timeout_s)


async def _seals(
    client: ToolBus, store: str, keys: str, timeout_s: float
) -> dict[tuple[str, str, int], tuple[int, GroupSeal | None]]:
    """By key, group and partition: the revision of the entry, and what it says if this build can read it."""
    entries = await read_bucket_entries(client, names.groups_bucket(store), keys, timeout_s=timeout_s)
    if entries is None:
        if await read_bucket(client, names.meta_bucket(store), timeout_s=timeout_s) is None:
            raise UnknownStoreError(f"store {store!r} does not exist", field="store")
        raise UnavailableError(f"store {store!r} has no bucket of groups: its config service has not made it")
    seals: dict[tuple[str, str, int], tuple[int, GroupSeal | None]] = {}
    for name, (revision, data) in entries.items():
        try:
            place = names.parse_seal_key(name)
        except ProtocolError:
            continue  # no agent writes such a key
        try:
            seals[place] = revision, decode_record(data, GroupSeal)
        except ProtocolError:
            seals[place] = revision, None
    return seals


async def _heads(client: ToolBus, store: str, key: str, timeout_s: float) -> HeadsReply | None:
    reply = await ask(client, names.fetch_subject(store, key, names.FETCH_HEADS), timeout_s=timeout_s)
    try:
        return decode_heads_reply(reply.data) if reply is not None else None
    except ProtocolError:
        return None


def _partition(number: int, seal: GroupSeal, leases: Mapping[str, bytes], heads: HeadsReply | None) -> HeldPartition:
    record = _lease(seal, leases)
    behind = None
    if heads is not None and heads.history == seal.history and number < len(heads.heads):
        behind = max(0, heads.heads[number] - seal.revision) + len(seal.pending)
    return HeldPartition(
        partition=number,
        history=seal.history,
        revision=seal.revision,
        pending=seal.pending,
        lease=seal.lease if seal.holder else None,
        alive=record is not None,
        host=record.host if record is not None else None,
        pid=record.pid if record is not None else None,
        sealed_at_ms=seal.sealed_at_ms,
        behind=behind,
    )


def _lease(seal: GroupSeal, leases: Mapping[str, bytes]) -> LeaseRecord | None:
    """The lease of the process that delivers the partition, if it lives."""
    data = leases.get(seal.lease) if seal.holder and seal.lease is not None else None
    try:
        record = decode_record(data, LeaseRecord) if data is not None else None
    except ProtocolError:
        return None
    return record if record is not None and record.incarnation == seal.holder else None


__all__ = ["GroupPosition", "HeldPartition", "read_groups", "reset_group"]
