"""A service that asks to be left alone for a while, as a stub of the real API and over a clock of the test's own."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from ringcast_client import ConfigServiceClient, RowWrite
from ringcast_client._blocking import calls as blocking_calls
from ringcast_client.blocking import BlockingBulkWrite
from ringcast_testkit import ManagedProcess
from ringcast_wire import LimitExceededError, OutcomeUnknownError, RingcastError, UnavailableError
from ringcast_wire._proto import retry_info_pb2
from ringcast_wire.grpc import ConfigServiceServicer, ConfigServiceStub, add_ConfigServiceServicer_to_server, pb

Trailers = tuple[tuple[str, str | bytes], ...]


def retry_info(seconds: int) -> Trailers:
    """As a proxy says it."""
    details = retry_info_pb2.StatusDetails()
    value = retry_info_pb2.RetryInfo(retry_delay=Duration(seconds=seconds)).SerializeToString()
    details.details.add(type_url="type.googleapis.com/google.rpc.RetryInfo", value=value)
    return (("grpc-status-details-bin", details.SerializeToString()),)


class FakeTime:
    """In place of the module: sleeps take no time and are noted."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


class BusyService(ConfigServiceServicer):
    """Refuses as often as it has refusals, and then takes everything."""

    def __init__(self, time: FakeTime) -> None:
        self.time = time
        self.refusals: list[tuple[grpc.StatusCode, Trailers]] = []
        self.calls_at: list[float] = []
        self.answers_after_s = 0.0
        self.taken: list[int] = []

    def _refuse(self, context: Any) -> None:
        self.calls_at.append(self.time.now_s)
        self.time.now_s += self.answers_after_s
        if self.refusals:
            status, trailers = self.refusals.pop(0)
            context.set_trailing_metadata(trailers)
            context.abort(status, "too much")

    def Put(self, request: pb.PutRequest, context: Any) -> pb.PutResponse:
        self._refuse(context)
        return pb.PutResponse(partition=1, version=7)

    def Write(self, requests: Iterator[pb.WriteBatch], context: Any) -> Iterator[pb.WriteResult]:
        self._refuse(context)
        for batch in requests:
            self.taken.append(batch.sequence)
            yield pb.WriteResult(sequence=batch.sequence, written=len(batch.row_ids))


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(blocking_calls, "time", fake)
    return fake


