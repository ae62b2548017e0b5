"""Fetches for code that is not asynchronous: an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, Self, TypeVar

from ringcast_wire import HeadsReply, NatsLogin, RingcastError, UnavailableError

from ringcast_client._fetches.client import DEFAULT_RETRIES, FetchClient, FetchRetries
from ringcast_client._fetches.requests import FetchRequest

T = TypeVar("T")

IN_FLIGHT: Final = 4
"""Requests under way at once: a reply of the usual size is some MiB, the largest 64 MiB."""


class BlockingFetchClient:
    """A :class:`FetchClient` that any thread may use; its calls wait.

    It does not cross a fork: in the child :attr:`usable` is false, and the child makes a client of its own.
    """

    def __init__(
        self, servers: tuple[str, ...], login: NatsLogin, *, name: str, retries: FetchRetries = DEFAULT_RETRIES
    ) -> None:
        """Starts the thread, and connects at the first request."""
        self._client = FetchClient(servers, login, name=name, retries=retries)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ringcast-nats", daemon=True)
        self._thread.start()

    def heads(self, store: str, key: str, timeout_s: float, at_ms: int | None = None) -> HeadsReply:
        """See :meth:`FetchClient.heads`."""
        return self._wait(self._client.heads(store, key, timeout_s, at_ms))

    def fetch(self, request: FetchRequest, timeout_s: float, decode: Callable[[bytes], T]) -> T:
        """See :meth:`FetchClient.fetch`. ``decode`` runs in the client's thread."""
        return self._wait(self._client.fetch(request, timeout_s, decode))

    def fetch_bodies(self, requests: Iterable[FetchRequest], timeout_s: float) -> Iterator[bytes]:
        """The encoded replies to requests, in their order, a few of them under way at once.

        Closing the iterator cancels what is under way.
        """
        pending: deque[Future[bytes]] = deque()
        try:
            for request in requests:
                pending.append(self._start(self._client.fetch(request, timeout_s, bytes)))
                if len(pending) >= IN_FLIGHT:
                    yield _result(pending.popleft())
            while pending:
                yield _result(pending.popleft())
        finally:
            for future in pending:
                future.cancel()

    @property
    def usable(self) -> bool:
        """Whether its thread runs: not after :meth:`close`, nor in a process that was forked."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Ends the connection and the thread. Calling it again is harmless."""
        if self._thread.is_alive():
            with suppress(RingcastError):
                self._wait(self._client.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return _result(self._start(work))


def _result(future: Future[T]) -> T:
    try:
        return future.result()
    except FutureCancelledError:
        raise UnavailableError("the request was given up") from None
