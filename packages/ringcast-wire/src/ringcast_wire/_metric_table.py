"""Every metric of Ringcast, once, as data: what is emitted, documented, alerted on and drawn is held against it."""

from __future__ import annotations

from typing import Final

from ringcast_wire._metric import SECONDS, SHORT_SECONDS, SIZES, Kind, Metric

MAX_PARTITIONS_AS_LABEL: Final = 256
"""Above so many partitions the label ``partition`` is empty, unless a user asks for it."""

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


def _service(
    name: str, kind: Kind, labels: tuple[str, ...], unit: str, text: str, buckets: tuple[float, ...] = ()
) -> Metric:
    return Metric(name, kind, labels, unit, text, "config service", "", buckets)


WORKER: Final = (
    _worker(
        "config_partitions_owned",
        "gauge",
        _KEY_WORKER,
        "partitions",
        "Partitions that this worker owns now.",
        "config_partitions_owned",
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
        "config_put_off_events_total",
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
    _worker("config_handler_timeouts_total", "counter", _KEY, "calls", "Those of them that took too long."),
    _worker(
        "config_callback_failures_total", "counter", _KEY, "calls", "Calls of on_assigned or on_revoked that raised."
    ),
    _worker(
        "config_poisoned_changes_total", "counter", _KEY, "rows", "Rows given up after their handler failed every time."
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
        "config_key_aside",
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
    _worker(
        "config_refused_subjects_total",
        "counter",
        _WORKER,
        "refusals",
        "Times that NATS did not let the worker publish or subscribe to a subject; the log names it.",
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
        "config_cache_set_aside_total",
        "counter",
        _WORKER,
        "files",
        "Cache files that could not be used and were renamed.",
    ),
)

SERVICE: Final = (
    _service(
        "config_service_writes_total",
        "counter",
        ("store", "outcome"),
        "requests",
        "Write requests that ended: ok, or the error code that they were refused with.",
    ),
    _service("config_service_rows_written_total", "counter", _KEY, "rows", "Rows stored, deletes included."),
    _service(
        "config_service_write_duration_seconds",
        "histogram",
        ("store",),
        "seconds",
        "From the arrival of a write to its commit or refusal, waiting included.",
        SECONDS,
    ),
    _service(
        "config_service_write_group_size",
        "histogram",
        (),
        "requests",
        "Write requests that were committed together.",
        SIZES,
    ),
    _service(
        "config_service_transaction_duration_seconds",
        "histogram",
        (),
        "seconds",
        "How long the transaction of a group of writes took, repetitions included.",
        SECONDS,
    ),
    _service(
        "config_service_transaction_retries_total",
        "counter",
        ("sqlstate",),
        "transactions",
        "Transactions that began again: 40001 not serialised, 40P01 deadlocked, 23505 second to a new partition.",
    ),
    _service("config_service_writes_waiting", "gauge", (), "requests", "Write requests that wait for the database."),
    _service("config_service_write_bytes_waiting", "gauge", (), "bytes", "Their rows."),
    _service(
        "config_service_outbox_depth",
        "gauge",
        (),
        "events",
        "Events whose records are in the outbox, counted up to 100,000: not published yet, or not deleted yet (0.1 s).",
    ),
    _service(
        "config_service_outbox_age_seconds",
        "gauge",
        (),
        "seconds",
        "Age of the oldest event in the outbox; 0 when it is empty.",
    ),
    _service("config_service_audit_behind_seconds", "gauge", (), "seconds", "Since the audit log was last chained."),
    _service("config_service_events_published_total", "counter", (), "events", "Events that the broker has stored."),
    _service(
        "config_service_provision_failures_total",
        "counter",
        ("store",),
        "attempts",
        "Failed attempts to make or change the streams and buckets of a store; the service repeats them every 30 s.",
    ),
    _service("config_service_stores_not_provisioned", "gauge", (), "stores", "Stores whose last attempt failed."),
    _service(
        "config_service_events_refused_total",
        "counter",
        (),
        "events",
        "Events that can't be published in any form: kept in the table outbox_refused, and not tried again.",
    ),
    _service(
        "config_service_histories_total",
        "counter",
        ("reason",),
        "histories",
        "New histories that this instance began, by reason: `went_back`, `forked`, `stream_lost` or `operator`.",
    ),
    _service(
        "config_service_publish_failures_total",
        "counter",
        ("reason",),
        "events",
        "Events that could not be sent (unsent), were not acknowledged (unacknowledged) or were refused (refused).",
    ),
    _service(
        "config_service_fetches_total",
        "counter",
        ("kind", "outcome"),
        "fetches",
        "Fetches answered, by kind (partition, since, batch, full, heads) and outcome (ok, an error code, abandoned or"
        " unsent).",
    ),
    _service(
        "config_service_fetch_duration_seconds",
        "histogram",
        ("kind",),
        "seconds",
        "From the arrival of a fetch to its answer, waiting included.",
        SECONDS,
    ),
    _service("config_service_fetches_waiting", "gauge", (), "fetches", "Fetches that wait for a free hand."),
    _service(
        "config_service_dead_letters_total",
        "counter",
        ("store", "done"),
        "dead letters",
        "Dead letters that operators had `listed`, `discarded`, `replayed` (handled, and removed), or replayed in vain:"
        " they `failed_again` (another one took their place), or were `kept`.",
    ),
    _service(
        "config_service_calls_refused_total",
        "counter",
        ("call", "reason"),
        "calls",
        "gRPC calls refused before anything was done, by kind of call and reason (no_token, unknown_token, "
        "limit_total, limit_principal, limit_host, no_role).",
    ),
    _service("config_service_callouts_total", "counter", ("outcome",), "requests", "Logins of workers by token."),
    _service("config_service_callout_kicks_total", "counter", (), "connections", "Connections ended: access is gone."),
    _service("config_service_callout_duration_seconds", "histogram", (), "seconds", "From request to answer.", SECONDS),
    _service(
        "config_service_connected",
        "gauge",
        ("to",),
        "",
        "1 while NATS or the database can be reached, else 0; checked every second.",
    ),
    _service(
        "config_service_serving",
        "gauge",
        ("part",),
        "",
        "1 while health says that the part (reads, writes, bus) is served, else 0; checked every second.",
    ),
    _service(
        "config_service_database_connections",
        "gauge",
        ("pool", "state"),
        "connections",
        "Connections of each pool (fetches, snapshots, writes, upkeep), busy and idle; none on SQLite.",
    ),
)

METRICS: Final = (*WORKER, *SERVICE)
