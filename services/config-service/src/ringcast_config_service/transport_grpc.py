"""The gRPC API: protobuf in, handlers, protobuf out; errors become a status and trailing metadata."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection
from ringcast_wire import InvalidInputError, Mode, RingcastError, Strategy, UnavailableError, limits
from ringcast_wire.grpc import (
    SERVICE_NAME,
    ConfigServiceServicer,
    add_ConfigServiceServicer_to_server,
    pb,
)

from ringcast_config_service.batches import CheckedBatch, PlainRows, RowInput
from ringcast_config_service.callers import Caller, caller_of
from ringcast_config_service.change_stream import ChangeStreams
from ringcast_config_service.handlers import Handlers
from ringcast_config_service.repository import (
    Chain,
    KeyStats,
    ListedRow,
    ListFilter,
    Revision,
    StoreInfo,
    StoreRecord,
    WriteOutcome,
)
from ringcast_config_service.security import Security
from ringcast_config_service.telemetry import Telemetry
from ringcast_config_service.transport_input import Context, RefusingServer, Unreadable, abort, unforeseen
from ringcast_config_service.writer import GroupWriter

log = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_REQUEST_BYTES = 16 * limits.MIB
"""Above every legal request, so that an oversized row is refused with a sentence and not by the transport."""
_BATCHES_IN_FLIGHT = 8
_MAX_CALLS = 1_024
_MESSAGE_CHARS = 512 * limits.KIB
_SEND_TIMEOUT_S = 60.0
"""How long a reader of a long list may stop reading: a snapshot is held for it meanwhile."""

_MODES = {pb.MODE_UNSPECIFIED: Mode.PARTITIONED, pb.MODE_PARTITIONED: Mode.PARTITIONED, pb.MODE_FULL: Mode.FULL}
_STRATEGIES = {
    pb.STRATEGY_UNSPECIFIED: Strategy.JUMP,
    pb.STRATEGY_JUMP: Strategy.JUMP,
    pb.STRATEGY_RING: Strategy.RING,
}
_SKIP_INVALID = {
    pb.ON_INVALID_UNSPECIFIED: False,
    pb.ON_INVALID_REJECT_BATCH: False,
    pb.ON_INVALID_SKIP_ROW: True,
}
_MODE_TO_PB = {Mode.PARTITIONED: pb.MODE_PARTITIONED, Mode.FULL: pb.MODE_FULL}
_STRATEGY_TO_PB = {Strategy.JUMP: pb.STRATEGY_JUMP, Strategy.RING: pb.STRATEGY_RING}


class GrpcServer:
    """The server with the API, health and reflection. ``port`` is known after :meth:`start`."""

    def __init__(
        self,
        handlers: Handlers,
        writer: GroupWriter,
        listen: str,
        telemetry: Telemetry | None = None,
        security: Security | None = None,
        *,
        change_stream_s: float,
    ) -> None:
        self._listen = listen
        self._security = security or Security()
        self.port = 0
        self.health = HealthServicer()
        self._server = grpc.aio.server(
            interceptors=self._security.interceptors(),
            maximum_concurrent_rpcs=_MAX_CALLS,
            options=(
                ("grpc.max_receive_message_length", _MAX_REQUEST_BYTES),
                ("grpc.so_reuseport", 0),  # a port that another instance has is an error, not a share
            ),
        )
        refusing: Any = RefusingServer(self._server)
        self._changes = ChangeStreams(handlers, writer, change_stream_s)
        servicer = _Servicer(handlers, writer, self._changes, telemetry or Telemetry())
        add_ConfigServiceServicer_to_server(servicer, refusing)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, refusing)
        services = (SERVICE_NAME, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(services, self._server)

    async def start(self) -> None:
        """Listens.

        Raises:
            OSError: the address can't be used.
        """
        try:
            credentials = self._security.server_credentials()
            if credentials is None:
                self.port = self._server.add_insecure_port(self._listen)
            else:
                self.port = self._server.add_secure_port(self._listen, credentials)
        except RuntimeError as error:
            raise OSError(f"the gRPC address {self._listen} can't be used: is it taken?") from error
        await self.set_serving(False)
        await self._server.start()

    async def set_serving(self, serving: bool) -> None:
        """What health checks are told, of the whole server and of the service."""
        states = health_pb2.HealthCheckResponse
        status = states.SERVING if serving else states.NOT_SERVING
        for service in ("", SERVICE_NAME):
            await self.health.set(service, status)

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls, lets the running ones finish for so long, then ends them."""
        self._changes.stop()
        await self._server.stop(grace_s)


