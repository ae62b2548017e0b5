"""What an instance measures and traces: plain numbers, read at a scrape, and spans where a provider takes them."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from ringcast_wire import ReleaseState, names
from ringcast_wire.metrics import Histogram, Sample
from ringcast_wire.tracing import Tracing, checked_traceparent

from ringcast_config_service.broker_state import AccountState, StreamState
from ringcast_config_service.external_check.check import Outcome as CheckOutcome
from ringcast_config_service.promql.conditions import Outcome
from ringcast_config_service.refusals import Refusals
from ringcast_config_service.repository import OutboxState, PoolUse

T = TypeVar("T")

_PREFIX = "config_service_"
CALLOUTS = (
    *("granted", "no_token", "unknown_token", "wrong_id", "no_role"),
    *("too_large", "malformed", "late", "busy"),
)
PROMQL_OUTCOMES = tuple(map(str, Outcome))
CHECK_OUTCOMES = tuple(map(str, CheckOutcome))
HISTORY_REASONS = ("went_back", "put_back", "forked", "stream_lost", "operator")
RELEASE_STATES = (*map(str, ReleaseState), "halted")
LOGIN_FILES = ("tokens", "worker_tokens", "issuers")
_FETCH_KINDS = (names.FETCH_BATCH, names.FETCH_FULL, names.FETCH_HEADS, names.FETCH_STAGED)


def _histogram(name: str) -> Histogram:
    return Histogram.of(_PREFIX + name)


class Measures:
    """Counters and histograms of one instance, by the names of :mod:`ringcast_wire.metrics` without their prefix.

    ``gauges`` are called at each scrape, in the thread that serves it: they only read numbers.
    """

    def __init__(self) -> None:
        self.writes: Counter[tuple[str, str]] = Counter()
        self.rows_written: Counter[tuple[str, str]] = Counter()
        self.write_duration: defaultdict[str, Histogram] = defaultdict(lambda: _histogram("write_duration_seconds"))
        self.write_group_size = _histogram("write_group_size")
        self.transaction_duration = _histogram("transaction_duration_seconds")
        self.events_published = 0
        self.events_refused = 0
        self.provision_failures: Counter[str] = Counter()
        self.publish_failures: Counter[str] = Counter({"unsent": 0, "unacknowledged": 0, "refused": 0})
        self.fetches: Counter[tuple[str, str]] = Counter()
        self.fetch_duration: defaultdict[str, Histogram] = defaultdict(lambda: _histogram("fetch_duration_seconds"))
        self.counts_repaired = 0
        self.lead_changes: Counter[str] = Counter({"taken": 0, "lost": 0, "resigned": 0})
        self.writes_slowed: Counter[tuple[str, str]] = Counter()
        """Requests that the rate of their store has held up, by store and outcome."""
        self.schema_violations: Counter[tuple[str, str]] = Counter()
        """Rows with values that break the schema of their key, by store and mode."""
        self.refusals = Refusals()
        self.histories: Counter[str] = Counter(dict.fromkeys(HISTORY_REASONS, 0))
        self.dead_letters: Counter[tuple[str, str]] = Counter()
        """Dead letters by store, and by what operators had done with them."""
        self.callouts: Counter[str] = Counter(dict.fromkeys(CALLOUTS, 0))
        """Requests of NATS for what a worker may do, by what came of them."""
        self.callout_kicks = 0
        self.callout_duration = _histogram("callout_duration_seconds")
        self.promql: Counter[str] = Counter(dict.fromkeys(PROMQL_OUTCOMES, 0))
        """PromQL conditions that were asked, by what came of it."""
        self.external_checks: Counter[str] = Counter(dict.fromkeys(CHECK_OUTCOMES, 0))
        """Releases that the external check was asked about, by what came of it."""
        self.external_check_duration = _histogram("external_check_duration_seconds")
        self.outbox = OutboxState(0, None)
        self.releases: dict[str, int] = {}
        """Releases of all stores by state, as they were counted last; empty: not yet."""
        self.database_connected = True
        self.serving = dict.fromkeys(("reads", "writes", "bus"), False)
        self.gauges: dict[str, Callable[[], float]] = {}
        self.unusable_files: dict[str, Callable[[], bool]] = dict.fromkeys(LOGIN_FILES, bool)
        """What says of a file of logins whether it can't be used as it is now."""
        self.retries: Callable[[], Mapping[str, int]] = dict
        self.pools: Callable[[], Iterable[PoolUse]] = list
        self.streams: Callable[[], Iterable[StreamState]] = list
        self.account: Callable[[], AccountState | None] = lambda: None

    @property
    def outbox_age_s(self) -> float:
        """For how long the oldest event of the outbox has waited, as it was read last."""
        oldest_ms = self.outbox.oldest_ms
        return 0.0 if oldest_ms is None else max(0.0, time.time() - oldest_ms / 1000)

    def wrote(self, store: str, key: str, rows: int, outcome: str, seconds: float) -> None:
        """A write request has ended; ``rows`` is what it stored."""
        self.writes[store, outcome] += 1
        self.write_duration[store].observe(seconds)
        if rows:
            self.rows_written[store, key] += rows

    def fetched(self, kind: str, outcome: str, seconds: float) -> None:
        """A fetch has been answered."""
        self.fetches[kind, outcome] += 1
        self.fetch_duration[kind].observe(seconds)

    def samples(self) -> Iterator[Sample]:
        """Everything as it is now."""
        for name, labels, value in self._now():
            yield Sample(_PREFIX + name, labels, value)

    def _now(self) -> Iterator[tuple[str, tuple[str, ...], float | Histogram]]:
        for labels, count in list(self.writes.items()):
            yield "writes_total", labels, count
        for labels, count in list(self.rows_written.items()):
            yield "rows_written_total", labels, count
        for store, histogram in list(self.write_duration.items()):
            yield "write_duration_seconds", (store,), histogram
        yield "write_group_size", (), self.write_group_size
        yield "transaction_duration_seconds", (), self.transaction_duration
        for sqlstate, count in list(self.retries().items()):
            yield "transaction_retries_total", (sqlstate,), count
        yield "events_published_total", (), self.events_published
        yield "events_refused_total", (), self.events_refused
        for store, count in list(self.provision_failures.items()):
            yield "provision_failures_total", (store,), count
        for reason, count in list(self.publish_failures.items()):
            yield "publish_failures_total", (reason,), count
        for labels, count in list(self.fetches.items()):
            yield "fetches_total", labels, count
        for kind, histogram in list(self.fetch_duration.items()):
            yield "fetch_duration_seconds", (kind,), histogram
        for reason, count in list(self.histories.items()):
            yield "histories_total", (reason,), count
        for labels, count in list(self.writes_slowed.items()):
            yield "writes_slowed_total", labels, count
        for labels, count in list(self.schema_violations.items()):
            yield "schema_violations_total", labels, count
        yield "counts_repaired_total", (), self.counts_repaired
        for change, count in list(self.lead_changes.items()):
            yield "maintenance_lead_changes_total", (change,), count
        for labels, count in list(self.dead_letters.items()):
            yield "dead_letters_total", labels, count
        for labels, count in list(self.refusals.counts.items()):
            yield "calls_refused_total", labels, count
        for outcome, count in list(self.callouts.items()):
            yield "callouts_total", (outcome,), count
        for outcome, count in list(self.promql.items()):
            yield "promql_conditions_total", (outcome,), count
        for outcome, count in list(self.external_checks.items()):
            yield "external_checks_total", (outcome,), count
        yield "external_check_duration_seconds", (), self.external_check_duration
        yield "callout_kicks_total", (), self.callout_kicks
        yield "callout_duration_seconds", (), self.callout_duration
        yield from self._gauges()

    def _gauges(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        yield "outbox_depth", (), self.outbox.depth
        yield "outbox_age_seconds", (), self.outbox_age_s
        for state, count in self.releases.items():
            yield "releases", (state,), count
        for name, read in self.gauges.items():
            name, _, label = name.partition(":")
            yield name, (label,) if label else (), read()
        for file, unusable in self.unusable_files.items():
            yield "login_file_unusable", (file,), unusable()
        yield "connected", ("database",), self.database_connected
        for part, serving in self.serving.items():
            yield "serving", (part,), serving
        yield from self._of_broker()
        for pool in self.pools():
            yield "database_connections", (pool.name, "busy"), pool.busy
            yield "database_connections", (pool.name, "idle"), pool.idle

    def _of_broker(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        for stream in self.streams():
            place = stream.store, stream.kind
            yield "stream_silent", place, bool(stream.problem)
            if stream.replicas:  # it was seen once
                yield "stream_bytes", place, stream.bytes
                yield "stream_max_bytes", place, stream.max_bytes
                yield "stream_consumers", place, stream.consumers
                yield "stream_consumer_limit", place, stream.consumer_limit
                yield "stream_replicas_behind", place, stream.replicas_behind
        if (account := self.account()) is not None:
            limits = account.limits
            for kind, used, reserved, limit in (
                ("disk", account.storage, account.reserved_storage, limits.max_storage),
                ("memory", account.memory, account.reserved_memory, limits.max_memory),
            ):
                yield "jetstream_used_bytes", (kind,), used
                yield "jetstream_reserved_bytes", (kind,), reserved
                yield "jetstream_limit_bytes", (kind,), max(limit, 0)
            yield "jetstream_consumers", (), account.consumers
            yield "jetstream_consumer_limit", (), max(limits.max_consumers, 0)


class Telemetry:
    """The measures and, where a tracer provider is configured, the tracing of one instance."""

    def __init__(self, tracing: Tracing | None = None) -> None:
        self.measures = Measures()
        self.tracing = tracing

    @contextmanager
    def call(self, name: str, metadata: Iterable[tuple[str, Any]] | None) -> Iterator[str | None]:
        """A gRPC call: gives the ``traceparent`` that goes on from it, of a span of ours or what came in."""
        incoming = next((value for field, value in metadata or () if field == names.HEADER_TRACE), None)
        traceparent = checked_traceparent(incoming)
        if self.tracing is None:
            yield traceparent
            return
        span = self.tracing.start(name, traceparent, kind="SERVER")
        with self.tracing.within(span):
            yield self.tracing.traceparent(span)

    async def read(self, work: Awaitable[T]) -> T:
        """Waits for a read of the database; a span of its own where the call has one."""
        if self.tracing is None or self.tracing.here() is None:
            return await work
        with self.tracing.current("config.database.read", kind="CLIENT"):
            return await work


def fetch_kind(subject: str) -> str:
    """What a fetch is for, as a label: few values, whatever its subject is."""
    last = subject.rpartition(".")[2]
    if last in _FETCH_KINDS:
        return last
    return "partition" if last.isdigit() else "invalid"