@pytest.fixture
def service(time: FakeTime) -> Iterator[BusyService]:
    """On ``address``."""
    server = grpc.server(ThreadPoolExecutor(4))
    busy = BusyService(time)
    add_ConfigServiceServicer_to_server(busy, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    busy.address = f"127.0.0.1:{port}"  # type: ignore[attr-defined]
    yield busy
    server.stop(None).wait()


def write(service: BusyService, timeout_s: float = 10.0) -> int:
    """Three batches; how many rows were written."""
    batches = (pb.WriteBatch(sequence=number, row_ids=["a"], values=["1"]) for number in range(3))
    with grpc.insecure_channel(service.address) as channel:  # type: ignore[attr-defined]
        return sum(
            one.result.written for one in BlockingBulkWrite(ConfigServiceStub(channel), timeout_s).results(batches)
        )


EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
OURS = (("ringcast-error", "LIMIT_EXCEEDED"), ("ringcast-retry-after-ms", "7000"))


@pytest.mark.parametrize(
    "refusal",
    [(EXHAUSTED, retry_info(7)), (EXHAUSTED, OURS), (grpc.StatusCode.UNAVAILABLE, retry_info(7))],
    ids=["a proxy's quota", "the service's limit", "a service that is busy"],
)
def test_no_call_before_the_time_that_the_service_says(
    service: BusyService, refusal: tuple[grpc.StatusCode, Trailers]
) -> None:
    """Though it is longer than the time for which a service that is away is waited for."""
    service.refusals += [refusal, refusal]
    assert write(service, timeout_s=5.0) == 3
    first, second, third = service.calls_at
    assert 7.0 <= second - first < 10.0
    assert 7.0 <= third - second < 10.0
    assert service.taken == [0, 1, 2]


def test_a_quota_that_says_no_time_is_tried_later_and_later(service: BusyService) -> None:
    service.refusals += [(EXHAUSTED, ())] * 4
    assert write(service) == 3
    assert len(service.time.slept) == 4
    assert service.time.slept[3] > 2 * service.time.slept[0]


def test_a_limit_that_waiting_does_not_cure_fails_at_once(service: BusyService) -> None:
    service.refusals.append((EXHAUSTED, OURS[:1]))
    with pytest.raises(LimitExceededError, match="too much"):
        write(service)
    assert service.time.slept == []


def test_who_is_asked_to_wait_for_ever_gives_up(service: BusyService) -> None:
    service.refusals += [(EXHAUSTED, retry_info(200))] * 9
    with pytest.raises(RingcastError, match="too much"):
        write(service, timeout_s=5.0)
    assert 400 <= service.time.now_s <= 600
    assert len(service.calls_at) <= 8


def rate(seconds: int) -> tuple[grpc.StatusCode, Trailers]:
    """As the service refuses what is beyond a rate."""
    told = (("ringcast-field", "max_rows_per_second"), ("ringcast-retry-after-ms", str(seconds * 1_000)))
    return EXHAUSTED, (*OURS[:1], *told)


def test_a_slow_rate_is_waited_for(service: BusyService) -> None:
    """Each try takes a while, as the service holds a batch back before it refuses it; that is no time of silence."""
    service.answers_after_s = 10.0
    service.refusals += [rate(60)] * 15
    assert write(service, timeout_s=30.0) == 3
    assert 15 * 70 <= service.time.now_s < 16 * 74
    service.refusals += [rate(10_000)] * 9
    with pytest.raises(LimitExceededError, match="too much"):
        write(service, timeout_s=30.0)
    assert len(service.refusals) == 0, "a day is too long"


class ServiceProcess:
    """A :class:`BusyService` in a process of its own: grpc's asyncio client may stop beside a server of its threads."""

    def __init__(self, refusals: list[tuple[str, int]]) -> None:
        words = [sys.executable, __file__, *(f"{error},{retry_after_ms}" for error, retry_after_ms in refusals)]
        self.process = ManagedProcess("busy-service", words)
        self.process.wait_until(lambda: any(line.startswith("port ") for line in self.process.log))
        self.address = "127.0.0.1:" + next(line for line in self.process.log if line.startswith("port ")).split()[1]

    def __enter__(self) -> ServiceProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()

    def taken(self) -> set[int]:
        """The batches that it has taken."""
        return {int(word) for word in self._words("taken")}

    def left_s(self) -> list[float]:
        """How long the clients of its two puts would wait."""
        self.process.wait_until(lambda: len(self._words("left")) == 2)
        return [float(word) for word in self._words("left")]

    def _words(self, name: str) -> list[str]:
        return [line.split()[1] for line in self.process.log if line.startswith(f"{name} ")]


SHORTLY = ("LIMIT_EXCEEDED", 20)
FOR_EVER = ("LIMIT_EXCEEDED", 900_000)
IN_VAIN = ("LIMIT_EXCEEDED", 0)


async def test_a_bulk_write_waits_as_long_as_it_is_told_and_goes_on() -> None:
    rows = [RowWrite(f"r{number}", "1") for number in range(3_000)]
    with ServiceProcess([SHORTLY, SHORTLY]) as service:
        async with ConfigServiceClient(service.address) as client:
            written = [result.written async for result in client.bulk_write("s", "k", rows)]
        assert written == [1_000, 1_000, 1_000]
        service.process.wait_until(lambda: service.taken() == {0, 1, 2})


@pytest.mark.parametrize("refusal", [FOR_EVER, IN_VAIN])
async def test_a_bulk_write_that_would_wait_for_too_long_or_in_vain_fails(refusal: tuple[str, int]) -> None:
    # As often as it is asked: where grpc has lost why a stream ended, the oldest batch goes alone to find out.
    with ServiceProcess([refusal] * 10) as service:
        async with ConfigServiceClient(service.address) as client:
            with pytest.raises(LimitExceededError, match="too much"):
                async for _ in client.bulk_write("s", "k", [RowWrite("a", "1")]):
                    pass
        assert service.taken() == set()


async def test_a_call_waits_as_long_as_it_is_told_within_its_time_out() -> None:
    with ServiceProcess([SHORTLY, SHORTLY]) as service:
        async with ConfigServiceClient(service.address) as client:
            assert (await client.put("s", "k", "a", "1")).version == 7
    with ServiceProcess([FOR_EVER]) as service:
        async with ConfigServiceClient(service.address) as client:
            with pytest.raises(LimitExceededError, match="too much"):
                await client.put("s", "k", "a", "1")
            assert (await client.put("s", "k", "a", "1")).version == 7


async def test_a_call_that_waits_as_it_is_told_keeps_to_its_time_out() -> None:
    """What is told to be unknown then must not be written for another time-out."""
    with ServiceProcess([("LIMIT_EXCEEDED", 1_500)]) as service:
        async with ConfigServiceClient(service.address, timeout_s=9.0) as client:
            assert (await client.put("s", "k", "a", "1")).version == 7
        first, second = service.left_s()
        assert second <= first - 1.0  # gRPC rounds what it tells


async def test_calls_go_elsewhere_after_one_that_was_not_answered() -> None:
    """Its connection stands for half a minute more, until it is missed."""
    with ServiceProcess([]) as one, ServiceProcess([]) as two:
        async with ConfigServiceClient([one.address, two.address], timeout_s=2.0) as client:
            await client.put("s", "k", "a", "1")
            there = client._calls._endpoints.current.address
            hung = one if there == one.address else two
            hung.process.stop()
            try:
                with pytest.raises(OutcomeUnknownError, match="did not answer within 2 s"):
                    await client.put("s", "k", "a", "1")
                for _ in range(3):
                    assert (await client.put("s", "k", "a", "1")).version == 7
            finally:
                hung.process.signal(signal.SIGCONT)


async def test_streams_go_elsewhere_after_what_was_not_answered() -> None:
    with ServiceProcess([]) as one, ServiceProcess([]) as two:
        async with ConfigServiceClient([one.address, two.address], timeout_s=5.0) as client:

            async def bulk(row_id: str) -> None:
                assert [result.written async for result in client.bulk_write("s", "k", [RowWrite(row_id, "1")])] == [1]

            async with client.changes("s", "k") as writer:
                for write in (lambda row_id: writer.put(row_id, "1"), bulk):
                    await write("a")
                    there = client._calls._endpoints.current.address
                    hung = one if there == one.address else two
                    hung.process.stop()
                    try:
                        with pytest.raises(UnavailableError, match="did not answer"):
                            await write("b")
                        await write("c")
                    finally:
                        hung.process.signal(signal.SIGCONT)


class PrintingService(BusyService):
    """Says what it takes. A stream is refused at its first batch, as the service does it."""

    def Write(self, requests: Iterator[pb.WriteBatch], context: Any) -> Iterator[pb.WriteResult]:
        for batch in requests:
            self._refuse(context)
            print("taken", batch.sequence, flush=True)
            yield pb.WriteResult(sequence=batch.sequence, written=len(batch.row_ids))

    def Put(self, request: pb.PutRequest, context: Any) -> pb.PutResponse:
        print("left", context.time_remaining(), flush=True)
        return super().Put(request, context)

    def Change(self, requests: Iterator[pb.Changes], context: Any) -> Iterator[pb.ChangeResults]:
        context.send_initial_metadata(())
        for changes in requests:
            yield pb.ChangeResults(results=[pb.ChangeResult(number=one.number, version=7) for one in changes.changes])


def serve(refusals: list[str]) -> None:
    """Until it is terminated; each of ``refusals`` is ``error,retry_after_ms``."""
    busy = PrintingService(FakeTime())
    for error, retry_after_ms in (text.split(",") for text in refusals):
        told = (("ringcast-retry-after-ms", retry_after_ms),) if int(retry_after_ms) else ()
        busy.refusals.append((EXHAUSTED, (("ringcast-error", error), *told)))
    server = grpc.server(ThreadPoolExecutor(4))
    add_ConfigServiceServicer_to_server(busy, server)
    print("port", server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    serve(sys.argv[1:])
