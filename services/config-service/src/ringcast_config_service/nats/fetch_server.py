"""Answers workers' fetches over NATS request/reply."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Final, Protocol

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from ringcast_wire import Chunk, EventLog, InternalError, RingcastError, UnavailableError, limits, names, split_chunks
from ringcast_wire.tracing import checked_traceparent

from ringcast_config_service.nats.fetch_queue import (
    FetchLane,
    LaneLimits,
    Request,
    requester_of,
    weight_of,
)
from ringcast_config_service.repository import LargeAnswerError
from ringcast_config_service.repository.base import SMALL_ANSWER_BYTES
from ringcast_config_service.telemetry import Telemetry, fetch_kind

log = EventLog(logging.getLogger(__name__))

_HANDLE_TIMEOUT_S: Final = 30.0
_ABANDONED: Final = "abandoned"
_REQUEUED: Final = "requeued"
_NO_RESPONDERS: Final = "503"
_WHOLE_KEYS: Final = 4
"""Whole keys that are read or sent at once: each may take 64 MiB of memory."""
_SMALL_BYTES: Final = 128 * limits.MIB
_LARGE_PARTITIONS: Final = 2
_LARGE_BYTES: Final = 64 * limits.MIB
_LARGE_REPLIES: Final = 2
"""Answers of several chunks that each lane sends at once; between two chunks of one, small answers go."""


class FetchHandlers(Protocol):
    """Answers fetches."""

    async def fetch(self, subject: str, payload: bytes, most_bytes: int) -> bytes | bytearray:
        """The encoded answer; raises an error of :mod:`ringcast_wire`, which is sent to the requester.

        Raises:
            LargeAnswerError: it is of a partition or of named rows, and would have over ``most_bytes``: to be asked
                again with room for it.
        """


class FetchServer:
    """A bounded number of fetches at once, a bounded number that wait; one more gets the error to try again.

    Whole keys have a lane of their own, so that they keep no small fetch waiting, and so have partitions and named rows
    that turn out to be large, once their size is known and before they are read. Requesters take turns in each.
    What the requester has stopped waiting for is dropped. For all else the requester gets rows or an error.
    """

    def __init__(
        self, nc: Client, handlers: FetchHandlers, *, at_once: int, waiting: int, telemetry: Telemetry
    ) -> None:
        self._nc = nc
        self._handlers = handlers
        self._telemetry = telemetry
        waiting_each = max(1, waiting // 4)
        self._small: FetchLane[Msg] = FetchLane(
            LaneLimits(at_once, max(1, at_once // 4), _SMALL_BYTES, waiting, waiting_each)
        )
        self._large: FetchLane[Msg] = FetchLane(LaneLimits(_LARGE_PARTITIONS, 1, _LARGE_BYTES, waiting, waiting_each))
        self._whole: FetchLane[Msg] = FetchLane(
            LaneLimits(_WHOLE_KEYS, 1, _WHOLE_KEYS * limits.MAX_REPLY_BYTES, waiting, waiting_each)
        )
        self._lanes = self._small, self._large, self._whole
        self._most_waiting = waiting
        self._subscription: Subscription | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._places_to_send = {lane: asyncio.Semaphore(_LARGE_REPLIES) for lane in self._lanes}
        self._idle = asyncio.Event()
        self._idle.set()
        self._inbox = ""
        self._number = 0
        self._sending: dict[str, asyncio.Event] = {}
        """Large answers on their way, each with an event that is set when it has no receiver."""
        self._by_id: dict[str, Request[Msg]] = {}
        """Fetches that wait or are under way, by the id that they are cancelled with."""

    async def start(self) -> None:
        """Takes its share of fetches from now on, also after :meth:`stop`."""
        if not self._inbox:
            inbox = self._nc.new_inbox()
            await self._nc.subscribe(f"{inbox}.*", cb=self._on_undelivered)
            self._inbox = inbox
            await self._nc.subscribe(names.FETCH_CANCELS, cb=self._on_cancel)
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
        """Fetches that have arrived and are not being answered yet."""
        return sum(lane.waiting for lane in self._lanes)

    async def drain(self) -> None:
        """Returns when every fetch that was accepted is answered."""
        await self._idle.wait()

    async def run(self) -> None:
        """Answers fetches for as long as it is not cancelled."""
        async with asyncio.TaskGroup() as self._tasks:
            self._begin()
            try:
                await asyncio.Event().wait()
            finally:
                self._tasks = None  # those under way end, and none of those that wait begins

    async def _take(self, msg: Msg) -> None:
        if not names.is_inbox(msg.reply):
            return  # no requester waits, or one wants an answer where only the service may publish
        what = msg.subject.rpartition(".")[2]
        if what == names.FETCH_CANCEL:
            return  # each instance gets all of these, beside its share of fetches
        request = Request(msg, requester_of(msg.reply, msg.headers), weight_of(what), _now(), _patience_s(msg))
        if self.waiting < self._most_waiting and self._lane(what).add(request):
            if fetch_id := _fetch_id(msg):
                self._by_id[fetch_id] = request
            self._idle.clear()
            self._begin()
            return
        error = UnavailableError(f"{self.waiting} fetches wait already: try again later")
        self._telemetry.measures.fetched(fetch_kind(msg.subject), str(error.code), 0.0)
        await self._fail(msg, error)

    def _lane(self, what: str) -> FetchLane[Msg]:
        return self._whole if what == names.FETCH_FULL else self._small

    def _begin(self) -> None:
        """Begins what may begin; there is a task for each fetch under way."""
        if self._tasks is None:
            return
        for lane in self._lanes:
            while (request := lane.take()) is not None:
                self._tasks.create_task(self._work(lane, request))
        if all(lane.is_idle for lane in self._lanes):
            self._idle.set()

    async def _work(self, lane: FetchLane[Msg], request: Request[Msg]) -> None:
        msg, outcome = request.message, "unsent"
        try:
            if request.is_abandoned(_now()):
                outcome = _ABANDONED
            else:
                with self._span(msg):
                    outcome = await self._answer(lane, request)
        except (nats.errors.Error, TimeoutError) as error:
            log.warning("fetch.unsent", subject=msg.subject, error=error)
        except Exception:
            log.error("fetch.unsent", subject=msg.subject, exc_info=True)
        finally:
            lane.done(request)
            if self._by_id.get(fetch_id := _fetch_id(msg)) is request:
                del self._by_id[fetch_id]
            if outcome != _REQUEUED:
                self._telemetry.measures.fetched(fetch_kind(msg.subject), outcome, _now() - request.arrived_at)
            self._begin()

    async def _requeue_as_large(self, request: Request[Msg], size: int) -> str:
        """Queues a fetch again whose answer turns out to be large; returns what became of it."""
        again = replace(request, weight=size)
        if not self._large.add(again):
            error = UnavailableError(f"{self._large.waiting} fetches of large partitions wait already: try again later")
            return await self._fail(request.message, error)
        if fetch_id := _fetch_id(request.message):
            self._by_id[fetch_id] = again
        return _REQUEUED

    def _span(self, msg: Msg) -> AbstractContextManager[object]:
        """The answer as a span of the requester's trace."""
        tracing = self._telemetry.tracing
        parent = checked_traceparent((msg.headers or {}).get(names.HEADER_TRACE)) if tracing is not None else None
        if tracing is None or parent is None:
            return nullcontext()
        facts = {"subject": msg.subject, "kind": fetch_kind(msg.subject)}
        return tracing.within(tracing.start("config.service.fetch", parent, facts, kind="SERVER"))

    async def _answer(self, lane: FetchLane[Msg], request: Request[Msg]) -> str:
        """Sends rows or an error, or queues the fetch again among the large ones; returns which, as a label."""
        msg = request.message
        most_bytes = min(SMALL_ANSWER_BYTES, request.weight) if lane is self._small else request.weight
        try:
            async with asyncio.timeout(_HANDLE_TIMEOUT_S):
                body = await self._handlers.fetch(msg.subject, msg.data, most_bytes)
            lane.weigh(request, len(body))
            chunks = split_chunks(body, self._nc.max_payload)
            first = next(chunks)
        except LargeAnswerError as error:
            return await self._requeue_as_large(request, error.size)
        except RingcastError as error:
            return await self._fail(msg, error)
        except TimeoutError:
            return await self._fail(msg, UnavailableError(f"the fetch took over {_HANDLE_TIMEOUT_S:g} s"))
        except nats.errors.Error:
            raise
        except Exception as error:
            log.error("fetch.failed", subject=msg.subject, exc_info=True)
            return await self._fail(msg, InternalError(f"the fetch failed: {type(error).__name__}"))
        if request.cancelled:
            return _ABANDONED
        if len(first.data) == len(body):
            await self._nc.publish(msg.reply, first.data, headers={names.HEADER_CHUNK: first.header})
            return "ok"
        async with self._places_to_send[lane]:
            return await self._send_large(request, itertools.chain((first,), chunks))

    async def _send_large(self, request: Request[Msg], chunks: Iterable[Chunk]) -> str:
        """Sends one chunk after the other, each once the server has the one before it, so that small answers are not
        behind all of them. For the first the server reports if it has no receiver: then the rest is not sent, nor is it
        when the fetch is cancelled."""
        self._number += 1
        token = str(self._number)
        gone = self._sending[token] = asyncio.Event()
        try:
            for number, chunk in enumerate(chunks):
                if request.cancelled:
                    return _ABANDONED
                back = "" if number else f"{self._inbox}.{token}"
                await self._nc.publish(
                    request.message.reply, chunk.data, reply=back, headers={names.HEADER_CHUNK: chunk.header}
                )
                await self._nc.flush()
                if gone.is_set():
                    return _ABANDONED
        finally:
            del self._sending[token]
        return "ok"

    async def _on_cancel(self, msg: Msg) -> None:
        """The requester waits no longer: what has not been sent stays here. It may be another service's fetch."""
        request = self._by_id.get(msg.data[: names.MAX_FETCH_ID_CHARS].decode(errors="replace"))
        if request is not None:
            request.cancelled = True

    async def _on_undelivered(self, msg: Msg) -> None:
        gone = self._sending.get(msg.subject.rpartition(".")[2])
        if gone is not None and (msg.headers or {}).get("Status") == _NO_RESPONDERS:
            gone.set()

    async def _fail(self, msg: Msg, error: RingcastError) -> str:
        await self._nc.publish(msg.reply, str(error).encode(), headers={names.HEADER_ERROR: str(error.code)})
        return str(error.code)


def _patience_s(msg: Msg) -> float:
    """How long the requester waits for the beginning of an answer, from now; what it says counts if it is less."""
    said = (msg.headers or {}).get(names.HEADER_PATIENCE, "")
    if said.isascii() and said.isdigit() and len(said) <= 9:
        with contextlib.suppress(ValueError):
            return min(_HANDLE_TIMEOUT_S, int(said) / 1000)
    return _HANDLE_TIMEOUT_S


def _fetch_id(msg: Msg) -> str:
    fetch_id = (msg.headers or {}).get(names.HEADER_FETCH_ID, "")
    return fetch_id if len(fetch_id) <= names.MAX_FETCH_ID_CHARS else ""


def _now() -> float:
    return asyncio.get_running_loop().time()
