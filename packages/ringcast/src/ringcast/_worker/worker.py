"""The worker: owns partitions of config keys, holds their rows, and hands every change to the application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias, Unpack

from ringcast_core import row_partition
from ringcast_wire import Row, StoreSettings, ValueSealedError, names
from ringcast_wire.key_ring import KeyRing
from ringcast_wire.tracing import make_tracing

from ringcast._common.change import Change
from ringcast._common.config import WorkerConfig, WorkerSettings
from ringcast._common.log import worker_log
from ringcast._common.measures import Metrics
from ringcast._common.opening import Openings
from ringcast._common.stats import Stats
from ringcast._delivery.attempts import Handler
from ringcast._delivery.callbacks import Listener
from ringcast._delivery.iterator import ChangeStream
from ringcast._delivery.poison import BlockedRow
from ringcast._worker.dry_waves import Validator
from ringcast._worker.health import Health, cache_health, key_health, staleness_s
from ringcast._worker.life import WorkerLife
from ringcast._worker.replays import ReplayTaker
from ringcast._worker.runtime import Runtime
from ringcast._worker.session import KeySession

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider


class Worker:
    """A worker of one store. ``async with`` starts and stops it; a worker is used once.

    Changes go to ``handler`` (a plain or ``async`` function that takes a :class:`Change`; a plain one should
    not block), or come from :meth:`changes`. With neither, the worker just keeps the rows at hand. ``on_assigned`` and
    ``on_revoked`` take a config key and partition numbers; no change of a partition comes before the one or after the
    other.

    Each change is handed over at least once; the versions of a row only rise. A handler that raises is called again, up
    to ``handler_tries`` times; then the poison policy decides.

    ``validate`` judges what a release has staged, in a dry wave: it takes a :class:`Change` too, and returns ``None``
    or why the application would not take it. Nothing of such a change has been published. In a store of mode ``FULL``
    the workers of a canary (``labels``) show such rows as provisional ones, until the release has ended.

    ``settings`` are the fields of :class:`WorkerConfig`, by name. Those that are not given come from ``RINGCAST_*``
    variables, then from the file that ``RINGCAST_CONFIG_FILE`` names (TOML, table ``worker``), then from the defaults
    of the class; with a ``config``, all of them come from there.

    ``metrics`` takes what it measures: :class:`ringcast.metrics.PrometheusMetrics`, or anything of that shape; with
    ``metrics_listen`` it serves them over HTTP itself. Spans go to ``tracer_provider``, by default to the one that the
    process has configured by the time of the start, if any. Every log record has the fields ``store``, ``key``,
    ``worker_id`` and ``partition``.

    It logs in to NATS with a user and password, a credentials file or an nkey, as :class:`WorkerConfig` describes.

    Not for use by several threads.

    Raises:
        InvalidInputError: a setting breaks a rule; the message names it.
    """

    def __init__(
        self,
        config: WorkerConfig | None = None,
        *,
        handler: Handler | None = None,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        validate: Validator | None = None,
        metrics: Metrics | None = None,
        tracer_provider: TracerProvider | None = None,
        logger: logging.Logger | None = None,
        **settings: Unpack[WorkerSettings],
    ) -> None:
        self.config = WorkerConfig.resolve(settings) if config is None else config.but(settings)
        self._log = worker_log(
            logger or logging.getLogger("ringcast"), store=self.config.store, worker_id=self.config.worker_id
        )
        self._openings = Openings(KeyRing.from_file(self.config.key_ring) if self.config.key_ring else None)
        self._handler = handler
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._validate = validate
        self._metrics = metrics
        self._tracer_provider = tracer_provider
        self._life = WorkerLife(self.config, self._log)
        self._replay_taker: ReplayTaker | None = None

    # ---- life

    async def __aenter__(self) -> Self:
        await self.start()
        self._life.enter_body()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._life.leave_body(error)

    async def start(self) -> None:
        """Connects, checks the store, joins, and returns once the first assignment is known.

        A key that NATS does not let it register is not waited for, and does not keep the others: see :meth:`health`.
        Where other workers own all partitions it returns before this one gets its share (``stabilisation_s``).
        Its rows may still be on their way: see :meth:`wait_ready`. Cancelling leaves nothing behind.

        With rows in the cache it returns as soon as these can be served, whether NATS is there or not, and joins when
        it can. An error that makes this impossible is raised as later ones are: see :meth:`wait_closed`.

        Raises:
            UnavailableError: NATS can't be reached, lets this user register no key, or the start took longer than
                ``start_timeout_s``; the message says what was waited for.
            UnknownStoreError: there is no such store.
            StoreDeletedError, KeyDeletedError: the store, or every key of this worker, is deleted.
            MismatchError: the store has another mode or partition count than was asked for; both are named.
            InUseError: another live process has this worker id.
            LimitExceededError: the key has as many workers as it may.
            RuntimeError: the worker was started before.
        """
        if self._life.runtime is not None:
            raise RuntimeError("a worker can be started only once")
        runtime = Runtime(
            self.config,
            self._log,
            handler=self._handler,
            on_assigned=self._on_assigned,
            on_revoked=self._on_revoked,
            metrics=self._metrics,
            tracing=make_tracing("ringcast", self._tracer_provider),
            openings=self._openings,
        )
        runtime.replay_taker = self._replay_taker
        runtime.validate = self._validate
        await self._life.start(runtime)

    async def stop(self) -> None:
        """Takes no more in, waits for handlers that run (``drain_timeout_s`` at most), and gives everything up.

        Before that it serves on until others that stop or join do so too: ``stabilisation_s``, at most five times that.
        Calling it again is harmless. A fatal error is not raised here: see :meth:`wait_closed`.
        """
        await self._life.stop()

    async def wait_closed(self) -> None:
        """Waits until the worker has ended; raises the fatal error that ended it, if any."""
        await self._life.wait_closed()

    # ---- what the worker holds

    @property
    def settings(self) -> StoreSettings:
        """What the store's creator locked; known once the worker has started."""
        settings = self._life.runtime.settings if self._life.runtime is not None else None
        if settings is None:
            raise RuntimeError("the worker has not started")
        return settings

    def staleness(self, key: str | None = None) -> float:
        """The age of what is held, in seconds: how long changes (of one key, or of any) may have been missed.

        0 while NATS is connected, the config service answers the comparison of revisions, which is sent every
        ``heads_s``, every partition that is owned has its rows, the handler returns (``handler_stall_s``), and neither
        registration nor events fail; meanwhile what is held goes on being served. Rows from the cache are as old as
        they were when they were last known to be current, in an earlier life. It goes on rising after the end.
        """
        bus = self._life.runtime.bus if self._life.runtime is not None else None
        if bus is None:
            return 0.0
        return staleness_s(bus, [self._life.session(key)] if key is not None else self._life.sessions().values())

    def health(self) -> Health:
        """How this worker is now, for probes. Before the start and after the end it is not connected.

        Any thread may ask, such as that of a server that answers probes.
        """
        runtime = self._life.runtime
        self._life.check_process()
        if runtime is None or runtime.bus is None:
            return Health(False, False, 0.0, ())
        bus, running = runtime.bus, self._life.is_running
        sessions = list(runtime.sessions.values())
        return Health(
            connected=bus.is_connected and running,
            lease_held=runtime.lease is not None and runtime.lease.held and running,
            staleness_s=staleness_s(bus, sessions),
            keys=tuple(key_health(session) for session in sessions),
            cache=cache_health(runtime.cache) if runtime.cache is not None else None,
            by_agent=runtime.lease is not None and runtime.lease.by_agent and running,
            end_seen=runtime.lease is not None and runtime.lease.by_agent and runtime.lease.sees_end and running,
            login_refused=bus.refusals.login,
            refused_subjects=bus.refusals.subjects(),
            refused_consumers=runtime.refused_consumers,
        )

    @property
    def metrics_address(self) -> str:
        """Where the metrics are served (``host:port``, with the port that was taken), or nothing."""
        return self._life.runtime.metrics_address if self._life.runtime is not None else ""

    def owned(self, key: str) -> frozenset[int]:
        """The partitions of a key that are assigned to this worker now."""
        return self._life.session(key).machine.owned()

    def applied(self, key: str) -> dict[int, int]:
        """Per owned partition, the revision up to which every change has been through the handler."""
        partitions = self._life.session(key).machine.partitions
        return {number: part.applied for number, part in partitions.items() if part.served}

    def history(self, key: str) -> str:
        """The history that the revisions of a key belong to; empty as long as none is known."""
        return self._life.session(key).machine.history.current

    def rows(self, key: str) -> Iterator[Row]:
        """The live rows of a key that this worker holds, in no order; go through them without waiting in between.

        Raises:
            ValueSealedError: while iterating: an encrypted value can't be opened.
        """
        session = self._life.session(key)
        return map(session.applier.opening.row, session.provisional.over(session.machine.rows()))

    def row_count(self, key: str) -> int:
        """How many live rows of a key this worker holds."""
        session = self._life.session(key)
        held = sum(len(part.rows) for part in session.machine.partitions.values())
        return held + session.provisional.changed_count()

    def get(self, key: str, row_id: str) -> Row | None:
        """A live row that this worker holds, or ``None``: another worker may hold it.

        Raises:
            ValueSealedError: its value is encrypted, and can't be opened.
        """
        number = row_partition(row_id, self.settings.partition_count)
        session = self._life.session(key)
        part = session.machine.partitions.get(number)
        row = session.provisional.row(row_id, part.rows.get(row_id) if part is not None else None)
        return None if row is None else session.applier.opening.row(row)

    def stats(self, key: str | None = None) -> Stats:
        """Counters of one key, or of all together and what is no single key's."""
        if key is not None:
            return self._life.session(key).machine.stats + Stats()
        self._life.sessions()
        assert self._life.runtime is not None
        return self._life.runtime.all_stats()

    def blocked(self, key: str | None = None) -> list[BlockedRow]:
        """The rows that are held back (:attr:`PoisonPolicy.BLOCK`), of one key or of all."""
        keys = [key] if key is not None else list(self._life.sessions())
        return [row for name in keys for row in self._life.session(name).applier.poison.blocked()]

    async def unblock(self, key: str, row_id: str) -> bool:
        """Hands the newest change of a blocked row to the handler again, ``handler_tries`` times at most.

        Returns whether the row is free now; ``True`` too for a row that is not blocked. Cancelling leaves it blocked.
        """
        partition = row_partition(row_id, self.settings.partition_count)
        return await self._life.session(key).applier.unblock(partition, row_id)

    # ---- waiting

    async def wait_ready(self, *, timeout_s: float | None = None) -> None:
        """Waits until every owned partition of every key has been fetched and handed over.

        Raises:
            TimeoutError: it took longer than ``timeout_s``.
            UnavailableError: the worker has ended; if an error has ended it, that one. This goes for all waits.
        """
        async with _within(timeout_s, "the owned partitions were not all loaded"):
            for session in self._life.sessions().values():
                await session.wait_until(lambda session=session: session.ready)  # type: ignore[misc]

    async def wait_for(self, key: str, partition: int, revision: int, *, timeout_s: float | None = None) -> None:
        """Waits until this worker owns a partition and has applied it up to a revision.

        Raises:
            TimeoutError: it took longer than ``timeout_s``.
        """
        names.check_partition(partition, self.settings.partition_count)
        session = self._life.session(key)
        session.ownership.check_there()
        held = session.machine.partitions
        async with _within(timeout_s, f"revision {revision} of partition {partition} of {key} was not applied"):
            await session.wait_until(
                lambda: partition in held and held[partition].served and held[partition].applied >= revision
            )

    async def wait_until(self, key: str, condition: Callable[[], bool], *, timeout_s: float | None = None) -> None:
        """Waits until ``condition()`` is true; it is evaluated again whenever something about the key has changed.

        Raises:
            TimeoutError: it took longer than ``timeout_s``.
        """
        session = self._life.session(key)
        session.ownership.check_there()
        async with _within(timeout_s, "the condition did not come true"):
            await session.wait_until(condition)

    async def changes(self) -> AsyncIterator[Change]:
        """First every row held now, then every change, until the worker ends.

        Only for a worker without a ``handler``, and only once. A change counts as applied when the next one is asked
        for, so one that the loop's body failed on comes again elsewhere. A fatal error is raised here.
        """
        if self._handler is not None or self._life.stream is not None:
            raise RuntimeError("changes() needs a worker without a handler, and works only once")
        sessions = self._life.sessions()
        first, refused = _first_changes(sessions.values(), asyncio.get_running_loop().time())
        self._life.stream = stream = ChangeStream(
            first,
            begin=lambda change: sessions[change.key].applier.admit(change),
        )
        for session in sessions.values():
            session.attach(stream.put, timed=False, gated=False)
            if session.machine.exclusive:
                session.machine.silent.hand_over_again()
                session.pump()
        if not self._life.is_running:
            stream.close(self._life.fatal)
        refusing = asyncio.create_task(_refuse(refused))  # it may wait for room among the blocked rows
        try:
            async for change in stream:
                yield change
        finally:
            refusing.cancel()
            for session in sessions.values():
                session.attach(None)
            stream.release()


_Refused: TypeAlias = list[tuple[KeySession, Change, ValueSealedError]]


async def _refuse(refused: _Refused) -> None:
    for session, change, error in refused:
        await session.applier.refuse(change, error)


def _first_changes(sessions: Iterable[KeySession], now: float) -> tuple[list[Change], _Refused]:
    """The rows held now as changes, opened; and those that can't be."""
    first: list[Change] = []
    refused: _Refused = []
    for session in sessions:
        if session.machine.exclusive:
            continue
        shown = session.provisional.changes()
        instead = {change.row_id for change in shown}
        held = (change for change in session.machine.row_changes(now) if change.row_id not in instead)
        for change in chain(held, shown):
            try:
                first.append(session.applier.opening.change(change))
            except ValueSealedError as error:
                if not change.provisional:
                    refused.append((session, change, error))
    return first, refused


@asynccontextmanager
async def _within(timeout_s: float | None, otherwise: str) -> AsyncIterator[None]:
    """Limits how long the body may wait, and says what it waited for in vain."""
    try:
        async with asyncio.timeout(timeout_s) as timeout:
            yield
    except TimeoutError as error:
        if not timeout.expired():
            raise
        raise TimeoutError(f"{otherwise} within {timeout_s:g} s") from error
