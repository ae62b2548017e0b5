"""Dry waves: the application's ``validate`` judges what a release has staged, before a row of it is published.

Nothing of it gets into what the worker holds: the rows are fetched, judged and forgotten.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, TypeAlias

from ringcast_wire import EventLog, RingcastError
from ringcast_wire.reports import (
    MAX_DRY_REFUSALS,
    DryRefusal,
    DryWaveReport,
    DryWaveRequest,
    DryWaveState,
    StagedRow,
    partitions_of,
    spans_of,
)

from ringcast._bus.requests import FetchClient
from ringcast._common.cancellation import is_cancelled
from ringcast._common.change import Change
from ringcast._common.config import WorkerConfig
from ringcast._worker.refusals import printable, shown
from ringcast._worker.session import KeySession
from ringcast._worker.staged_rows import staged_pages

Validator: TypeAlias = Callable[[Change], Awaitable[str | None] | str | None]
"""Judges a staged change: ``None`` if the application would take it, else why not. A plain function runs in the event
loop, so it should not block."""

MAX_DRY_WAVES: Final = 4
"""Dry waves of a key that a worker is at; of one more it says that it is not."""
FORGOTTEN_AFTER_S: Final = 20.0
"""A dry wave ends once nobody has asked how far it is for so long."""
_BREATHE: Final = 32
"""Rows after which other tasks of the loop run."""

_Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None] | None"]


class DryWaves:
    """Those that a worker is asked for. Some of one key may run at once: each config service has its own.

    ``spawn`` starts a task of the worker.
    """

    def __init__(
        self,
        config: WorkerConfig,
        sessions: Mapping[str, KeySession],
        fetches: FetchClient,
        validate: Validator | None,
        *,
        spawn: _Spawn,
        log: EventLog,
    ) -> None:
        self._config = config
        self._sessions = sessions
        self._fetches = fetches
        self._validate = validate
        self._spawn = spawn
        self._log = log
        self._known: dict[tuple[str, str], _DryWave] = {}
        """By key and id: those that run, and those that were asked for a moment ago."""

    def report(self, key: str, request: DryWaveRequest) -> DryWaveReport | None:
        """How far the worker is with a dry wave, which begins with the first request; ``None``: it is not asked."""
        if request.label not in self._config.labels or self._config.observe:
            return None
        if self._validate is None:
            return DryWaveReport(request.id, DryWaveState.UNABLE)
        self._known = {place: wave for place, wave in self._known.items() if wave.runs or not wave.is_forgotten}
        if (wave := self._known.get((key, request.id))) is None:
            if sum(other.runs for (of, _), other in self._known.items() if of == key) >= MAX_DRY_WAVES:
                why = f"it is at {MAX_DRY_WAVES} dry waves of the key already"
                return DryWaveReport(request.id, DryWaveState.FAILED, why=why)
            wave = _DryWave(request, self._config.store, self._sessions[key], self._fetches, self._validate, self._log)
            self._known[key, request.id] = wave
            wave.task = self._spawn(wave.run())
        return wave.report()


class _DryWave:
    """One of one key."""

    def __init__(
        self,
        request: DryWaveRequest,
        store: str,
        session: KeySession,
        fetches: FetchClient,
        validate: Validator,
        log: EventLog,
    ) -> None:
        self.request = request
        self._store = store
        self._session = session
        self._fetches = fetches
        self._validate = validate
        self._log = log
        self._state = DryWaveState.JUDGING
        owned = session.machine.owned()
        self._partitions = [number for number in partitions_of(request.spans) if number in owned]
        self._rows = self._refused = 0
        self._refusals: list[DryRefusal] = []
        self._why = ""
        self._asked_at = _now()
        self._limit = asyncio.timeout(None)
        self.task: asyncio.Task[None] | None = None

    @property
    def runs(self) -> bool:
        """Whether its task has not ended, be it that the application does not let it."""
        return self.task is not None and not self.task.done()

    @property
    def is_forgotten(self) -> bool:
        """Whether nobody has asked how far it is for a while."""
        return _now() >= self._asked_at + FORGOTTEN_AFTER_S

    def report(self) -> DryWaveReport:
        """How far it is. What the worker has lost meanwhile it has not judged as its owner."""
        self._asked_at = _now()
        if self._state is DryWaveState.JUDGING and self._limit.when() is not None and not self._limit.expired():
            self._limit.reschedule(self._asked_at + FORGOTTEN_AFTER_S)
        owned = self._session.machine.owned()
        spans = spans_of(number for number in self._partitions if number in owned)
        words = self.request.id, self._state, spans, self._rows, self._refused, list(self._refusals)
        return DryWaveReport(*words, self._why)

    async def run(self) -> None:
        """Fetches the rows and judges them; an error is reported, and ends nothing else."""
        try:
            async with self._limit:
                self._limit.reschedule(_now() + FORGOTTEN_AFTER_S)
                await self._judge_all()
        except TimeoutError:
            self._fail(f"nobody has asked how far it is for {FORGOTTEN_AFTER_S:g} s")
        except RingcastError as error:
            self._fail(str(error))
        except asyncio.CancelledError:
            self._fail("it was cancelled")
            raise
        except Exception as error:  # noqa: BLE001  # a mistake in here must not end the worker
            self._fail(type(error).__name__)
        else:
            self._state = DryWaveState.JUDGED
            facts = {"key": self._session.key, "release": self.request.release, "rows": self._rows}
            self._log.info("dry_wave.judged", **facts, refused=self._refused)

    def _fail(self, why: str) -> None:
        self._state, self._why = DryWaveState.FAILED, printable(why)
        self._log.warning("dry_wave.failed", key=self._session.key, release=self.request.release, error=why)

    async def _judge_all(self) -> None:
        if not self._partitions:
            return
        words = self._fetches, self._store, self._session.key, self.request.release, spans_of(self._partitions)
        async for page in staged_pages(*words):
            for row in page.rows:
                await self._judge(row)
                if is_cancelled():  # the application has swallowed that
                    raise asyncio.CancelledError
                if self._rows % _BREATHE == 0:
                    await asyncio.sleep(0)

    async def _judge(self, row: StagedRow) -> None:
        reason = await self._reason(row)
        self._rows += 1
        if reason is None:
            return
        self._refused += 1
        if len(self._refusals) < MAX_DRY_REFUSALS:
            self._refusals.append(DryRefusal(row.row_id, printable(reason)))

    async def _reason(self, row: StagedRow) -> str | None:
        """Why the application would not take a row: what ``validate`` says, or the error that it raises."""
        change = Change(
            self._store,
            self._session.key,
            row.partition,
            row.row_id,
            row.value,
            row.version,
            deleted=row.value is None,
            metadata=row.metadata,
            release=self.request.release,
        )
        try:
            answer = self._validate(self._session.applier.opening.change(change, counted=False))
            if inspect.isawaitable(answer):
                answer = await answer
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # whatever the application raises, sys.exit() too
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            return shown(error)
        if answer is None or type(answer) is str:
            return answer
        return f"validate returned {shown(answer)}: None or a reason is wanted"


def _now() -> float:
    return asyncio.get_running_loop().time()
