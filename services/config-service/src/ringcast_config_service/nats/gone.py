"""Workers of a store that migrates of which an operator says that they are gone for good: nothing waits for them.

The word stands on NATS, in place of what the worker has said of itself: a marker, by compare-and-set, of each key that
it was in. So the leader of the key hears of it by its watch, and every instance and tool that reads the bucket finds
it. It names the registration that it is about: a later one is of another process, or of one that is not gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.errors import APIError
from ringcast_wire import (
    ConditionFailedError,
    EventLog,
    InvalidInputError,
    NodeRecord,
    ProtocolError,
    decode_record,
    names,
)
from ringcast_wire.bucket_reads import session_counts_s
from ringcast_wire.buckets import DELETED, EXPECTED, WRONG_SEQUENCE, fixed, subject_of
from ringcast_wire.reports import ReportAsker

from ringcast_config_service.nats.calls import nats_calls
from ringcast_config_service.nats.latest import read_newest, server_time_s
from ringcast_config_service.nats.migration_checks import KeyWorkers, read_workers
from ringcast_config_service.repository import AuditRepository, Authorship, StoreRecord
from ringcast_config_service.repository.audit import gone as gone_fact

log = EventLog(logging.getLogger(__name__))

ANSWER_S: Final = 2.0
"""How long an answer of a worker is waited for, that lives after all."""
_KEYS_AT_ONCE: Final = 50  # of at most 100, so that all are asked within two turns
_WRITES_AT_ONCE: Final = 32


class _Place(NamedTuple):
    """Where a worker is waited for. ``said_at``: the revision of its state; ``registered_at``: of its registration."""

    key: str
    worker_id: str
    said_at: int
    registered_at: int


class GoneWorkers:
    """Takes the word of operators, for one instance."""

    def __init__(self, nc: Client, js: JetStreamContext, audit: AuditRepository) -> None:
        self._nc = nc
        self._js = js
        self._audit = audit

    async def declare(self, store: StoreRecord, workers: Sequence[str], by: Authorship) -> None:
        """Has nothing wait for these workers any more; what was declared already is left alone.

        The audit log has it before anything is done. Where this breaks off, a part of the keys waits on: call it again.

        Raises:
            InvalidInputError: the store has no record of one of them.
            ConditionFailedError: one of them gives a sign of life. Nothing is done, unless the sign is a state that was
                written at this moment.
            UnavailableError: NATS or the database does not answer.
        """
        with nats_calls(f"the workers of store {store.name!r} can't be looked at now", ": try again"):
            found = await read_workers(self._js, store)
            for worker_id in workers:
                if not any(_knows(key, worker_id) for key in found.values()):
                    raise InvalidInputError(
                        f"gone names the worker {worker_id!r}: store {store.name!r} has no record of it", field="gone"
                    )
            await self._check_silent(store, workers, found)
        places = [place for key, each in found.items() for name in workers if (place := _place(key, each, name))]
        if not places:
            return
        keys: dict[str, list[str]] = {}
        for place in places:
            keys.setdefault(place.worker_id, []).append(place.key)
        await self._audit.add([gone_fact(by, store.name, name, of) for name, of in keys.items()])
        with nats_calls(f"not all of store {store.name!r} knows which workers are gone", ": try again"):
            await self._mark_all(store.name, places)
        for name, of in keys.items():
            log.warning("worker.declared_gone", store=store.name, worker=name, keys=len(of))

    # ---- signs of life

    async def _check_silent(self, store: StoreRecord, workers: Sequence[str], found: Mapping[str, KeyWorkers]) -> None:
        await self._check_sessions(store, workers)
        await self._check_leases(workers, found)
        turns = asyncio.Semaphore(_KEYS_AT_ONCE)
        asker = ReportAsker(self._nc)

        async def answering(key: str, expected: Collection[str]) -> set[str]:
            async with turns:
                answers = await asker.ask(store.name, key, expected, timeout_s=ANSWER_S)
            return set(expected) & (answers.reports.keys() | answers.unreadable.keys())

        asked = {key: {name for name in workers if _knows(each, name)} for key, each in sorted(found.items())}
        asked = {key: expected for key, expected in asked.items() if expected}
        alive = await asyncio.gather(*(answering(key, expected) for key, expected in asked.items()))
        for key, answered in zip(asked, alive, strict=True):
            if answered:
                raise _lives(min(answered), f"it answers for key {key!r}")

    async def _check_sessions(self, store: StoreRecord, workers: Sequence[str]) -> None:
        assert store.migration is not None
        counts_s = session_counts_s(store.migration.lease_ttl_ms)
        bucket = names.owners_bucket(store.name)
        named = {names.session_key(name) for name in workers}
        sessions = await read_newest(self._js, bucket, names.session_key("*"), among=named)
        now_s = await server_time_s(self._js, bucket)
        for name in workers:
            age_s = now_s - sessions.stored_s.get(names.session_key(name), float("-inf"))
            if age_s < counts_s:
                raise _lives(
                    name, f"its session was refreshed {max(age_s, 0.0):.1f} s ago, and counts for {counts_s:g} s"
                )

    async def _check_leases(self, workers: Sequence[str], found: Mapping[str, KeyWorkers]) -> None:
        """Its own, and what its registrations name: that of its host."""
        named = {name: name for name in workers}
        for each in found.values():
            for name in workers:
                try:
                    named[decode_record(each.records[name], NodeRecord).lease] = name
                except (KeyError, ProtocolError):
                    continue  # it is not registered for this key, or by no build that could have a lease
        leases = await read_newest(self._js, names.LEASES_BUCKET, among=named)
        for lease in sorted(leases.entries):
            name = named[lease]
            raise _lives(name, "its lease lives" if lease == name else f"the lease {lease!r} that it names lives")

    # ---- the word

    async def _mark_all(self, store: str, places: Sequence[_Place]) -> None:
        """All that can be written is, before the first failure is raised."""
        turns = asyncio.Semaphore(_WRITES_AT_ONCE)

        async def one(place: _Place) -> None:
            async with turns:
                await self._mark(store, place)

        for result in await asyncio.gather(*map(one, places), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _mark(self, store: str, place: _Place) -> None:
        name = names.state_key(place.key, place.worker_id)
        subject = subject_of(names.owners_bucket(store), name)
        headers = {**DELETED, names.HEADER_GONE: str(place.registered_at), EXPECTED: fixed(place.said_at)}
        try:
            await self._js.publish(subject, b"", headers=headers)
        except APIError as error:
            if error.err_code not in WRONG_SEQUENCE:
                raise
            await self._check_other(store, name, place)

    async def _check_other(self, store: str, name: str, place: _Place) -> None:
        """Something else was written meanwhile: that is well where another operator has said the same."""
        found = await read_newest(self._js, names.owners_bucket(store), name)
        marker = found.markers.get(name)
        if marker is None or marker.gone is None or marker.gone < place.registered_at:
            raise _lives(place.worker_id, f"it has just written its state of key {place.key!r}")


def _knows(key: KeyWorkers, worker_id: str) -> bool:
    """Whether a key has a record of a worker, or the marker of one."""
    return any(worker_id in known for known in (key.registered, key.left, key.deleted, key.said_at))


def _place(name: str, key: KeyWorkers, worker_id: str) -> _Place | None:
    """``None``: nothing waits for it."""
    has_said = worker_id in key.states or names.state_key(name, worker_id) in key.unreadable
    if not (has_said or worker_id in key.enrolled):
        return None
    registered_at = key.registered.get(worker_id, key.left.get(worker_id, 0))
    return _Place(name, worker_id, key.said_at.get(worker_id, 0), registered_at)


def _lives(worker_id: str, sign: str) -> ConditionFailedError:
    return ConditionFailedError(f"the worker {worker_id!r} is not gone: {sign}", field="gone")
