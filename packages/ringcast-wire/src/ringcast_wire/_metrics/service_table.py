"""Every metric of the config service, as ``worker_table`` has those of workers."""

from __future__ import annotations

from typing import Final

from ringcast_wire._metrics.metric import SECONDS, SIZES, Kind, Metric

_KEY: Final = ("store", "key")
_STREAM: Final = ("store", "kind")


def _service(
    name: str, kind: Kind, labels: tuple[str, ...], unit: str, text: str, buckets: tuple[float, ...] = ()
) -> Metric:
    return Metric(name, kind, labels, unit, text, "config service", "", buckets)


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
    _service(
        "config_service_write_bytes_waiting",
        "gauge",
        (),
        "bytes",
        "Rows of the write requests that wait for the database.",
    ),
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
    _service(
        "config_service_audit_behind_seconds",
        "gauge",
        (),
        "seconds",
        "How long ago entries were last added to the chain of the audit log.",
    ),
    _service(
        "config_service_issuer_keys_age_seconds",
        "gauge",
        (),
        "seconds",
        "How long ago the keys of an issuer of tokens were read from its URL: of the issuer for which it is longest; 0"
        " where none has a URL.",
    ),
    _service("config_service_events_published_total", "counter", (), "events", "Events that the broker has stored."),
    _service(
        "config_service_provision_failures_total",
        "counter",
        ("store",),
        "attempts",
        "Failed attempts to make or change the streams and buckets of a store; the service repeats them every 30 s.",
    ),
    _service(
        "config_service_stores_not_provisioned",
        "gauge",
        (),
        "stores",
        "Stores whose streams and buckets could not be made or changed at the last attempt.",
    ),
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
        "New histories that this instance began: `went_back`, `put_back`, `forked`, `stream_lost` or `operator`.",
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
        "Fetches answered, by kind (partition, since, batch, full, heads, staged) and outcome (ok, an error code,"
        " abandoned or unsent).",
    ),
    _service(
        "config_service_fetch_duration_seconds",
        "histogram",
        ("kind",),
        "seconds",
        "From the arrival of a fetch to its answer, waiting included.",
        SECONDS,
    ),
    _service(
        "config_service_fetches_waiting",
        "gauge",
        (),
        "fetches",
        "Fetches that have arrived and are not being answered yet.",
    ),
    _service(
        "config_service_dead_letters_total",
        "counter",
        ("store", "done"),
        "dead letters",
        "Dead letters that operators had `listed`, `discarded`, `replayed` (handled, and removed), or replayed in vain:"
        " they `failed_again` (another one took their place), or were `kept`.",
    ),
    _service(
        "config_service_writes_slowed_total",
        "counter",
        ("store", "outcome"),
        "requests",
        "Requests beyond the policy max_rows_per_second of their store, which `waited`, or were `refused` after a"
        " wait.",
    ),
    _service(
        "config_service_schema_violations_total",
        "counter",
        ("store", "mode"),
        "rows",
        "Rows with values that break the schema of their key: refused where it is enforced (`enforce`; of a batch that"
        " is refused the first alone), or written (`warn`).",
    ),
    _service(
        "config_service_releases",
        "gauge",
        ("state",),
        "releases",
        "Releases of all stores by state, `halted` being one of them, as the database has them: the same at every "
        "instance (15 s).",
    ),
    _service(
        "config_service_promql_conditions_total",
        "counter",
        ("outcome",),
        "answers",
        "Answers to the PromQL conditions of gates: `met`, `not_met`, `no_data`, `wrong` (no condition), or"
        " `no_answer`.",
    ),
    _service(
        "config_service_external_checks_total",
        "counter",
        ("outcome",),
        "checks",
        "Releases that the external check was asked about: `allowed`, `refused`, or `unanswered`, which refuses too.",
    ),
    _service(
        "config_service_external_check_duration_seconds",
        "histogram",
        (),
        "seconds",
        "From the question to the external check to its answer, or to giving up.",
        SECONDS,
    ),
    _service(
        "config_service_maintenance_leader",
        "gauge",
        (),
        "0 or 1",
        "Whether the instance leads maintenance, of all one.",
    ),
    _service(
        "config_service_maintenance_lead_changes_total",
        "counter",
        ("change",),
        "changes",
        "How often the instance took the lead of maintenance, lost it to another, or resigned it.",
    ),
    _service(
        "config_service_counts_repaired_total",
        "counter",
        (),
        "partitions",
        "Partitions whose counts of live rows differed from their rows, and were set right: the mark of a fault.",
    ),
    _service(
        "config_service_calls_refused_total",
        "counter",
        ("call", "reason"),
        "calls",
        "gRPC calls refused before anything was done, by kind of call and reason (no_token, unknown_token, "
        "expired_token, invalid_token, no_issuer_keys, limit_total, limit_principal, limit_host, no_role); with "
        '`call="connection"` TLS handshakes that failed (no_certificate, refused_certificate, no_handshake).',
    ),
    _service(
        "config_service_callouts_total",
        "counter",
        ("outcome",),
        "requests",
        "Logins of workers and agents with a token: `granted`; refused as `no_token`, `unknown_token`, `wrong_id`,"
        " `no_role` or `too_large`; left without an answer as `malformed`, `late` or `busy`.",
    ),
    _service(
        "config_service_callout_kicks_total",
        "counter",
        (),
        "connections",
        "Connections of workers and agents that were ended, since their token or role is gone.",
    ),
    _service(
        "config_service_callout_duration_seconds",
        "histogram",
        (),
        "seconds",
        "From the arrival of NATS's request to the answer.",
        SECONDS,
    ),
    _service(
        "config_service_stream_bytes", "gauge", _STREAM, "bytes", "What a stream of NATS has, as it was looked at last."
    ),
    _service("config_service_stream_max_bytes", "gauge", _STREAM, "bytes", "The room that it has."),
    _service("config_service_stream_consumers", "gauge", _STREAM, "consumers", "Consumers that it has."),
    _service(
        "config_service_stream_consumer_limit",
        "gauge",
        _STREAM,
        "consumers",
        "Consumers that it may have: its own limit, or the 1,000 that NATS allows where it has none.",
    ),
    _service(
        "config_service_stream_replicas_behind",
        "gauge",
        _STREAM,
        "replicas",
        "Copies of it that are not there, or not up to date.",
    ),
    _service(
        "config_service_stream_silent",
        "gauge",
        _STREAM,
        "",
        "1 while it does not answer, or can't be made: most of its copies are away, or there is no room; else 0.",
    ),
    _service(
        "config_service_jetstream_used_bytes",
        "gauge",
        ("storage",),
        "bytes",
        "What the account of the service uses of JetStream's `disk` and `memory`.",
    ),
    _service(
        "config_service_jetstream_reserved_bytes",
        "gauge",
        ("storage",),
        "bytes",
        "What is reserved of them for its streams.",
    ),
    _service(
        "config_service_jetstream_limit_bytes",
        "gauge",
        ("storage",),
        "bytes",
        "What the account may have of them; 0: as much as the servers have, which NATS does not tell.",
    ),
    _service("config_service_jetstream_consumers", "gauge", (), "consumers", "Consumers of the account."),
    _service(
        "config_service_jetstream_consumer_limit",
        "gauge",
        (),
        "consumers",
        "Consumers that the account may have; 0: any number.",
    ),
    _service(
        "config_service_jetstream_age_seconds",
        "gauge",
        (),
        "seconds",
        "How long ago NATS said so; +Inf: it never did.",
    ),
    _service(
        "config_service_connected",
        "gauge",
        ("to",),
        "",
        "1 while NATS or the database can be reached, else 0; checked every second.",
    ),
    _service(
        "config_service_login_refused",
        "gauge",
        (),
        "",
        "1 while NATS refuses the login of the service or of its auth callout.",
    ),
    _service(
        "config_service_login_file_unusable",
        "gauge",
        ("file",),
        "",
        "1 while a file of `tokens`, `worker_tokens` or `issuers` can't be used as it is: what it said before counts.",
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
