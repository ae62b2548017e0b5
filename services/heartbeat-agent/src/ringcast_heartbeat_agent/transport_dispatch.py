"""Key-shared dispatch over gRPC: one stream a consumer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any, Final, NoReturn, TypeAlias

import grpc
import grpc.aio
from ringcast import InvalidInputError, RingcastError
from ringcast_wire.grpc import STATUS, error_trailers

from ringcast_heartbeat_agent._proto import dispatch_pb2 as pb
from ringcast_heartbeat_agent._proto.dispatch_pb2_grpc import DispatchServicer as Servicer
from ringcast_heartbeat_agent.dispatch import Dispatch, Registration
from ringcast_heartbeat_agent.errors import StoppedError
from ringcast_heartbeat_agent.groups import LOSSY, RELIABLE, Group
from ringcast_heartbeat_agent.members import Delivery, Frame, Member
from ringcast_heartbeat_agent.telemetry import Measures

log = logging.getLogger(__name__)

_REGISTER_S: Final = 10.0
"""How long a new stream may wait with its first message."""
_MODES: Final = {pb.MODE_RELIABLE: RELIABLE, pb.MODE_LOSSY: LOSSY}

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class DispatchServicer(Servicer):
    """Joins streams and groups."""

    def __init__(self, dispatch: Dispatch, measures: Measures) -> None:
        self._dispatch = dispatch
        self._measures = measures
        self._agent = secrets.token_hex(16)

    async def Consume(self, requests: AsyncIterator[pb.ConsumeRequest], context: Context) -> None:
        """One consumer; see the .proto file."""
        del requests  # read through the context
        since, outcome = time.monotonic(), "ok"
        try:
            asked = await _registration(context)
            group, member, resumed = await self._dispatch.join(asked)
        except RingcastError as error:
            outcome = str(error.code)
            await _abort(context, error)
        finally:
            self._measures.asked("grpc", "consume", outcome, time.monotonic() - since)
        reading = asyncio.create_task(_read(context, group, member))
        try:
            await context.write(_registered(member, resumed, self._agent, group.evict_after_s))
            async for frame in member.frames():
                for response in _responses(frame, group):
                    await context.write(response)
                group.sent(member, len(frame.deliveries))
        except StoppedError as error:
            await context.abort(error.status, str(error))
        finally:
            reading.cancel()
            if not member.ended:
                group.detach(member)

    async def Resolve(self, request: pb.ResolveRequest, _context: Context) -> pb.ResolveResponse:
        """Decides about a blocked message."""
        since = time.monotonic()
        group = self._dispatch.group(request.store, request.key, request.group)
        found = group.resolve({request.row_id}, discard=request.discard) if group is not None else []
        self._measures.asked("grpc", "resolve", "ok", time.monotonic() - since)
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
    )


async def _read(context: Context, group: Group, member: Member) -> None:
    """Takes what the consumer says until it says nothing more."""
    with contextlib.suppress(grpc.aio.UsageError, asyncio.InvalidStateError):
        while (request := await context.read()) is not grpc.aio.EOF:
            if member.ended:
                return
            match request.WhichOneof("body"):
                case "answers":
                    done, rejected = [], []
                    for one in request.answers.answers:
                        if one.rejected:
                            rejected.append((one.offset, one.attempt, one.reason))
                        else:
                            done.append((one.offset, one.attempt))
                    group.answer(member, done, rejected)
                case "ping":
                    group.seen(member)
                    member.pong(request.ping.number)
                case "leave":
                    group.leave(member)
                case _:
                    member.end(_MisuseError("a consumer may answer, ping and leave, and register only once"))
                    return


class _MisuseError(StoppedError):
    reason = "misuse"
    status = grpc.StatusCode.INVALID_ARGUMENT


def _registered(member: Member, resumed: bool, agent: str, evict_after_s: float) -> pb.ConsumeResponse:
    told = pb.Registered(
        session=member.session, resumed=resumed, agent=agent, capacity=member.capacity, evict_after_s=evict_after_s
    )
    return pb.ConsumeResponse(registered=told)


def _responses(frame: Frame, group: Group) -> list[pb.ConsumeResponse]:
    responses = []
    if frame.deliveries:
        deliveries = pb.Deliveries(deliveries=map(_delivery, frame.deliveries))
        responses.append(pb.ConsumeResponse(deliveries=deliveries))
    if frame.pong is not None:
        pong = pb.Pong(number=frame.pong, staleness_s=group.source.staleness_s)
        responses.append(pb.ConsumeResponse(pong=pong))
    return responses


def _delivery(delivery: Delivery) -> pb.Delivery:
    change = delivery.change
    return pb.Delivery(
        offset=delivery.offset,
        attempt=delivery.attempt,
        row_id=change.row_id,
        value=None if change.deleted else change.value,
        version=change.version,
        partition=change.partition,
        deleted=change.deleted,
        metadata=change.metadata,
        committed_at_ms=change.committed_at_ms,
    )


async def _abort(context: Context, error: RingcastError) -> NoReturn:
    await context.abort(STATUS[error.code], str(error), error_trailers(error))
