"""Asks the workers of a key how far they are: one request, and an answer of each."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from ringcast_wire._common import names
from ringcast_wire._common.errors import LimitExceededError, ProtocolError, RingcastError
from ringcast_wire._common.limits import MIB
from ringcast_wire._common.rows import check_row_id
from ringcast_wire._common.versions import NEWEST_WIRE_VERSION, WIRE_VERSION
from ringcast_wire._common.waits import event_before
from ringcast_wire._messages.chunks import ChunkAssembler
from ringcast_wire._reports.dry_waves import DryWaveRequest
from ringcast_wire._reports.messages import (
    MAX_REPORT_BYTES,
    ReportRequest,
    WorkerReport,
    clipped,
    decode_report,
    encode_report,
    packed_ranges,
)
from ringcast_wire._reports.provisional_rows import ProvisionalRequest

JOIN_WITHIN_S: Final = 0.05
"""A call for a key that is being asked since no longer than that shares the answers."""
MAX_ROUNDS: Final = 64
"""Rounds of one asker that are under way at once."""
MAX_ANSWERS: Final = 1_024
"""Workers whose answers one round takes; 200 own partitions of a key at most, others may observe it, or have all."""
MAX_MESSAGES: Final = 64
"""Messages of one worker in one round: the chunks of its report."""
MAX_ROUND_BYTES: Final = 32 * MIB
"""Bytes of all answers of one round."""
_Taken: TypeAlias = Callable[["ReportMessage"], Awaitable[None]]
_Place: TypeAlias = tuple[str, str, str, tuple[int, ...], str, ProvisionalRequest | None]
"""What is asked: store, key, row, ranges, the id of a dry wave, and whose provisional rows."""


class ReportMessage(Protocol):
    """A message that came."""

    @property
    def subject(self) -> str: ...

    @property
    def data(self) -> bytes: ...

    @property
    def headers(self) -> dict[str, str] | None: ...


class ReportSubscription(Protocol):
    """What ends a subscription."""

    async def unsubscribe(self) -> None: ...


class ReportBus(Protocol):
    """A connection to the bus; the client of NATS is one."""

    async def subscribe(self, subject: str, *, cb: _Taken) -> ReportSubscription: ...

    async def publish(self, subject: str, payload: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class ReportRound:
    """What came of one round. ``reports`` is by worker id, and so is ``unreadable``: why an answer can't be read.

    ``silent``: the expected workers that have not answered. ``left_out``: messages past a limit, or of no worker.
    """

    reports: Mapping[str, WorkerReport]
    silent: tuple[str, ...]
    unreadable: Mapping[str, str]
    left_out: int
    took_s: float


class ReportAsker:
    """Asks over one connection. Calls for the same key and row at about the same time share one round."""

    def __init__(self, bus: ReportBus) -> None:
        self._bus = bus
        self._newest: dict[_Place, _Round] = {}
        self._under_way = 0

    async def ask(
        self,
        store: str,
        key: str,
        expected: Collection[str],
        *,
        row_id: str = "",
        ranges: Sequence[int] = (),
        dry_wave: DryWaveRequest | None = None,
        provisional: ProvisionalRequest | None = None,
        timeout_s: float = 2.0,
    ) -> ReportRound:
        """Returns once all ``expected`` workers have answered, at the latest after ``timeout_s``.

        ``row_id``: what each knows of this row is in its report. ``ranges``, ``dry_wave``, ``provisional``: as of
        :class:`ReportRequest`.

        An answer is never older than ``JOIN_WITHIN_S`` before the call. Errors of the bus are raised as they are.

        Raises:
            LimitExceededError: ``MAX_ROUNDS`` are under way.
        """
        names.check_name("store", store)
        place = (
            store,
            names.check_name("key", key),
            row_id and check_row_id(row_id),
            tuple(ranges),
            dry_wave.id if dry_wave else "",
            provisional,
        )
        loop = asyncio.get_running_loop()
        began = loop.time()
        current = self._newest.get(place)
        if current is None or began > current.began + JOIN_WITHIN_S:
            if self._under_way >= MAX_ROUNDS:
                raise LimitExceededError(f"{MAX_ROUNDS} report rounds are under way: no more are begun at once")
            current = self._newest[place] = _Round(began)
        due = began + timeout_s
        waiter = current.wait_for(expected)
        try:
            await self._begin(current, place, dry_wave)
            while not waiter.done.is_set() and loop.time() < due:
                await event_before(waiter.done, due)
            if current.failure is not None:
                raise current.failure
            silent = tuple(sorted(waiter.missing))
            return ReportRound(
                dict(current.reports), silent, dict(current.unreadable), current.left_out, loop.time() - began
            )
        finally:
            current.waiters.discard(waiter)
            if not current.waiters:
                if self._newest.get(place) is current:
                    del self._newest[place]
                await self._end(current)

    async def _begin(self, current: _Round, place: _Place, dry_wave: DryWaveRequest | None) -> None:
        if current.is_begun:
            return
        current.is_begun = True
        self._under_way += 1
        store, key, row_id, ranges, _, provisional = place
        try:
            answers = names.reported_subject(store, key, "*", current.id)
            current.subscription = await self._bus.subscribe(answers, cb=current.take)
            words = current.id, row_id, packed_ranges(ranges), dry_wave, NEWEST_WIRE_VERSION, provisional
            request = encode_report(ReportRequest(WIRE_VERSION, *words))
            await self._bus.publish(names.report_subject(store, key), request)
        except BaseException as error:
            # Those that share the round are not cancelled with this one: to them it has failed.
            if self._newest.get(place) is current:
                del self._newest[place]
            cancelled = isinstance(error, asyncio.CancelledError)
            current.fail(ConnectionError("the round was cancelled before its request was sent") if cancelled else error)
            raise

    async def _end(self, current: _Round) -> None:
        if not current.is_begun:
            return
        current.is_begun = False
        self._under_way -= 1
        if current.subscription is not None:
            await current.subscription.unsubscribe()


@dataclass(eq=False, slots=True)
class _Waiter:
    missing: set[str]
    done: asyncio.Event = field(default_factory=asyncio.Event)


class _Round:
    """The answers to one request, for all that wait for them."""

    def __init__(self, began: float) -> None:
        self.id = secrets.token_hex(8)
        self.began = began
        self.is_begun = False
        self.failure: BaseException | None = None
        self.subscription: ReportSubscription | None = None
        self.waiters: set[_Waiter] = set()
        self.reports: dict[str, WorkerReport] = {}
        self.unreadable: dict[str, str] = {}
        self.left_out = 0
        self._parts: dict[str, ChunkAssembler] = {}
        self._messages: dict[str, int] = {}
        self._bytes = 0

    def wait_for(self, expected: Collection[str]) -> _Waiter:
        """Those of ``expected`` whose answer is still to come are waited for."""
        missing = set(expected) - self.reports.keys() - self.unreadable.keys()
        waiter = _Waiter(missing)
        self.waiters.add(waiter)
        if not missing:
            waiter.done.set()
        return waiter

    def fail(self, error: BaseException) -> None:
        """No answer will come."""
        self.failure = error
        for waiter in self.waiters:
            waiter.done.set()

    async def take(self, message: ReportMessage) -> None:
        """Takes a message in."""
        try:
            worker_id = names.parse_reported_subject(message.subject)
        except ProtocolError:
            self.left_out += 1
            return
        if not self._has_room(worker_id, len(message.data)):
            self.left_out += 1
            return
        try:
            report = self._read(worker_id, message)
        except RingcastError as error:
            self.unreadable[worker_id] = clipped(str(error))
            self._answered(worker_id)
        else:
            if report is not None:
                self.reports[worker_id] = report
                self._answered(worker_id)

    def _has_room(self, worker_id: str, size: int) -> bool:
        """Counts a message. One of a worker that has answered is another process under its id, or a repetition."""
        count = self._messages.get(worker_id, 0)
        if worker_id in self.reports or worker_id in self.unreadable or count >= MAX_MESSAGES:
            return False
        if (not count and len(self._messages) >= MAX_ANSWERS) or self._bytes + size > MAX_ROUND_BYTES:
            return False
        self._messages[worker_id] = count + 1
        self._bytes += size
        return True

    def _read(self, worker_id: str, message: ReportMessage) -> WorkerReport | None:
        parts = self._parts.setdefault(worker_id, ChunkAssembler(MAX_REPORT_BYTES))
        body = parts.add((message.headers or {}).get(names.HEADER_CHUNK), message.data)
        if body is None:
            return None
        report = decode_report(body)
        if report.round_id != self.id:
            raise ProtocolError(f"report is of round {report.round_id}, and was sent to round {self.id}")
        return report

    def _answered(self, worker_id: str) -> None:
        self._parts.pop(worker_id, None)
        for waiter in self.waiters:
            waiter.missing.discard(worker_id)
            if not waiter.missing:
                waiter.done.set()
