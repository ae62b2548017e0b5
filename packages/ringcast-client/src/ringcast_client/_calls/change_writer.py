"""Single changes over one stream of the config service: each is answered by itself."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import grpc.aio
from ringcast_wire import (
    Backoff,
    OutcomeUnknownError,
    RingcastError,
    UnavailableError,
    check_condition,
    check_idempotency_key,
    check_reason,
    check_row,
    check_row_id,
    error_from_code,
    limits,
    names,
)
from ringcast_wire.grpc import pb
from ringcast_wire.key_ring import ListKeys
from ringcast_wire.tracing import Tracing

from ringcast_client._common.input import is_said
from ringcast_client._common.records import DeleteResult, PutResult

ChangeCall = grpc.aio.StreamStreamCall[pb.Changes, pb.ChangeResults]


class ChangeStreams(Protocol):
    """Opens streams at an instance that takes them."""

    async def settle(self) -> None:
        """Finds that instance, before each stream."""

    def open(self) -> ChangeCall:
        """A stream of its own."""

    def error(self, error: grpc.aio.AioRpcError) -> RingcastError:
        """What a stream broke with."""

    def left(self) -> bool:
        """The instance does not answer. Whether there is another one, to which the next stream goes."""


@dataclass(slots=True, eq=False)
class _Pending:
    """A change that is not answered."""

    message: pb.RowChange
    size: int
    deadline: float
    answer: asyncio.Future[pb.ChangeResult]
    sent: bool = False
    """Whether a stream that has not ended well has taken it: then its outcome is not known."""


class _Break(NamedTuple):
    """What a stream broke with. ``is_said``: the service has said why."""

    error: RingcastError
    is_said: bool


class ChangeWriter:
    """Puts and deletes rows of one config key over one stream, which costs about half of a call for each.

    For a program that makes changes all the time, any number of them at once; made by
    :meth:`ConfigServiceClient.changes`. Each call returns once its change is committed. Changes are committed in the
    order of the calls, and one that is refused does not hold up the others. At most ``max_in_flight`` are unanswered:
    further calls wait for their turn.

    A change that was not answered in time may have been stored or not (``OutcomeUnknownError``). But it is not stored
    later: what anybody writes to the row after the error, through whichever instance, comes after it. The service has
    told its clock, and stores no change past the time by which this side gives it up. Where the connection breaks
    before that time, the error comes at once, and an instance that hangs may still store the change until then: where
    that matters give it ``if_version``, or an ``idempotency_key`` and make it again.

    Not for use by several threads.
    """

    def __init__(
        self,
        streams: ChangeStreams,
        store: str,
        key: str,
        *,
        max_in_flight: int,
        timeout_s: float,
        silent: Callable[[], UnavailableError],
        unknown: Callable[[], UnavailableError],
        tracing: Tracing | None,
        keys: ListKeys | None = None,
    ) -> None:
        self._keys = keys
        self._streams = streams
        self._store = store
        self._key = key
        self._places = asyncio.Semaphore(max_in_flight)
        self._timeout_s = timeout_s
        self._silent = silent
        self._unknown = unknown
        self._clock_ahead_s: float | None = None
        """How far the clock of the service is ahead of ours, at least; of the present stream."""
        self._tracing = tracing
        self._asked = 0
        """Calls that have not returned, those included that wait for a place."""
        self._number = 0
        self._pending: dict[int, _Pending] = {}
        """Unanswered changes, in the order of the calls."""
        self._unsent: dict[int, _Pending] = {}
        """Those of them that no stream has taken yet."""
        self._news = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._overdue: asyncio.TimerHandle | None = None
        self._stream_life: asyncio.Timeout | None = None
        """Of the stream that takes changes, if there is one."""
        self._heard_at = 0.0
        """When the present stream was opened, or brought an answer."""

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name=f"changes-{self._store}-{self._key}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for what other tasks have asked for, unless the block has failed."""
        assert self._task is not None
        self._closing = True
        self._news.set()
        try:
            if kind is None:
                await asyncio.wait({self._task})
        finally:
            await _ended(self._task)
            self._fail(_closed())
            if self._overdue is not None:
                self._overdue.cancel()

    async def put(
        self,
        row_id: str,
        value: str,
        metadata: Mapping[str, str] | None = None,
        *,
        if_version: int | None = None,
        if_absent: bool = False,
        idempotency_key: str | None = None,
        reason: str | None = None,
    ) -> PutResult:
        """Writes a row; conditions, idempotency key and reason as for :meth:`ConfigServiceClient.put`.

        Raises:
            InvalidInputError, UnknownStoreError, LimitExceededError, ConditionFailedError: nothing was written.
            OutcomeUnknownError: the service did not answer in time, or the connection broke: whether the row is written
                is not known.
            UnavailableError: the service can't be reached; nothing was written.
        """
        if self._keys is not None:
            value, metadata = self._keys.seal(row_id, value, metadata)
        size = check_row(row_id, value, metadata)
        message = pb.RowChange(row_id=row_id, value=value, metadata=metadata)
        if if_absent or if_version is not None:
            check_condition(if_version, if_absent)
            message.if_absent = if_absent
        _add_terms(message, if_version, idempotency_key, reason)
        result = await self._traced("config.put", message, size)
        return PutResult(result.partition, result.version)

    async def delete(
        self,
        row_id: str,
        *,
        if_version: int | None = None,
        idempotency_key: str | None = None,
        reason: str | None = None,
    ) -> DeleteResult:
        """Deletes a row, if it is there.

        Raises:
            InvalidInputError, UnknownStoreError, UnknownKeyError, ConditionFailedError, OutcomeUnknownError,
                UnavailableError: as for :meth:`put`.
        """
        message = pb.RowChange(row_id=check_row_id(row_id), delete=True)
        check_condition(if_version, if_absent=False)
        _add_terms(message, if_version, idempotency_key, reason)
        result = await self._traced("config.delete", message, len(row_id))
        return DeleteResult(result.version > 0, result.partition, result.version)

    async def _traced(self, span: str, message: pb.RowChange, size: int) -> pb.ChangeResult:
        if self._tracing is None:
            return await self._change(message, size)
        with self._tracing.current(span, {"store": self._store, "key": self._key}, kind="CLIENT") as made:
            message.traceparent = self._tracing.traceparent(made)
            return await self._change(message, size)

    async def _change(self, message: pb.RowChange, size: int) -> pb.ChangeResult:
        if self._task is None or self._closing:
            raise RuntimeError("the writer is not open: use it as `async with client.changes(store, key) as writer`")
        self._asked += 1
        try:
            async with self._places:
                result = await self._answer(message, size)
        finally:
            self._asked -= 1
            if self._closing:
                self._news.set()
        if result.error:
            raise error_from_code(
                result.error, result.message, field=result.field or None, found_version=result.found_version
            )
        return result

    async def _answer(self, message: pb.RowChange, size: int) -> pb.ChangeResult:
        if self._task is None or self._task.done():
            raise _closed()
        loop = asyncio.get_running_loop()
        self._number = number = message.number = self._number + 1
        pending = _Pending(message, size, loop.time() + self._timeout_s, loop.create_future())
        self._pending[number] = self._unsent[number] = pending
        if self._overdue is None:
            self._overdue = loop.call_at(pending.deadline, self._give_up)
        self._news.set()
        try:
            return await pending.answer
        finally:
            self._pending.pop(number, None)
            self._unsent.pop(number, None)

    def _give_up(self) -> None:
        """Fails what has waited for too long, and looks again when the next may have."""
        self._overdue = None
        loop = asyncio.get_running_loop()
        for pending in self._pending.values():
            if pending.deadline > loop.time():
                self._overdue = loop.call_at(pending.deadline, self._give_up)
                return
            if not pending.answer.done():
                pending.answer.set_exception(self._unknown() if pending.sent else self._silent())
                self._leave_if_silent(pending.deadline - self._timeout_s)

    def _leave_if_silent(self, since: float) -> None:
        """Ends a stream that has brought nothing since then, if another instance may do better."""
        life = self._stream_life
        if life is not None and self._heard_at <= since and not life.expired() and self._streams.left():
            life.reschedule(since)
            self._stream_life = None

    def _fail(self, error: RingcastError, *, is_said: bool = True) -> None:
        """Fails what has no answer. ``is_said``: the service has said why, and not what is between."""
        unknown: RingcastError = error
        if isinstance(error, UnavailableError) or not is_said:
            unknown = OutcomeUnknownError(f"{error}: whether the change was stored is not known")
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(unknown if pending.sent else error)

    def _fail_sent(self) -> None:
        """What a stream has taken that is given up: what it has not taken goes over the next one."""
        for pending in self._pending.values():
            if pending.sent and not pending.answer.done():
                pending.answer.set_exception(self._unknown())

    # ---- the stream

    @property
    def _is_done(self) -> bool:
        return self._closing and not self._asked

    async def _run(self) -> None:
        """Has a stream for as long as there is something to say."""
        backoff = Backoff(random.random, first_s=0.1, most_s=1.0)
        while not self._is_done:
            if not self._unsent:
                self._news.clear()
                await self._news.wait()
                continue
            try:
                await self._streams.settle()
            except UnavailableError as nowhere:
                self._fail(nowhere)
                continue
            answered = hangs = False
            broke: _Break | None = None
            self._heard_at = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(None) as self._stream_life:
                    answered, broke = await self._talk(self._streams.open())
            except TimeoutError:
                hangs = True
            finally:
                self._stream_life = None
            if broke is not None:
                self._fail(broke.error, is_said=broke.is_said)
            elif hangs:
                self._fail_sent()
            # What is not answered at the end of a stream that did not break was not read, and so not written.
            self._unsent = {number: held for number, held in self._pending.items() if not held.answer.done()}
            for held in self._unsent.values():
                held.sent = False
            if answered:
                backoff.reset()
            elif not self._is_done:
                await asyncio.sleep(backoff.next_s())

    async def _talk(self, call: ChangeCall) -> tuple[bool, _Break | None]:
        """One stream to its end: whether anything was answered, and what it broke with."""
        answered = False
        sending: asyncio.Task[None] | None = None
        try:
            await call.wait_for_connection()  # a stream that is refused says why only to those who don't send yet
            self._clock_ahead_s = _clock_ahead_s(await call.initial_metadata())
            sending = asyncio.create_task(self._send(call))
            while True:
                reply: Any = await call.read()
                self._heard_at = asyncio.get_running_loop().time()
                if reply is grpc.aio.EOF:
                    return answered, None
                for result in reply.results:
                    pending = self._pending.get(result.number)
                    if pending is not None and not pending.answer.done():
                        pending.answer.set_result(result)
                answered = answered or bool(reply.results)
                if reply.last:
                    return answered, None
        except grpc.aio.AioRpcError as error:
            found = self._streams.error(error)
            # One that was refused because the instance drains has taken nothing: the next goes to another.
            refused = isinstance(found, UnavailableError) and found.elsewhere and not answered
            return answered, None if refused else _Break(found, is_said(error))
        finally:
            if sending is not None:
                await _ended(sending)
            call.cancel()

    async def _send(self, call: ChangeCall) -> None:
        """Sends what is unsent, as much at once as there is, and ends the stream when the writer is closed."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # reading says why
            while not self._is_done and self._stream_life is not None:
                batch = self._next_batch()
                if batch:
                    await call.write(pb.Changes(store=self._store, key=self._key, changes=batch))
                else:
                    self._news.clear()
                    await self._news.wait()
            await call.done_writing()

    def _next_batch(self) -> list[pb.RowChange]:
        batch: list[pb.RowChange] = []
        size = 0
        while self._unsent and len(batch) < limits.MAX_BATCH_ROWS and size < limits.MAX_BATCH_BYTES:
            pending = self._unsent.pop(next(iter(self._unsent)))
            if not pending.answer.done():
                pending.sent = True
                if self._clock_ahead_s is not None:
                    pending.message.expires_ms = int((pending.deadline + self._clock_ahead_s) * 1000)
                batch.append(pending.message)
                size += pending.size
        return batch


def _add_terms(message: pb.RowChange, if_version: int | None, idempotency_key: str | None, reason: str | None) -> None:
    if if_version is not None:
        message.if_version = if_version
    if idempotency_key is not None:
        message.idempotency_key = check_idempotency_key(idempotency_key)
    if reason is not None:
        message.reason = check_reason(reason)


def _clock_ahead_s(metadata: Iterable[tuple[str, Any]]) -> float | None:
    """What the service's clock is ahead of ours, or less: what it says has taken a while to arrive."""
    for name, value in metadata:
        if name == names.GRPC_CLOCK_KEY and str(value).isdecimal():
            return int(value) / 1000 - time.monotonic()
    return None


def _closed() -> UnavailableError:
    return UnavailableError("the writer was closed before the change was answered")


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
