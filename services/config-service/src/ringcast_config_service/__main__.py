"""The command: ``ringcast-config-service`` or ``python -m ringcast_config_service``."""

from __future__ import annotations

import contextlib
import gc
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

from ringcast_config_service.app import App
from ringcast_config_service.config import Config
from ringcast_config_service.grpc.handshakes import Handshakes

_PREFIX = "RINGCAST_CONFIG_SERVICE"
_COLLECT_AFTER = 10_000
"""New objects from which the collector looks for cycles: the rows of a bulk write are many and have none, and what
calls leave (gRPC's objects refer to each other) must be cleared in some milliseconds, since everything waits."""


@click.command(context_settings={"auto_envvar_prefix": _PREFIX, "show_default": True})
@config_file_option
@settings_options(Config)
@nats_login_options
@click.version_option(package_name="ringcast-config-service")
def main(config_file: Path | None, **options: Any) -> None:
    """The Ringcast config service: the one process with the database."""
    open_standard_streams()
    del config_file  # its settings came in as defaults
    try:
        settings = settings_from(Config, options)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    # With Python's own 700 the collector takes a fourth of the time of a bulk write, and finds nothing.
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 20, 20)
    handshakes = Handshakes()
    with handshakes.watch_stderr() if settings.security.uses_tls else contextlib.nullcontext():
        run_process(
            "ringcast-config-service",
            lambda: App(settings, handshakes=handshakes),
            log_level=settings.log_level,
            log_format=settings.log_format,
        )


if __name__ == "__main__":
    main()
