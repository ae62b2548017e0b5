"""A bulk write: batches over one stream, each a transaction."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import grpc.aio
from ringcast_service import Context
from ringcast_wire import EventLog, InvalidInputError, RingcastError, UnavailableError, limits
from ringcast_wire.grpc import pb

from ringcast_config_service.grpc.callers import caller_of, patience_of
from ringcast_config_service.grpc.input import Unreadable, send, unforeseen
from ringcast_config_service.grpc.messages import SKIP_INVALID, choice
from ringcast_config_service.grpc.rows import batch_terms, rejected_message, row_input
from ringcast_config_service.grpc.stream_life import GOODBYE_S
from ringcast_config_service.handlers import Handlers
from ringcast_config_service.repository import Chain, WriteOutcome
from ringcast_config_service.writes.batches import CheckedBatch, PlainRows, RowInput
from ringcast_config_service.writes.group_writer import GroupWriter

log = EventLog(logging.getLogger(__name__))

BATCHES_IN_FLIGHT: Final = 16
"""Twice as many as a transaction takes: while the batches of one are committed, those of the next wait already."""
BYTES_IN_FLIGHT: Final = 8 * limits.MAX_BATCH_BYTES


class BulkStream:
    """One bulk stream: batches are checked and committed while the answers of earlier ones are on their way.

    The first batch that fails ends the stream, and none after it is written. So does :meth:`end`: every batch that was
    read is answered, then the client gets the answer that no other was, and sends those again over another stream.
    """

    def __init__(self, handlers: Handlers, writer: GroupWriter, context: Context, traceparent: str | None) -> None:
        self._handlers = handlers
        self._writer = writer
        self._context = context
        self._caller = caller_of(context)
        self._traceparent = traceparent
        self._patience_s = patience_of(context)
        self._chain = Chain()
        self._answers: deque[_BatchAnswer] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._ended = False
        self._dropped = False
        self._submitting = False

    def end(self) -> None:
        """What was read is answered, and nothing that comes after it is written."""
        self._ended = True
        self._news.set()

    async def run(self) -> None:
        """Serves the stream to its end.

        Raises:
            RingcastError: what a batch was refused with.
        """
        reading = asyncio.create_task(self._read())
        reading.add_done_callback(lambda _: self._news.set())
        try:
            while (answer := await self._next(reading)) is not None:
                await send(self._context, await answer.result())
            if self._dropped or not reading.done():
                await send(self._context, pb.WriteResult(last=True))
                await asyncio.wait({reading}, timeout=GOODBYE_S)
        finally:
            self._chain.failed = True
            reading.cancel()
            for left in self._answers:
                left.drop()

    async def _next(self, reading: asyncio.Task[None]) -> _BatchAnswer | None:
        """The next batch to be answered; ``None`` when no other will be read."""
        while not self._answers:
            if reading.done() or (self._ended and not self._submitting):
                return None
            self._news.clear()
            await self._news.wait()
        self._room.set()
        return self._answers.popleft()

    async def _read(self) -> None:
        """Takes batches until the client ends its side; once :meth:`end` was called they are dropped."""
        try:
            while (batch := await self._receive()) is not grpc.aio.EOF:
                if self._ended:
                    self._dropped = True
                    continue
                self._submitting = True
                self._add(await self._submit(batch))
                self._submitting = False
                while self._is_full():
                    self._room.clear()
                    await self._room.wait()
        except RingcastError as error:
            self._add(_BatchAnswer.failed(error))  # in its turn: what came before is answered first
        except Exception as error:
            log.error("bulk_stream.failed", exc_info=True)
            self._add(_BatchAnswer.failed(unforeseen(error)))

    def _is_full(self) -> bool:
        return (
            len(self._answers) >= BATCHES_IN_FLIGHT or sum(answer.bytes for answer in self._answers) >= BYTES_IN_FLIGHT
        )

    async def _receive(self) -> Any:
        try:
            return await self._context.read()
        except Exception as error:  # gRPC raises errors of its own, of no common kind
            log.debug("bulk_stream.broken", error=repr(error))
            raise UnavailableError("the stream broke off before its end") from error

    def _add(self, answer: _BatchAnswer) -> None:
        self._answers.append(answer)
        self._news.set()

    async def _submit(self, batch: pb.WriteBatch | Unreadable) -> _BatchAnswer:
        if isinstance(batch, Unreadable):
            raise batch.error
        skip = choice("on_invalid", SKIP_INVALID, batch.on_invalid)
        checked = await self._handlers.check_batch(
            batch.store,
            batch.key,
            _rows(batch),
            skip_invalid=skip,
            skip_unchanged=batch.skip_unchanged,
            chain=self._chain,
            terms=batch_terms(batch, self._traceparent, self._caller),
        )
        if checked.request is None:
            return _BatchAnswer(batch.sequence, checked, None)
        await self._writer.room(checked.request, self._caller, self._patience_s)
        return _BatchAnswer(batch.sequence, checked, self._writer.submit(checked.request, self._caller))


def _rows(batch: pb.WriteBatch) -> list[RowInput] | PlainRows:
    """The rows of a batch, whichever way it has them."""
    row_ids, values = list(batch.row_ids), list(batch.values)
    if not row_ids and not values:
        return [row_input(row) for row in batch.rows]
    if batch.rows:
        raise InvalidInputError("rows and row_ids are both given: a batch takes one of them", field="row_ids")
    if len(row_ids) != len(values):
        raise InvalidInputError(f"values has {len(values)} entries for {len(row_ids)} row_ids", field="values")
    return PlainRows(row_ids, values)


@dataclass(frozen=True, slots=True)
class _BatchAnswer:
    """The answer to one batch, once it is known."""

    sequence: int
    checked: CheckedBatch
    outcome: asyncio.Future[WriteOutcome] | None

    @classmethod
    def failed(cls, error: RingcastError) -> _BatchAnswer:
        outcome: asyncio.Future[WriteOutcome] = asyncio.get_running_loop().create_future()
        outcome.set_exception(error)
        outcome.exception()  # read, so that asyncio does not log it when no call waits for it any more
        return cls(0, CheckedBatch(None, 0, []), outcome)

    @property
    def bytes(self) -> int:
        """Of the rows that wait to be written."""
        return self.checked.request.bytes if self.checked.request else 0

    async def result(self) -> pb.WriteResult:
        found = await self.outcome if self.outcome else WriteOutcome(0, 0, 0, [])
        return pb.WriteResult(
            sequence=self.sequence,
            written=found.written,
            deleted=found.deleted,
            unchanged=found.unchanged + self.checked.repeated,
            rejected=map(rejected_message, self.checked.rejected),
        )

    def drop(self) -> None:
        """Nobody waits for it any more; what has not begun is not written."""
        if self.outcome is not None and not self.outcome.cancel() and not self.outcome.cancelled():
            self.outcome.exception()  # read, so that asyncio does not log it
