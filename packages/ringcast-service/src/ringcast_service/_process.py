"""Runs a process from its command to its exit status."""

from __future__ import annotations

import asyncio
import faulthandler
import io
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import click
import uvloop

from ringcast_service._errors import ConfigError
from ringcast_service._lifetime import Lifetime
from ringcast_service._logs import start_logging

_STREAMS: Final = (("stdin", os.O_RDONLY, "r"), ("stdout", os.O_WRONLY, "w"), ("stderr", os.O_WRONLY, "w"))


def open_standard_streams() -> None:
    """Has the standard streams that the process was started without lead to nowhere. To be called before all else.

    Else the next socket or file would get the number 2, and what a library writes to standard error would go there.
    """
    for number, (name, how, mode) in enumerate(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, how)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def run_process(name: str, make: Callable[[], Lifetime], *, log_level: str, log_format: str) -> None:
    """Makes a process, and runs it until SIGTERM or SIGINT. It logs to standard error, in one of ``LOG_FORMATS``.

    Where it can't start, one sentence there says why, and the exit status is 1. If native code ends it (a segmentation
    fault, an abort), what its threads did is written there.
    """
    start_logging(log_level, log_format)
    with suppress(io.UnsupportedOperation):  # standard error of an embedding program that is no file
        faulthandler.enable(sys.stderr)  # not number 2: what is written there may be read by a thread that ends too
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
