"""Every metric of workers, once, as data: what is emitted, documented, alerted on and drawn is held against it."""

from __future__ import annotations

from typing import Final

from ringcast_wire._metrics.metric import SECONDS, SHORT_SECONDS, SIZES, Kind, Metric
from ringcast_wire._metrics.owner_table import OWNERS
from ringcast_wire._metrics.service_table import SERVICE

_KEY: Final = ("store", "key")
_KEY_WORKER: Final = ("store", "key", "worker_id")
_WORKER: Final = ("store", "worker_id")
_CONSUMER: Final = ("store", "worker_id", "consumer")


def _worker(
    name: str,
    kind: Kind,
    labels: tuple[str, ...],
    unit: str,
    text: str,
    reference: str = "",
    buckets: tuple[float, ...] = (),
) -> Metric:
    return Metric(name, kind, labels, unit, text, "worker", reference, buckets)


WORKER: Final = (
    _worker(
        "config_partitions_owned",
        "gauge",
        _KEY_WORKER,
        "partitions",
        "Partitions that this worker owns now; a worker that observes has neither this nor config_partition_count.",
        "config_partitions_owned",
    ),
    _worker(
        "config_partition_count",
        "gauge",
        _KEY_WORKER,
        "partitions",
        "Partitions that the key has: where all workers together own fewer, some have no owner.",
    ),
    _worker(
        "config_oldest_unapplied_age_seconds",
        "gauge",
        _KEY_WORKER,
        "seconds",
        "Age of the oldest change that the worker knows of and has not applied; 0 when there is none.",
    ),
    _worker(
        "config_rebalances_total",
        "counter",
        (*_KEY, "trigger"),
        "rebalances",
        "New assignments, by cause: join, leave or heartbeat-miss.",
        "config_rebalances_total",
    ),
    _worker(
        "config_bootstrap_duration_seconds",
        "histogram",
        (*_KEY, "partition"),
        "seconds",
        "From the request for a whole partition (mode FULL: for the whole key) to its rows.",
        "config_bootstrap_duration_seconds",
        SECONDS,
    ),
    _worker(
        "config_notification_batch_size",
        "histogram",
        _KEY,
        "rows",
        "Rows in a micro-batch, each once.",
        "config_notification_batch_size",
        SIZES,
    ),
    _worker(
        "config_notification_lag_seconds",
        "histogram",
        _KEY,
        "seconds",
        "From the broker's time stamp of an event to the hand-over of its rows to the application.",
        "config_notification_lag_seconds",
        SECONDS,
    ),
    _worker(
        "config_heartbeat_failures_total",
        "counter",
        _KEY_WORKER,
        "writes",
        "Writes of the lease that failed; one lease serves every key, so the keys of a worker show the same.",
        "config_heartbeat_failures_total",
    ),
    _worker(
        "config_stale_updates_discarded_total",
        "counter",
        _KEY,
        "rows",
        "Rows dropped because a newer version was known.",
        "config_stale_updates_discarded_total",
    ),
    _worker(
        "config_consumer_messages_total",
        "counter",
        _CONSUMER,
        "messages",
        "Deliveries of events to a durable consumer, redeliveries included.",
        "parti_consumer_messages_total",
    ),
    _worker(
        "config_consumer_redeliveries_total",
        "counter",
        _CONSUMER,
        "messages",
        "Deliveries that were not the first of their event.",
        "parti_consumer_redeliveries_total",
    ),
    _worker(
        "config_consumer_inflight",
        "gauge",
        _CONSUMER,
        "messages",
        "Events that wait on the server, as the last delivery said, and those delivered and not acknowledged.",
        "parti_consumer_inflight",
    ),
    _worker(
        "config_consumer_update_duration_seconds",
        "histogram",
        _WORKER,
        "seconds",
        "How long the server took to confirm a consumer's filters.",
        "parti_consumer_update_duration_seconds",
        SECONDS,
    ),
    _worker(
        "config_consumer_subject_count",
        "gauge",
        _CONSUMER,
        "subjects",
        "Filters that the server has confirmed; a consumer has at most config_consumer_subject_limit.",
        "parti_consumer_subject_count",
    ),
    _worker(
        "config_consumer_subject_limit",
        "gauge",
        _CONSUMER,
        "subjects",
        "Filters that a consumer may have; past it the worker makes a further one.",
    ),
    _worker(
        "config_handler_latency_seconds",
        "histogram",
        _KEY,
        "seconds",
        "How long one call of the application's handler took, failed ones included.",
        "parti_handler_latency_seconds",
        SHORT_SECONDS,
    ),
    _worker(
        "config_consumer_update_failures_total",
        "counter",
        _WORKER,
        "updates",
        "Updates of consumers that failed; the last good filters stay.",
        "parti_consumer_update_failures_total",
    ),
    _worker(
        "config_consumer_update_skipped_total",
        "counter",
        _WORKER,
        "updates",
        "Updates that were not sent, because they would have changed nothing.",
        "parti_consumer_update_skipped_total",
    ),
    _worker("config_duplicate_events_total", "counter", _KEY, "events", "Events that had arrived before."),
    _worker(
        "config_unreadable_events_total",
        "counter",
        _WORKER,
        "events",
        "Events that were damaged or not of this protocol.",
    ),
    _worker(
        "config_unreadable_replies_total",
        "counter",
        _WORKER,
        "replies",
        "Answers to fetches that were damaged or did not fit the request; the worker fetches again.",
    ),
    _worker(
        "config_unreadable_records_total",
        "counter",
        _WORKER,
        "records",
        "Records of members, slots and leases that were damaged; they are ignored.",
    ),
    _worker(
        "config_gaps_total",
        "counter",
        _KEY,
        "gaps",
        "Times that a fetch replaced events that were missing or did not list their rows.",
    ),
    _worker(
        "config_deferred_events_total",
        "counter",
        _KEY,
        "events",
        "Events acknowledged at once because their key had its share of unacknowledged events; a fetch replaces them.",
    ),
    _worker("config_changes_total", "counter", _KEY, "rows", "Rows handed to the application."),
    _worker(
        "config_fetches_total",
        "counter",
        (*_KEY, "kind"),
        "fetches",
        "Fetches sent: of a partition or key, or of rows (batch).",
    ),
    _worker("config_fetch_failures_total", "counter", _KEY, "fetches", "Fetches that were refused or got no answer."),
    _worker(
        "config_handler_failures_total", "counter", _KEY, "calls", "Calls of the application's handler that raised."
    ),
    _worker(
        "config_handler_timeouts_total",
        "counter",
        _KEY,
        "calls",
        "Calls of the handler that were cancelled after `handler_timeout_s`; each counts as a failure too.",
    ),
    _worker(
        "config_callback_failures_total", "counter", _KEY, "calls", "Calls of on_assigned or on_revoked that raised."
    ),
    _worker(
        "config_poisoned_changes_total", "counter", _KEY, "rows", "Rows given up after their handler failed every time."
    ),
    _worker(
        "config_unopened_values_total",
        "counter",
        _KEY,
        "rows",
        "Encrypted values that could not be opened for the handler; each counts as a failure too.",
    ),
    _worker(
        "config_dead_letters_total",
        "counter",
        _KEY,
        "rows",
        "Poisoned changes that the stream of dead letters has stored.",
    ),
    _worker(
        "config_dead_letter_failures_total",
        "counter",
        _KEY,
        "sends",
        "Dead letters that could not be sent; each is sent again.",
    ),
    _worker("config_blocked_changes_total", "counter", _KEY, "rows", "Poisoned changes whose row was blocked."),
    _worker(
        "config_replays_total",
        "counter",
        _KEY,
        "rows",
        "Rows that were handed over again because of a dead letter, with any result.",
    ),
    _worker("config_rows_held", "gauge", _KEY_WORKER, "rows", "Live rows that this worker holds."),
    _worker(
        "config_provisional_rows",
        "gauge",
        _KEY_WORKER,
        "rows",
        "Provisional rows of a release that lie over what this worker holds.",
    ),
    _worker(
        "config_provisional_age_seconds",
        "gauge",
        _KEY_WORKER,
        "seconds",
        "For how long the oldest of them has been lying there; else 0.",
    ),
    _worker(
        "config_staleness_seconds",
        "gauge",
        _WORKER,
        "seconds",
        "For how long changes may have been missed, or have waited for a handler that does not return; else 0.",
    ),
    _worker(
        "config_partitions_unloaded",
        "gauge",
        _KEY_WORKER,
        "partitions",
        "Partitions that this worker owns and has no rows of yet.",
    ),
    _worker(
        "config_key_failing",
        "gauge",
        _KEY_WORKER,
        "keys",
        "1 while the worker can't be registered for the key, can't get its events, or can't read the leases of others.",
    ),
    _worker(
        "config_key_withdrawn",
        "gauge",
        _KEY_WORKER,
        "keys",
        "1 while the worker has left the key's partitions to others, since it can't get its events.",
    ),
    _worker(
        "config_handler_running_seconds",
        "gauge",
        _KEY_WORKER,
        "seconds",
        "For how long the oldest call of the handler has been running, further tries included; else 0.",
    ),
    _worker(
        "config_callback_running_seconds",
        "gauge",
        _KEY_WORKER,
        "seconds",
        "For how long on_assigned or on_revoked has been running; else 0.",
    ),
    *OWNERS,
    _worker(
        "config_refused_subjects_total",
        "counter",
        _WORKER,
        "refusals",
        "Times that NATS did not let the worker publish or subscribe to a subject; the log names it.",
    ),
    _worker(
        "config_login_refused",
        "gauge",
        _WORKER,
        "",
        "1 while NATS refuses the worker's login: it tries again, and reads the files of the login each time.",
    ),
    _worker(
        "config_history_refused",
        "gauge",
        _KEY_WORKER,
        "keys",
        "1 while the service's new history of the key lacks too many rows: the worker keeps what it has.",
    ),
    _worker(
        "config_cached_partitions",
        "gauge",
        _KEY_WORKER,
        "partitions",
        "Partitions that still have the rows of the cache on disk: the service has not confirmed them since the start.",
    ),
    _worker(
        "config_cache_unsaved_partitions",
        "gauge",
        _WORKER,
        "partitions",
        "Partitions that have changed since the cache was written.",
    ),
    _worker(
        "config_cache_write_failures_total",
        "counter",
        _WORKER,
        "writes",
        "Attempts to open or write the cache that failed; it stays as it was, and is tried again.",
    ),
    _worker(
        "config_cache_quarantined_total",
        "counter",
        _WORKER,
        "files",
        "Cache files that could not be used and were renamed.",
    ),
)

METRICS: Final = (*WORKER, *SERVICE)
