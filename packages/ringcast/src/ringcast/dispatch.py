"""A consumer of key-shared dispatch, for asyncio: registers with the agent of this host and stays registered."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import logging
import os
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Self

import grpc
import grpc.aio
from ringcast_wire import Backoff, EventLog, agent_token, client_channel_options, event_before
from ringcast_wire.dispatch import DispatchStub, pb

log = EventLog(logging.getLogger(__name__))

DEFAULT_ADDRESS: Final = "127.0.0.1:50001"
ADDRESS_VARIABLE: Final = "RINGCAST_AGENT_ADDRESS"
TOKEN_VARIABLE: Final = "DAPR_API_TOKEN"  # noqa: S105  # the name of the variable
_MODES: Final = {"reliable": pb.MODE_RELIABLE, "lossy": pb.MODE_LOSSY}
_ANSWERS: Final = 1_024
"""Answers in one message."""
_SAID: Final = 4 * _ANSWERS
"""After so many answers the agent is asked whether it has heard them."""
_REASON_CHARS: Final = 512
_RESOLVE_S: Final = 10.0
_MAX_MESSAGE: Final = 16 * 1024 * 1024
_FOR_GOOD: Final = frozenset(
    {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


class ConsumerError(Exception):
    """The agent refuses the consumer; ``str(error)`` says why, ``code`` is gRPC's."""

    def __init__(self, message: str, code: grpc.StatusCode) -> None:
        super().__init__(message)
        self.code = code


class Delivery:
    """A change of a row. Answer it once: :meth:`ack` or :meth:`reject`; until then nothing more of its row comes.

    An answer that comes too late (after the agent's ``--ack-timeout``, or after others have got the message) changes
    nothing: the change comes again, here or elsewhere. In mode ``lossy`` answers are not sent.
    """

    __slots__ = (
        "_consumer",
        "_session",
        "attempt",
        "committed_at_ms",
        "deleted",
        "metadata",
        "offset",
        "partition",
        "row_id",
        "value",
        "version",
    )

    def __init__(self, consumer: Consumer, sent: pb.Delivery) -> None:
        self._consumer: Consumer | None = consumer
        self._session = consumer._session  # they belong together
        self.offset = sent.offset
        self.attempt = sent.attempt
        self.row_id = sent.row_id
        self.value: str | None = sent.value if sent.HasField("value") else None
        self.version = sent.version
        self.partition = sent.partition
        self.deleted = sent.deleted
        self.metadata = dict(sent.metadata) if sent.metadata else {}
        self.committed_at_ms: int | None = sent.committed_at_ms if sent.HasField("committed_at_ms") else None

    def __repr__(self) -> str:
        return f"Delivery({self.row_id!r}, version={self.version}, attempt={self.attempt})"

    def ack(self) -> None:
        """It is done with. Calling it again changes nothing."""
        self._answer(rejected=False, reason="")

    def reject(self, reason: str = "") -> None:
        """It failed: it comes again after a pause; after ``--max-tries`` the poison policy decides."""
        self._answer(rejected=True, reason=reason)

    def _answer(self, *, rejected: bool, reason: str) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer._answer(self, rejected=rejected, reason=reason)  # they belong together


