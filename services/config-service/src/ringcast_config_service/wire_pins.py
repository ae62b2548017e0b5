"""To which wire version the events of each store are pinned: the newest one that every process reads.

The instance that leads maintenance looks every few seconds at what the workers of each store, the agents and the config
services say that they read. The pin goes down at the first look that finds less, and up after several that agree. What
could not be read may be a process that reads less: the pin never rises by such a look.

A process of an older build that comes back is not seen at once. It can't read the events that are of a newer version by
then: it fetches their changes, as those of any event that it can't read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Final

from nats.js import JetStreamContext
from ringcast_meta import MetadataStore
from ringcast_meta.cluster import MemberKind, members_of
from ringcast_wire import NEWEST_WIRE_VERSION, WIRE_VERSION, EventLog, RingcastError, version_for

from ringcast_config_service.maintenance import Term
from ringcast_config_service.nats.readers import Readers, read_workers
from ringcast_config_service.repository import StoreRecord, StoreRepository

log = EventLog(logging.getLogger(__name__))

LOOK_S: Final = 5.0
LOOKS_TO_RISE: Final = 3

OpenCluster = Callable[[], AbstractAsyncContextManager[MetadataStore]]


class WirePins:
    """Keeps the pins of all stores. ``open_cluster``: where services and agents register; ``None``: nowhere."""

    def __init__(self, js: JetStreamContext, stores: StoreRepository, open_cluster: OpenCluster | None) -> None:
        self._js = js
        self._stores = stores
        self._cluster = _Cluster(open_cluster) if open_cluster is not None else None
        self._rises = Rises()
        self._failing = False

    async def keep(self, term: Term) -> None:
        """Looks now and then, for as long as this instance leads."""
        self._rises = Rises()
        try:
            while True:
                try:
                    await self._look(term)
                    self._failing = False
                except RingcastError as error:
                    if not self._failing:  # a line for each outage
                        log.warning("wire_pin.postponed", error=error)
                    self._failing = True
                await asyncio.sleep(LOOK_S)
        finally:
            if self._cluster is not None:
                await self._cluster.close()

    async def _look(self, term: Term) -> None:
        stores = [store for store in await self._stores.store_records() if store.deletion is None]
        found = await self._read(stores)
        for store in stores:
            readers = found[store.name]
            pin = self._rises.decide(store.name, store.wire_pin, readers)
            if pin != store.wire_pin:
                await self._stores.pin_wire(term.lead, store.name, pin)
                log.info(
                    "wire_pin.changed", store=store.name, before=store.wire_pin, after=pin, readers=list(readers.lowest)
                )

    async def _read(self, stores: Sequence[StoreRecord]) -> Mapping[str, Readers]:
        """What the processes read on which each store depends, this one among them."""
        own = Readers(NEWEST_WIRE_VERSION)
        if NEWEST_WIRE_VERSION == WIRE_VERSION:  # nobody reads less
            return {store.name: own for store in stores}
        members = await self._cluster.read() if self._cluster is not None else own
        workers = await read_workers(self._js, stores)
        return {store.name: own.and_of(members).and_of(workers[store.name]) for store in stores}


class Rises:
    """Decides over the pin of each store, from one look after the other."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}
        """Of the stores whose pin may rise: to which version, and how many looks have found that in a row."""

    def decide(self, store: str, pin: int, readers: Readers) -> int:
        """What a store is to be pinned to, which has ``pin`` now."""
        wanted = version_for(readers.reads)
        before, looks = self._seen.pop(store, (0, 0))
        if wanted <= pin:
            return wanted
        if not readers.complete:
            return pin
        looks = looks + 1 if before == wanted else 1
        if looks >= LOOKS_TO_RISE:
            return wanted
        self._seen[store] = wanted, looks
        return pin


class _Cluster:
    """The processes that have registered, over a connection that is opened when it is first needed, and again once it
    has failed."""

    def __init__(self, open_cluster: OpenCluster) -> None:
        self._open = open_cluster
        self._stack = AsyncExitStack()
        self._store: MetadataStore | None = None

    async def read(self) -> Readers:
        try:
            if self._store is None:
                self._store = await self._stack.enter_async_context(self._open())
            found = [entry for kind in MemberKind for entry in await self._store.read(f"{kind}s.")]
        except RingcastError as error:
            log.debug("wire_pin.cluster_unread", error=error)
            await self.close()
            return Readers(NEWEST_WIRE_VERSION, complete=False)
        readers = Readers(NEWEST_WIRE_VERSION)
        for member in members_of({entry.key: entry for entry in found}):
            wire = member.record.wire if member.record is not None else None
            readers = readers.and_one(f"{member.kind} {member.id}", wire)
        return readers

    async def close(self) -> None:
        self._store = None
        await self._stack.aclose()
