"""The command: ``ringcast-heartbeat-agent`` or ``python -m ringcast_heartbeat_agent``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from ringcast_service import (
    LOG_LEVELS,
    ConfigError,
    config_file_option,
    listed,
    nats_login,
    nats_login_options,
    run_process,
)
from ringcast_wire import agent_token

from ringcast_heartbeat_agent.app import App
from ringcast_heartbeat_agent.config import POLICIES, Config

_PREFIX = "RINGCAST_AGENT"
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


@click.command(context_settings={"auto_envvar_prefix": _PREFIX, "show_default": True})
@config_file_option
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
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="info")
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
@nats_login_options
@click.version_option(package_name="ringcast-heartbeat-agent")
def main(config: Path | None, **options: Any) -> None:
    """The Ringcast heartbeat agent: leases of a host's workers, Dapr's Configuration API and key-shared dispatch."""
    del config  # its settings came in as defaults
    try:
        settings = _settings(options)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    run_process("ringcast-heartbeat-agent", settings.log_level, lambda: App(settings))


def _settings(options: dict[str, Any]) -> Config:
    lists: dict[str, Any] = {name: listed(options[name]) for name in _LISTS}
    return Config(
        nats=listed(options["nats"]),
        token_file=options["token_file"] or str(agent_token.place_of_agent(options["lease_socket"])),
        **lists,
        nats_login=nats_login(options),
        **{f"{name}_s": options[name] for name in _SECONDS},
        **{name: options[name] for name in _AS_THEY_ARE},
    )


if __name__ == "__main__":
    main()