class _Servicer(ConfigServiceServicer):
    """Every method hands its work to :func:`_answer` or :func:`_stream`, which map errors."""

    def __init__(self, handlers: Handlers, writer: GroupWriter, changes: ChangeStreams, telemetry: Telemetry) -> None:
        self._handlers = handlers
        self._writer = writer
        self._changes = changes
        self._telemetry = telemetry

    async def CreateStore(self, request: pb.CreateStoreRequest, context: Context) -> pb.Store:
        async def work() -> pb.Store:
            inline = request.inline_max_bytes if request.HasField("inline_max_bytes") else None
            record = await self._handlers.create_store(
                request.name,
                request.partition_count,
                _choice("mode", _MODES, request.mode),
                _choice("strategy", _STRATEGIES, request.strategy),
                inline,
            )
            return _store(record)

        return await _answer(context, work())

    async def GetStore(self, request: pb.GetStoreRequest, context: Context) -> pb.Store:
        return _info(await _answer(context, self._handlers.get_store(request.name)))

    async def ListStores(self, _request: pb.ListStoresRequest, context: Context) -> pb.ListStoresResponse:
        return pb.ListStoresResponse(stores=map(_info, await _answer(context, self._handlers.list_stores())))

    async def Put(self, request: pb.PutRequest, context: Context) -> pb.PutResponse:
        row = request.store, request.key, request.row_id, request.value, request.metadata
        with self._telemetry.call("config.service.put", context.invocation_metadata()) as traceparent:
            partition, outcome = await _answer(context, self._handlers.put(*row, traceparent, caller_of(context)))
        return pb.PutResponse(partition=partition, version=outcome.versions[0])

    async def Delete(self, request: pb.DeleteRequest, context: Context) -> pb.DeleteResponse:
        with self._telemetry.call("config.service.delete", context.invocation_metadata()) as traceparent:
            row = request.store, request.key, request.row_id
            call = self._handlers.delete(*row, traceparent, caller_of(context))
            partition, outcome = await _answer(context, call)
        return pb.DeleteResponse(existed=outcome.deleted > 0, partition=partition, version=outcome.versions[0])

    async def Change(self, _requests: AsyncIterator[pb.Changes], context: Context) -> None:
        await _answer(context, self._changes.serve(context))

    async def Write(self, requests: AsyncIterator[pb.WriteBatch], context: Context) -> AsyncIterator[pb.WriteResult]:
        with self._telemetry.call("config.service.write", context.invocation_metadata()) as traceparent:
            stream = _BulkStream(self._handlers, self._writer, traceparent, caller_of(context))
            async with aclosing(stream.results(requests)) as results:
                async for result in _stream(context, results):
                    yield result

    async def Get(self, request: pb.GetRequest, context: Context) -> pb.GetResponse:
        rows = await _answer(context, self._handlers.get(request.store, request.key, request.row_ids))
        return pb.GetResponse(rows=map(_row, rows))

    async def List(self, request: pb.ListRequest, context: Context) -> None:
        partition = request.partition if request.HasField("partition") else None
        query = ListFilter(partition, request.include_deleted, request.limit)
        pages = await _answer(context, self._handlers.list_rows(request.store, request.key, query))
        await _send(context, pages, _chars, lambda part: pb.ListResponse(rows=map(_row, part)))

    async def History(self, request: pb.HistoryRequest, context: Context) -> None:
        call = self._handlers.history(
            request.store,
            request.key,
            row_id=request.row_id,
            partition=request.partition if request.HasField("partition") else None,
            since=request.since,
            limit=request.limit,
        )
        pages = await _answer(context, call)
        await _send(context, pages, _chars, lambda part: pb.HistoryResponse(revisions=map(_revision, part)))

    async def Heads(self, request: pb.HeadsRequest, context: Context) -> pb.HeadsResponse:
        found = await _answer(context, self._handlers.heads(request.store, request.key))
        return pb.HeadsResponse(heads=found.heads, history_id=found.history)


