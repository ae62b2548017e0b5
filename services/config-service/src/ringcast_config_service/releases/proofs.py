"""Proves that a release is applied: asks the workers of its keys, and stores what that proves with the release."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from nats.aio.client import Client
from nats.js import JetStreamContext
from ringcast_wire import (
    ConditionFailedError,
    EventLog,
    KeyCertificate,
    LimitExceededError,
    Mode,
    ReleaseState,
    names,
)
from ringcast_wire.reports import ProvisionalRequest, ReportRound

from ringcast_config_service.releases.fleet import PATIENCE_S, ask_fleet
from ringcast_config_service.releases.proof import Lack, ProofTarget, Verdict, judge
from ringcast_config_service.repository import (
    Certificate,
    KeyRevisions,
    Release,
    ReleaseRepository,
    Repository,
    StoreRecord,
)

log = EventLog(logging.getLogger(__name__))

MAX_PROOFS: Final = 8
"""Releases that one instance tries to prove at once."""
_KEYS_AT_ONCE: Final = 8
_REVISIONS_KEPT_S: Final = 10.0
_UNDER_WAY: Final = frozenset({ReleaseState.STAGING, ReleaseState.STAGED, ReleaseState.PUBLISHING})


class Proof(NamedTuple):
    """What came of one try. ``more``: what lacks besides ``lacks``."""

    release: Release
    certificate: Certificate | None
    lacks: tuple[Lack, ...] = ()
    more: int = 0


class Look(NamedTuple):
    """What the workers say of a wave. ``given_up``: a handler has given a row up; ``pending``: what else lacks.

    ``proven``: the certificates of all keys, where nothing lacks.
    """

    given_up: tuple[Lack, ...] = ()
    pending: tuple[Lack, ...] = ()
    proven: tuple[KeyCertificate, ...] = ()


class Proofs:
    """The proofs of one instance. Calls for one release share a try."""

    def __init__(self, nc: Client, js: JetStreamContext, repository: Repository, instance_id: str) -> None:
        self._js = js
        self._stores = repository.stores
        self._releases: ReleaseRepository = repository.releases
        self._instance_id = instance_id
        self._nc = nc
        self._tries: dict[tuple[str, int], asyncio.Task[Proof]] = {}
        self._revisions: dict[tuple[str, int], tuple[float, list[KeyRevisions]]] = {}

    async def prove(self, store: str, number: int) -> Proof:
        """Tries once to prove that every worker has applied a release; one that is proven stays so.

        Raises:
            InvalidInputError: the store has no such release.
            ConditionFailedError: it is in a state in which it can't be proven any more.
            KeyDeletedError: one of its keys is deleted.
            LimitExceededError: as many as may be are being proven.
            UnavailableError: NATS does not answer.
        """
        place = names.check_name("store", store), number
        under_way = self._tries.get(place)
        if under_way is None:
            if len(self._tries) >= MAX_PROOFS:
                raise LimitExceededError(
                    f"{MAX_PROOFS} releases are being proven here: no more are at once", retry_after_s=PATIENCE_S
                )
            under_way = self._tries[place] = asyncio.create_task(self._try(store, number), name=f"proof-{number}")
            under_way.add_done_callback(lambda task: self._ended(place, task))
        return await asyncio.shield(under_way)  # a caller may give up: the others still wait for it

    async def look(self, release: Release, keys: Sequence[KeyRevisions]) -> Look:
        """Asks the workers of ``keys`` once how far they are with what is published of a release.

        Raises:
            UnknownStoreError: the store is gone.
            UnavailableError: NATS or the database does not answer.
        """
        record = await self._stores.get_record(release.store)
        turns = asyncio.Semaphore(_KEYS_AT_ONCE)
        # A worker of its canary that comes in a later wave lays over what is not published yet.
        label = release.rollout.canary if release.rollout is not None and release.is_laid_over else ""
        provisional = ProvisionalRequest(release.number, label) if label else None

        async def one(key: KeyRevisions) -> Verdict:
            async with turns:
                return await self._judge(record, release.number, key, provisional)

        verdicts = await asyncio.gather(*map(one, keys))
        proven = tuple(verdict.certificate for verdict in verdicts if verdict.certificate is not None)
        return Look(
            tuple(lack for verdict in verdicts for lack in verdict.given_up),
            tuple(lack for verdict in verdicts for lack in verdict.pending),
            proven if len(proven) == len(verdicts) else (),
        )

    async def certificate(self, store: str, number: int) -> Certificate:
        """What proves a release.

        Raises:
            ConditionFailedError: it is not proven.
        """
        found = await self._releases.certificate(names.check_name("store", store), number)
        if found is None:
            raise ConditionFailedError(f"release {number} of store {store!r} is not proven", field="number")
        return found

    async def stop(self) -> None:
        """Ends the tries that are under way."""
        tries = list(self._tries.values())
        for each in tries:
            each.cancel()
        await asyncio.gather(*tries, return_exceptions=True)

    def _ended(self, place: tuple[str, int], task: asyncio.Task[Proof]) -> None:
        del self._tries[place]
        if not task.cancelled():
            task.exception()  # a caller has got it, or none waits any more

    async def _try(self, store: str, number: int) -> Proof:
        release = await self._releases.get(store, number)
        if release.state in _UNDER_WAY:
            return Proof(release, None, (Lack("", _not_yet(release)),))
        if release.state is not ReleaseState.PUBLISHED:
            raise ConditionFailedError(f"{release.place} can't be proven: it is {release.state}", field="number")
        if release.proven_at_ms and (stored := await self._releases.certificate(store, number)) is not None:
            return Proof(release, stored)
        record = await self._stores.get_record(store)
        keys = await self._keys(release)
        turns = asyncio.Semaphore(_KEYS_AT_ONCE)

        async def one(key: KeyRevisions) -> Verdict:
            async with turns:
                return await self._judge(record, number, key)

        started_s = time.perf_counter()
        verdicts = await asyncio.gather(*map(one, keys))
        lacks = tuple(lack for verdict in verdicts for lack in verdict.lacks)
        if lacks:
            return Proof(release, None, lacks, sum(verdict.more for verdict in verdicts))
        proven = [verdict.certificate for verdict in verdicts if verdict.certificate is not None]
        release, certificate = await self._releases.set_proven(store, number, proven, self._instance_id)
        log.info(
            "release.proven",
            store=store,
            release=number,
            keys=len(proven),
            workers=len({worker.worker_id for key in proven for worker in key.workers}),
            seconds=round(time.perf_counter() - started_s, 3),
        )
        return Proof(release, certificate)

    async def _keys(self, release: Release) -> list[KeyRevisions]:
        """The revisions that are wanted. They are read again now and then only: there may be a million."""
        place, now = (release.store, release.number), time.monotonic()
        self._revisions = {each: found for each, found in self._revisions.items() if found[0] > now - _REVISIONS_KEPT_S}
        if place not in self._revisions:
            self._revisions[place] = now, await self._releases.revisions(*place)
        return self._revisions[place][1]

    async def _judge(
        self, store: StoreRecord, number: int, key: KeyRevisions, provisional: ProvisionalRequest | None = None
    ) -> Verdict:
        """One round with the workers of a key."""
        target = ProofTarget(key.key, key.history, key.ranges)
        before, found, after = await ask_fleet(self._nc, self._js, store, key.key, key.ranges, None, provisional)
        refused = await self._versions(store.name, number, key.key, found)
        everybody = store.settings_now.mode is Mode.FULL
        return judge(target, before, found, after, refused, everybody=everybody)

    async def _versions(self, store: str, number: int, key: str, found: ReportRound) -> Mapping[str, int]:
        """The versions that a release has given to the rows that reports name."""
        named = {refusal.row_id for report in found.reports.values() for refusal in report.refusals or ()}
        return {row_id: await self._releases.version_of(store, number, key, row_id) for row_id in sorted(named)}


def _not_yet(release: Release) -> str:
    if release.problem:
        return f"the release is {release.state} and halted: {release.problem}"
    if release.state is ReleaseState.PUBLISHING:
        return f"the release is still being published: {release.published} of {release.rows} rows are"
    return f"the release is {release.state} and not published yet"
