"""The dry wave of a release: the workers of its canary judge what is staged for their partitions, by their own code.

Nothing is written, and nothing is kept: an instance that is killed meanwhile has published nothing.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from typing import Final, NamedTuple

from nats.aio.client import Client
from nats.js import JetStreamContext
from ringcast_wire import ConditionFailedError, EventLog, LimitExceededError, UnavailableError, limits, shown
from ringcast_wire.reports import (
    MAX_DRY_REASON,
    DryRefusal,
    DryWaveRequest,
    DryWaveState,
    ReportRound,
    partitions_of,
    spans_of,
)

from ringcast_config_service.releases.fleet import ask_fleet
from ringcast_config_service.releases.proof import Fleet, agreement, counted, incomplete, some_partitions
from ringcast_config_service.repository import Canary, Release, Repository, StoreRecord

log = EventLog(logging.getLogger(__name__))

MAX_DRY_WAVES: Final = 16
"""Stores of which one instance holds a dry wave at once; each has one."""
_KEYS_AT_ONCE: Final = 8
"""Keys whose workers one instance asks at once, for all calls together; others wait."""
_FIRST_PAUSE_S: Final = 0.1
_MOST_PAUSE_S: Final = 1.0
_NAMED: Final = 3
"""Refused rows that a sentence names."""


class Judged(NamedTuple):
    """How far the workers with the label are with one key."""

    rows: int = 0
    refused: int = 0
    refusals: tuple[tuple[str, DryRefusal], ...] = ()
    """Some of them, with the worker that has refused the row."""
    waits_for: str = ""
    """What is still to come; empty: all partitions are judged."""
    failed: str = ""
    """Why it can't go on, and has to be begun again."""
    impossible: str = ""
    """Why these workers can't judge at all."""


class DryWaves:
    """Those of one instance."""

    def __init__(self, nc: Client, js: JetStreamContext, repository: Repository) -> None:
        self._nc = nc
        self._js = js
        self._stores = repository.stores
        self._releases = repository.releases
        self._turns = asyncio.Semaphore(_KEYS_AT_ONCE)
        self._under_way: set[str] = set()

    async def hold(self, release: Release, canary: Canary, patience_s: float) -> None:
        """Returns once each row that the release has staged for the partitions of a canary is judged, and accepted.

        Raises:
            ConditionFailedError: a row is refused; or a worker of the canary can't judge, or is not done within
                ``patience_s``, at most ``limits.MAX_DRY_WAVE_S``.
            UnavailableError: a partition has gone to another worker, or a worker has not got its rows; or NATS does not
                answer.
            LimitExceededError: one of the store is under way, or too many are.
        """
        taken = release.store in self._under_way
        if taken or len(self._under_way) >= MAX_DRY_WAVES:
            which = "a dry wave of the store is" if taken else f"{MAX_DRY_WAVES} dry waves are"
            raise LimitExceededError(f"{which} under way here: no other is begun", retry_after_s=_MOST_PAUSE_S)
        self._under_way.add(release.store)
        try:
            await self._hold(release, canary, min(patience_s, limits.MAX_DRY_WAVE_S))
        finally:
            self._under_way.discard(release.store)

    async def _hold(self, release: Release, canary: Canary, patience_s: float) -> None:
        refused = f"{release.place} can't be published"
        record = await self._stores.get_record(release.store)
        keys = await self._releases.key_partitions(release.store, release.number)
        requests = {
            key: DryWaveRequest(secrets.token_hex(8), release.number, canary.label, spans_of(sorted(numbers)))
            for key in keys
            if (numbers := keys[key] if canary.provisional else keys[key] & canary.partitions)
        }
        found = dict.fromkeys(requests, Judged(waits_for="no worker has answered"))
        due, pause_s = _now() + patience_s, _FIRST_PAUSE_S
        while True:
            # All keys again each time: one that is judged may go to a worker that has not been asked.
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    asked = [self._ask(record, key, request, canary) for key, request in requests.items()]
                    found = dict(zip(requests, await asyncio.gather(*asked), strict=True))
            for key, judged in found.items():
                if judged.impossible:
                    raise ConditionFailedError(f"{refused} with a dry wave: {judged.impossible}", field="dry_wave")
                if judged.failed:
                    raise UnavailableError(f"{refused}: its dry wave is not judged: {key}: {judged.failed}")
            waits_for = "; ".join(f"{key}: {judged.waits_for}" for key, judged in found.items() if judged.waits_for)
            if not waits_for:
                break
            if _now() >= due:
                raise ConditionFailedError(
                    f"{refused}: its dry wave is not judged within {patience_s:g} s: {waits_for}", field="dry_wave"
                )
            await asyncio.sleep(min(pause_s, max(0.0, due - _now())))
            pause_s = min(_MOST_PAUSE_S, 2 * pause_s)
        rows, bad = sum(each.rows for each in found.values()), sum(each.refused for each in found.values())
        facts = {"store": release.store, "release": release.number, "canary": canary.label, "rows": rows}
        log.info("release.dry_wave", **facts, refused=bad)
        if bad:
            raise ConditionFailedError(f"{refused}: {_refusals(found, rows, bad)}", field="dry_wave")

    async def _ask(self, store: StoreRecord, key: str, request: DryWaveRequest, canary: Canary) -> Judged:
        async with self._turns:
            asked = await ask_fleet(self._nc, self._js, store, key, dry_wave=request)
        return judged_by(key, request, *asked, full=canary.provisional)


