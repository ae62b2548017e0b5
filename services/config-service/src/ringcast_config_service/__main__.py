"""The command: ``ringcast-config-service`` or ``python -m ringcast_config_service``."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from ringcast_service import (
    LOG_LEVELS,
    ConfigError,
    Duration,
    Size,
    config_file_option,
    listed,
    nats_login,
    nats_login_options,
    run_process,
)

from ringcast_config_service.app import App
from ringcast_config_service.config import Config
from ringcast_config_service.grpc.connections import ConnectionSettings
from ringcast_config_service.nats.streams import StreamSizes
from ringcast_config_service.security import Security

_PREFIX = "RINGCAST_CONFIG_SERVICE"
_COLLECT_AFTER = 10_000
"""New objects from which the collector looks for cycles: the rows of a bulk write are many and have none, and what
calls leave (gRPC's objects refer to each other) must be cleared in some milliseconds, since everything waits."""


@click.command(context_settings={"auto_envvar_prefix": _PREFIX, "show_default": True})
@config_file_option
@click.option("--nats", default="nats://127.0.0.1:4222", help="NATS servers, separated by commas.")
@click.option("--database", required=True, help="sqlite:PATH or postgresql://…", show_default=False)
@click.option("--listen", default="127.0.0.1:7420", help="gRPC address; port 0 takes a free one.")
@click.option("--metrics-listen", default="127.0.0.1:7421", help="Where Prometheus finds the metrics; off: nowhere.")
@click.option("--ready-file", type=click.Path(dir_okay=False, path_type=Path), help="Written once everything serves.")
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="info")
@click.option("--start-timeout", type=float, default=30.0, help="Seconds to wait for NATS and the database.")
@click.option("--stop-timeout", type=float, default=10.0, help="Seconds that each phase of stopping may take.")
@click.option("--change-stream", type=Duration(), default="60s", help="How long a stream of writes lasts at most.")
@click.option("--list-snapshot", type=Duration(), default="30s", help="How long a list is read from one snapshot.")
@click.option("--connection-age", type=Duration(), default="30m", help="When a client is asked to connect again.")
@click.option("--connection-grace", type=Duration(), default="10m", help="How long its calls may go on then.")
@click.option("--connection-idle", type=Duration(), default="5m", help="When a connection without calls is closed.")
@click.option("--keepalive", type=Duration(), default="30s", help="When a silent connection is asked for an answer.")
@click.option("--keepalive-timeout", type=Duration(), default="10s", help="How long the answer may take.")
@click.option("--tombstone-retention", type=Duration(), default="24h", help="How long deletes can be caught up with.")
@click.option("--history-retention", type=Duration(), default="7d", help="How long old revisions are kept.")
@click.option("--deletion-retention", type=Duration(), default="7d", help="How long deletions can be undone.")
@click.option("--idempotency-retention", type=Duration(), default="24h", help="How long repeated writes are known.")
@click.option("--compaction-interval", type=Duration(), default="10m", help="How often these are looked at.")
@click.option("--lock-timeout", type=Duration(), default="5s", help="How long a write waits for another's lock.")
@click.option("--write-connections", type=int, default=4, help="Writes that run at once in PostgreSQL.")
@click.option("--fetches", type=int, default=32, help="Fetches of workers that are answered at once.")
@click.option("--waiting-fetches", type=int, default=1_024, help="Fetches that may wait for their turn.")
@click.option("--relay-poll", type=Duration(), default="250ms", help="How often unpublished events are looked for.")
@click.option("--relay-batch", type=int, default=1_000, help="Events that are read from the database at once then.")
@click.option("--provision-interval", type=Duration(), default="30s", help="How often streams are checked and mended.")
@nats_login_options
@click.option("--tls-cert", default="", metavar="FILE", help="Certificate of the gRPC port, PEM; none: no TLS.")
@click.option("--tls-key", default="", metavar="FILE", help="Its key.")
@click.option("--client-ca", default="", metavar="FILE", help="Who may sign the certificates that clients must show.")
@click.option("--tokens", default="", metavar="FILE", help="Tokens, one a line: clients must send one of them.")
@click.option("--nats-replicas", type=int, default=1, help="Copies of each stream and bucket in a NATS cluster.")
@click.option("--events-max-bytes", type=Size(), default="256MiB", help="Room for the events of a store; old ones go.")
@click.option("--events-max-age", type=Duration(), default="7d", help="How long events are kept.")
@click.option("--dead-letters-max-bytes", type=Size(), default="64MiB", help="Room for the dead letters of a store.")
@click.option("--members-max-bytes", type=Size(), default="32MiB", help="Room for the members of a store.")
@click.option("--leases-max-bytes", type=Size(), default="32MiB", help="Room for the leases of all processes.")
@click.option("--lease-tags", default="", metavar="TAG,TAG", help="Servers of a cluster for leases and members.")
@click.version_option(package_name="ringcast-config-service")
def main(config: Path | None, nats: str, **options: Any) -> None:
    """The Ringcast config service: the one process with the database."""
    del config  # its settings came in as defaults
    try:
        settings = settings_of(nats, options)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    # With Python's own 700 the collector takes a fourth of the time of a bulk write, and finds nothing.
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 20, 20)
    run_process("ringcast-config-service", settings.log_level, lambda: App(settings))


def settings_of(nats: str, options: Mapping[str, Any]) -> Config:
    """The settings that the options are.

    Raises:
        ConfigError: one breaks a rule.
    """
    return Config(
        nats=listed(nats),
        database=options["database"],
        listen=options["listen"],
        metrics_listen=options["metrics_listen"],
        ready_file=options["ready_file"],
        log_level=options["log_level"],
        start_timeout_s=options["start_timeout"],
        stop_timeout_s=options["stop_timeout"],
        change_stream_s=options["change_stream"] / 1000,
        list_snapshot_s=options["list_snapshot"] / 1000,
        tombstone_retention_ms=options["tombstone_retention"],
        history_retention_ms=options["history_retention"],
        deletion_retention_ms=options["deletion_retention"],
        idempotency_retention_ms=options["idempotency_retention"],
        compaction_interval_s=options["compaction_interval"] / 1000,
        lock_timeout_ms=options["lock_timeout"],
        write_connections=options["write_connections"],
        fetches=options["fetches"],
        waiting_fetches=options["waiting_fetches"],
        relay_poll_s=options["relay_poll"] / 1000,
        relay_batch=options["relay_batch"],
        provision_interval_s=options["provision_interval"] / 1000,
        nats_replicas=options["nats_replicas"],
        streams=StreamSizes(
            events_max_bytes=options["events_max_bytes"],
            events_max_age_s=options["events_max_age"] / 1000,
            dead_letters_max_bytes=options["dead_letters_max_bytes"],
            members_max_bytes=options["members_max_bytes"],
            leases_max_bytes=options["leases_max_bytes"],
            lease_tags=listed(options["lease_tags"]),
        ),
        connections=ConnectionSettings(
            age_s=options["connection_age"] / 1000,
            age_grace_s=options["connection_grace"] / 1000,
            idle_s=options["connection_idle"] / 1000,
            keepalive_s=options["keepalive"] / 1000,
            keepalive_timeout_s=options["keepalive_timeout"] / 1000,
        ),
        security=Security(
            tls_cert_file=options["tls_cert"],
            tls_key_file=options["tls_key"],
            client_ca_file=options["client_ca"],
            token_file=options["tokens"],
        ),
        nats_login=nats_login(options),
    )


if __name__ == "__main__":
    main()
