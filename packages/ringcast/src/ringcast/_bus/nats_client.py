"""The NATS client as a worker needs it: nothing that a server or another client sends ends it for good.

The library closes a connection for ever when the server ends it with an error, as it does when a login was changed or
has expired; it stops reading, without an error, at a subject that is no UTF-8; a file of credentials that can't be
read just then ends its attempts to reconnect; and it writes its login before it reads whether the server takes it.
This is the one file that knows these habits.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Any, Final

import nats.errors
from nats.aio.client import Client, ServerVersion
from nats.aio.client import __version__ as LIBRARY_VERSION
from nats.protocol.parser import PERMISSIONS_ERR, STALE_CONNECTION

TESTED_VERSIONS: Final = ("2.16.",)
"""Versions of the library whose inside is known here and in the parser of batches."""
_ERROR_LINE: Final = re.compile(rb"-ERR\s+'([^'\r\n]*)'?")
_REFUSED: Final = re.compile(r'violation for (publish|subscription) to "([^"]*)"', re.IGNORECASE)
_PAUSE_S: Final = 1.0
_REFUSAL_S: Final = 0.05
"""How long a refusal may take that a server sends right behind its greeting."""


class SubjectRefusedError(nats.errors.Error):
    """The server does not let this user publish, or subscribe, to a subject."""

    def __init__(self, text: str) -> None:
        super().__init__(f"nats: {text}")
        found = _REFUSED.search(text)
        self.action, self.subject = (found[1].lower(), found[2]) if found else ("use", text)


class WorkerClient(Client):
    """A client that reconnects whatever happened to its connection."""

    _last_version: ServerVersion | None = None
    _login_broke = False

    @property
    def connected_server_version(self) -> ServerVersion:
        """The version of the server, or of the last one until the next has told its own.

        The library takes a server of unknown version for one of the time before names of consumers. It would make
        consumers through a subject to which a worker has no right.
        """
        found = super().connected_server_version
        if found.major:
            self._last_version = found
        return self._last_version or found

    async def _process_err(self, err_msg: str) -> None:
        """The server reports an error; unless it refuses a subject, it closes the connection."""
        if STALE_CONNECTION in err_msg or self.is_closed or self.is_reconnecting:
            await super()._process_err(err_msg)
            return
        text = self._error_text() or err_msg.strip("'")
        if PERMISSIONS_ERR in err_msg:
            await self._error_cb(SubjectRefusedError(text))
            return
        error = nats.errors.Error(f"nats: {text}")
        await self._error_cb(error)
        await self._process_op_err(error)

    def _error_text(self) -> str:
        """The error as the server wrote it: the library has turned it, and the subject in it, to lower case."""
        found = _ERROR_LINE.match(self._ps.buf)
        return found[1].decode(errors="replace") if found else ""

    async def _process_connect_init(self) -> None:
        """What was left half-read of the connection before does not belong to this one."""
        self._ps.reset()
        try:
            await super()._process_connect_init()
        except OSError:
            self._login_broke = True
            raise
        self._login_broke = False

    def _connect_command(self) -> bytes:
        """The library reads the seed of an nkey anew for each login, and its public key only once."""
        if self._nkeys_seed is not None:
            self._setup_nkeys_connect()
        return super()._connect_command()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        await super()._process_info(info, initial_connection)
        if initial_connection and self._login_broke:
            await self._hear_refusal()

    async def _hear_refusal(self) -> None:
        """A server that has no room for a connection greets, says so, and closes.

        A login that is written meanwhile breaks, and what the server has said is lost with the connection. So the
        attempt after such a break listens for a moment before it writes.

        Raises:
            nats.errors.Error: the server refuses the connection.
        """
        assert self._transport is not None
        with suppress(TimeoutError):
            line = await asyncio.wait_for(self._transport.readline(), _REFUSAL_S)
            if found := _ERROR_LINE.match(line):
                raise nats.errors.Error(f"nats: '{found[1].decode(errors='replace')}'")

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        """A message that the library can't decode is reported, and skipped."""
        try:
            await super()._process_msg(sid, _readable(subject), _readable(reply), data, headers)
        except Exception as error:  # noqa: BLE001  # whatever it is, reading goes on
            await self._error_cb(error)

    async def _read_loop(self) -> None:
        """Where reading ends for a reason that the library does not foresee, a new connection is made at once."""
        await super()._read_loop()
        task = asyncio.current_task()
        if task is not None and task is self._reading_task and self.is_connected and not task.cancelling():
            await self._process_op_err(nats.errors.Error("nats: reading has ended"))

    async def _attempt_reconnect(self) -> None:
        """Goes on after an error that the library does not foresee, such as credentials that make no sense just now."""
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


def library_is_known() -> bool:
    """Whether the library is of a version whose inside is known; any other has to do with its own parser."""
    return LIBRARY_VERSION.startswith(TESTED_VERSIONS)


def _readable(subject: bytes) -> bytes:
    """The subject, or if it is no UTF-8 something that is, and that has no subscriber."""
    return subject if subject.isascii() else subject.decode(errors="replace").encode()


__all__ = ["LIBRARY_VERSION", "SubjectRefusedError", "WorkerClient", "library_is_known"]
