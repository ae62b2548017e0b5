"""A bulk write under way: batches go out over one stream, a bounded number of them unanswered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import Final, Protocol

import grpc.aio
from ringcast_wire import LimitExceededError, RingcastError, UnavailableError
from ringcast_wire.grpc import pb

from ringcast_client._bulk.batches import Batch, BatchBuilder, InvalidRowError, build_batches
from ringcast_client._common.from_thread import from_thread
from ringcast_client._common.records import BatchResult, RejectedRow, RowWrite
from ringcast_client._common.requested_waits import RequestedWaits

Rows = AsyncIterable[RowWrite] | Iterable[RowWrite]
WriteCall = grpc.aio.StreamStreamCall[pb.WriteBatch, pb.WriteResult]


class WriteStreams(Protocol):
    """Opens streams at an instance that takes them."""

    async def settle(self) -> None:
        """Finds that instance, before each stream."""

    def open(self) -> WriteCall:
        """A stream of its own."""

    def error(self, error: grpc.aio.AioRpcError) -> RingcastError:
        """What a stream broke with."""

    def left(self) -> bool:
        """The instance does not answer. Whether there is another one, to which the next stream goes."""


_TRIES_ALONE: Final = 5
"""Of a batch whose stream ended without a reason, until one is known."""
_REOPEN_WAIT_S: Final = 0.1
"""Before another stream, where the service has ended the last one without an answer."""


class StatusLostError(UnavailableError):
    """The call has ended while something was being sent, and why is lost (grpc issue 36066)."""

    SAID: Final = "Internal error from Core"
    """What grpc.aio says in the place of the status."""

    def __init__(self) -> None:
        super().__init__("the connection to the config service broke")


class SilentError(UnavailableError):
    """An instance did not answer in time."""


class BulkWrite:
    """The committed batches of a bulk write, in order: iterate over it once, with ``async for``.

    Each batch is one transaction: it is written whole or not at all. When the iteration raises, the batches that it has
    yielded are written; those sent but not confirmed (``sent_rows`` above ``confirmed_rows``) may be or may not be, and
    sending them again does no harm.

    The service ends its streams now and then, having answered every batch that it has read; the others then go over a
    new stream, in the same order.
    """

    def __init__(
        self,
        streams: WriteStreams,
        rows: Rows,
        builder: BatchBuilder,
        *,
        max_in_flight: int,
        timeout_s: float,
    ) -> None:
        self._streams = streams
        self._rows = rows
        self._builder = builder
        self._window = asyncio.Semaphore(max_in_flight)
        self._timeout_s = timeout_s
        self._built: asyncio.Queue[Batch | None] = asyncio.Queue()
        """Batches that no stream has taken yet, never more than the window has places; ``None`` is the end."""
        self._unanswered: deque[Batch] = deque()
        self._news = asyncio.Event()
        self._exhausted = False
        self._failure: BaseException | None = None
        self._started = False
        self._refused_since: float | None = None
        """When the service began to end each stream at once, without an answer."""
        self._requested_waits = RequestedWaits()
        self.sent_rows = 0
        """Input rows handed to the connection so far."""
        self.confirmed_rows = 0
        """Input rows whose batches are committed."""

    def __aiter__(self) -> AsyncIterator[BatchResult]:
        if self._started:
            raise RuntimeError("a bulk write can be iterated over once")
        self._started = True
        return self._results()

    async def _results(self) -> AsyncIterator[BatchResult]:
        building = asyncio.create_task(self._build(), name="ringcast-bulk-build")
        stream: _Stream | None = None
        try:
            while (batch := await self._next(stream)) is not None:
                result: BatchResult | None = None
                while result is None:
                    if stream is None:
                        stream = await self._open()
                    try:
                        if (result := await self._result(stream, batch)) is None:
                            stream = await self._reopened(stream)
                    except LimitExceededError as error:
                        stream = await self._resumed(stream, error)
                    except StatusLostError:
                        await stream.close()
                        stream = None
                        result = await self._again(batch)
                self._requested_waits.answered()
                self._unanswered.popleft()
                self.confirmed_rows = batch.first + batch.rows
                self._window.release()
                yield result
            if self._failure is not None:
                raise self._failure
            if stream is not None and await stream.reply(self._timeout_s) is not None:
                raise UnavailableError("the config service sent more answers than there were batches")
        finally:
            building.cancel()
            if stream is not None:
                await stream.close()
            with suppress(asyncio.CancelledError):
                await building

    async def _open(self) -> _Stream:
        await self._streams.settle()
        stream = _Stream(self._streams.open(), tuple(self._unanswered), self._take, self._streams.error)
        stream.over.add_done_callback(lambda _: self._news.set())
        return stream

    async def _reopened(self, stream: _Stream) -> _Stream:
        """Another stream in the place of one that the service has ended; with a pause if that one did nothing."""
        await stream.close()
        await self._pause_after(stream)
        return await self._open()

    async def _pause_after(self, ended: _Stream) -> None:
        """Waits where the service has ended a stream without an answer.

        Raises:
            UnavailableError: it has done so with each for the whole time-out.
        """
        if ended.answered:
            self._refused_since = None
            return
        now = asyncio.get_running_loop().time()
        if self._refused_since is None:
            self._refused_since = now
        elif now - self._refused_since > self._timeout_s:
            raise UnavailableError(f"the config service has taken no batch for {self._timeout_s:g} s: it is stopping")
        await asyncio.sleep(_REOPEN_WAIT_S)

    async def _resumed(self, stream: _Stream, refusal: LimitExceededError) -> _Stream:
        """Another stream, after the time that the service asks for: nothing that is not answered was written.

        Raises:
            LimitExceededError: it asks for none, or for too long.
        """
        await stream.close()
        await self._wait_as_told(refusal)
        return await self._open()

    async def _wait_as_told(self, refusal: LimitExceededError) -> None:
        wait_s = refusal.retry_after_s
        if wait_s is None or not self._requested_waits.may_wait(refusal, wait_s):
            raise refusal
        await asyncio.sleep(wait_s)

    async def _next(self, stream: _Stream | None) -> Batch | None:
        """The oldest batch that is not answered; ``None`` when there is none and will be none."""
        while not self._unanswered and not self._exhausted:
            if stream is None or stream.is_over:
                await self._take()  # it goes out over the next stream
            else:
                self._news.clear()
                await self._news.wait()
        return self._unanswered[0] if self._unanswered else None

    async def _take(self) -> Batch | None:
        """The next batch to go out; ``None`` when the input has ended. Cancelling it takes none."""
        batch = None if self._exhausted else await self._built.get()
        if batch is None:
            self._exhausted = True
        else:
            self._unanswered.append(batch)
            self.sent_rows = batch.first + batch.rows
        self._news.set()
        return batch

    async def _again(self, batch: Batch) -> BatchResult | None:
        """Sends a batch alone, to find out what became of it. Writing it twice does no harm.

        With nothing to send after it, the reason of a refusal is rarely lost. Where that is one which waiting cures, or
        another instance, it waits and returns ``None``: this stream has written nothing.
        """
        for left in reversed(range(_TRIES_ALONE)):
            await self._streams.settle()
            stream = _Stream(self._streams.open(), (batch,), _nothing, self._streams.error)
            try:
                if (result := await self._result(stream, batch)) is None:
                    await self._pause_after(stream)
                return result
            except LimitExceededError as error:
                await self._wait_as_told(error)
                return None
            except StatusLostError:
                if not left:
                    raise
            finally:
                await stream.close()
        raise UnavailableError("the connection to the config service broke")

    async def _result(self, stream: _Stream, batch: Batch) -> BatchResult | None:
        """The answer to a batch; ``None`` if the service has ended the stream before it read the batch."""
        if not batch.has_rows:
            return BatchResult(batch.first, batch.rows, 0, 0, 0, tuple(batch.rejected))
        try:
            reply = await stream.reply(self._timeout_s)
        except SilentError:
            self._streams.left()
            raise
        if reply is None:
            if not stream.was_last:
                raise UnavailableError("the config service ended the bulk write before it had answered every batch")
            return None
        if reply.sequence != batch.message.sequence:
            raise UnavailableError(
                f"the config service answered batch {reply.sequence}, expected was {batch.message.sequence}"
            )
        rejected = [RejectedRow(batch.index_of(row.index), row.row_id, row.reason) for row in reply.rejected]
        if rejected and batch.message.on_invalid == pb.ON_INVALID_REJECT_BATCH:
            raise InvalidRowError(rejected[0].reason, index=rejected[0].index)
        rejected = sorted([*batch.rejected, *rejected], key=lambda row: row.index)
        return BatchResult(batch.first, batch.rows, reply.written, reply.deleted, reply.unchanged, tuple(rejected))

    async def _build(self) -> None:
        try:
            async with aclosing(self._batches()) as batches:
                async for batch in batches:
                    await self._window.acquire()
                    self._built.put_nowait(batch)
        except Exception as error:  # noqa: BLE001  # of the caller's iterable: raised once what was sent is answered
            self._failure = error
        finally:
            self._built.put_nowait(None)

    async def _batches(self) -> AsyncGenerator[Batch, None]:
        if not isinstance(self._rows, AsyncIterable):
            async with aclosing(from_thread(build_batches(self._rows, self._builder))) as batches:
                async for batch in batches:
                    yield batch
            return
        async for row in self._rows:
            if (full := self._builder.add(row)) is not None:
                yield full
        if (last := self._builder.flush()) is not None:
            yield last


class _Stream:
    """One stream of the service: it is written to and read from at the same time.

    It sends ``first`` and then what ``take`` gives, until there is nothing more or the service ends the stream.
    """

    def __init__(
        self,
        call: WriteCall,
        first: Sequence[Batch],
        take: Callable[[], Awaitable[Batch | None]],
        to_error: Callable[[grpc.aio.AioRpcError], RingcastError],
    ) -> None:
        self._call = call
        self._take = take
        self._to_error = to_error
        self._replies: asyncio.Queue[pb.WriteResult | None] = asyncio.Queue()
        """At most one for each batch that was sent; ``None`` is the end, and stays."""
        self._error: RingcastError | None = None
        self.answered = False
        """Whether any batch was answered."""
        self.was_last = False
        """Whether the service has said that it reads no more."""
        self._sending = asyncio.create_task(self._send(first), name="ringcast-bulk-send")
        self.over = asyncio.create_task(self._receive(), name="ringcast-bulk-receive")

    @property
    def is_over(self) -> bool:
        """Whether no more answers will come, and nothing more is sent."""
        return self.over.done()

    async def reply(self, timeout_s: float) -> pb.WriteResult | None:
        """The next answer; ``None`` when the service has ended the stream.

        Raises:
            RingcastError: what it ended with; SilentError: nothing came in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                reply = await self._replies.get()
        except TimeoutError:
            raise SilentError(f"the config service did not answer a batch within {timeout_s:g} s") from None
        if reply is None:
            self._replies.put_nowait(None)
            if self._error is not None:
                raise self._error
        return reply

    async def close(self) -> None:
        """Ends it, whatever state it is in."""
        self._call.cancel()
        self._sending.cancel()
        self.over.cancel()
        await asyncio.wait({self._sending, self.over})

    async def _send(self, first: Sequence[Batch]) -> None:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # reading says why
            for batch in first:
                await self._write(batch)
            while (new := await self._take()) is not None:
                await self._write(new)
            await self._call.done_writing()

    async def _write(self, batch: Batch) -> None:
        if batch.has_rows:
            await self._call.write(batch.message)

    async def _receive(self) -> None:
        """Reads all the time, so that nothing is sent any more once the service has said so."""
        try:
            while isinstance(reply := await self._call.read(), pb.WriteResult) and not reply.last:
                self.answered = True
                self._replies.put_nowait(reply)
            self.was_last = isinstance(reply, pb.WriteResult)
        except grpc.aio.AioRpcError as error:
            found = self._to_error(error)
            # An instance that drains has read nothing of the stream: the batches go over another, elsewhere.
            self.was_last = isinstance(found, UnavailableError) and found.elsewhere and not self.answered
            self._error = None if self.was_last else found
        finally:
            self._sending.cancel()
            self._replies.put_nowait(None)


async def _nothing() -> None:
    return None
