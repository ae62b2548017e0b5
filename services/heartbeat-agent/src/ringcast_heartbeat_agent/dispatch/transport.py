"""Key-shared dispatch over gRPC: one stream a consumer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator
from typing import Final

import grpc
import grpc.aio
from ringcast import Change, InvalidInputError, RingcastError
from ringcast_service import Context, check_known, end_call, refuse
from ringcast_wire.dispatch import DispatchServicer as Servicer
from ringcast_wire.dispatch import pb

from ringcast_heartbeat_agent.clients import Here, enter
from ringcast_heartbeat_agent.dispatch.consumer_session import ConsumerSession, Frame
from ringcast_heartbeat_agent.dispatch.group import LOSSY, RELIABLE, Group
from ringcast_heartbeat_agent.dispatch.groups import Dispatch, Registration
from ringcast_heartbeat_agent.errors import StoppedError
from ringcast_heartbeat_agent.telemetry import Measures

log = logging.getLogger(__name__)

_REGISTER_S: Final = 10.0
"""How long a new stream may wait with its first message."""
_MODES: Final = {pb.MODE_RELIABLE: RELIABLE, pb.MODE_LOSSY: LOSSY}


class DispatchServicer(Servicer):
    """Joins streams and groups."""

    def __init__(self, dispatch: Dispatch, measures: Measures, here: Here) -> None:
        self._dispatch = dispatch
        self._measures = measures
        self._here = here
        self._agent = secrets.token_hex(16)

    async def Consume(self, requests: AsyncIterator[pb.ConsumeRequest], context: Context) -> None:
        """One consumer; see the .proto file."""
        del requests  # read through the context
        since, outcome = time.monotonic(), "ok"
        try:
            asked = await _registration(context)
            await enter(context.peer(), self._here)
            group, consumer, resumed = await self._dispatch.join(asked)
        except RingcastError as error:
            outcome = str(error.code)
            await refuse(context, error)
        finally:
            self._measures.request_answered("grpc", "consume", outcome, time.monotonic() - since)
        reading = asyncio.create_task(_read(context, group, consumer))
        try:
            await context.write(_registered(consumer, resumed, self._agent, group.evict_after_s))
            async for frame in consumer.frames():
                for response in responses(frame, group):
                    await context.write(response)
                group.sent(consumer, len(frame.deliveries))
        except StoppedError as error:
            await end_call(context, error.status, str(error))
        finally:
            reading.cancel()
            if not consumer.ended:
                group.detach(consumer)

    async def Resolve(self, request: pb.ResolveRequest, _context: Context) -> pb.ResolveResponse:
        """Decides about a blocked message."""
        since = time.monotonic()
        group = self._dispatch.group(request.store, request.key, request.group)
        found = group.resolve({request.row_id}, discard=request.discard) if group is not None else []
        self._measures.request_answered("grpc", "resolve", "ok", time.monotonic() - since)
        return pb.ResolveResponse(found=bool(found))


async def _registration(context: Context) -> Registration:
    """The first message of a stream."""
    try:
        async with asyncio.timeout(_REGISTER_S):
            first = await context.read()
    except TimeoutError:
        raise InvalidInputError(f"no registration came within {_REGISTER_S:g} s") from None
    if first is grpc.aio.EOF or first.WhichOneof("body") != "register":
        raise InvalidInputError("the first message of a consumer must be its registration")
    check_known(first, "heartbeat agent")
    asked = first.register
    if asked.mode not in _MODES:
        raise InvalidInputError(f"mode {asked.mode} is unknown", field="mode")
    return Registration(
        store=asked.store,
        key=asked.key,
        group=asked.group,
        name=asked.name,
        filters=tuple(asked.filters),
        capacity=asked.capacity,
        mode=_MODES[asked.mode],
        poison_policy=asked.poison_policy,
        changes_only=asked.changes_only,
        session=asked.session,
        routing_key=asked.routing_key,
    )


async def _read(context: Context, group: Group, consumer: ConsumerSession) -> None:
    """Takes what the consumer says until it says nothing more."""
    with contextlib.suppress(grpc.aio.UsageError, asyncio.InvalidStateError):
        while (request := await context.read()) is not grpc.aio.EOF:
            if consumer.ended:
                return
            requested(request, group, consumer)


def requested(request: pb.ConsumeRequest, group: Group, consumer: ConsumerSession) -> None:
    """Does what a registered consumer says."""
    match request.WhichOneof("body"):
        case "answers":
            _answered(request.answers, group, consumer)
        case "ping":
            group.seen(consumer)
            consumer.pong(request.ping.number)
        case "leave":
            group.leave(consumer)
        case _:
            consumer.end(_MisuseError("a consumer may answer, ping and leave, and register only once"))


def _answered(answers: pb.Answers, group: Group, consumer: ConsumerSession) -> None:
    offsets, attempts = list(answers.done_offsets), list(answers.done_attempts)
    if len(offsets) != len(attempts):
        consumer.end(_MisuseError(f"answers have {len(offsets)} done_offsets and {len(attempts)} done_attempts"))
        return
    rejected = []
    for one in answers.answers:
        if one.rejected:
            rejected.append((one.offset, one.attempt, one.reason))
        else:
            offsets.append(one.offset)
            attempts.append(one.attempt)
    group.answer(consumer, offsets, attempts, rejected)


class _MisuseError(StoppedError):
    reason = "misuse"
    status = grpc.StatusCode.INVALID_ARGUMENT


def _registered(consumer: ConsumerSession, resumed: bool, agent: str, evict_after_s: float) -> pb.ConsumeResponse:
    registered = pb.Registered(
        session=consumer.session, resumed=resumed, agent=agent, capacity=consumer.capacity, evict_after_s=evict_after_s
    )
    return pb.ConsumeResponse(registered=registered)


def responses(frame: Frame, group: Group) -> list[pb.ConsumeResponse]:
    """A frame as messages of the stream."""
    found = []
    if frame.deliveries:
        deliveries = pb.ConsumeResponse()
        add = deliveries.deliveries.deliveries.add
        for offset, attempt, change, _ in frame.deliveries:
            _fill(add(), offset, attempt, change)
        found.append(deliveries)
    if frame.pong is not None:
        pong = pb.Pong(number=frame.pong, staleness_s=group.source.staleness_s)
        found.append(pb.ConsumeResponse(pong=pong))
    return found


def _fill(delivery: pb.Delivery, offset: int, attempt: int, change: Change) -> None:
    """Field by field, which takes a quarter of the time that the constructor does."""
    delivery.offset, delivery.attempt = offset, attempt
    delivery.row_id, delivery.version, delivery.partition = change.row_id, change.version, change.partition
    if change.deleted:
        delivery.deleted = True
    elif change.value is not None:
        delivery.value = change.value
    if change.metadata:
        delivery.metadata.update(change.metadata)
    if change.committed_at_ms is not None:
        delivery.committed_at_ms = change.committed_at_ms
