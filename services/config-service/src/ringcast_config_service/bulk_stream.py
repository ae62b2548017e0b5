"""A bulk write: batches over one stream, each a transaction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Final, TypeVar

from ringcast_wire import InvalidInputError, RingcastError, UnavailableError
from ringcast_wire.grpc import pb

from ringcast_config_service.batches import CheckedBatch, PlainRows, RowInput
from ringcast_config_service.callers import Caller
from ringcast_config_service.handlers import Handlers
from ringcast_config_service.messages import SKIP_INVALID, choice
from ringcast_config_service.repository import Chain, WriteOutcome
from ringcast_config_service.transport_input import Unreadable, unforeseen
from ringcast_config_service.writer import GroupWriter

log = logging.getLogger(__name__)

T = TypeVar("T")

_BATCHES_IN_FLIGHT: Final = 8


class BulkStream:
    """One bulk stream: batches are checked and committed while the answers of earlier ones are on their way.

    The first batch that fails ends the stream, and none after it is written.
    """

    def __init__(self, handlers: Handlers, writer: GroupWriter, traceparent: str | None, caller: Caller) -> None:
        self._handlers = handlers
        self._writer = writer
        self._caller = caller
        self._traceparent = traceparent
        self._chain = Chain()
        self._answers: asyncio.Queue[_BatchAnswer | None] = asyncio.Queue(_BATCHES_IN_FLIGHT)

    async def results(self, requests: AsyncIterator[pb.WriteBatch]) -> AsyncGenerator[pb.WriteResult, None]:
        reading = asyncio.create_task(self._read(requests))
        try:
            while (answer := await self._answers.get()) is not None:
                yield await answer.result()
        finally:
            self._chain.failed = True
            reading.cancel()
            while not self._answers.empty():
                if (left := self._answers.get_nowait()) is not None:
                    left.drop()

    async def _read(self, requests: AsyncIterator[pb.WriteBatch]) -> None:
        try:
            async for batch in _until_gone(requests):
                await self._answers.put(await self._submit(batch))
        except RingcastError as error:
            await self._answers.put(_BatchAnswer.failed(error))  # in its turn: what came before is answered first
        except Exception as error:
            log.exception("a bulk stream failed")
            await self._answers.put(_BatchAnswer.failed(unforeseen(error)))
        else:
            await self._answers.put(None)

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
            traceparent=self._traceparent,
        )
        if checked.request is None:
            return _BatchAnswer(batch.sequence, checked, None)
        await self._writer.room(checked.request, self._caller)
        return _BatchAnswer(batch.sequence, checked, self._writer.submit(checked.request, self._caller))


def _rows(batch: pb.WriteBatch) -> list[RowInput] | PlainRows:
    """The rows of a batch, whichever way it has them."""
    row_ids, values = list(batch.row_ids), list(batch.values)
    if not row_ids and not values:
        return [
            RowInput(row.row_id, None, None) if row.delete else RowInput(row.row_id, row.value, row.metadata)
            for row in batch.rows
        ]
    if batch.rows:
        raise InvalidInputError("rows and row_ids are both there: a batch has the one or the other", field="row_ids")
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
        outcome.exception()  # looked at, so that asyncio does not complain when nobody waits for it any more
        return cls(0, CheckedBatch(None, 0, []), outcome)

    async def result(self) -> pb.WriteResult:
        found = await self.outcome if self.outcome else WriteOutcome(0, 0, 0, [])
        return pb.WriteResult(
            sequence=self.sequence,
            written=found.written,
            deleted=found.deleted,
            unchanged=found.unchanged + self.checked.repeated,
            rejected=[
                pb.RejectedRow(index=row.index, row_id=row.row_id, reason=row.reason) for row in self.checked.rejected
            ],
        )

    def drop(self) -> None:
        """Nobody waits for it any more; what has not begun is not written."""
        if self.outcome is not None and not self.outcome.cancel() and not self.outcome.cancelled():
            self.outcome.exception()  # looked at, so that asyncio does not complain of it


async def _until_gone(requests: AsyncIterator[T]) -> AsyncIterator[T]:
    """What a client sends, to its end or until the client or the connection is gone."""
    while True:
        try:
            request = await anext(requests)
        except StopAsyncIteration:
            return
        except Exception as error:  # gRPC raises errors of its own, of no common kind
            log.debug("a bulk stream broke off: %r", error)
            raise UnavailableError("the stream broke off before its end") from error
        yield request
