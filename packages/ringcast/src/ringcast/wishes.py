"""What an operator wants of a store of exclusive ownership: pins, drains, the balance. Read and written from outside.

A worker that is **drained** gives its partitions up by planned hand-overs, serves each until its next owner does, and
gets no others. A partition that is **pinned** goes to its worker, as long as that takes part and is not drained. The
leader of a key carries wishes out; nothing in their bucket ages, so they hold until they are taken back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from ringcast_wire import (
    InvalidInputError,
    Mode,
    StoreSettings,
    Strategy,
    UnavailableError,
    UnknownStoreError,
    names,
)

from ringcast._bus.tools import (
    ToolBus,
    answered_within,
    open_bus,
    read_bucket,
    read_bucket_revisions,
    write_entry,
)
from ringcast._coordination.sticky.view import KeyRecords, key_records
from ringcast._coordination.sticky.wishes import encode_wishes
from ringcast._coordination.store_settings import decode_metadata
from ringcast._protocol.sticky.plan import Wishes
from ringcast.topology import DEFAULT_TIMEOUT_S, require_key, servers_of

BALANCES: Final = ("count", "load")
_TRIES: Final = 5
_LOOK_S: Final = 0.5
"""How often a wait looks at the tables."""


@dataclass(frozen=True, slots=True)
class KeyWishes:
    """What is wanted of one key. ``unreadable_because``: why its record can't be read, or nothing."""

    store: str
    key: str
    pins: Mapping[int, str]
    drains: tuple[str, ...]
    unreadable_because: str = ""
    balance: str = "count"
    """``load``: workers are to have equal loads; ``count``: equal numbers of partitions."""


@dataclass(frozen=True, slots=True)
class Drain:
    """How far the drain of a worker is in one key: it owns ``partitions``, and ``others`` may take them."""

    store: str
    key: str
    worker_id: str
    partitions: int
    others: int


