"""The NATS client as a worker needs it: nothing that a server or another client sends ends it for good.

Beside what :class:`~ringcast_meta.nats_client.LastingClient` mends: the library stops reading, without an error, at a
subject that is no UTF-8, and turns what a server refuses to lower case. This and the parser of batches are the files
that know its inside.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

import nats.errors
from nats.aio.client import ServerVersion
from nats.aio.client import __version__ as LIBRARY_VERSION
from nats.protocol.parser import PERMISSIONS_ERR, STALE_CONNECTION
from ringcast_meta.nats_client import LastingClient

TESTED_VERSIONS: Final = ("2.16.",)
"""Versions of the library whose inside is known here and in the parser of batches."""
_ERROR_LINE: Final = re.compile(rb"-ERR\s+'([^'\r\n]*)'?")
_REFUSED: Final = re.compile(r'violation for (publish|subscription) to "([^"]*)"', re.IGNORECASE)


class SubjectRefusedError(nats.errors.Error):
    """The server does not let this user publish, or subscribe, to a subject."""

    def __init__(self, text: str) -> None:
        super().__init__(f"nats: {text}")
        found = _REFUSED.search(text)
        self.action, self.subject = (found[1].lower(), found[2]) if found else ("use", text)


class WorkerClient(LastingClient):
    """A client that reconnects whatever happened to its connection."""

    _last_version: ServerVersion | None = None

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


def library_is_known() -> bool:
    """Whether the library is of a version whose inside is known; any other has to do with its own parser."""
    return LIBRARY_VERSION.startswith(TESTED_VERSIONS)


def _readable(subject: bytes) -> bytes:
    """The subject, or if it is no UTF-8 something that is, and that has no subscriber."""
    return subject if subject.isascii() else subject.decode(errors="replace").encode()


__all__ = ["LIBRARY_VERSION", "SubjectRefusedError", "WorkerClient", "library_is_known"]
