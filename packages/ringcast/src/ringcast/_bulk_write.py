"""A bulk write under way: batches go out over one stream, a bounded number of them unanswered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import aclosing, suppress
from typing import Any, Final

import grpc.aio
from ringcast_wire import RingcastError, UnavailableError
from ringcast_wire.grpc import pb

from ringcast._admin_records import BatchResult, RejectedRow, RowWrite
from ringcast._bulk_batches import Batch, BatchBuilder, InvalidRowError, build_batches
from ringcast._from_thread import from_thread

Rows = AsyncIterable[RowWrite] | Iterable[RowWrite]
WriteCall = grpc.aio.StreamStreamCall[pb.WriteBatch, pb.WriteResult]


class StatusLostError(UnavailableError):
    """The call has ended while something was being sent, and why is lost (grpc issue 36066)."""

    SAID: Final = "Internal error from Core"
    """What grpc.aio says in the place of the status."""

    def __init__(self) -> None:
        super().__init__("the connection to the config service broke")


class BulkWrite:
    """The committed batches of a bulk write, in order: iterate over it once, with ``async for``.

    Each batch is one transaction: it is written whole or not at all. When the iteration raises, the batches that it has
    yielded are written; those sent but not confirmed (``sent_rows`` above ``confirmed_rows``) may be or may not be, and
    sending them again does no harm.
    """

    def __init__(
        self,
        open_call: Callable[[], WriteCall],
        rows: Rows,
        builder: BatchBuilder,
        *,
        max_in_flight: int,
        timeout_s: float,
        to_error: Callable[[grpc.aio.AioRpcError], RingcastError],
    ) -> None:
        self._open_call = open_call
        self._rows = rows
        self._builder = builder
        self._window = asyncio.Semaphore(max_in_flight)
        self._timeout_s = timeout_s
        self._to_error = to_error
        self._sent: asyncio.Queue[Batch | None] = asyncio.Queue()
        self._failure: BaseException | None = None
        self._started = False
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
        call = self._open_call()
        sender = asyncio.create_task(self._send(call), name="ringcast-bulk-send")
        lost = False
        try:
            while (batch := await self._sent.get()) is not None:
                try:
                    result = await (self._again(batch) if lost else self._result(call, batch))
                except StatusLostError:
                    lost = True
                    result = await self._again(batch)
                self.confirmed_rows = batch.first + batch.rows
                self._window.release()
                yield result
            if lost:
                raise UnavailableError("the connection to the config service broke")
            if self._failure is not None:
                raise self._failure
            await self._finish(call)
        finally:
            sender.cancel()
            call.cancel()
            with suppress(asyncio.CancelledError):
                await sender

    async def _again(self, batch: Batch) -> BatchResult:
        """Sends a batch alone, to find out what became of it or of one after it. Writing it twice does no harm.

        With nothing to send after it, the reason of a refusal can't get lost.
        """
        if not batch.has_rows:
            return await self._result(None, batch)
        call = self._open_call()
        try:
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # reading says why
                await call.write(batch.message)
                await call.done_writing()
            return await self._result(call, batch)
        finally:
            call.cancel()

    async def _result(self, call: WriteCall | None, batch: Batch) -> BatchResult:
        if not batch.has_rows:
            return BatchResult(batch.first, batch.rows, 0, 0, 0, tuple(batch.rejected))
        assert call is not None
        reply = await self._read(call)
        if not isinstance(reply, pb.WriteResult):
            raise UnavailableError("the config service ended the bulk write before it had answered every batch")
        if reply.sequence != batch.message.sequence:
            raise UnavailableError(
                f"the config service answered batch {reply.sequence}, expected was {batch.message.sequence}"
            )
        rejected = [RejectedRow(batch.index_of(row.index), row.row_id, row.reason) for row in reply.rejected]
        if rejected and batch.message.on_invalid == pb.ON_INVALID_REJECT_BATCH:
            raise InvalidRowError(rejected[0].reason, index=rejected[0].index)
        rejected = sorted([*batch.rejected, *rejected], key=lambda row: row.index)
        return BatchResult(batch.first, batch.rows, reply.written, reply.deleted, reply.unchanged, tuple(rejected))

    async def _finish(self, call: WriteCall) -> None:
        """Every batch is answered: the stream has to end well too."""
        if await self._read(call) is not grpc.aio.EOF:
            raise UnavailableError("the config service sent more answers than there were batches")

    async def _read(self, call: WriteCall) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await call.read()
        except grpc.aio.AioRpcError as error:
            raise self._to_error(error) from error
        except TimeoutError:
            raise UnavailableError(f"the config service did not answer a batch within {self._timeout_s:g} s") from None

    async def _send(self, call: WriteCall) -> None:
        try:
            async with aclosing(self._batches()) as batches:
                async for batch in batches:
                    await self._window.acquire()
                    self._sent.put_nowait(batch)
                    self.sent_rows = batch.first + batch.rows
                    if batch.has_rows:
                        await call.write(batch.message)
            await call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the call has ended, and reading from it says why
        except Exception as error:  # noqa: BLE001  # of the caller's iterable: raised once what was sent is answered
            self._failure = error
        finally:
            self._sent.put_nowait(None)

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