def judged_by(
    key: str, request: DryWaveRequest, before: Fleet, found: ReportRound, after: Fleet, *, full: bool = False
) -> Judged:
    """What the answers of the workers of a key say of a dry wave.

    It is judged only if all workers have answered and agree on who owns what, as for a canary. ``full``: every worker
    owns all partitions, and each that has the label has to judge all of them.
    """
    reports = counted(before, found)
    if full:
        reports = {name: report for name, report in reports.items() if request.label in report.labels}
    wanted = set(partitions_of(request.spans))
    judged: set[int] = set()
    rows = refused = 0
    refusals: list[tuple[str, DryRefusal]] = []
    at_it: list[str] = []
    failed = impossible = ""
    for name, report in reports.items():
        owned = {number for number, _ in report.partitions()} & wanted
        if not owned:
            continue
        said = report.dry_wave if report.dry_wave is not None and report.dry_wave.id == request.id else None
        if request.label not in report.labels:
            failed = failed or f"{some_partitions(owned)} has gone to worker {name}, which has not the label"
        elif said is None:
            impossible = impossible or f"worker {name} is of an older build, which knows no dry waves"
        elif said.state is DryWaveState.UNABLE:
            impossible = impossible or f"the application of worker {name} has no validate"
        elif said.state is DryWaveState.FAILED:
            failed = failed or f"worker {name} has not judged them: {shown(said.why, MAX_DRY_REASON)}"
        elif late := owned - set(partitions_of(said.spans)):
            failed = failed or f"{some_partitions(late)} has come to worker {name} meanwhile"
        else:
            rows, refused = rows + said.rows, refused + said.refused
            refusals += ((name, each) for each in said.refusals)
            if said.state is DryWaveState.JUDGED:
                judged |= owned
            else:
                at_it.append(f"worker {name} has judged {said.rows} rows")
    agreed = () if full else agreement(key, before, found)
    lack = next(chain(incomplete(key, before, found, after), agreed), None)
    if lack is not None:
        at_it.append(lack.sentence)
    elif not at_it and (missing := wanted - judged):
        at_it.append(f"no worker has judged {some_partitions(missing)}")
    return Judged(rows, refused, tuple(refusals), "; ".join(at_it), failed, impossible)


def _refusals(found: Mapping[str, Judged], rows: int, refused: int) -> str:
    named = [
        f"{key}/{shown(each.row_id)} by worker {name}: {shown(each.reason, MAX_DRY_REASON)}"
        for key, judged in found.items()
        for name, each in judged.refusals
    ]
    count = "1 row was" if refused == 1 else f"{refused} rows were"
    more = f"; and {refused - _NAMED} more" if refused > _NAMED else ""
    return f"in its dry wave {count} refused of {rows}: {'; '.join(named[:_NAMED])}{more}"


def _now() -> float:
    return asyncio.get_running_loop().time()
