"""Answers how far this worker is with a key, from memory. The client that asks collects the answers of all workers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from ringcast_core import row_partition
from ringcast_wire import EventLog, ProtocolError, names, split_chunks, version_for
from ringcast_wire.reports import (
    MAX_REFUSAL_TEXT,
    MAX_REFUSALS,
    DryWaveReport,
    DryWaveRequest,
    ProvisionalReport,
    ProvisionalRequest,
    Refusal,
    ReportRequest,
    RowFailure,
    RowReport,
    WorkerKind,
    WorkerReport,
    clipped,
    decode_report_request,
    encode_report,
    ranges_of,
    spans_of,
)

from ringcast._bus.bus import TRANSIENT, Bus, Message
from ringcast._common.change import PoisonPolicy
from ringcast._common.config import WorkerConfig
from ringcast._common.place import read_place
from ringcast._delivery.failures import Failure
from ringcast._protocol.partition import Partition
from ringcast._worker.session import KeySession

MOST_PER_S: Final = 100
"""Requests for one key that are answered in a second: those past it are not, so that nobody can keep a worker busy."""


class Reports:
    """The answers of one worker. ``assigned``: by what the partitions of a key are shared out. ``judged``: how far it
    is with a dry wave of a key. ``laid``: with the provisional rows of a release. ``groups``: an agent hands changes to
    the groups of its consumers."""

    def __init__(
        self,
        bus: Bus,
        config: WorkerConfig,
        sessions: Mapping[str, KeySession],
        *,
        incarnation: str,
        assigned: Callable[[str], str],
        judged: Callable[[str, DryWaveRequest], DryWaveReport | None],
        laid: Callable[[str, ProvisionalRequest | None], ProvisionalReport | None],
        groups: bool,
        log: EventLog,
    ) -> None:
        self._bus = bus
        self._config = config
        self._sessions = sessions
        self._incarnation = incarnation
        self._assigned = assigned
        self._judged = judged
        self._laid = laid
        self._kind = WorkerKind.OBSERVER if config.observe else WorkerKind.GROUPS if groups else WorkerKind.APPLICATION
        self._log = log
        self._allowances = {key: _Allowance(MOST_PER_S) for key in sessions}

    async def run(self) -> None:
        """Receives requests and answers them until cancelled."""
        async with AsyncExitStack() as stack:
            for key, session in self._sessions.items():
                subject = names.report_subject(self._config.store, key)
                await stack.enter_async_context(self._bus.subscribed(subject, partial(self._answer, session)))
            await asyncio.Event().wait()

    async def _answer(self, session: KeySession, msg: Message) -> None:
        """Answers once; an answer that is lost is none, and the client that asks says so."""
        now, allowance = asyncio.get_running_loop().time(), self._allowances[session.key]
        if not allowance.take(now):
            return
        if allowance.refused:
            self._log.warning("report.too_many_requests", key=session.key, requests=allowance.refused)
            allowance.refused = 0
        try:
            request = decode_report_request(msg.data)
            body = encode_report(self.report(session, request))
        except ProtocolError as error:
            self._log.warning("report.unreadable_request", key=session.key, error=error)
            return
        subject = names.reported_subject(self._config.store, session.key, self._config.worker_id, request.round_id)
        with contextlib.suppress(*TRANSIENT):
            for chunk in split_chunks(body, self._bus.max_message_bytes):
                if self._bus.is_connected:
                    await self._bus.publish(subject, chunk.data, headers={names.HEADER_CHUNK: chunk.header})

    def report(self, session: KeySession, request: ReportRequest) -> WorkerReport:
        """How far the worker is with a key now.

        Raises:
            ProtocolError: the ranges of the request are needed, and can't be read.
        """
        machine, stats, vitals = session.machine, session.machine.stats, session.vitals
        owned = sorted((part for part in machine.partitions.values() if part.owned), key=lambda part: part.number)
        poison, staleness = session.applier.poison, session.staleness
        last = poison.failures.last
        observes = self._kind is WorkerKind.OBSERVER
        refused, forgotten = poison.refused(ranges_of(request)) if poison.may_have_refused else ([], 0)
        refused = [each for each in refused if not _is_overwritten(machine.partitions.get(each.partition), each)]
        return WorkerReport(
            version_for(request.reads),
            request.round_id,
            incarnation=self._incarnation,
            build=_build(),
            clock_ms=int(time.time() * 1000),
            kind=self._kind,
            assignment="" if observes or vitals.withdrawn else self._assigned(session.key),
            history=machine.history.current,
            spans=spans_of(part.number for part in owned),
            applied=[part.applied for part in owned],
            loading=sum(not _has_rows(part) for part in owned),
            blocked=len(poison.blocked()),
            dead_lettered=stats.dead_letters,
            dropped=stats.poisoned if self._config.poison_policy is PoisonPolicy.DROP else 0,
            unopened=stats.unopened,
            oldest_ms=max((_oldest_ms(part) for part in owned), default=0),
            stale_ms=_ms(session.staleness_s),
            handler_ms=_ms(staleness.handler_running_s),
            failing=clipped(vitals.failing_because),
            refused=clipped(session.journal.reason(machine.history.refusal)),
            last_error=clipped(f"{last.row_id}: {last.error}") if last is not None else "",
            last_error_ms=_ago_ms(last),
            row=self._row(session, request.row_id) if request.row_id else None,
            refusals=[_refusal(each) for each in refused[:MAX_REFUSALS]],
            unnamed_refusals=max(0, len(refused) - MAX_REFUSALS) + forgotten,
            labels=list(self._config.labels),
            dry_wave=self._judged(session.key, request.dry_wave) if request.dry_wave is not None else None,
            given_up=sum(each.what is not RowFailure.RETRYING for each in refused),
            provisional=self._laid(session.key, request.provisional),
            rows=sum(len(part.rows) for part in machine.partitions.values()),
            row_bytes=sum(part.row_bytes for part in machine.partitions.values()),
            may_have_refused=poison.may_have_refused,
        )

    def _row(self, session: KeySession, row_id: str) -> RowReport:
        machine, applier = session.machine, session.applier
        number = row_partition(row_id, machine.partition_count)
        part = machine.partitions.get(number)
        if part is None:
            return RowReport(number, owned=False)
        call, oldest = applier.calls.of(number, row_id), applier.calls.oldest()
        behind = oldest if oldest is not None and oldest is not call else None
        failure, blocked, row = applier.poison.failures.of(number, row_id), None, part.rows.get(row_id)
        now = time.monotonic()
        if call is not None and call.error and (failure is None or failure.version < call.change.version):
            failure = Failure(number, row_id, call.change.version, RowFailure.RETRYING, call.error, now)
        elif (blocked := applier.poison.blocked_row(number, row_id)) is not None:
            at_s = failure.at_s if failure is not None else now
            failure = Failure(number, row_id, blocked.change.version, RowFailure.BLOCKED, blocked.error, at_s)
        return RowReport(
            number,
            part.owned,
            part.state.name.lower(),
            delivered=part.filtered,
            heard=max(part.applied, part.expected, part.goal),
            applied=part.applied,
            version=row.version if row is not None else part.tombstones.get(row_id, 0),
            calling_ms=max(1, _ms(now - call.began_s)) if call is not None else 0,
            ahead=clipped(behind.change.row_id) if behind is not None else "",
            ahead_ms=_ms(now - behind.began_s) if behind is not None else 0,
            failure=failure.what if failure is not None else None,
            failed_version=failure.version if failure is not None else 0,
            failed_ms=_ago_ms(failure),
            error=clipped(failure.error) if failure is not None else "",
            release=part.release_of(row.version) if row is not None else 0,
            provisional=session.provisional.release if session.provisional.of(row_id) is not None else 0,
        )


class _Allowance:
    """So many in a second, and as many at once."""

    def __init__(self, most: int) -> None:
        self._most = self._left = float(most)
        self._at = 0.0
        self.refused = 0
        """How many were refused since that was last said."""

    def take(self, now: float) -> bool:
        """Whether one more is within the allowance."""
        self._left = min(self._most, self._left + (now - self._at) * self._most)
        self._at = now
        if self._left < 1.0:
            self.refused += 1
            return False
        self._left -= 1.0
        return True


def _is_overwritten(part: Partition | None, failure: Failure) -> bool:
    """Whether the row has a newer version by now: then the handler has, or will have, that in its place."""
    row = part.rows.get(failure.row_id) if part is not None else None
    return row is not None and row.version > failure.version


def _refusal(failure: Failure) -> Refusal:
    error = clipped(failure.error, MAX_REFUSAL_TEXT)
    return Refusal(failure.partition, failure.row_id, failure.version, failure.what, error)


def _has_rows(part: Partition) -> bool:
    return part.live and part.served and not part.replace


def _oldest_ms(part: Partition) -> int:
    """How long ago the oldest event of a partition was stored that is not applied, by the broker's clock and ours."""
    if not part.tokens:
        return 0
    place = read_place(part.tokens[min(part.tokens)])
    return 0 if place is None else max(1, (time.time_ns() - place.stored_ns) // 1_000_000)


def _ago_ms(failure: Failure | None) -> int:
    return 0 if failure is None else _ms(time.monotonic() - failure.at_s)


def _ms(seconds: float) -> int:
    return max(0, int(seconds * 1000))


@cache
def _build() -> str:
    try:
        return version("ringcast")[:64]
    except PackageNotFoundError:  # it runs from its sources
        return ""
