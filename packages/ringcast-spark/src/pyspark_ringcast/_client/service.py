"""The config service over gRPC for code that is not asynchronous; one channel a process."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

import grpc
from ringcast_wire import Backoff, InvalidInputError, RingcastError, UnavailableError, limits
from ringcast_wire.grpc import ConfigServiceStub, ServiceLogin, error_from_rpc, pb

from pyspark_ringcast._common.options import Service

T = TypeVar("T")

WINDOW: Final = 8
"""Batches sent and not answered yet."""
_MAX_TOLD_S: Final = 600.0
_SILENCE_S: Final = 30.0
"""How long a batch may go unanswered before the connection counts as broken."""

_channels: dict[Service, grpc.Channel] = {}
_lock = threading.Lock()


def shared_stub(service: Service | str) -> ConfigServiceStub:
    """The process's connection to a config service; it lives as long as the process.

    Certificates and tokens are files of the machine. What ``service`` does not name, an address alone none of them,
    comes from the environment: RINGCAST_SERVICE_TLS_CA_FILE and so on.

    Raises:
        InvalidInputError: they can't be read, or don't fit together.
    """
    service = Service(service) if isinstance(service, str) else service
    with _lock:
        if service not in _channels:
            options = (
                ("grpc.max_receive_message_length", 16 * limits.MIB),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 2_000),
            )
            _channels[service] = _channel(service, options)
        return ConfigServiceStub(_channels[service])


def _channel(service: Service, options: tuple[tuple[str, int], ...]) -> grpc.Channel:
    login = ServiceLogin.from_environment()
    given = {name: getattr(service, name) or getattr(login, name) for name in login.__struct_fields__}
    try:
        return ServiceLogin(**given).channel(service.address, options)
    except InvalidInputError as error:  # NATS has files of the same names
        raise InvalidInputError(f"the login at the config service: {error}", field=f"service_{error.field}") from None


def retried(call: Callable[[float], T], timeout_s: float) -> T:
    """``call(seconds_left)``, again with back-off while the service can't be reached or asks to try again later.

    How long it says to wait is added to ``timeout_s``, up to ten minutes in all, and is waited for in full.

    Raises:
        RingcastError: what the service refused with, or the last failure when the time is up.
    """
    deadline = time.monotonic() + timeout_s
    told_s = 0.0
    backoff = Backoff(random.random, first_s=0.1, most_s=2.0)
    while True:
        try:
            return call(max(0.05, min(deadline - time.monotonic(), _SILENCE_S)))
        except (grpc.RpcError, UnavailableError) as error:
            refusal = error if isinstance(error, UnavailableError) else _translated(error)
            asked_s = refusal.retry_after_s
            if asked_s is None and not isinstance(refusal, UnavailableError):
                raise refusal from None
            delay = backoff.next_s()
            if asked_s:
                told_s += asked_s
                if told_s > _MAX_TOLD_S:
                    raise refusal from None
                deadline += asked_s
                delay += asked_s
            if time.monotonic() + delay >= deadline:
                raise refusal from None
            time.sleep(delay)


def find_store(service: Service | str, store: str, timeout_s: float) -> pb.Store:
    """A store's settings and keys.

    Raises:
        UnknownStoreError: there is none of that name.
        UnavailableError: nobody answered in time.
    """
    stub, request = shared_stub(service), pb.GetStoreRequest(name=store)
    found: pb.Store = retried(lambda left_s: stub.GetStore(request, timeout=left_s), timeout_s)
    return found


def read_heads(service: Service | str, store: str, key: str, timeout_s: float) -> list[int]:
    """The revision of each partition; raises as :func:`find_store`, and ``UnknownKeyError``."""
    stub, request = shared_stub(service), pb.HeadsRequest(store=store, key=key)
    return list(retried(lambda left_s: stub.Heads(request, timeout=left_s), timeout_s).heads)


def list_row_ids(service: Service | str, store: str, key: str, partition: int, timeout_s: float) -> list[str]:
    """Ids of the live rows of a partition."""
    stub, request = shared_stub(service), pb.ListRequest(store=store, key=key, partition=partition)

    def read(left_s: float) -> list[str]:
        return [row.row_id for page in stub.List(request, timeout=left_s) for row in page.rows]

    return retried(read, timeout_s)


def _translated(error: Any) -> RingcastError:
    return error_from_rpc(error)


class BulkWrite:
    """One bulk write: batches go out over a stream, a bounded number of them unanswered.

    When the connection breaks, what was not answered is sent again over another: a batch may be written twice, which
    changes nothing since rows that are as they should be are left alone.
    """

    def __init__(self, stub: ConfigServiceStub, timeout_s: float, window: int = WINDOW) -> None:
        """``timeout_s``: how long the service may be away. ``window``: how many batches may be unanswered."""
        self._stub = stub
        self._window = window
        self._timeout_s = timeout_s
        self._unanswered: deque[pb.WriteBatch] = deque()
        self._stream: _Stream | None = None

    def results(self, batches: Iterable[pb.WriteBatch]) -> Iterator[tuple[pb.WriteBatch, pb.WriteResult]]:
        """Each batch with its answer, in order, once it is committed.

        Raises:
            RingcastError: what a batch was refused with, or that the service stayed away. Nothing after the batch that
                failed is written.
        """
        try:
            for batch in batches:
                if len(self._unanswered) >= self._window:
                    yield self._receive()
                self._unanswered.append(batch)
                if self._stream is None:
                    self._stream = _Stream(self._stub, self._unanswered)
                else:
                    self._stream.send(batch)
            while self._unanswered:
                yield self._receive()
        finally:
            self._drop()

    def _receive(self) -> tuple[pb.WriteBatch, pb.WriteResult]:
        result = self._retried_receive()
        batch = self._unanswered.popleft()
        if result.sequence != batch.sequence:
            raise UnavailableError(f"the config service answered batch {result.sequence}, not {batch.sequence}")
        return batch, result

    def _retried_receive(self) -> pb.WriteResult:
        def receive(left_s: float) -> pb.WriteResult:
            if self._stream is None:
                self._stream = _Stream(self._stub, self._unanswered)
            try:
                return self._stream.receive(left_s)
            except BaseException:
                self._drop()
                raise

        return retried(receive, self._timeout_s)

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
        self._stream = None


class _Silent(grpc.RpcError):
    """Nothing came in time, where a call of gRPC could only be given a time for the whole of it."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.DEADLINE_EXCEEDED

    def details(self) -> str:
        return "it was silent for too long"

    def trailing_metadata(self) -> tuple[()]:
        return ()


class _Stream:
    """One gRPC stream. A thread reads the answers, so that waiting for one can end."""

    def __init__(self, stub: ConfigServiceStub, first: Iterable[pb.WriteBatch]) -> None:
        self._requests: queue.SimpleQueue[pb.WriteBatch | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[pb.WriteResult | grpc.RpcError | None] = queue.SimpleQueue()
        for batch in first:
            self._requests.put(batch)
        self._call: Any = stub.Write(iter(self._requests.get, None))
        threading.Thread(target=self._read, name="ringcast-write", daemon=True).start()

    def send(self, batch: pb.WriteBatch) -> None:
        self._requests.put(batch)

    def receive(self, timeout_s: float) -> pb.WriteResult:
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise _Silent from None
        if isinstance(answer, grpc.RpcError):
            raise answer
        if answer is None:
            raise UnavailableError("the config service ended the stream before it had answered every batch")
        return answer

    def cancel(self) -> None:
        self._requests.put(None)
        self._call.cancel()

    def _read(self) -> None:
        try:
            for answer in self._call:
                if answer.last:  # what is not answered was not written, and is sent over another stream
                    break
                self._answers.put(answer)
            self._answers.put(None)
        except grpc.RpcError as error:
            self._answers.put(error)
