"""Lays the staged rows of a release over what a worker holds, while the release is published behind its canary.

Only in a store of mode FULL, and only at workers with the label of the canary. The config service asks for it in the
requests for reports. The worker asks the service every ``heads_s`` whether the release still goes on, and drops the
rows when it does not, or when that can't be known for ``UNCONFIRMED`` times as long.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

from ringcast_wire import (
    NEWEST_WIRE_VERSION,
    WIRE_VERSION,
    Backoff,
    EventLog,
    InternalError,
    LimitExceededError,
    ProtocolError,
    ReleaseState,
    RingcastError,
    UnavailableError,
    event_within,
    limits,
)
from ringcast_wire.reports import (
    MAX_PROVISIONAL_REFUSALS,
    DryRefusal,
    ProvisionalReport,
    ProvisionalRequest,
    ProvisionalState,
    StagedRequest,
    StagedRow,
    spans_of,
)

from ringcast._bus.requests import FetchClient
from ringcast._common.cancellation import is_cancelled
from ringcast._common.config import WorkerConfig
from ringcast._worker.refusals import printable, shown
from ringcast._worker.session import KeySession
from ringcast._worker.staged_rows import staged_page, staged_pages

UNCONFIRMED: Final = 3
"""Provisional rows are dropped once it is not confirmed for so many times ``heads_s`` that their release goes on."""
_SAID_S: Final = 1.0
"""For so long it is reported why they were dropped, before they are fetched again."""
_BREATHE: Final = 32
"""Calls of the handler after which other tasks of the loop run, and those that wait for something look again."""
_PUMP_S: Final = 0.01
"""The same after one that took so long."""

_UNDECIDED: Final = (UnavailableError, LimitExceededError, InternalError, ProtocolError)
"""Answers that do not say whether a release goes on."""

_Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None] | None"]


class ProvisionalReleases:
    """What a worker lays over: of each key the rows of one release. ``spawn`` starts a task of the worker.

    ``full``: the store is of mode FULL; in others nothing is laid over.
    """

    def __init__(
        self,
        config: WorkerConfig,
        sessions: Mapping[str, KeySession],
        fetches: FetchClient,
        *,
        full: bool,
        spawn: _Spawn,
        log: EventLog,
    ) -> None:
        self._config = config
        self._sessions = sessions
        self._fetches = fetches
        self._labels = config.labels if full and not config.observe else ()
        self._spawn = spawn
        self._log = log
        self._newest: dict[str, _Layer] = {}

    def report(self, key: str, request: ProvisionalRequest | None) -> ProvisionalReport | None:
        """How far the worker is with the release that is asked about, and begins with; or what it has laid over."""
        layer = self._newest.get(key)
        if request is None or request.label not in self._labels:
            return layer.laid_over() if layer is not None and not layer.is_over else None
        if layer is None or (layer.is_forgotten and not request.again):
            if request.again:
                return None
            layer = _Layer(request.release, self._config, self._sessions[key], self._fetches, self._log)
            self._newest[key] = layer
            layer.task = self._spawn(layer.run())
        elif request.again or layer.release != request.release:
            layer.ask_now()
        return layer.report()


class _Layer:
    """The provisional rows of one release in one key, from the first request to their end."""

    def __init__(
        self, release: int, config: WorkerConfig, session: KeySession, fetches: FetchClient, log: EventLog
    ) -> None:
        self.release = release
        self.task: asyncio.Task[None] | None = None
        self._store = config.store
        self._every_s = config.heads_s
        self._session = session
        self._fetches = fetches
        self._log = log
        self._state = ProvisionalState.LAYING
        self._rows = self._refused = self._turns = 0
        self._refusals: list[DryRefusal] = []
        self._why = ""
        self._again = asyncio.Event()
        self._over_at: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is laid over any more."""
        return self._over_at is not None or self.task is None or self.task.done()

    @property
    def is_forgotten(self) -> bool:
        """Whether another one may begin: its end has been reported for a moment."""
        ended = self.task is None or self.task.done()
        return ended and (self._over_at is None or _now() >= self._over_at + _SAID_S)

    def ask_now(self) -> None:
        """Has the service asked at once whether the release goes on."""
        self._again.set()

    def report(self) -> ProvisionalReport:
        """How far it is."""
        return ProvisionalReport(self.release, self._state, self._rows, self._refused, list(self._refusals), self._why)

    def laid_over(self) -> ProvisionalReport | None:
        """How many rows are laid over now, if any is."""
        rows = len(self._session.provisional)
        return ProvisionalReport(self.release, self._state, rows, self._refused) if rows else None

    async def run(self) -> None:
        """Lays the rows over, and returns once they are dropped, and the handler has got what there is without them."""
        try:
            async with asyncio.TaskGroup() as tasks:
                laying = tasks.create_task(self._lay())
                back = self._drop(await self._until_over())
                laying.cancel()
            await self._hand_back(back)
        except Exception:  # noqa: BLE001  # a mistake in here must not end the worker
            self._log.error("provisional.failed", exc_info=True, key=self._session.key, release=self.release)
        finally:
            self._session.provisional.end()

    def _drop(self, why: str) -> list[StagedRow]:
        """Shows the rows no more; returns those that the handler has got."""
        self._state, self._why, self._over_at = ProvisionalState.FAILED, printable(why), _now()
        provisional = self._session.provisional
        rows, back = provisional.count, provisional.end()
        self._session.pump()
        facts = {"key": self._session.key, "release": self.release, "rows": rows}
        self._log.info("provisional.dropped", **facts, handed_back=len(back), reason=why)
        return back

    async def _hand_back(self, rows: list[StagedRow]) -> None:
        session = self._session
        for row in rows:
            async with self._handing_over():
                change = session.provisional.base(row)
                if change is not None:  # else what was written since is on its way
                    await session.applier.take_again(change)
            if is_cancelled():  # the application has swallowed that
                raise asyncio.CancelledError

    async def _until_over(self) -> str:
        """Returns why the rows are to be dropped."""
        backoff = Backoff(random.random, first_s=0.1, most_s=1.0)
        request = StagedRequest(WIRE_VERSION, self.release, [], reads=NEWEST_WIRE_VERSION, provisional=True)
        history = self._session.machine.history.current
        bound_s = UNCONFIRMED * self._every_s
        try:
            async with asyncio.timeout(bound_s) as limit:
                pause_s = self._every_s
                while True:
                    await event_within(self._again, pause_s)
                    self._again.clear()
                    if self._why:
                        return self._why
                    if history and history != self._session.machine.history.current:
                        return "the key has another history by now"
                    history = history or self._session.machine.history.current
                    asked_at = _now()
                    try:
                        reply = await staged_page(self._fetches, self._store, self._session.key, request)
                    except _UNDECIDED:
                        pause_s = backoff.next_s()
                        continue
                    limit.reschedule(asked_at + bound_s)
                    if reply.state != ReleaseState.PUBLISHING:
                        break
                    backoff.reset()
                    pause_s = self._every_s
                if reply.state == ReleaseState.PUBLISHED:  # each row takes the place of its provisional one as it comes
                    await self._session.wait_until(lambda: not self._session.provisional)
            return f"the release is {reply.state or 'not known to the service'}"
        except TimeoutError:
            return f"the service has not confirmed for {bound_s:g} s that the release goes on"
        except RingcastError as error:
            return str(error)

    async def _lay(self) -> None:
        try:
            rows = await self._fetch()
            bases: dict[int, int] = {}
            for row in rows:
                bases[row.partition] = max(row.version, bases.get(row.partition, 0))
            await self._session.wait_until(lambda: self._has(bases))
            await self._hand_over(rows)
        except RingcastError as error:
            self._why = str(error) or type(error).__name__
            self._log.warning("provisional.failed", key=self._session.key, release=self.release, error=error)
            self._again.set()
        except Exception as error:  # noqa: BLE001  # a mistake in here: what was handed over is taken back all the same
            self._why = type(error).__name__
            self._log.error("provisional.failed", exc_info=True, key=self._session.key, release=self.release)
            self._again.set()
        else:
            self._state = ProvisionalState.LAID
            facts = {"key": self._session.key, "release": self.release, "rows": self._rows}
            self._log.info("provisional.laid", **facts, refused=self._refused)

    def _has(self, bases: Mapping[int, int]) -> bool:
        """Whether everything is loaded, and each partition applied up to these revisions."""
        held = self._session.machine.partitions
        return self._session.ready and all(
            number in held and held[number].applied >= revision for number, revision in bases.items()
        )

    @asynccontextmanager
    async def _handing_over(self) -> AsyncIterator[None]:
        """For some rows; a worker that stops notices at their end."""
        self._turns += 1
        until = _now() + _PUMP_S
        async with self._session.deliveries.between_jobs():
            yield
        if self._turns % _BREATHE == 0 or _now() >= until:
            self._session.pump()
            await asyncio.sleep(0)

    async def _fetch(self) -> list[StagedRow]:
        spans = spans_of(range(self._session.machine.partition_count))
        rows: list[StagedRow] = []
        words = self._fetches, self._store, self._session.key, self.release, spans
        async for page in staged_pages(*words, provisional=True):
            if page.state != ReleaseState.PUBLISHING:
                raise ProtocolError(f"the release is {page.state or 'not known to the service'}")
            rows += page.rows
            if len(rows) > limits.MAX_PROVISIONAL_ROWS:
                raise ProtocolError(f"it has more than {limits.MAX_PROVISIONAL_ROWS} rows, which is the limit")
        return rows

    async def _hand_over(self, rows: list[StagedRow]) -> None:
        session = self._session
        session.provisional.lay(self.release, rows, _now())
        session.pump()
        row_ids, most = session.provisional.ids(), session.applier.parallel
        for first in range(0, len(row_ids), most):
            some = row_ids[first : first + most]
            async with self._handing_over():
                await asyncio.gather(*map(self._hand_over_one, some))
            if is_cancelled():  # the application has swallowed that
                raise asyncio.CancelledError

    async def _hand_over_one(self, row_id: str) -> None:
        session = self._session
        change = session.provisional.hand_over(row_id)
        self._rows += 1
        if change is None:  # it was written since: the handler gets that
            return
        if session.applier.poison.blocked_row(change.partition, row_id) is not None:
            self._refuse(row_id, "the row is blocked")
        elif (error := await session.applier.take_provisional(change)) is not None:
            self._refuse(row_id, shown(error))

    def _refuse(self, row_id: str, reason: str) -> None:
        self._refused += 1
        if len(self._refusals) < MAX_PROVISIONAL_REFUSALS:
            self._refusals.append(DryRefusal(row_id, printable(reason)))


def _now() -> float:
    return asyncio.get_running_loop().time()
