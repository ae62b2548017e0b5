"""Runs a process from its command to its exit status."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable

import click
import uvloop

from ringcast_service._errors import ConfigError
from ringcast_service._lifetime import Lifetime
from ringcast_service._logs import start_logging


def run_process(name: str, make: Callable[[], Lifetime], *, log_level: str, log_format: str) -> None:
    """Makes a process, and runs it until SIGTERM or SIGINT. It logs to standard error, in one of ``LOG_FORMATS``.

    Where it can't start, one sentence there says why, and the exit status is 1.
    """
    start_logging(log_level, log_format)
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
