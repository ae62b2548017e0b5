"""``ringcast.DaprClient``: the configuration calls of ``dapr.clients.DaprClient``, answered by Ringcast.

It runs the asynchronous client in an event loop on a background thread.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from ringcast._dapr.aio import DaprClient as AsyncDaprClient
from ringcast._dapr.response import ConfigurationResponse
from ringcast._dapr.subscription import in_any_handler

T = TypeVar("T")
_CLOSE_TIMEOUT_S: Final = 15.0


class _LoopThread:
    """An event loop that runs on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="ringcast-dapr-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Runs a coroutine in the loop and returns what it returns; an interrupt cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Ends the loop and the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_TIMEOUT_S)


class DaprClient:
    """Reads and follows configuration with the calls of the ``dapr`` package, without a sidecar.

    The same as :class:`ringcast.aio.DaprClient`, to be called from any thread. Handlers run in a thread of their
    subscription, ``async`` ones too. A process that was forked off begins without subscriptions.

    Use it as ``with DaprClient() as client``, or call :meth:`close`; one that was forgotten is closed at
    the end of the program.
    """

    def __init__(
        self, address: str | None = None, *, worker_id: str | None = None, timeout_s: float | None = None
    ) -> None:
        self._options: dict[str, Any] = {"worker_id": worker_id, "timeout_s": timeout_s}
        self._address = address
        self._lock = threading.Lock()
        self._thread: _LoopThread | None = None
        self._client: AsyncDaprClient | None = None

    def get_configuration(
        self,
        store_name: str,
        keys: list[str],
        config_metadata: dict[str, str] | None = dict(),  # noqa: B006, C408  # the very default of dapr's
    ) -> ConfigurationResponse:
        """As :meth:`ringcast.aio.DaprClient.get_configuration`."""
        thread, client = self._started()
        return thread.call(client.get_configuration(store_name, keys, config_metadata))

    def subscribe_configuration(
        self,
        store_name: str,
        keys: list[str],
        handler: Callable[[str, ConfigurationResponse], None],
        config_metadata: dict[str, str] | None = dict(),  # noqa: B006, C408  # the very default of dapr's
    ) -> str:
        """As :meth:`ringcast.aio.DaprClient.subscribe_configuration`; the handler may call this client."""
        thread, client = self._started()
        return thread.call(client.subscribe_configuration(store_name, keys, _plain(handler), config_metadata))

    def unsubscribe_configuration(self, store_name: str, id: str) -> bool:  # noqa: A002  # dapr's name
        """As :meth:`ringcast.aio.DaprClient.unsubscribe_configuration`."""
        thread, client = self._started()
        return thread.call(client.unsubscribe_configuration(store_name, id))

    def close(self) -> None:
        """Ends all subscriptions, the connection and the background thread. The client may be used again after it.

        Called from within a handler it returns at once, and closing goes on behind it.
        """
        if in_any_handler():
            threading.Thread(target=self.close, name="ringcast-dapr-close").start()
            return
        with self._lock:
            thread, client, self._thread, self._client = self._thread, self._client, None, None
        _open.discard(self)
        if thread is not None and client is not None:
            try:
                thread.call(client.close(), _CLOSE_TIMEOUT_S)
            finally:
                thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _forked(self) -> None:
        """In a process that was just forked off there is no thread, and the connection is the parent's.

        What it had is kept, and touched no more: to close it would close the parent's.
        """
        self._lock = threading.Lock()
        if self._thread is not None:
            _of_parents.append((self._thread, self._client))
        self._thread, self._client = None, None

    def _started(self) -> tuple[_LoopThread, AsyncDaprClient]:
        with self._lock:
            if self._thread is None or self._client is None:
                thread = _LoopThread()
                self._client = thread.call(self._create())
                self._thread = thread
                _open.add(self)
            return self._thread, self._client

    async def _create(self) -> AsyncDaprClient:
        return AsyncDaprClient(self._address, **self._options)


def _plain(handler: Callable[[str, ConfigurationResponse], Any]) -> Callable[[str, ConfigurationResponse], Any]:
    """An ``async`` handler runs in the subscription's thread, in a loop of its own: so it may call this client."""
    called = getattr(handler, "__call__", None)  # noqa: B004  # an object with an async __call__
    if not inspect.iscoroutinefunction(handler) and not inspect.iscoroutinefunction(called):
        return handler

    def run(subscription_id: str, response: ConfigurationResponse) -> None:
        asyncio.run(handler(subscription_id, response))

    return run


_open: weakref.WeakSet[DaprClient] = weakref.WeakSet()
_of_parents: list[object] = []


def _after_fork() -> None:
    for client in list(_open):
        client._forked()
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _close_all() -> None:
    """A worker that just disappears keeps its partitions until its lease ends."""
    for client in list(_open):
        client.close()