async def read_wishes(
    servers: str | Sequence[str] | None, store: str, key: str | None = None, *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> list[KeyWishes]:
    """What is wanted of the keys of a store, or of one key, by name; keys of which nothing is wanted are left out.

    Raises:
        UnknownStoreError: there is no such store.
        InvalidInputError: the store does not have the strategy sticky.
        UnavailableError: NATS does not answer within ``timeout_s``, or does not allow it.
    """
    async with _opened(servers, store, key, timeout_s) as tool:
        found = await tool.records(key)
    wanted = []
    for name, records in sorted(found.items()):
        because = records.unreadable.get(names.wishes_key(name), "")
        if records.wishes != Wishes() or because:
            wanted.append(
                KeyWishes(
                    store,
                    name,
                    dict(records.wishes.pins),
                    tuple(sorted(records.wishes.drains)),
                    because,
                    records.wishes.balance,
                )
            )
    return wanted


async def drain_worker(
    servers: str | Sequence[str] | None,
    store: str,
    worker_id: str,
    key: str | None = None,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> list[Drain]:
    """Has a worker give up its partitions of one key, or of all keys that it takes part in. Does not wait for it.

    Raises:
        UnknownStoreError, UnknownKeyError: there is no such store or key.
        InvalidInputError: the store does not have the strategy sticky, or the worker takes no part.
        UnavailableError: NATS does not answer within ``timeout_s``, does not allow it, or others go on writing.
        LimitExceededError: more workers are drained than a key may have.
    """
    names.check_name("worker", worker_id)
    async with _opened(servers, store, key, timeout_s) as tool:
        keys = await _keys_of(tool, worker_id, key, lambda records: worker_id in records.states)
        if not keys:
            raise _unknown_worker(store, worker_id, key)
        for name in keys:
            await tool.change(name, lambda wishes: replace(wishes, drains=wishes.drains | {worker_id}))
        return await tool.drains(worker_id, keys)


async def undrain_worker(
    servers: str | Sequence[str] | None,
    store: str,
    worker_id: str,
    key: str | None = None,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> list[str]:
    """Lets a drained worker have partitions again; returns of which keys. Raises as :func:`drain_worker`.

    Raises:
        InvalidInputError: the worker is not drained.
    """
    names.check_name("worker", worker_id)
    async with _opened(servers, store, key, timeout_s) as tool:
        keys = await _keys_of(tool, worker_id, key, lambda records: worker_id in records.wishes.drains)
        if not keys:
            place = store if key is None else f"{store}/{key}"
            raise InvalidInputError(f"worker {worker_id!r} is not drained in {place}", field="worker")
        for name in keys:
            await tool.change(name, lambda wishes: replace(wishes, drains=wishes.drains - {worker_id}))
        return keys


async def set_balance(
    servers: str | Sequence[str] | None,
    store: str,
    balance: str,
    key: str | None = None,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> list[str]:
    """Has the workers of one key, or of all keys that have some, have equal loads (``load``), or equal numbers of
    partitions (``count``, the default). Returns the keys. Does not wait for it. Raises as :func:`drain_worker`.

    Raises:
        InvalidInputError: ``balance`` is neither, or no worker takes part in the store.
    """
    if balance not in BALANCES:
        raise InvalidInputError(f"balance {balance!r} is unknown: {' or '.join(BALANCES)} is allowed", field="balance")
    async with _opened(servers, store, key, timeout_s) as tool:
        keys = [key] if key is not None else await _keys_of(tool, "", None, lambda records: bool(records.states))
        if not keys:
            raise InvalidInputError(
                f"no worker takes part in store {store!r}: it has no keys to balance", field="store"
            )
        for name in keys:
            if key is not None:
                await tool.records(key)  # there is no such key: that is said
            await tool.change(name, lambda wishes: replace(wishes, by_load=balance == "load"))
        return keys


async def pin_partition(
    servers: str | Sequence[str] | None,
    store: str,
    key: str,
    partition: int,
    worker_id: str,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> bool:
    """Has a partition go to a worker; returns whether that counts now: not while the worker is drained.

    Raises as :func:`drain_worker`, and:

    Raises:
        InvalidInputError: the key has no such partition.
    """
    names.check_name("worker", worker_id)
    async with _opened(servers, store, key, timeout_s) as tool:
        tool.check_partition(partition)
        records = (await tool.records(key))[key]
        if worker_id not in records.states:
            raise _unknown_worker(store, worker_id, key)
        after = await tool.change(key, lambda wishes: replace(wishes, pins={**wishes.pins, partition: worker_id}))
        return worker_id not in after.drains


async def unpin_partition(
    servers: str | Sequence[str] | None,
    store: str,
    key: str,
    partition: int,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> str:
    """Takes a pin back; returns the worker that the partition was pinned to. Raises as :func:`pin_partition`.

    Raises:
        InvalidInputError: the partition is not pinned.
    """
    pinned = ""

    def without(wishes: Wishes) -> Wishes:
        nonlocal pinned
        pins = dict(wishes.pins)
        pinned = pins.pop(partition, pinned)
        return replace(wishes, pins=pins)

    async with _opened(servers, store, key, timeout_s) as tool:
        tool.check_partition(partition)
        await tool.change(key, without)
    if not pinned:
        raise InvalidInputError(f"partition {partition} of {store}/{key} is not pinned", field="partition")
    return pinned


async def follow_drain(
    servers: str | Sequence[str] | None,
    store: str,
    worker_id: str,
    keys: Sequence[str],
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> AsyncGenerator[list[Drain], None]:
    """How far a drain is, each time that it has got further, until the worker owns nothing of these keys.

    It may wait for ever, where no other worker takes the partitions: bound it. Raises as :func:`drain_worker`.
    """
    last: list[Drain] | None = None
    async with _opened(servers, store, None, timeout_s) as tool:
        while True:
            found = await tool.drains(worker_id, keys)
            if found != last:
                last = found
                yield found
            if not any(each.partitions for each in found):
                return
            await asyncio.sleep(_LOOK_S)


class _Tool:
    """The buckets of one store over a connection."""

    def __init__(self, client: ToolBus, servers: list[str], store: str, settings: StoreSettings, timeout_s: float):
        self._client = client
        self._servers = servers
        self._store = store
        self._partitions = settings.partition_count
        self._timeout_s = timeout_s

    def check_partition(self, partition: int) -> None:
        """Raises if the store has no such partition."""
        if not 0 <= partition < self._partitions:
            raise InvalidInputError(
                f"partition {partition} is out of range: the store has partitions 0 to {self._partitions - 1}",
                field="partition",
            )

    async def records(self, key: str | None) -> dict[str, KeyRecords]:
        """The records of one key, or of all that have some; asks the config service for a key that has none."""
        owners = await self._read(names.owners_bucket(self._store), f"{key or '*'}.>")
        wishes = await self._read(names.wishes_bucket(self._store), names.wishes_key(key or "*"))
        found = {name: data for name, (_, data) in owners.items() if data is not None}
        keys = {name.partition(".")[0] for name in (*found, *wishes) if not name.startswith("~")}
        if key is not None:
            if key not in keys:
                await require_key(self._servers, self._store, key, self._timeout_s)
            keys = {key}
        nothing = (0, None)
        return {
            name: key_records(found, wishes.get(names.wishes_key(name), nothing)[1], name, self._partitions)
            for name in keys
        }

    async def drains(self, worker_id: str, keys: Sequence[str]) -> list[Drain]:
        """How far the drain of a worker is in these keys."""
        found, leases = await self.records(None), await self._read(names.LEASES_BUCKET, ">")
        alive = {lease for lease, (_, data) in leases.items() if data is not None}
        drains = []
        for key in keys:
            records = found.get(key)
            others = (records.taking() & alive) - {worker_id} if records is not None else ()
            holds = records.holds(worker_id) if records is not None else 0
            drains.append(Drain(self._store, key, worker_id, holds, len(others)))
        return drains

    async def change(self, key: str, change: Callable[[Wishes], Wishes]) -> Wishes:
        """Writes what a change makes of the wishes of a key, unless it is nothing new; returns what is wanted now."""
        bucket, name = names.wishes_bucket(self._store), names.wishes_key(key)
        for _ in range(_TRIES):
            revision, data = (await self._read(bucket, name)).get(name, (0, None))
            records = key_records({}, data, key, self._partitions)
            if records.unreadable:
                raise UnavailableError(
                    f"what is wanted of {self._store}/{key} can't be read, so nothing is changed:"
                    f" {records.unreadable[name]}"
                )
            wanted = change(records.wishes)
            if wanted == records.wishes:
                return wanted
            value = encode_wishes(wanted, self._partitions)
            if await write_entry(self._client, bucket, name, value, last=revision, timeout_s=self._timeout_s):
                return wanted
        raise UnavailableError(f"others go on writing what they want of {self._store}/{key}: try again")

    async def _read(self, bucket: str, keys: str) -> dict[str, tuple[int, bytes | None]]:
        async with answered_within(self._servers, self._timeout_s):
            entries = await read_bucket_revisions(self._client, bucket, keys, timeout_s=self._timeout_s)
        if entries is None and bucket != names.LEASES_BUCKET:
            raise UnavailableError(f"store {self._store!r} has no bucket {bucket}: its config service has not made it")
        return entries or {}


@asynccontextmanager
async def _opened(
    servers: str | Sequence[str] | None, store: str, key: str | None, timeout_s: float
) -> AsyncIterator[_Tool]:
    names.check_name("store", store)
    if key is not None:
        names.check_name("key", key)
    urls = servers_of(servers)
    async with open_bus(urls, timeout_s=timeout_s, name="ringcast-wishes") as client:
        async with answered_within(urls, timeout_s):
            meta = await read_bucket(client, names.meta_bucket(store), timeout_s=timeout_s)
        if meta is None:
            raise UnknownStoreError(f"store {store!r} does not exist", field="store")
        settings = decode_metadata(meta).settings
        if settings.strategy is not Strategy.STICKY or settings.mode is not Mode.PARTITIONED:
            raise InvalidInputError(
                f"store {store!r} has mode {settings.mode} and strategy {settings.strategy}: its partitions can't be"
                " pinned, nor its workers drained, which takes the strategy sticky",
                field="store",
            )
        yield _Tool(client, urls, store, settings, timeout_s)


async def _keys_of(tool: _Tool, worker_id: str, key: str | None, is_meant: Callable[[KeyRecords], bool]) -> list[str]:
    """The keys among these that are meant."""
    return sorted(name for name, records in (await tool.records(key)).items() if is_meant(records))


def _unknown_worker(store: str, worker_id: str, key: str | None) -> InvalidInputError:
    place = f"{store}/{key}" if key is not None else f"any key of store {store!r}"
    return InvalidInputError(f"no worker {worker_id!r} takes part in {place}", field="worker")


__all__ = [
    "BALANCES",
    "Drain",
    "KeyWishes",
    "drain_worker",
    "follow_drain",
    "pin_partition",
    "read_wishes",
    "set_balance",
    "undrain_worker",
    "unpin_partition",
]
