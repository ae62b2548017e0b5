"""One subscription of a Dapr-shaped client: a worker, and the application's handler in Dapr's terms."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from ringcast_core import row_partition
from ringcast_wire import EventLog, Mode, UnavailableError

from ringcast._common.change import Change
from ringcast._dapr.items import ConfigurationItem, KeySelector, item_of, make_item
from ringcast._dapr.response import ConfigurationResponse
from ringcast._worker.worker import Worker

Handler = Callable[[str, ConfigurationResponse], Any]
"""Takes the subscription id and a response. A plain function runs in a thread of its own, so it may block."""

_log = EventLog(logging.getLogger("ringcast.dapr"))
_running: Final[contextvars.ContextVar[str | None]] = contextvars.ContextVar("ringcast_dapr_handler", default=None)


class Subscription:
    """Runs from :meth:`start` to :meth:`stop`. The handler gets one change at a time, in one response each."""

    def __init__(
        self,
        subscription_id: str,
        store: str,
        wanted: Sequence[KeySelector],
        handler: Handler,
        options: Mapping[str, Any],
        *,
        servers: Sequence[str] | None,
    ) -> None:
        self.id = subscription_id
        self.store = store
        self.rows = _rows_by_key(wanted)
        """Per config key the rows that are wanted; ``None``: all."""
        self._handler = handler
        self._is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004  # an object with an async __call__
        )
        self._threads = None if self._is_async else ThreadPoolExecutor(1, thread_name_prefix="ringcast-handler")
        self._stopped = False
        self._worker = Worker(
            store=store,
            keys=list(self.rows),
            servers=servers,
            handler=self._on_change,
            max_parallel_handlers=1,  # one call at a time, as Dapr does
            handler_timeout_s=0.0,  # a thread can't be ended, and the next call would wait behind it
            cache_dir="",  # nor does Dapr hand over what may be stale
            **options,
        )
        self._ending: asyncio.Task[None] | None = None
        self.settled = asyncio.Event()
        """Set once it has started, or could not."""

    @property
    def worker_id(self) -> str:
        """Name that it takes part under."""
        return self._worker.config.worker_id

    @property
    def mode(self) -> Mode:
        """Mode of the store; known once it has started."""
        return self._worker.settings.mode

    @property
    def live(self) -> bool:
        """Whether it has started and goes on."""
        return not self._stopped and self._ending is not None and not self._ending.done()

    @property
    def in_handler(self) -> bool:
        """Whether the caller runs within a call of its handler."""
        return _running.get() == self.id

    async def start(self) -> None:
        """Takes part; raises what :meth:`ringcast.Worker.start` raises."""
        try:
            await self._worker.start()
            self._ending = asyncio.create_task(self._report_end(), name=f"ringcast-subscription-{self.id}")
        except BaseException:
            self._end_threads()
            raise
        finally:
            self.settled.set()

    async def stop(self) -> None:
        """Ends it: no call of the handler begins after this, and one that runs is waited for.

        Called from within the handler it does not wait for that call.
        """
        self._stopped = True
        if self.in_handler:
            asyncio.get_running_loop().call_soon(self._stop_later)
            return
        await self._worker.stop()
        if self._ending is not None:
            await asyncio.wait({self._ending})
        self._end_threads()

    def _stop_later(self) -> None:
        task = asyncio.create_task(self._stop_outside(), context=contextvars.Context())
        _background.add(task)
        task.add_done_callback(_background.discard)

    async def _stop_outside(self) -> None:
        await self.stop()

    def items(self, key: str) -> list[tuple[str, ConfigurationItem]]:
        """The rows of a key that its worker holds: all of them, or in a PARTITIONED store its share."""
        count = self._worker.settings.partition_count
        return [(row.row_id, item_of(key, row_partition(row.row_id, count), row)) for row in self._worker.rows(key)]

    async def wait_ready(self, timeout_s: float) -> None:
        """Waits until its worker holds what it owns.

        Raises:
            UnavailableError: that took longer than ``timeout_s``.
        """
        try:
            await self._worker.wait_ready(timeout_s=timeout_s)
        except TimeoutError:
            raise UnavailableError(f"store {self.store} is still being loaded after {timeout_s:g} s") from None

    async def _on_change(self, change: Change) -> None:
        wanted = self.rows[change.key]
        if self._stopped or (wanted is not None and change.row_id not in wanted):
            return
        item = make_item(change.key, change.partition, change.value, change.version, change.deleted, change.metadata)
        response = ConfigurationResponse({change.row_id: item})
        token = _running.set(self.id)
        try:
            if self._threads is None:
                await self._handler(self.id, response)
            else:
                context = contextvars.copy_context()
                await asyncio.get_running_loop().run_in_executor(
                    self._threads, context.run, self._handler, self.id, response
                )
        finally:
            _running.reset(token)

    async def _report_end(self) -> None:
        try:
            await self._worker.wait_closed()
        except Exception as error:  # noqa: BLE001  # whatever ended it; there is no caller to raise it to
            _log.error("subscription.worker_failed", id=self.id, store=self.store, error=error)

    def _end_threads(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def in_any_handler() -> bool:
    """Whether the caller runs within a call of a handler."""
    return _running.get() is not None


_background: Final[set[asyncio.Task[None]]] = set()


def _rows_by_key(wanted: Sequence[KeySelector]) -> dict[str, set[str] | None]:
    rows: dict[str, set[str] | None] = {}
    for one in wanted:
        held = rows.setdefault(one.key, set())
        if one.row_id is None or held is None:
            rows[one.key] = None
        else:
            held.add(one.row_id)
    return rows
