"""The life of a process: a start that a stop cuts short, the time in which it serves, and an end in phases."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import nats.errors
from nats.aio.client import Client
from ringcast_wire import (
    EventLog,
    InvalidInputError,
    LoginRefusals,
    NatsLogin,
    RingcastError,
    field_text,
    without_passwords,
)

from ringcast_service._errors import ConfigError

T = TypeVar("T")

log = EventLog(logging.getLogger(__name__))

_CANCEL_AGAIN_S: Final = 1.0


class _StoppedError(Exception):
    """The process was stopped before everything had started."""


class Lifetime:
    """One process. :meth:`run` serves until :meth:`stop` is called; a subclass does so in :meth:`_run`."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._lost = False
        self._logins: list[LoginRefusals] = []

    @property
    def login_refused(self) -> bool:
        """Whether NATS refuses the login, of the process or of one of its connections. From any thread."""
        return any(login.words for login in list(self._logins))

    def stop(self) -> None:
        """Begins an orderly end. Calling it again is harmless."""
        self._stopping.set()

    async def run(self) -> None:
        """Starts, serves, and stops in phases.

        Raises:
            ConfigError: the settings, or what the process needs, don't let it start, or NATS closed for good.
        """
        with suppress(_StoppedError):
            await self._run()
        if self._lost:
            raise ConfigError("the NATS server closed the connection for good: see the log before this line")

    async def _run(self) -> None:
        """Starts, serves until ``_stopping`` is set, and stops."""
        raise NotImplementedError

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for a part of the start, but no longer than until :meth:`stop`."""
        task, stop = asyncio.create_task(work), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise _StoppedError
            return await task
        finally:
            task.cancel()
            stop.cancel()

    @asynccontextmanager
    async def _nats_connection(
        self,
        client: Client,
        servers: Sequence[str],
        login: NatsLogin,
        *,
        name: str,
        inbox_prefix: str,
        timeout_s: float,
        on_lost: Callable[[], Awaitable[None]] | None = None,
        on_back: Callable[[], Awaitable[None]] | None = None,
    ) -> AsyncIterator[Client]:
        """Connects a client, which reconnects for ever, and closes it in the end.

        ``on_lost`` and ``on_back`` are called whenever the connection is lost, and is back.

        Raises:
            ConfigError: no server answers within ``timeout_s``, or the login is refused.
        """
        shown = without_passwords(servers)
        last = why = told = ""
        refusals = LoginRefusals()
        self._logins.append(refusals)

        async def on_error(error: Exception) -> None:
            nonlocal last, why, told
            text = field_text(error)
            # While it is connected, a login that was accepted may just have ended.
            words = "" if client.is_connected else refusals.note(error, max(1, len(client.servers)))
            if not refusals.words:
                told = ""
            if words:
                if words != told:  # it repeats with each attempt
                    log.error("bus.login_refused", connection=name, servers=shown, error=words)
                told = words
            elif text != last and not (told and isinstance(error, OSError)):
                log.warning("nats.error", error=text)
            last = text
            if not (why and isinstance(error, OSError)):  # a server's word says more than the end of its connection
                why = text

        async def on_reconnected() -> None:
            nonlocal last, told
            last = told = ""
            refusals.accepted()
            if on_back is not None:
                await on_back()

        try:
            options = login.connect_options(servers)
            async with asyncio.timeout(timeout_s):
                await self._unless_stopped(
                    client.connect(
                        servers=list(servers),
                        name=name,
                        inbox_prefix=inbox_prefix,
                        **options,
                        max_reconnect_attempts=-1,
                        reconnect_time_wait=0.5,  # type: ignore[arg-type]
                        connect_timeout=2,
                        error_cb=on_error,
                        closed_cb=self._on_closed,
                        disconnected_cb=on_lost,
                        reconnected_cb=on_reconnected,
                    )
                )
        except TimeoutError as error:
            reason = f": {why}" if why else ""
            raise ConfigError(f"NATS at {shown} can't be reached{reason}") from error
        except (nats.errors.Error, OSError, ValueError, InvalidInputError) as error:
            raise ConfigError(f"NATS at {shown} can't be used: {error}") from error
        refusals.accepted()
        try:
            yield client
        finally:
            self._stopping.set()
            await client.close()

    async def _on_closed(self) -> None:
        """The client gave up (a broken rule of the protocol): without NATS there is nothing to do here."""
        if not self._stopping.is_set():
            log.critical("nats.closed")
            self._lost = True
            self._stopping.set()


@contextmanager
def ready_file(path: Path | None, facts: Mapping[str, object]) -> Iterator[None]:
    """Writes where a process listens, and removes the file when it serves no longer; the file is never half-written."""
    if path is None:
        yield
        return
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps({**facts, "pid": os.getpid()}))
    temporary.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


async def bounded(what: str, work: Awaitable[object], bound_s: float) -> None:
    """One phase of the stop: what hangs or fails must not keep the next from running."""
    try:
        async with asyncio.timeout(bound_s):
            await work
    except TimeoutError:
        log.warning("stop.timed_out", phase=what, after_s=bound_s)
    except (nats.errors.Error, RingcastError) as error:
        log.warning("stop.failed", phase=what, error=error)


async def end_tasks(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancels tasks until they have ended.

    Once is not enough: the NATS client uses ``asyncio.wait_for``, which before Python 3.12 loses a cancellation that
    comes in the same turn of the event loop as an answer.
    """
    while tasks:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=_CANCEL_AGAIN_S)