class Consumer:
    """A consumer of a group. ``async with`` registers it and lets it leave; iterate over it, or use :meth:`run`.

    ``filters`` are patterns over row ids (``*`` any characters, ``?`` one); none: every row. ``capacity`` bounds the
    deliveries that are unanswered, and so what waits here; 0: as the agent is set. ``name`` decides which rows it gets:
    keep it over restarts. ``changes_only`` leaves out the rows that are there already. ``routing_key`` says which rows
    stay in order behind one another and share a consumer: ``row`` (each by itself), ``prefix:<separator>`` of the row
    id or ``metadata:<field>``. All of a group say the same, and ``filters`` are over this key. Without an ``address``
    that of the variable ``RINGCAST_AGENT_ADDRESS``, or ``127.0.0.1:50001``; without a ``token`` that of
    ``DAPR_API_TOKEN``, or of the agent's file: ``RINGCAST_AGENT_TOKEN_FILE``, or where an agent of this host or user
    keeps it.

    It pings the agent by itself, so the event loop must not be blocked for seconds. After a lost connection it tries to
    connect for ever; what was delivered before and is not answered comes again.

    Not for use by several threads.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        store: str,
        key: str,
        group: str,
        name: str,
        filters: Sequence[str] = (),
        capacity: int = 0,
        mode: Literal["reliable", "lossy"] = "reliable",
        poison_policy: Literal["", "drop", "dead-letter", "block"] = "",
        changes_only: bool = False,
        routing_key: str = "row",
        token: str | None = None,
        leave_timeout_s: float = 10.0,
    ) -> None:
        self._address = address or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
        if token is None:
            token = os.environ.get(TOKEN_VARIABLE, "") or agent_token.find()
        self._registration = pb.Register(
            store=store,
            key=key,
            group=group,
            name=name,
            filters=filters,
            capacity=capacity,
            mode=_MODES[mode],
            poison_policy=poison_policy,
            changes_only=changes_only,
            routing_key=routing_key,
        )
        self._metadata = (("dapr-api-token", token),) if token else ()
        self._leave_timeout_s = leave_timeout_s
        self._lossy = mode == "lossy"
        self._waiting: deque[Delivery] = deque()
        self._open: dict[int, Delivery] = {}
        self._answers: dict[tuple[int, int], str | None] = {}
        """What is still to be said of offset and attempt: why it was rejected, or nothing: it is done with."""
        self._unconfirmed: dict[tuple[int, int], tuple[str | None, int]] = {}
        """What was said, in order, and the ping after it: a connection may break before the agent has heard of it."""
        self._to_say = asyncio.Event()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._registered = asyncio.Event()
        self._session = 0
        """Counts the sessions. What an earlier one delivered is not to be handed over any more."""
        self._capacity = 1
        self._ping_s = 0.75
        self._leaving = False
        self._left_unanswered = False
        self._error: ConsumerError | None = None
        self._task: asyncio.Task[None] | None = None
        self._call: Any = None
        self.agent = ""
        """The life of the agent that it is registered with: offsets start again in each."""
        self.staleness_s = 0.0
        """For how many seconds changes may have been missed, as the agent said last; 0: none."""

    async def __aenter__(self) -> Self:
        """Registers.

        Raises:
            ConsumerError: the agent refuses it. One that is not there is waited for.
        """
        self._task = asyncio.create_task(self._stay(), name=f"consumer-{self._registration.name}")
        registered = asyncio.create_task(self._registered.wait())
        try:
            await asyncio.wait({self._task, registered}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            await self._stop()
            raise
        finally:
            registered.cancel()
        if self._error is not None:
            await self._stop()
            raise self._error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves: answers on the way are sent first; what is not answered others get."""
        self._left_unanswered = bool(self._open)
        self._open.clear()
        self._waiting.clear()
        self._leaving = True
        self._to_say.set()
        self._room.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=self._leave_timeout_s)
        await self._stop()

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self._deliveries()

    async def run(self, handler: Callable[[Delivery], Awaitable[None] | None], *, parallel: int = 16) -> None:
        """Calls ``handler`` for each delivery, ``parallel`` at once, and answers for it, until cancelled.

        One that raises rejects its delivery, with the error as the reason. Rows stay in order. A delivery that waits
        for its turn is dropped if the agent has evicted the consumer meanwhile and registered it again.

        Raises:
            ConsumerError: the agent refuses the consumer.
        """
        turns = asyncio.Semaphore(parallel)

        async def handle(delivery: Delivery) -> None:
            try:
                # Another consumer may have had a newer version meanwhile. A reliable group delivers the row again.
                if delivery._session != self._session:
                    return
                result = handler(delivery)
                if inspect.isawaitable(result):
                    await result
            except Exception as error:  # noqa: BLE001  # whatever the application raises
                delivery.reject(repr(error))
            else:
                delivery.ack()
            finally:
                turns.release()

        refusal: ConsumerError | None = None
        async with asyncio.TaskGroup() as tasks:  # which would wrap the refusal in a group
            try:
                async for delivery in self:
                    await turns.acquire()
                    tasks.create_task(handle(delivery))
            except ConsumerError as error:
                refusal = error
        if refusal is not None:
            raise refusal

    async def resolve(self, row_id: str, *, discard: bool = False) -> bool:
        """Has a blocked message of the group tried again, or given up; says whether there was one.

        Raises:
            ConsumerError: the agent is not there, or refuses it.
        """
        asked = self._registration
        request = pb.ResolveRequest(store=asked.store, key=asked.key, group=asked.group, row_id=row_id, discard=discard)
        async with grpc.aio.insecure_channel(self._address) as channel:
            try:
                answer = await DispatchStub(channel).Resolve(request, metadata=self._metadata, timeout=_RESOLVE_S)
            except grpc.aio.AioRpcError as error:
                raise ConsumerError(error.details() or error.code().name, error.code()) from error
        found: bool = answer.found
        return found

    # ---- the connection

    def _answer(self, delivery: Delivery, *, rejected: bool, reason: str) -> None:
        if self._open.get(delivery.offset) is not delivery:
            return  # it is not to be answered (any more)
        del self._open[delivery.offset]
        self._answers[delivery.offset, delivery.attempt] = reason[:_REASON_CHARS] if rejected else None
        self._to_say.set()

    async def _deliveries(self) -> AsyncIterator[Delivery]:
        while True:
            while not self._waiting:
                if self._error is not None:
                    raise self._error
                if self._task is None or self._task.done():
                    return
                self._news.clear()
                await self._news.wait()
            delivery = self._waiting.popleft()
            self._room.set()
            yield delivery

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _stay(self) -> None:
        """Registers, and again after each lost connection, until it has left or is refused."""
        options = client_channel_options(_MAX_MESSAGE)
        backoff = Backoff(random.random, first_s=0.1, most_s=5.0)
        try:
            async with grpc.aio.insecure_channel(self._address, options=options) as channel:
                while True:
                    was_there = False
                    try:
                        self._call = call = DispatchStub(channel).Consume(metadata=self._metadata)
                        try:
                            was_there = await self._register(call)
                            await self._talk(call)
                        finally:
                            call.cancel()
                    except grpc.aio.AioRpcError as error:
                        self._lost(error)
                    except asyncio.CancelledError:
                        if not call.cancelled() or self._task is None or self._task.cancelling():
                            raise
                    except asyncio.InvalidStateError:  # grpc.aio's word for a write to a stream that has just ended
                        log.info("consumer.agent_lost", consumer=self._registration.name)
                    if self._leaving or self._error is not None:
                        return
                    if was_there:
                        backoff.reset()
                    await asyncio.sleep(backoff.next_s())
        finally:
            self._news.set()

    def _lost(self, error: grpc.aio.AioRpcError) -> None:
        if error.code() in _FOR_GOOD:
            self._error = ConsumerError(error.details() or error.code().name, error.code())
        else:
            log.info("consumer.agent_lost", consumer=self._registration.name, error=error.details())

    async def _register(self, call: Any) -> bool:
        await call.write(pb.ConsumeRequest(register=self._registration))
        first = await call.read()
        if first is grpc.aio.EOF:
            return False
        registered = first.registered
        if not registered.resumed:  # what was delivered before comes again, under other numbers
            self._session += 1
            self._open.clear()
            self._waiting.clear()
            self._answers.clear()
        else:
            self._answers = {at: answer for at, (answer, _) in self._unconfirmed.items()} | self._answers
        self._unconfirmed.clear()
        self._registration.session = registered.session
        self.agent = registered.agent
        self._capacity = registered.capacity
        self._ping_s = registered.evict_after_s / 4
        self._registered.set()
        return True

    async def _talk(self, call: Any) -> None:
        """Takes deliveries in, and says what is to be said, until the stream ends."""
        speaking = asyncio.create_task(self._speak(call))
        try:
            while not self._leaving or not self._left_unanswered:
                while len(self._waiting) >= self._capacity and not self._leaving:
                    self._room.clear()
                    await self._room.wait()
                response = await call.read()
                if response is grpc.aio.EOF:
                    return
                if response.HasField("pong"):
                    self.staleness_s = response.pong.staleness_s
                    self._confirm(response.pong.number)
                elif not self._leaving:
                    self._take(response.deliveries.deliveries)
            await speaking
        finally:
            speaking.cancel()
            with contextlib.suppress(asyncio.CancelledError, asyncio.InvalidStateError, grpc.aio.AioRpcError):
                await speaking

    def _take(self, deliveries: Sequence[pb.Delivery]) -> None:
        for sent in deliveries:
            if not self._lossy:
                known, at = self._open.get(sent.offset), (sent.offset, sent.attempt)
                is_open = known is not None and known.attempt == sent.attempt
                if is_open or at in self._answers or at in self._unconfirmed:
                    continue  # it came over the lost connection, too
            delivery = Delivery(self, sent)
            if not self._lossy:
                self._open[sent.offset] = delivery
            self._waiting.append(delivery)
        self._news.set()

    def _confirm(self, number: int) -> None:
        """The agent has answered this ping, so it has heard what was said before."""
        known = list(itertools.takewhile(lambda at: self._unconfirmed[at][1] <= number, self._unconfirmed))
        for at in known:
            del self._unconfirmed[at]

    async def _speak(self, call: Any) -> None:
        """Sends answers, pings, and in the end that it leaves."""
        loop = asyncio.get_running_loop()
        number, ping_at, said = 1, loop.time(), 0
        while True:
            if not self._answers:
                await event_before(self._to_say, ping_at)
            self._to_say.clear()
            batch = list(itertools.islice(self._answers.items(), _ANSWERS))
            if batch:
                await call.write(pb.ConsumeRequest(answers=_encode(batch)))
                for at, answer in batch:  # now, and not before: the next connection says what this one did not take
                    del self._answers[at]
                    self._unconfirmed[at] = answer, number
                said += len(batch)
            if self._leaving and not self._answers:
                await call.write(pb.ConsumeRequest(leave=pb.Leave()))
                if self._left_unanswered:
                    call.cancel()
                    return
            if loop.time() >= ping_at or said >= _SAID:
                await call.write(pb.ConsumeRequest(ping=pb.Ping(number=number)))
                number, ping_at, said = number + 1, loop.time() + self._ping_s, 0


def _encode(batch: Sequence[tuple[tuple[int, int], str | None]]) -> pb.Answers:
    done = [at for at, rejected in batch if rejected is None]
    return pb.Answers(
        done_offsets=[offset for offset, _ in done],
        done_attempts=[attempt for _, attempt in done],
        answers=[
            pb.Answer(offset=offset, attempt=attempt, rejected=True, reason=rejected)
            for (offset, attempt), rejected in batch
            if rejected is not None
        ],
    )


__all__ = ["ADDRESS_VARIABLE", "DEFAULT_ADDRESS", "TOKEN_VARIABLE", "Consumer", "ConsumerError", "Delivery"]
