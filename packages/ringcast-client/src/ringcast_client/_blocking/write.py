"""A bulk write for code that is not asynchronous: batches that the caller has encoded, over one stream."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import grpc
from ringcast_wire import UnavailableError
from ringcast_wire.grpc import ConfigServiceStub, pb

from ringcast_client._blocking.calls import DEFAULT_RETRIES, CallRetries, retried
from ringcast_client._blocking.connection import ServiceMethods
from ringcast_client._common.requested_waits import patience

WINDOW: Final = 16
"""Batches sent and not answered yet: as many as the config service reads ahead, two transactions of eight."""


class AnsweredBatch(NamedTuple):
    """A batch and its answer. ``sent_again``: over another stream, so that it may have been written before as well."""

    batch: pb.WriteBatch
    result: pb.WriteResult
    sent_again: bool = False


class BlockingBulkWrite:
    """One bulk write: batches go out over a stream, a bounded number of them unanswered.

    When the connection breaks, what was not answered is sent again over another: a batch may be written twice, which
    changes nothing since rows that are as they should be are left alone. Its answer then counts them as unchanged.
    """

    def __init__(
        self,
        stub: ConfigServiceStub,
        timeout_s: float,
        window: int = WINDOW,
        retries: CallRetries = DEFAULT_RETRIES,
    ) -> None:
        """``timeout_s``: how long the service may be away. ``window``: how many batches may be unanswered."""
        self._stub = stub
        self._window = window
        self._timeout_s = timeout_s
        self._retries = retries
        self._unanswered: deque[pb.WriteBatch] = deque()
        self._again = 0
        """How many of these, from the first on, were sent over more than one stream."""
        self._stream: _Stream | None = None

    def results(self, batches: Iterable[pb.WriteBatch]) -> Iterator[AnsweredBatch]:
        """Each batch with its answer, in order, once it is committed.

        Raises:
            RingcastError: a batch was refused, or the service could not be reached in time. Nothing after that
                batch is written.
        """
        try:
            for batch in batches:
                if len(self._unanswered) >= self._window:
                    yield self._receive()
                self._unanswered.append(batch)
                if self._stream is None:
                    self._stream = self._opened()
                else:
                    self._stream.send(batch)
            while self._unanswered:
                yield self._receive()
        finally:
            self._drop()

    def _receive(self) -> AnsweredBatch:
        result = self._retried_receive()
        batch = self._unanswered.popleft()
        if result.sequence != batch.sequence:
            raise UnavailableError(f"the config service answered batch {result.sequence}, not {batch.sequence}")
        again, self._again = self._again > 0, max(0, self._again - 1)
        return AnsweredBatch(batch, result, again)

    def _retried_receive(self) -> pb.WriteResult:
        def receive(left_s: float) -> pb.WriteResult:
            if self._stream is None:
                self._again = len(self._unanswered)
                self._stream = self._opened()
            try:
                return self._stream.receive(left_s)
            except _Silent:
                self._drop()
                if isinstance(self._stub, ServiceMethods):
                    self._stub.left()
                raise
            except BaseException:
                self._drop()
                raise

        return retried(receive, self._timeout_s, self._retries)

    def _opened(self) -> _Stream:
        return _Stream(self._stub, self._unanswered, patience(min(self._timeout_s, self._retries.silence_s)))

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

    def __init__(self, stub: ConfigServiceStub, first: Iterable[pb.WriteBatch], header: tuple[str, str]) -> None:
        self._requests: queue.SimpleQueue[pb.WriteBatch | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[pb.WriteResult | grpc.RpcError | None] = queue.SimpleQueue()
        for batch in first:
            self._requests.put(batch)
        self._call: Any = stub.Write(iter(self._requests.get, None), metadata=(header,))
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
