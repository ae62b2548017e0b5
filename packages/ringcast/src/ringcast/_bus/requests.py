"""Requests to the config service over NATS, with answers in chunks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ringcast_wire import ChunkAssembler, RingcastError, UnavailableError, limits, names, take_answer

from ringcast._bus.budget import FetchBudget
from ringcast._bus.bus import TRANSIENT, Bus, Message, translated


class UnfinishedFetchError(UnavailableError):
    """A request got no answer in time, or only a part of it: the answer may be too large for that time."""


class _Pending:
    """A request whose answer is on its way."""

    __slots__ = ("assembler", "done", "patience")

    def __init__(self, max_bytes: int) -> None:
        self.assembler = ChunkAssembler(max_bytes)
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.patience: asyncio.Timeout | None = None


class FetchClient:
    """Sends fetches; one wildcard subscription takes all answers. Any number may be under way."""

    def __init__(self, bus: Bus, timeout_s: float) -> None:
        self._bus = bus
        self._timeout_s = timeout_s
        self._more = {names.HEADER_PATIENCE: str(int(timeout_s * 1000))}
        self._inbox = ""
        self._budget = FetchBudget.of_process()
        self._cancels: set[asyncio.Future[None]] = set()
        self._numbers = itertools.count()
        self._pending: dict[str, _Pending] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, bus: Bus, timeout_s: float) -> AsyncIterator[FetchClient]:
        """Subscribes to the answers, and unsubscribes in the end."""
        client = cls(bus, timeout_s)
        client._inbox = bus.new_inbox()
        bus.on_lost(client._fail_all)
        async with bus.subscribed(f"{client._inbox}.*", client._on_message):
            try:
                yield client
            finally:
                client._fail_all()

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        headers: dict[str, str] | None = None,
        *,
        max_bytes: int = limits.MAX_REPLY_BYTES,
    ) -> bytes:
        """Sends a request and returns the whole answer; cancelling leaves nothing behind.

        Raises:
            LimitExceededError: the answer has over ``max_bytes``, of which no more is kept.
            UnfinishedFetchError: nothing came for a while, or the connection was lost half-way.
            UnavailableError: no service answers, or the connection was lost before.
            RingcastError: what the service refused with, or a damaged answer.
        """
        if subject.endswith(f".{names.FETCH_FULL}"):
            max_bytes = min(max_bytes, limits.MAX_FULL_BYTES)
        async with self._budget.reserved(subject):
            body = await self._request(subject, payload, headers, max_bytes)
        self._budget.record_size(subject, len(body))
        return body

    async def _request(self, subject: str, payload: bytes, headers: dict[str, str] | None, max_bytes: int) -> bytes:
        if not self._bus.is_connected:
            raise UnavailableError(f"fetch {subject}: there is no connection to NATS")
        token = str(next(self._numbers))
        pending = self._pending[token] = _Pending(max_bytes)
        try:
            async with (
                self._bus.refusals.fail_fast(subject),
                asyncio.timeout(self._timeout_s) as pending.patience,
            ):
                with translated(f"fetch {subject}"):
                    reply = f"{self._inbox}.{token}"
                    more = (headers or {}) | self._more | {names.HEADER_FETCH_ID: reply}
                    await self._bus.publish(subject, payload, reply=reply, headers=more)
                return await pending.done
        except TimeoutError as error:
            missing = pending.assembler.missing
            came = "no answer" if missing is None else f"{missing} chunks of the answer are missing"
            raise UnfinishedFetchError(f"fetch {subject}: {came} after {self._timeout_s:g} s of silence") from error
        finally:
            del self._pending[token]
            if not pending.done.done() or pending.done.cancelled():
                self._give_up(subject, f"{self._inbox}.{token}")

    def _give_up(self, subject: str, fetch_id: str) -> None:
        """Cancels a request at the services, so that they send no answer."""
        if not self._bus.is_connected:
            return
        cancel = f"{subject.rpartition('.')[0]}.{names.FETCH_CANCEL}"
        task = asyncio.ensure_future(self._bus.publish(cancel, fetch_id.encode()))
        self._cancels.add(task)
        task.add_done_callback(self._cancelled)

    def _cancelled(self, task: asyncio.Future[None]) -> None:
        self._cancels.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, TRANSIENT):
            raise error

    async def _on_message(self, msg: Message) -> None:
        pending = self._pending.get(msg.subject.rpartition(".")[2])
        if pending is None or pending.done.done():
            return
        try:
            body = take_answer(pending.assembler, msg.headers, msg.data)
        except RingcastError as error:
            pending.done.set_exception(error)
            return
        if body is not None:
            pending.done.set_result(body)
        elif pending.patience is not None and not pending.patience.expired():
            pending.patience.reschedule(asyncio.get_running_loop().time() + self._timeout_s)

    def _fail_all(self) -> None:
        for pending in self._pending.values():
            if not pending.done.done():
                begun = pending.assembler.missing is not None
                lost = UnfinishedFetchError if begun else UnavailableError
                pending.done.set_exception(lost("the connection to NATS was lost"))
