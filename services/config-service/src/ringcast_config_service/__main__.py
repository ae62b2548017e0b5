"""The command: ``ringcast-config-service`` or ``python -m ringcast_config_service``."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import uvloop
from ringcast_wire import NatsLogin

from ringcast_config_service.app import App
from ringcast_config_service.config import Config, parse_bytes, parse_duration_ms
from ringcast_config_service.errors import ConfigError
from ringcast_config_service.grpc.connections import ConnectionSettings
from ringcast_config_service.nats.streams import StreamSizes
from ringcast_config_service.security import Security

_PREFIX = "RINGCAST_CONFIG_SERVICE"
_LEVELS = ("debug", "info", "warning", "error")
_COLLECT_AFTER = 10_000
"""New objects from which the collector looks for cycles: the rows of a bulk write are many and have none, and what
calls leave (gRPC's objects refer to each other) must be cleared in some milliseconds, since everything waits."""


def _from_file(context: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Makes the settings of a TOML file the defaults of the options that follow."""
    if path is None:
        return None
    try:
        found = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.BadParameter(f"{path} can't be read: {error}") from error
    known = {parameter.name for parameter in context.command.params} - {"config"}
    settings = {name.replace("-", "_"): value for name, value in found.items()}
    if unknown := sorted(set(settings) - known):
        raise click.BadParameter(f"{path} has unknown settings: {', '.join(unknown)}")
    context.default_map = {**(context.default_map or {}), **settings}
    return path


class _Duration(click.ParamType[int]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_duration_ms(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class _Size(click.ParamType[int]):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_bytes(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


@click.command(context_settings={"auto_envvar_prefix": _PREFIX, "show_default": True})
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_from_file,
    is_eager=True,
    help="TOML file with the same settings; flags and environment go before it.",
)
@click.option("--nats", default="nats://127.0.0.1:4222", help="NATS servers, separated by commas.")
@click.option("--database", required=True, help="sqlite:PATH or postgresql://…", show_default=False)
@click.option("--listen", default="127.0.0.1:7420", help="gRPC address; port 0 takes a free one.")
@click.option("--metrics-listen", default="127.0.0.1:7421", help="Where Prometheus finds the metrics; off: nowhere.")
@click.option("--ready-file", type=click.Path(dir_okay=False, path_type=Path), help="Written once everything serves.")
@click.option("--log-level", type=click.Choice(_LEVELS), default="info")
@click.option("--start-timeout", type=float, default=30.0, help="Seconds to wait for NATS and the database.")
@click.option("--stop-timeout", type=float, default=10.0, help="Seconds that each phase of stopping may take.")
@click.option("--change-stream", type=_Duration(), default="60s", help="How long a stream of writes lasts at most.")
@click.option("--list-snapshot", type=_Duration(), default="30s", help="How long a list is read from one snapshot.")
@click.option("--connection-age", type=_Duration(), default="30m", help="When a client is asked to connect again.")
@click.option("--connection-grace", type=_Duration(), default="10m", help="How long its calls may go on then.")
@click.option("--connection-idle", type=_Duration(), default="5m", help="When a connection without calls is closed.")
@click.option("--keepalive", type=_Duration(), default="30s", help="When a silent connection is asked for an answer.")
@click.option("--keepalive-timeout", type=_Duration(), default="10s", help="How long the answer may take.")
@click.option("--tombstone-retention", type=_Duration(), default="24h", help="How long deletes can be caught up with.")
@click.option("--history-retention", type=_Duration(), default="7d", help="How long old revisions are kept.")
@click.option("--deletion-retention", type=_Duration(), default="7d", help="How long deletions can be undone.")
@click.option("--idempotency-retention", type=_Duration(), default="24h", help="How long repeated writes are known.")
@click.option("--compaction-interval", type=_Duration(), default="10m", help="How often these are looked at.")
@click.option("--lock-timeout", type=_Duration(), default="5s", help="How long a write waits for another's lock.")
@click.option("--write-connections", type=int, default=4, help="Writes that run at once in PostgreSQL.")
@click.option("--fetches", type=int, default=32, help="Fetches of workers that are answered at once.")
@click.option("--waiting-fetches", type=int, default=1_024, help="Fetches that may wait for their turn.")
@click.option("--relay-poll", type=_Duration(), default="250ms", help="How often unpublished events are looked for.")
@click.option("--relay-batch", type=int, default=1_000, help="Events that are read from the database at once then.")
@click.option("--provision-interval", type=_Duration(), default="30s", help="How often streams are checked and mended.")
@click.option("--nats-user", default="", help="User on NATS.")
@click.option("--nats-password", default="", help="Best given by the environment, where no process list shows it.")
@click.option("--nats-credentials", default="", metavar="FILE", help="Credentials file (JWT), instead of a user.")
@click.option("--nats-nkey-seed", default="", metavar="FILE", help="File with an nkey's seed, instead of a user.")
@click.option(
    "--nats-tls-ca", default="", metavar="FILE", help="Who may sign NATS's certificate; tls:// in --nats: the system's."
)
@click.option("--nats-tls-cert", default="", metavar="FILE", help="Certificate to show to NATS.")
@click.option("--nats-tls-key", default="", metavar="FILE", help="Its key.")
@click.option("--tls-cert", default="", metavar="FILE", help="Certificate of the gRPC port, PEM; none: no TLS.")
@click.option("--tls-key", default="", metavar="FILE", help="Its key.")
@click.option("--client-ca", default="", metavar="FILE", help="Who may sign the certificates that clients must show.")
@click.option("--tokens", default="", metavar="FILE", help="Tokens, one a line: clients must send one of them.")
@click.option("--nats-replicas", type=int, default=1, help="Copies of each stream and bucket in a NATS cluster.")
@click.option("--events-max-bytes", type=_Size(), default="256MiB", help="Room for the events of a store; old ones go.")
@click.option("--events-max-age", type=_Duration(), default="7d", help="How long events are kept.")
@click.option("--dead-letters-max-bytes", type=_Size(), default="64MiB", help="Room for the dead letters of a store.")
@click.option("--members-max-bytes", type=_Size(), default="32MiB", help="Room for the members of a store.")
@click.option("--leases-max-bytes", type=_Size(), default="32MiB", help="Room for the leases of all processes.")
@click.option("--lease-tags", default="", metavar="TAG,TAG", help="Servers of a cluster for leases and members.")
@click.version_option(package_name="ringcast-config-service")
def main(config: Path | None, nats: str, **options: Any) -> None:
    """The Ringcast config service: the one process with the database."""
    del config  # its settings came in as defaults
    try:
        settings = settings_of(nats, options)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("nats").setLevel(logging.CRITICAL)  # our own callback tells of its errors
    # With Python's own 700 the collector takes a fourth of the time of a bulk write, and finds nothing.
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 20, 20)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(settings))
    except ConfigError as error:
        click.echo(f"ringcast-config-service: {error}", err=True)
        sys.exit(1)


def settings_of(nats: str, options: Mapping[str, Any]) -> Config:
    """The settings that the options are.

    Raises:
        ConfigError: one breaks a rule.
    """
    return Config(
        nats=tuple(server.strip() for server in nats.split(",") if server.strip()),
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
            lease_tags=tuple(tag.strip() for tag in options["lease_tags"].split(",") if tag.strip()),
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
        nats_login=NatsLogin(
            user=options["nats_user"],
            password=options["nats_password"],
            credentials_file=options["nats_credentials"],
            nkey_seed_file=options["nats_nkey_seed"],
            tls_ca_file=options["nats_tls_ca"],
            tls_cert_file=options["nats_tls_cert"],
            tls_key_file=options["nats_tls_key"],
        ),
    )


async def _run(settings: Config) -> None:
    app = App(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, app.stop)
    try:
        await app.run()
    except* ConfigError as group:
        raise _first(group) from None


def _first(group: BaseExceptionGroup[ConfigError]) -> ConfigError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ConfigError)
    return error


if __name__ == "__main__":
    main()
