"""The fetch client for asyncio."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypeVar

from ringcast_wire import (
    Backoff,
    HeadsReply,
    NatsLogin,
    ProtocolError,
    UnavailableError,
    decode_heads_reply,
)

from ringcast_client._fetches.connection import FetchConnection
from ringcast_client._fetches.requests import FetchRequest, heads_request

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FetchRetries:
    """When a request is tried again: after a silence of ``silence_s``, and with back-off between two tries."""

    silence_s: float = 10.0
    first_wait_s: float = 0.1
    max_wait_s: float = 2.0


DEFAULT_RETRIES = FetchRetries()


class FetchClient:
    """One NATS connection, of one event loop; opened by the first request, and again after it was lost.

    Requests may run at the same time. Cancelling one leaves the connection open.
    """

    def __init__(
        self, servers: tuple[str, ...], login: NatsLogin, *, name: str, retries: FetchRetries = DEFAULT_RETRIES
    ) -> None:
        """``name`` is what NATS shows of the connection. Connects to nothing yet."""
        self._servers = servers
        self._login = login
        self._name = name
        self._retries = retries
        self._open_connection: FetchConnection | None = None
        self._connecting = asyncio.Lock()

    async def heads(self, store: str, key: str, timeout_s: float, at_ms: int | None = None) -> HeadsReply:
        """The revision of each partition of a key, as many as the store has partitions, and their history.

        As they are, or as they were at a moment (Unix time).

        Raises:
            UnknownStoreError, UnknownKeyError: nothing of that name is there.
            InvalidInputError: the moment is still to come.
            RevisionGoneError: what there was at the moment is not known any more.
            UnavailableError: no reply in time.
        """
        return await self.fetch(heads_request(store, key, at_ms), timeout_s, decode_heads_reply)

    async def fetch(self, request: FetchRequest, timeout_s: float, decode: Callable[[bytes], T]) -> T:
        """The decoded reply. Where ``decode`` raises ``ProtocolError`` the request is tried again.

        Raises:
            RingcastError: the service refused, or the last failure when the time is up.
        """
        deadline = time.monotonic() + timeout_s
        backoff = Backoff(random.random, first_s=self._retries.first_wait_s, most_s=self._retries.max_wait_s)
        while True:
            try:
                connection = await self._connection(deadline)
                left_s = deadline - time.monotonic()
                body = await connection.request(request, max(0.05, min(left_s, self._retries.silence_s)))
                return decode(body)
            except (UnavailableError, ProtocolError):
                delay_s = backoff.next_s()
                if time.monotonic() + delay_s >= deadline:
                    raise
                await asyncio.sleep(delay_s)

    async def close(self) -> None:
        """Ends the connection. Calling it again is harmless; a request after it opens another connection."""
        async with self._connecting:
            if self._open_connection is not None:
                await self._open_connection.close()
            self._open_connection = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _connection(self, deadline: float) -> FetchConnection:
        async with self._connecting:
            if self._open_connection is None or self._open_connection.closed:
                left_s = deadline - time.monotonic()
                self._open_connection = await FetchConnection.open(self._servers, self._login, self._name, left_s)
            return self._open_connection
