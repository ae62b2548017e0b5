"""What the metrics of a worker are at this moment. Reads numbers only, and may be called from any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ringcast_wire import limits
from ringcast_wire.metrics import Sample

from ringcast._bus.bus import Bus
from ringcast._bus.consumers import Consumers
from ringcast._cache.cache import Cache
from ringcast._common.config import WorkerConfig
from ringcast._common.place import read_place
from ringcast._common.stats import Stats
from ringcast._coordination.lease import LeaseSource
from ringcast._coordination.sticky.measures import KeyReport
from ringcast._worker.health import staleness_s
from ringcast._worker.session import KeySession

_COUNTERS: Final = {
    "config_stale_updates_discarded_total": "stale",
    "config_duplicate_events_total": "duplicates",
    "config_gaps_total": "gaps",
    "config_deferred_events_total": "deferred",
    "config_changes_total": "changes",
    "config_fetch_failures_total": "fetch_failures",
    "config_handler_failures_total": "handler_failures",
    "config_handler_timeouts_total": "handler_timeouts",
    "config_callback_failures_total": "callback_failures",
    "config_poisoned_changes_total": "poisoned",
    "config_unopened_values_total": "unopened",
    "config_dead_letters_total": "dead_letters",
    "config_dead_letter_failures_total": "dead_letter_failures",
    "config_blocked_changes_total": "blocked",
    "config_replays_total": "replays",
}


@dataclass(frozen=True, slots=True)
class WorkerSamples:
    """Reads the metrics of the parts of a running worker. Calling it gives the samples."""

    config: WorkerConfig
    bus: Bus
    consumers: Consumers
    lease: LeaseSource
    sessions: Mapping[str, KeySession]
    stats: Callable[[], Stats]
    report: Callable[[str], KeyReport | None] = lambda _: None
    """In a store of exclusive ownership, or one that migrates: what there is to measure of a key."""

    def __call__(self) -> Iterator[Sample]:
        worker = (self.config.store, self.config.worker_id)
        yield Sample("config_staleness_seconds", worker, staleness_s(self.bus, list(self.sessions.values())))
        stats = self.stats()
        yield Sample("config_unreadable_events_total", worker, stats.unreadable)
        yield Sample("config_unreadable_replies_total", worker, stats.bad_replies)
        yield Sample("config_unreadable_records_total", worker, stats.bad_records)
        yield Sample("config_refused_subjects_total", worker, self.bus.refusals.count)
        yield Sample("config_login_refused", worker, bool(self.bus.refusals.login))
        yield Sample("config_consumer_update_duration_seconds", worker, self.consumers.update_duration)
        yield Sample("config_consumer_update_failures_total", worker, self.consumers.update_failures)
        yield Sample("config_consumer_update_skipped_total", worker, self.consumers.updates_skipped)
        yield from self._consumers()
        for name, session in list(self.sessions.items()):
            yield from self._key((self.config.store, name), session)
            if (report := self.report(name)) is not None:
                yield from self._exclusive((self.config.store, name), session, report)

    def _consumers(self) -> Iterator[Sample]:
        unacknowledged = [
            token
            for session in list(self.sessions.values())
            for partition in list(session.machine.partitions.values())
            for token in list(partition.tokens.values())
        ]
        subjects = self.consumers.subject_counts()
        for name, counters in list(self.consumers.counters.items()):
            labels = (self.config.store, self.config.worker_id, name)
            last = read_place(counters.last_reply)
            waiting = sum(f".{name}." in token for token in unacknowledged) + (last.pending if last else 0)
            yield Sample("config_consumer_messages_total", labels, counters.messages)
            yield Sample("config_consumer_redeliveries_total", labels, counters.redeliveries)
            yield Sample("config_consumer_inflight", labels, waiting)
            yield Sample("config_consumer_subject_count", labels, subjects.get(name, 0))
            yield Sample("config_consumer_subject_limit", labels, limits.MAX_FILTERS_PER_CONSUMER)

    def _key(self, key: tuple[str, str], session: KeySession) -> Iterator[Sample]:
        machine, measures, owner = session.machine, session.measures, (*key, self.config.worker_id)
        held = list(machine.partitions.values())
        partitions = [partition for partition in held if partition.owned]
        if not self.config.observe:  # one that observes takes no share
            yield Sample("config_partitions_owned", owner, len(partitions))
            yield Sample("config_partition_count", owner, machine.partition_count)
        yield Sample("config_oldest_unapplied_age_seconds", owner, session.staleness.oldest_unapplied_s)
        unloaded = sum(not partition.live and not partition.cached for partition in partitions)
        yield Sample("config_partitions_unloaded", owner, unloaded)
        yield Sample("config_key_failing", owner, bool(session.vitals.failing_because))
        yield Sample("config_key_withdrawn", owner, session.vitals.withdrawn)
        yield Sample("config_handler_running_seconds", owner, session.staleness.handler_running_s)
        yield Sample("config_callback_running_seconds", owner, session.applier.callback_running_s)
        yield Sample("config_history_refused", owner, machine.history.refusal is not None)
        yield Sample("config_rows_held", owner, sum(len(partition.rows) for partition in held))
        provisional = session.provisional
        laid_s = session.staleness.since_s(provisional.laid_at) if len(provisional) else 0.0
        yield Sample("config_provisional_rows", owner, len(provisional))
        yield Sample("config_provisional_age_seconds", owner, laid_s)
        yield Sample("config_heartbeat_failures_total", owner, self.lease.failed_writes)
        for trigger, count in measures.rebalances.items():
            yield Sample("config_rebalances_total", (*key, trigger), count)
        for name, field in _COUNTERS.items():
            yield Sample(name, key, getattr(machine.stats, field))
        yield Sample("config_fetches_total", (*key, "partition"), machine.stats.fetches)
        yield Sample("config_fetches_total", (*key, "batch"), machine.stats.batch_fetches)
        yield Sample("config_notification_batch_size", key, machine.handover.batch_sizes)
        yield Sample("config_notification_lag_seconds", key, measures.lag)
        yield Sample("config_handler_latency_seconds", key, measures.handler_latency)
        for label, histogram in list(measures.bootstraps.items()):
            yield Sample("config_bootstrap_duration_seconds", (*key, label), histogram)

    def _exclusive(self, key: tuple[str, str], session: KeySession, report: KeyReport) -> Iterator[Sample]:
        owner, stats, gate = (*key, self.config.worker_id), session.machine.stats, session.applier.gate
        yield Sample("config_key_leading", owner, report.leads)
        yield Sample("config_leader_changes_total", key, report.leader_changes)
        yield Sample("config_handoff_seconds", key, report.handoff)
        yield Sample("config_plan_moves", owner, report.plan_moves)
        yield Sample("config_passed_over_workers", owner, report.passed_over)
        for phase, count in report.partitions.items():
            yield Sample("config_phase_partitions", (*owner, phase), count)
        yield Sample("config_fence_refusals_total", key, stats.fence_refusals)
        yield Sample("config_calls_over_bound_total", key, stats.calls_over_bound)
        yield Sample("config_calls_ended_total", key, stats.calls_ended)
        yield Sample("config_call_over_bound_seconds", owner, gate.over_bound_s if gate is not None else 0.0)
        yield Sample("config_unreadable_owner_records_total", owner, report.unreadable)
        yield Sample("config_key_load", owner, report.load)
        yield Sample("config_hot_partitions", owner, report.hot)
        yield Sample("config_load_skew", owner, report.skew)


@dataclass(frozen=True, slots=True)
class CacheSamples:
    """The metrics of a cache, from the start on; before the worker has joined, only these show the age of its rows."""

    config: WorkerConfig
    bus: Bus
    cache: Cache
    sessions: Callable[[], Mapping[str, KeySession]]
    joined: Callable[[], bool]

    def __call__(self) -> Iterator[Sample]:
        worker = (self.config.store, self.config.worker_id)
        sessions = dict(self.sessions())
        if sessions and not self.joined():
            yield Sample("config_staleness_seconds", worker, staleness_s(self.bus, sessions.values()))
        for name, session in sessions.items():
            cached = sum(partition.cached for partition in list(session.machine.partitions.values()))
            yield Sample("config_cached_partitions", (self.config.store, name, self.config.worker_id), cached)
        yield Sample("config_cache_unsaved_partitions", worker, self.cache.behind)
        yield Sample("config_cache_write_failures_total", worker, self.cache.write_failures)
        yield Sample("config_cache_quarantined_total", worker, self.cache.quarantines)
