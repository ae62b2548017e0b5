"""The command: ``ringcast-heartbeat-agent`` or ``python -m ringcast_heartbeat_agent``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from ringcast_service import (
    ConfigError,
    config_file_option,
    nats_login_options,
    open_standard_streams,
    run_process,
    settings_from,
    settings_options,
)
from ringcast_wire import agent_token

from ringcast_heartbeat_agent.app import App
from ringcast_heartbeat_agent.config import PREFIX, Config


@click.command(context_settings={"auto_envvar_prefix": PREFIX, "show_default": True})
@config_file_option
@settings_options(Config)
@nats_login_options
@click.version_option(package_name="ringcast-heartbeat-agent")
def main(config_file: Path | None, **options: Any) -> None:
    """The Ringcast heartbeat agent: leases of a host's workers, Dapr's Configuration API and key-shared dispatch."""
    open_standard_streams()
    del config_file  # its settings came in as defaults
    token_file = options["token_file"] or str(agent_token.place_of_agent(options["lease_socket"]))
    try:
        settings = settings_from(Config, options, token_file=token_file)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    run_process(
        "ringcast-heartbeat-agent",
        lambda: App(settings),
        log_level=settings.log_level,
        log_format=settings.log_format,
    )


if __name__ == "__main__":
    main()
