"""Reads over NATS for code that is not asynchronous: Spark's Python workers, and the driver.

One connection a process, on an event loop in a thread of its own: a worker process runs many tasks, one after another,
and connects once.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from ringcast_wire import (
    WIRE_VERSION,
    Backoff,
    BatchRequest,
    ChunkAssembler,
    HeadsReply,
    HeadsRequest,
    NatsLogin,
    PartitionRequest,
    ProtocolError,
    RingcastError,
    UnavailableError,
    decode_heads_reply,
    encode,
    error_from_code,
    names,
    without_passwords,
)

from pyspark_ringcast._common.columns import Reply, read_reply
from pyspark_ringcast._common.options import Options

T = TypeVar("T")

IN_FLIGHT: Final = 4
"""Requests under way at once: a reply of the usual size is some MiB, the largest 64 MiB."""
_SILENCE_S: Final = 10.0
"""How long one try may be silent before the next."""


class Request(NamedTuple):
    """What to ask: a subject and a payload, made by the functions below."""

    subject: str
    payload: bytes


def partition_request(
    store: str, key: str, partition: int, since: int | None = None, history: str = "", as_of: int | None = None
) -> Request:
    """A whole partition, or what was written to it after a revision of a history (tombstones included).

    As it is, or as it was at the revision ``as_of``.
    """
    whole_as_it_is = since is None and as_of is None
    payload = b"" if whole_as_it_is else encode(PartitionRequest(WIRE_VERSION, since, history, as_of))
    return Request(names.fetch_subject(store, key, partition), payload)


def batch_request(store: str, key: str, row_ids: Iterable[str]) -> Request:
    """Up to 1,000 rows by their ids, tombstones included."""
    payload = encode(BatchRequest(WIRE_VERSION, list(row_ids)))
    return Request(names.fetch_subject(store, key, names.FETCH_BATCH), payload)


class FetchClient:
    """A connection that any thread may ask. Each request is tried again, with back-off, until its time is up."""

    def __init__(self, servers: tuple[str, ...], login: NatsLogin) -> None:
        """Connects at the first request."""
        self._servers = servers
        self._login = login
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ringcast-nats", daemon=True)
        self._thread.start()
        self._nats: _Connection | None = None
        self._connecting = asyncio.Lock()

    def heads(self, store: str, key: str, timeout_s: float, at_ms: int | None = None) -> HeadsReply:
        """The revision of each partition of a key, as many as the store has partitions, and their history.

        As they are, or as they were at a moment (Unix time).

        Raises:
            UnknownStoreError, UnknownKeyError: nothing of that name is there.
            InvalidInputError: the moment is still to come.
            RevisionGoneError: what there was at the moment is not known any more.
            UnavailableError: nobody answered in time.
        """
        payload = b"" if at_ms is None else encode(HeadsRequest(WIRE_VERSION, at_ms))
        request = Request(names.fetch_subject(store, key, names.FETCH_HEADS), payload)
        return self._wait(self._ask(request, timeout_s, decode_heads_reply))

    def fetch(self, request: Request, timeout_s: float) -> Reply:
        """The answer to a partition or batch request; raises as :meth:`heads`."""
        return self._wait(self._ask(request, timeout_s, read_reply))

    def fetch_bodies(self, requests: Iterable[Request], timeout_s: float) -> Iterator[bytes]:
        """The encoded answers to requests, in their order, a few of them under way at once.

        Closing the iterator gives up what is under way.
        """
        waiting: deque[Future[bytes]] = deque()
        try:
            for request in requests:
                waiting.append(self._start(self._ask(request, timeout_s, bytes)))
                if len(waiting) >= IN_FLIGHT:
                    yield _result(waiting.popleft())
            while waiting:
                yield _result(waiting.popleft())
        finally:
            for future in waiting:
                future.cancel()

    @property
    def usable(self) -> bool:
        """Whether its thread runs: not after :meth:`close`, nor in a process that was forked."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Ends the connection and the thread. Calling it again is harmless."""
        if self._thread.is_alive():
            with suppress(RingcastError):
                self._wait(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return _result(self._start(work))

    async def _ask(self, request: Request, timeout_s: float, read: Callable[[bytes], T]) -> T:
        """Tries until the time is up; an error that another try would not mend is raised at once."""
        deadline = time.monotonic() + timeout_s
        backoff = Backoff(random.random, first_s=0.1, most_s=2.0)
        while True:
            try:
                connection = await self._connection(deadline)
                left = deadline - time.monotonic()
                return read(await connection.request(request, max(0.05, min(left, _SILENCE_S))))
            except (UnavailableError, ProtocolError):
                delay = backoff.next_s()
                if time.monotonic() + delay >= deadline:
                    raise
                await asyncio.sleep(delay)

    async def _connection(self, deadline: float) -> _Connection:
        async with self._connecting:
            if self._nats is None or self._nats.closed:
                self._nats = await _Connection.open(self._servers, self._login, deadline - time.monotonic())
            return self._nats

    async def _close(self) -> None:
        async with self._connecting:
            if self._nats is not None:
                await self._nats.close()
            self._nats = None


def _result(future: Future[T]) -> T:
    try:
        return future.result()
    except FutureCancelledError:
        raise UnavailableError("the request was given up") from None


class _Pending:
    """A request whose answer is on its way; ``came`` is set with each part of it."""

    def __init__(self) -> None:
        self.assembler = ChunkAssembler()
        self.came = asyncio.Event()
        self.body: bytes | None = None
        self.error: RingcastError | None = None


class _Connection:
    """An open NATS connection with one subscription for all answers."""

    def __init__(self) -> None:
        self._client = Client()
        self._inbox = ""
        self._numbers = itertools.count()
        self._pending: dict[str, _Pending] = {}
        self._last_error: Exception | None = None

    @classmethod
    async def open(cls, servers: tuple[str, ...], login: NatsLogin, timeout_s: float) -> _Connection:
        """Connects.

        Raises:
            UnavailableError: no server answers, or none lets us in.
        """
        connection = cls()
        client = connection._client
        shown = without_passwords(servers)
        try:
            async with asyncio.timeout(timeout_s):
                await client.connect(
                    servers=list(servers),
                    name="ringcast-spark",
                    inbox_prefix=names.TOOLS_INBOX_PREFIX.encode(),
                    connect_timeout=max(1, int(timeout_s)),
                    allow_reconnect=False,  # whoever asks again opens another
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    error_cb=connection._keep,
                    disconnected_cb=connection._fail_all,
                    **login.connect_options(servers),
                )
                connection._inbox = client.new_inbox()
                await client.subscribe(f"{connection._inbox}.*", cb=connection._on_message, pending_bytes_limit=0)
        except (OSError, TimeoutError, ValueError, nats.errors.Error) as error:
            await connection.close()
            why = str(connection._last_error or error) or "no answer in time"
            raise UnavailableError(f"NATS at {shown} can't be reached: {why}") from None
        return connection

    @property
    def closed(self) -> bool:
        return not self._client.is_connected

    async def request(self, request: Request, silence_s: float) -> bytes:
        """The whole answer.

        Raises:
            UnavailableError: nobody answers, the answer stopped half-way, or the connection was lost.
            RingcastError: what the service refused with, or a damaged answer.
        """
        token = str(next(self._numbers))
        pending = self._pending[token] = _Pending()
        what = f"fetch {request.subject}"
        try:
            await self._client.publish(request.subject, request.payload, reply=f"{self._inbox}.{token}")
            while pending.body is None:
                pending.came.clear()
                async with asyncio.timeout(silence_s):
                    await pending.came.wait()
                if pending.error is not None:
                    raise pending.error
        except (TimeoutError, OSError, nats.errors.Error) as error:
            why = str(error) or f"no answer within {silence_s:.1f} s"
            raise UnavailableError(f"{what}: {why}") from None
        finally:
            del self._pending[token]
        return pending.body

    async def close(self) -> None:
        with suppress(OSError, nats.errors.Error, asyncio.TimeoutError):
            await self._client.close()

    async def _keep(self, error: Exception) -> None:
        self._last_error = error

    async def _fail_all(self) -> None:
        for pending in self._pending.values():
            pending.error = UnavailableError("the connection to NATS was lost")
            pending.came.set()

    async def _on_message(self, msg: Msg) -> None:
        pending = self._pending.get(msg.subject.rpartition(".")[2])
        if pending is None:
            return
        headers = msg.headers or {}
        try:
            if headers.get("Status") == "503":
                raise UnavailableError("no config service answers: none is running on this NATS")
            if (code := headers.get(names.HEADER_ERROR)) is not None:
                raise error_from_code(code, msg.data.decode(errors="replace"))
            pending.body = pending.assembler.add(headers.get(names.HEADER_CHUNK), msg.data)
        except RingcastError as error:
            pending.error = error
        pending.came.set()


_shared: dict[tuple[tuple[str, ...], NatsLogin], FetchClient] = {}
_lock = threading.Lock()


def shared_client(options: Options) -> FetchClient:
    """The process's client for these servers and this login; it lives as long as the process."""
    with _lock:
        place = options.servers, options.login
        if place not in _shared or not _shared[place].usable:
            _shared[place] = FetchClient(*place)
        return _shared[place]
