"""One NATS connection for fetches, with one subscription for all replies."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from ringcast_wire import (
    ChunkAssembler,
    NatsLogin,
    RingcastError,
    UnavailableError,
    names,
    take_answer,
    without_passwords,
)

from ringcast_client._fetches.requests import FetchRequest


class _Pending:
    """A request without its whole reply; ``changed`` is set with each part of it, and when it fails."""

    def __init__(self) -> None:
        self.assembler = ChunkAssembler()
        self.changed = asyncio.Event()
        self.body: bytes | None = None
        self.error: RingcastError | None = None


class FetchConnection:
    """An open connection. It never reconnects: once it is :attr:`closed`, its owner opens another."""

    def __init__(self) -> None:
        self._client = Client()
        self._inbox = ""
        self._numbers = itertools.count()
        self._pending: dict[str, _Pending] = {}
        self._last_error: Exception | None = None

    @classmethod
    async def open(cls, servers: tuple[str, ...], login: NatsLogin, name: str, timeout_s: float) -> FetchConnection:
        """Connects under a name that the server's list of connections shows.

        Raises:
            UnavailableError: no server replies, or none accepts the login.
        """
        connection = cls()
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    await connection._connect(servers, login, name, timeout_s)
                except ConnectionResetError:
                    # So may end the connection to a server that refuses a login, before its reason is read.
                    await connection.close()
                    connection._client, connection._last_error = Client(), None
                    await connection._connect(servers, login, name, timeout_s)
        except (OSError, TimeoutError, ValueError, nats.errors.Error) as error:
            why = str(connection._last_error or error) or "no answer in time"
            await connection.close()  # after that: its own errors say nothing of the reason
            raise UnavailableError(f"NATS at {without_passwords(servers)} can't be reached: {why}") from None
        return connection

    async def _connect(self, servers: tuple[str, ...], login: NatsLogin, name: str, timeout_s: float) -> None:
        client = self._client
        await client.connect(
            servers=list(servers),
            name=name,
            inbox_prefix=names.TOOLS_INBOX_PREFIX.encode(),
            connect_timeout=max(1, int(timeout_s)),
            allow_reconnect=False,  # the next request opens another
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            error_cb=self._remember_error,
            disconnected_cb=self._fail_all,
            **login.connect_options(servers),
        )
        self._inbox = client.new_inbox()
        await client.subscribe(f"{self._inbox}.*", cb=self._on_message, pending_bytes_limit=0)

    @property
    def closed(self) -> bool:
        """Whether it was closed or lost."""
        return not self._client.is_connected

    async def request(self, request: FetchRequest, silence_s: float) -> bytes:
        """The whole reply; ``silence_s`` is the longest time between two parts of it.

        Raises:
            UnavailableError: there is no reply, it stopped half-way, or the connection was lost.
            RingcastError: the service refused, or the reply is damaged.
        """
        token = str(next(self._numbers))
        pending = self._pending[token] = _Pending()
        what = f"fetch {request.subject}"
        try:
            await self._client.publish(request.subject, request.payload, reply=f"{self._inbox}.{token}")
            while pending.body is None:
                pending.changed.clear()
                async with asyncio.timeout(silence_s):
                    await pending.changed.wait()
                if pending.error is not None:
                    raise pending.error
        except (TimeoutError, OSError, nats.errors.Error) as error:
            why = str(error) or f"no answer within {silence_s:.1f} s"
            raise UnavailableError(f"{what}: {why}") from None
        finally:
            del self._pending[token]
        return pending.body

    async def close(self) -> None:
        """Ends the connection. Calling it again is harmless."""
        with suppress(OSError, nats.errors.Error, asyncio.TimeoutError):
            await self._client.close()

    async def _remember_error(self, error: Exception) -> None:
        self._last_error = error

    async def _fail_all(self) -> None:
        for pending in self._pending.values():
            pending.error = UnavailableError("the connection to NATS was lost")
            pending.changed.set()

    async def _on_message(self, msg: Msg) -> None:
        pending = self._pending.get(msg.subject.rpartition(".")[2])
        if pending is None:
            return
        try:
            pending.body = take_answer(pending.assembler, msg.headers, msg.data)
        except RingcastError as error:
            pending.error = error
        pending.changed.set()
