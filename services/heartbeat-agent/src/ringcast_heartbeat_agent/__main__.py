"""The command: ``ringcast-heartbeat-agent`` or ``python -m ringcast_heartbeat_agent``."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import uvloop
from ringcast_wire import NatsLogin, agent_token

from ringcast_heartbeat_agent.app import App
from ringcast_heartbeat_agent.config import POLICIES, Config
from ringcast_heartbeat_agent.errors import ConfigError

_PREFIX = "RINGCAST_AGENT"
_LEVELS = ("debug", "info", "warning", "error")
_SECONDS = (
    "start_timeout",
    "stop_timeout",
    "subscribe_timeout",
    "stale_after",
    "linger",
    "callback_timeout",
    "callback_patience",
    "relist",
    "ack_timeout",
    "retry_first",
    "retry_most",
    "evict_after",
    "orphan_hold",
    "drain_timeout",
)
_AS_THEY_ARE = (
    "agent_id",
    "grpc_listen",
    "http_listen",
    "metrics_listen",
    "api_token",
    "app_url",
    "app_token",
    "ready_file",
    "log_level",
    "client_share",
    "max_subscriptions",
    "max_keys",
    "queue_items",
    "queue_bytes",
    "max_response_bytes",
    "max_consumers",
    "window",
    "window_bytes",
    "max_behind",
    "consumer_capacity",
    "max_tries",
    "max_deliveries",
    "poison_policy",
    "lease_socket",
    "lease_mode",
    "lease_group",
    "max_workers",
    "cache_dir",
    "jetstream_api",
)
_LISTS = ("trusted_users", "callback_addresses", "allowed_hosts", "groups")
_LOGIN = ("user", "password")
_LOGIN_FILES = {
    "credentials_file": "nats_credentials",
    "nkey_seed_file": "nats_nkey_seed",
    "tls_ca_file": "nats_tls_ca",
    "tls_cert_file": "nats_tls_cert",
    "tls_key_file": "nats_tls_key",
}


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


@click.command(context_settings={"auto_envvar_prefix": _PREFIX, "show_default": True})
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_from_file,
    is_eager=True,
    help="TOML file with the same settings; flags and environment go before it.",
)
@click.option("--nats", default="nats://127.0.0.1:4222", help="NATS servers, separated by commas.")
@click.option("--agent-id", default="", help="Name to take part under; empty: made from host and process.")
@click.option("--grpc-listen", default="127.0.0.1:50001", help="Dapr's API over gRPC; port 0 takes a free one.")
@click.option("--http-listen", default="127.0.0.1:3500", help="Dapr's API over HTTP.")
@click.option("--metrics-listen", default="127.0.0.1:7423", help="Where Prometheus finds the metrics; off: nowhere.")
@click.option(
    "--api-token",
    default="",
    envvar=[f"{_PREFIX}_API_TOKEN", "DAPR_API_TOKEN"],
    help="What callers must send as dapr-api-token. Best given by the environment.",
)
@click.option(
    "--token-file",
    default="",
    metavar="PATH",
    help="Where that token is, and is made at the first start; empty: beside the lease socket, or in the agent's or "
    "user's directory; off: callers need none.",
)
@click.option("--trusted-users", default="", help="Users whose processes need no token, commas between.")
@click.option("--app-url", default="", help="Where callbacks of HTTP subscriptions go that name no address.")
@click.option(
    "--app-token",
    default="",
    envvar=[f"{_PREFIX}_APP_TOKEN", "APP_API_TOKEN"],
    help="What callbacks carry as dapr-api-token. Best given by the environment.",
)
@click.option("--callback-addresses", default="", help="Where callbacks may go besides that, commas between.")
@click.option("--allowed-hosts", default="", help="Names besides localhost to be called by over HTTP, commas between.")
@click.option("--groups", default="*", help="Groups that may be joined, as patterns with commas between.")
@click.option("--client-share", type=float, default=0.5, help="Part of every limit that one user of the host may have.")
@click.option("--ready-file", type=click.Path(dir_okay=False, path_type=Path), help="Written once everything serves.")
@click.option("--log-level", type=click.Choice(_LEVELS), default="info")
@click.option("--start-timeout", type=float, default=30.0, help="Seconds to wait for NATS.")
@click.option("--stop-timeout", type=float, default=10.0, help="Seconds that each phase of stopping may take.")
@click.option("--subscribe-timeout", type=float, default=10.0, help="Seconds that a consumer or key may take to begin.")
@click.option("--stale-after", type=float, default=30.0, help="Seconds without word after which it is logged.")
@click.option("--linger", type=float, default=30.0, help="Seconds to follow a key for after its last subscription.")
@click.option("--callback-patience", type=float, default=60.0, help="Seconds to try an application that is away.")
@click.option("--relist", type=float, default=10.0, help="Seconds between two looks for new keys of a store.")
@click.option("--callback-timeout", type=float, default=10.0, help="Seconds that one callback may take.")
@click.option("--max-subscriptions", type=int, default=1_000, help="Subscriptions at once.")
@click.option("--max-keys", type=int, default=100, help="Config keys followed at once.")
@click.option("--queue-items", type=int, default=10_000, help="Updates that may wait for one subscription.")
@click.option("--queue-bytes", type=int, default=16_777_216, help="Their size in bytes.")
@click.option("--max-response-bytes", type=int, default=4_194_304, help="Size of one answer in bytes.")
@click.option("--max-consumers", type=int, default=200, help="Consumers of all groups at once.")
@click.option("--window", type=int, default=10_000, help="Messages of one group that may be unsettled.")
@click.option("--window-bytes", type=int, default=67_108_864, help="Their size in bytes.")
@click.option("--max-behind", type=int, default=1_000_000, help="Changed rows that may wait for a place in the window.")
@click.option("--consumer-capacity", type=int, default=1_000, help="Deliveries that a consumer may have unanswered.")
@click.option("--ack-timeout", type=float, default=30.0, help="Seconds that a consumer may take to answer a delivery.")
@click.option("--max-tries", type=int, default=5, help="Failures of a message until it is poison.")
@click.option("--max-deliveries", type=int, default=20, help="Deliveries of a message until it is poison.")
@click.option("--retry-first", type=float, default=1.0, help="Seconds until the second try; they double.")
@click.option("--retry-most", type=float, default=30.0, help="Most seconds between two tries.")
@click.option("--poison-policy", type=click.Choice(POLICIES), default="drop", help="What becomes of poison.")
@click.option("--evict-after", type=float, default=3.0, help="Seconds of silence until a consumer is evicted.")
@click.option("--orphan-hold", type=float, default=30.0, help="Seconds to keep messages that nobody else wants.")
@click.option("--drain-timeout", type=float, default=10.0, help="Seconds to wait for answers when stopping.")
@click.option("--lease-socket", default="", metavar="PATH", help="Keep leases for workers of this host there.")
@click.option("--lease-mode", default="0660", help="Who may connect to the socket.")
@click.option("--lease-group", default="", help="Group of the socket; empty: the agent's.")
@click.option("--max-workers", type=int, default=256, help="Workers that may register.")
@click.option("--cache-dir", default="", metavar="DIR", help="Keep rows there, to start with NATS down.")
@click.option("--jetstream-api", default="$JS.API", help="Where the agent's NATS account has the JetStream API.")
@click.option("--nats-user", default="", help="User on NATS.")
@click.option("--nats-password", default="", help="Best given by the environment, where no process list shows it.")
@click.option("--nats-credentials", default="", metavar="FILE", help="Credentials file (JWT), instead of a user.")
@click.option("--nats-nkey-seed", default="", metavar="FILE", help="File with an nkey's seed, instead of a user.")
@click.option(
    "--nats-tls-ca", default="", metavar="FILE", help="Who may sign NATS's certificate; tls:// in --nats: the system's."
)
@click.option("--nats-tls-cert", default="", metavar="FILE", help="Certificate to show to NATS.")
@click.option("--nats-tls-key", default="", metavar="FILE", help="Its key.")
@click.version_option(package_name="ringcast-heartbeat-agent")
def main(config: Path | None, **options: Any) -> None:
    """The Ringcast heartbeat agent: leases of a host's workers, Dapr's Configuration API and key-shared dispatch."""
    del config  # its settings came in as defaults
    try:
        settings = _settings(options)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("nats").setLevel(logging.CRITICAL)  # our own callback tells of its errors
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(settings))
    except ConfigError as error:
        click.echo(f"ringcast-heartbeat-agent: {error}", err=True)
        sys.exit(1)


def _settings(options: dict[str, Any]) -> Config:
    lists: dict[str, Any] = {name: _listed(options[name]) for name in _LISTS}
    return Config(
        nats=_listed(options["nats"]),
        token_file=options["token_file"] or str(agent_token.place_of_agent(options["lease_socket"])),
        **lists,
        nats_login=NatsLogin(
            **{name: options[f"nats_{name}"] for name in _LOGIN},
            **{name: options[option] for name, option in _LOGIN_FILES.items()},
        ),
        **{f"{name}_s": options[name] for name in _SECONDS},
        **{name: options[name] for name in _AS_THEY_ARE},
    )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


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
