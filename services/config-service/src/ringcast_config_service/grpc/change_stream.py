"""Single changes over one stream: each is committed and answered alone."""

from __future__ import annotations

import asyncio
import logging
import math
from functools import partial
from typing import Any, Final

import grpc.aio
from ringcast_service import Context
from ringcast_wire import (
    ConditionFailedError,
    EventLog,
    InvalidInputError,
    LimitExceededError,
    RingcastError,
    limits,
    names,
)
from ringcast_wire.grpc import pb
from ringcast_wire.tracing import checked_traceparent

from ringcast_config_service.grpc.callers import caller_of
from ringcast_config_service.grpc.input import Unreadable, send
from ringcast_config_service.grpc.rows import change_terms, row_input
from ringcast_config_service.grpc.stream_life import GOODBYE_S
from ringcast_config_service.handlers import Handlers
from ringcast_config_service.permits import clock_s
from ringcast_config_service.repository import WriteOutcome
from ringcast_config_service.writes.group_writer import GroupWriter

log = EventLog(logging.getLogger(__name__))

MAX_UNANSWERED: Final = 2 * limits.MAX_BATCH_ROWS
"""Changes of one stream: while there are more, nothing is read from it."""


class ChangeStream:
    """One stream of changes, until its client or :meth:`end` ends it."""

    def __init__(self, handlers: Handlers, writer: GroupWriter, context: Context) -> None:
        self._handlers = handlers
        self._writer = writer
        self._context = context
        self._caller = caller_of(context)
        self._waiting: set[asyncio.Future[WriteOutcome]] = set()
        self._results: list[pb.ChangeResult] = []
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._ended = False
        self._submitting = False

    def end(self) -> None:
        """What was read is answered, and nothing that comes after it is written."""
        self._ended = True
        self._news.set()

    async def run(self) -> None:
        """Serves the stream to its end.

        Raises:
            InvalidInputError: what came is no message, or has too many changes.
        """
        # The client waits for this before it sends anything, and computes with it when its changes expire.
        await self._context.send_initial_metadata(((names.GRPC_CLOCK_KEY, str(int(clock_s() * 1000))),))
        reading = asyncio.create_task(self._read())
        reading.add_done_callback(lambda _: self._news.set())
        try:
            await self._answer(reading)
            if not reading.done():
                await send(self._context, pb.ChangeResults(last=True))
                await asyncio.wait({reading}, timeout=GOODBYE_S)
            if reading.done():
                await reading  # raises what it ended with
        finally:
            reading.cancel()
            for future in self._waiting:
                future.cancel()  # no call waits for it any more: what has not begun is not written

    async def _answer(self, reading: asyncio.Task[None]) -> None:
        """Sends what is done, until everything that was read is answered and nothing more is to be read."""
        while True:
            results, self._results = self._results, []
            if results:
                await send(self._context, pb.ChangeResults(results=results))
                self._room.set()
            elif not self._waiting and (reading.done() or (self._ended and not self._submitting)):
                return
            else:
                await self._news.wait()
            self._news.clear()

    async def _read(self) -> None:
        """Takes changes until the client ends its side; once ``end`` was called they are dropped."""
        while (message := await self._next()) is not grpc.aio.EOF:
            if self._ended:
                continue
            if isinstance(message, Unreadable):
                raise message.error
            if len(message.changes) > limits.MAX_BATCH_ROWS:
                raise InvalidInputError(
                    f"changes has {len(message.changes)} entries: at most {limits.MAX_BATCH_ROWS} are allowed",
                    field="changes",
                )
            self._submitting = True
            patience_s = math.inf
            for change in message.changes:
                if await self._submit(message.store, message.key, change, patience_s):
                    patience_s = 0.0  # those behind it have less time left, and their client is to hear of it in time
            self._submitting = False
            self._news.set()
            while len(self._waiting) + len(self._results) >= MAX_UNANSWERED:
                self._room.clear()
                await self._room.wait()

    async def _next(self) -> Any:
        try:
            return await self._context.read()
        except Exception as error:  # noqa: BLE001  # gRPC raises errors of its own, of no common kind
            log.debug("change_stream.broken", error=repr(error))
            return grpc.aio.EOF

    async def _submit(self, store: str, key: str, change: pb.RowChange, patience_s: float) -> bool:
        """Takes a change; returns whether it was refused because its store takes so few rows a second."""
        try:
            terms = change_terms(change, checked_traceparent(change.traceparent or None), self._caller)
            partition, request = await self._handlers.check_one(store, key, row_input(change), terms)
            await self._writer.room(request, self._caller, patience_s)
        except RingcastError as error:
            self._refuse(change.number, error)
            return isinstance(error, LimitExceededError) and error.retry_after_s is not None
        future = self._writer.submit(request, self._caller)
        self._waiting.add(future)
        future.add_done_callback(partial(self._done, change.number, partition))
        return False

    def _done(self, number: int, partition: int, future: asyncio.Future[WriteOutcome]) -> None:
        self._waiting.discard(future)
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            version = future.result().versions[0]
            self._results.append(pb.ChangeResult(number=number, partition=partition, version=version))
            self._news.set()
        else:
            assert isinstance(error, RingcastError)  # the writer raises no others
            self._refuse(number, error)

    def _refuse(self, number: int, error: RingcastError) -> None:
        result = pb.ChangeResult(number=number, error=str(error.code), field=error.field or "", message=str(error))
        if isinstance(error, ConditionFailedError):
            result.found_version = error.found_version
        self._results.append(result)
        self._news.set()
