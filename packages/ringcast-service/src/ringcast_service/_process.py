"""Runs a process from its command to its exit status."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable

import click
import uvloop

from ringcast_service._errors import ConfigError
from ringcast_service._lifetime import Lifetime


def run_process(name: str, log_level: str, make: Callable[[], Lifetime]) -> None:
    """Makes it, runs it until SIGTERM or SIGINT, and logs to standard error meanwhile.

    Where it can't start, one sentence says why, and the exit status is 1.
    """
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    logging.getLogger("nats").setLevel(logging.CRITICAL)  # our own callback tells of its errors
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(make))
    except ConfigError as error:
        click.echo(f"{name}: {error}", err=True)
        sys.exit(1)


async def _run(make: Callable[[], Lifetime]) -> None:
    process = make()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, process.stop)
    try:
        await process.run()
    except* ConfigError as group:
        raise _first(group) from None


def _first(group: BaseExceptionGroup[ConfigError]) -> ConfigError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ConfigError)
    return error
