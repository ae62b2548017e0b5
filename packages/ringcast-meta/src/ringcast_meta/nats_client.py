"""A client of NATS that connects again whatever a server has ended the connection for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

_HANDLED: Final = ("stale connection", "permissions violation")
"""Errors that the client library treats rightly: it reconnects, or goes on."""
_PAUSE_S: Final = 1.0
_REFUSAL_S: Final = 0.05
"""How long a refusal may take that a server sends right behind its greeting."""


@contextmanager
def _raising_a_lost_cancellation() -> Iterator[None]:
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


class LastingClient(Client):
    """The library closes a connection for good on any error line that it does not know, as one is when the login was
    changed or has expired. So would it be by a file of credentials that can't be read while it connects again. This
    client tries with what it has until that is taken again, or the files of the login have another one.

    The library also writes its login before it reads whether the server has room for it: the attempt after one that
    broke listens first, so that the reason is known.

    A request or a flush that is cancelled ends as cancelled. The library uses ``asyncio.wait_for``, which before Python
    3.12 returns the answer, or raises the error, that comes in the same turn of the event loop as the cancellation: a
    task that asks again and again would then never end.
    """

    _login_broke = False

    async def request(self, *args: Any, **options: Any) -> Msg:
        """As the library's."""
        with _raising_a_lost_cancellation():
            return await super().request(*args, **options)

    async def flush(self, *args: Any, **options: Any) -> None:
        """As the library's."""
        with _raising_a_lost_cancellation():
            await super().flush(*args, **options)

    async def _process_err(self, err_msg: str) -> None:
        text = err_msg.strip().strip("'")
        if self.is_connecting or any(known in text.lower() for known in _HANDLED):
            await super()._process_err(err_msg)
            return
        self._ended_by_server(text)
        await self._process_op_err(nats.errors.Error(f"nats: {text}"))

    def _ended_by_server(self, text: str) -> None:
        """The server ends the connection with these words; what was on its way is still known."""

    async def _process_connect_init(self) -> None:
        # What was left half-read of the connection before does not belong to this one.
        self._ps.reset()
        try:
            await super()._process_connect_init()
        except OSError:
            self._login_broke = True
            raise
        self._login_broke = False

    def _connect_command(self) -> bytes:
        """The library reads the seed of an nkey for each login, and its public key only once."""
        if self._nkeys_seed is not None:
            self._setup_nkeys_connect()
        return super()._connect_command()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        await super()._process_info(info, initial_connection)
        if initial_connection and self._login_broke:
            assert self._transport is not None
            with suppress(TimeoutError):
                line: bytes = await asyncio.wait_for(self._transport.readline(), _REFUSAL_S)
                if line.startswith(b"-ERR"):
                    raise nats.errors.Error(f"nats: {line.decode(errors='replace').removeprefix('-ERR').strip()}")

    async def _attempt_reconnect(self) -> None:
        """Goes on after an error that the library does not foresee."""
        while True:
            try:
                await super()._attempt_reconnect()
            except Exception as error:  # noqa: BLE001  # whatever it is, it is tried again
                await self._error_cb(error)
                await asyncio.sleep(_PAUSE_S)
                if self.is_closed:
                    return
                self._status = Client.RECONNECTING
            else:
                return
