"""Which wire versions the processes read that take part in a store."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from nats.js import JetStreamContext
from ringcast_wire import (
    NEWEST_WIRE_VERSION,
    NodeRecord,
    ProtocolError,
    RingcastError,
    decode_record,
    names,
)
from ringcast_wire.owner_records import decode_state

from ringcast_config_service.nats.calls import nats_calls
from ringcast_config_service.nats.latest import read_newest, read_sessions
from ringcast_config_service.repository import StoreRecord

_NAMED: Final = 5
"""Processes that are named of those that read the least."""


class Readers(NamedTuple):
    """What some processes read: every one of them up to version ``reads``; ``lowest`` names some that read no more.

    ``complete``: these are all that there are. Where a record can't be read, another may read less.
    """

    reads: int
    lowest: tuple[str, ...] = ()
    complete: bool = True

    def and_of(self, other: Readers) -> Readers:
        """The processes of both."""
        reads = min(self.reads, other.reads)
        named = (each.lowest for each in (self, other) if each.reads == reads)
        lowest = tuple(itertools.islice(itertools.chain.from_iterable(named), _NAMED))
        return Readers(reads, lowest, self.complete and other.complete)

    def and_one(self, name: str, wire: int | None) -> Readers:
        """With one more process; ``wire`` is ``None`` where its record can't be read."""
        return self._replace(complete=False) if wire is None else self.and_of(Readers(wire, (name,)))


class _Worker(NamedTuple):
    name: str
    lease: str
    wire: int


async def read_workers(js: JetStreamContext, stores: Sequence[StoreRecord]) -> dict[str, Readers]:
    """The workers of each store whose leases live, by its name. What NATS does not answer is not complete."""
    found: dict[str, Readers] = {}
    workers: dict[str, list[_Worker]] = {}
    sessions: dict[str, Collection[str]] = {}
    for store in stores:
        workers[store.name], complete = [], False
        try:
            workers[store.name], complete = await _registered(js, store)
            if store.settings_now.is_exclusive:
                with nats_calls("NATS does not say which workers live"):
                    named = {worker.lease for worker in workers[store.name]}
                    sessions[store.name] = await read_sessions(js, store, named)
        except RingcastError:
            complete = False
        found[store.name] = Readers(NEWEST_WIRE_VERSION, complete=complete)
    named = {worker.lease for each in workers.values() for worker in each}
    try:
        with nats_calls("NATS does not say which workers live"):
            leases: Collection[str] = (await read_newest(js, names.LEASES_BUCKET, among=named)).entries
    except RingcastError:
        return {name: readers._replace(complete=False) for name, readers in found.items()}
    for name, each in workers.items():
        for worker in each:
            # Where ownership is exclusive, a worker under an agent has no lease.
            if worker.lease in leases or worker.lease in sessions.get(name, ()):
                found[name] = found[name].and_one(f"worker {worker.name}", worker.wire)
    return found


async def _registered(js: JetStreamContext, store: StoreRecord) -> tuple[list[_Worker], bool]:
    """The workers of all keys of a store, alive or not, and whether every registration could be read.

    Raises:
        UnavailableError: NATS does not answer, or only a server that lags behind.
    """
    complete, exclusive = True, store.settings_now.is_exclusive
    workers: list[_Worker] = []
    bucket = names.owners_bucket(store.name) if exclusive else names.nodes_bucket(store.name)
    pattern = names.state_key("*", "*") if exclusive else names.node_key("*", "*")
    with nats_calls("NATS does not say which workers there are"):
        records = (await read_newest(js, bucket, pattern)).entries
    for name, (_, data) in records.items():
        if names.is_ended_key(name):
            continue
        worker_id = name.rpartition(".")[2]
        try:
            if not exclusive:
                node = decode_record(data, NodeRecord)
                workers.append(_Worker(worker_id, node.lease, node.wire))
            elif (state := decode_state(data)).session:
                workers.append(_Worker(worker_id, state.lease, state.wire))
        except ProtocolError:
            complete = False
    return workers, complete
