"""The first wave of a release with a canary in a store of mode FULL: the workers with the label lay its rows over.

Every worker of such a store has every partition, so a wave of partitions would spare nobody. Nothing is published in
this wave: the workers fetch what is staged, show it in place of what they hold, and hand it over as provisional. They
do so from the first request that they get to the end of the release, as long as the service says that it goes on.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterator
from typing import Final

from nats.aio.client import Client
from nats.js import JetStreamContext
from ringcast_wire import NEWEST_WIRE_VERSION, WIRE_VERSION, EventLog, RingcastError, names, shown
from ringcast_wire.reports import (
    MAX_DRY_REASON,
    ProvisionalReport,
    ProvisionalRequest,
    ProvisionalState,
    ReportRequest,
    encode_report,
)

from ringcast_config_service.nats.calls import nats_calls
from ringcast_config_service.releases.fleet import FleetRound, ask_fleet
from ringcast_config_service.releases.proof import Lack, counted, incomplete
from ringcast_config_service.releases.proofs import Look
from ringcast_config_service.repository import Release, Repository

log = EventLog(logging.getLogger(__name__))

_KEYS_AT_ONCE: Final = 8
_RELEASES_KEPT: Final = 64
"""Releases whose keys are remembered; they do not change once a release is staged, and there may be many rows."""


class ProvisionalWaves:
    """Those of one instance."""

    def __init__(self, nc: Client, js: JetStreamContext, repository: Repository) -> None:
        self._nc = nc
        self._js = js
        self._stores = repository.stores
        self._releases = repository.releases
        self._hints: set[asyncio.Task[None]] = set()
        self._keys: dict[tuple[str, str, int], list[str]] = {}

    async def look(self, release: Release) -> Look:
        """Asks the workers once how far they are with the provisional rows of a release; they begin if they have not.

        Raises:
            UnknownStoreError: the store is gone.
            UnavailableError: NATS or the database does not answer.
        """
        request = request_of(release)
        record = await self._stores.get_record(release.store)
        keys = await self._keys_of(release)
        turns = asyncio.Semaphore(_KEYS_AT_ONCE)

        async def one(key: str) -> Look:
            async with turns:
                return laid_by(key, request, await ask_fleet(self._nc, self._js, record, key, provisional=request))

        looks = await asyncio.gather(*map(one, keys))
        return Look(
            tuple(lack for look in looks for lack in look.given_up),
            tuple(lack for look in looks for lack in look.pending),
        )

    async def _keys_of(self, release: Release) -> list[str]:
        place = release.store, release.stage_id, release.number
        if place not in self._keys:
            keys = sorted(await self._releases.key_partitions(release.store, release.number))
            self._keys = dict([*self._keys.items()][1 - _RELEASES_KEPT :]) | {place: keys}
        return self._keys[place]

    def ask_again(self, release: Release) -> None:
        """Has the workers ask whether a release goes on: it has changed. One that does not get this asks by itself."""
        if release.rollout is not None and release.rollout.provisional:
            task = asyncio.create_task(self._hint(release), name=f"provisional-{release.number}")
            self._hints.add(task)
            task.add_done_callback(self._hints.discard)

    async def _hint(self, release: Release) -> None:
        question = request_of(release, again=True)
        request = ReportRequest(WIRE_VERSION, secrets.token_hex(8), reads=NEWEST_WIRE_VERSION, provisional=question)
        try:
            keys = await self._keys_of(release)
            with nats_calls("NATS does not carry questions to workers"):
                for key in keys:
                    await self._nc.publish(names.report_subject(release.store, key), encode_report(request))
        except RingcastError as error:
            log.info("release.hint_failed", store=release.store, release=release.number, error=error)


def request_of(release: Release, *, again: bool = False) -> ProvisionalRequest:
    """What workers are asked for a release that is laid over."""
    assert release.rollout is not None
    return ProvisionalRequest(release.number, release.rollout.canary, again)


def laid_by(key: str, request: ProvisionalRequest, asked: FleetRound) -> Look:
    """What the answers of the workers of a key say: all have to answer, and those with the label to have laid all over.

    A key without workers has nobody to lay anything over, and another key of the release may have.
    """
    before, found, after = asked
    if not before.living and not before.unreadable:
        return Look((), (Lack(key, "no worker is registered and alive"),))
    reports = {name: report for name, report in counted(before, found).items() if request.label in report.labels}
    pending = [*incomplete(key, before, found, after)]
    given_up: list[Lack] = []
    if not reports and not pending:
        pending.append(Lack(key, f"no worker has the label {request.label}"))
    for name, report in reports.items():
        if (said := report.provisional) is None:
            pending.append(Lack(key, f"worker {name} is of an older build, which lays no rows over", name))
        elif said.release != request.release:
            pending.append(Lack(key, f"worker {name} has the rows of release {said.release} laid over", name))
        else:
            if said.state is ProvisionalState.LAYING:
                pending.append(Lack(key, f"worker {name} has laid {said.rows} rows over, and is not done", name))
            elif said.state is ProvisionalState.FAILED:
                why = shown(said.why, MAX_DRY_REASON)
                pending.append(Lack(key, f"worker {name} has not got the provisional rows: {why}", name))
            given_up += _refusals(key, name, said)
    return Look(tuple(given_up), tuple(pending))


def _refusals(key: str, name: str, said: ProvisionalReport) -> Iterator[Lack]:
    for each in said.refusals:
        why = shown(each.reason, MAX_DRY_REASON)
        yield Lack(key, f"provisional row {shown(each.row_id)} was refused at worker {name}: {why}", name, each.row_id)
    if more := said.refused - len(said.refusals):
        yield Lack(key, f"worker {name} has refused {more} more provisional rows", name, rows=more)