class _BulkStream:
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
        skip = _choice("on_invalid", _SKIP_INVALID, batch.on_invalid)
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


async def _answer(context: Context, call: Awaitable[T]) -> T:
    """The result of a call, or the end of the RPC with the status of what it raised."""
    try:
        return await call
    except Exception as error:  # noqa: BLE001  # mapped to a status, logged there
        await abort(context, error)


async def _stream(context: Context, items: AsyncIterator[T]) -> AsyncIterator[T]:
    """The same for a stream of answers."""
    try:
        async for item in items:
            yield item
    except Exception as error:  # noqa: BLE001  # mapped to a status, logged there
        await abort(context, error)


async def _send(
    context: Context, pages: AsyncGenerator[list[T], None], size: Callable[[T], int], pack: Callable[[list[T]], object]
) -> None:
    """Sends pages in messages that any gRPC client takes (4 MiB), and ends the snapshot when nobody reads."""
    try:
        async with aclosing(pages):
            async for page in pages:
                for part in _parts(page, size):
                    async with asyncio.timeout(_SEND_TIMEOUT_S):
                        await context.write(pack(part))
    except TimeoutError as error:
        await abort(context, UnavailableError(f"nothing was read for {_SEND_TIMEOUT_S:g} s: the list was ended"), error)
    except Exception as error:  # noqa: BLE001  # mapped to a status, logged there
        await abort(context, error)


def _parts(page: list[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Cuts a page where a message gets large; a row is at most 1 MiB."""
    part: list[T] = []
    total = 0
    for item in page:
        part.append(item)
        total += size(item)
        if total > _MESSAGE_CHARS:
            yield part
            part, total = [], 0
    if part:
        yield part


def _choice(field: str, choices: Mapping[Any, T], value: int) -> T:
    if value not in choices:
        raise InvalidInputError(f"{field} {value} is unknown: {len(choices)} values are defined", field=field)
    return choices[value]


def _store(record: StoreRecord, keys: tuple[KeyStats, ...] = ()) -> pb.Store:
    settings = record.settings
    return pb.Store(
        name=record.name,
        partition_count=settings.partition_count,
        mode=_MODE_TO_PB[settings.mode],
        strategy=_STRATEGY_TO_PB[settings.strategy],
        hash=settings.hash,
        inline_max_bytes=record.inline_max_bytes,
        created_at_ms=record.created_at_ms,
        keys=[pb.KeyInfo(name=key.name, rows=key.rows, bytes=key.bytes) for key in keys],
    )


def _info(info: StoreInfo) -> pb.Store:
    return _store(info.record, info.keys)


def _row(listed: ListedRow) -> pb.Row:
    row = listed.row
    return pb.Row(
        row_id=row.row_id,
        value=row.value,
        version=row.version,
        partition=listed.partition,
        deleted=row.deleted,
        metadata=row.metadata,
    )


def _revision(revision: Revision) -> pb.Revision:
    return pb.Revision(row=_row(ListedRow(revision.partition, revision.row)), written_at_ms=revision.written_at_ms)


def _chars(item: ListedRow | Revision) -> int:
    return len(item.row.row_id) + len(item.row.value) + 64
