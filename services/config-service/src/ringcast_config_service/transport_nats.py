"""Answers workers' fetches over NATS request/reply."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AbstractContextManager, nullcontext

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from ringcast_wire import InternalError, RingcastError, UnavailableError, names, split_chunks
from ringcast_wire.tracing import checked_traceparent

from ringcast_config_service.handlers import Handlers
from ringcast_config_service.telemetry import Telemetry, fetch_kind

log = logging.getLogger(__name__)

_HANDLE_TIMEOUT_S = 30.0


class FetchServer:
    """A bounded number of fetches at once, a bounded number that wait; one more is told to try again.

    No failure ends in silence: whoever asked gets rows or an error.
    """

    def __init__(
        self, nc: Client, handlers: Handlers, *, at_once: int, waiting: int, telemetry: Telemetry | None = None
    ) -> None:
        self._nc = nc
        self._handlers = handlers
        self._at_once = at_once
        self._telemetry = telemetry or Telemetry()
        self._queue: asyncio.Queue[tuple[Msg, float]] = asyncio.Queue(waiting)
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        """Takes its share of fetches from now on."""
        self._subscription = await self._nc.subscribe(
            names.FETCH_SUBJECTS, queue=names.FETCH_QUEUE_GROUP, cb=self._take
        )
        await self._nc.flush()

    async def stop(self) -> None:
        """Takes no more; what has arrived is still answered (see :meth:`drain`)."""
        if self._subscription is not None and not self._nc.is_closed:
            await self._subscription.drain()
        self._subscription = None

    @property
    def waiting(self) -> int:
        """Fetches that wait for a free hand."""
        return self._queue.qsize()

    async def drain(self) -> None:
        """Returns when every fetch that was taken is answered."""
        await self._queue.join()

    async def run(self) -> None:
        """Answers fetches for as long as it is not cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._at_once):
                group.create_task(self._work())

    async def _take(self, msg: Msg) -> None:
        if not names.is_inbox(msg.reply):
            return  # nobody waits, or somebody wants us to publish where only we may
        try:
            self._queue.put_nowait((msg, time.perf_counter()))
        except asyncio.QueueFull:
            error = UnavailableError(f"{self._queue.maxsize} fetches wait already: try again later")
            self._telemetry.measures.fetched(fetch_kind(msg.subject), str(error.code), 0.0)
            await self._fail(msg, error)

    async def _work(self) -> None:
        while True:
            msg, since_s = await self._queue.get()
            outcome = "unsent"
            try:
                with self._span(msg):
                    outcome = await self._answer(msg)
            except nats.errors.Error as error:
                log.warning("subject=%s the answer could not be sent: %s", msg.subject, error)
            except Exception:
                log.exception("subject=%s the answer could not be sent", msg.subject)
            finally:
                seconds = time.perf_counter() - since_s
                self._telemetry.measures.fetched(fetch_kind(msg.subject), outcome, seconds)
                self._queue.task_done()

    def _span(self, msg: Msg) -> AbstractContextManager[object]:
        """The answer as a span of the asker's trace."""
        tracing = self._telemetry.tracing
        parent = checked_traceparent((msg.headers or {}).get(names.HEADER_TRACE)) if tracing is not None else None
        if tracing is None or parent is None:
            return nullcontext()
        facts = {"subject": msg.subject, "kind": fetch_kind(msg.subject)}
        return tracing.within(tracing.start("config.service.fetch", parent, facts, kind="SERVER"))

    async def _answer(self, msg: Msg) -> str:
        """Sends rows or an error; returns which, as a label."""
        try:
            async with asyncio.timeout(_HANDLE_TIMEOUT_S):
                body = await self._handlers.fetch(msg.subject, msg.data)
            chunks = split_chunks(body, self._nc.max_payload)
            for chunk in chunks:
                await self._nc.publish(msg.reply, chunk.data, headers={names.HEADER_CHUNK: chunk.header})
        except RingcastError as error:
            return await self._fail(msg, error)
        except TimeoutError:
            return await self._fail(msg, UnavailableError(f"the fetch took over {_HANDLE_TIMEOUT_S:g} s"))
        except nats.errors.Error:
            raise
        except Exception as error:
            log.exception("subject=%s a fetch failed", msg.subject)
            return await self._fail(msg, InternalError(f"the fetch failed: {type(error).__name__}"))
        return "ok"

    async def _fail(self, msg: Msg, error: RingcastError) -> str:
        await self._nc.publish(msg.reply, str(error).encode(), headers={names.HEADER_ERROR: str(error.code)})
        return str(error.code)
