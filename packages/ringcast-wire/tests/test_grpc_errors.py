from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from ringcast_wire import InvalidInputError, LimitExceededError, RingcastError, UnavailableError, UnknownStoreError
from ringcast_wire._proto import retry_info_pb2
from ringcast_wire.grpc import (
    STATUS,
    ConfigServiceServicer,
    ConfigServiceStub,
    add_ConfigServiceServicer_to_server,
    error_from_rpc,
    error_trailers,
    pb,
)


class Failing(ConfigServiceServicer):
    def __init__(self, error: RingcastError) -> None:
        self.error = error

    async def GetStore(self, request: pb.GetStoreRequest, context: grpc.aio.ServicerContext) -> pb.Store:  # type: ignore[type-arg]
        await context.abort(STATUS[self.error.code], str(self.error), error_trailers(self.error))


@pytest.fixture
async def server() -> AsyncIterator[grpc.aio.Server]:
    server = grpc.aio.server()
    yield server
    await server.stop(None)


@pytest.mark.parametrize(
    "error", [InvalidInputError("name 'é' is wrong", field="name"), UnknownStoreError("there is no store 'x'")]
)
async def test_an_error_arrives_as_the_exception_that_was_raised(server: grpc.aio.Server, error: RingcastError) -> None:
    add_ConfigServiceServicer_to_server(Failing(error), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ConfigServiceStub(channel).GetStore(pb.GetStoreRequest(name="x"))
    arrived = error_from_rpc(caught.value)
    assert (type(arrived), str(arrived), arrived.field) == (type(error), str(error), error.field)


async def test_a_service_that_is_down_is_unavailable(server: grpc.aio.Server) -> None:
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await server.stop(None)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ConfigServiceStub(channel).GetStore(pb.GetStoreRequest(name="x"))
    assert isinstance(error_from_rpc(caught.value), UnavailableError)


def test_a_connection_that_breaks_while_sending_is_unavailable() -> None:
    broken = grpc.aio.AioRpcError(
        grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), details='Failed "execute_batch": (<...>)'
    )
    assert isinstance(error_from_rpc(broken), UnavailableError)


def failed(status: grpc.StatusCode, message: str = "no", **trailers: str | bytes) -> grpc.aio.AioRpcError:
    metadata = grpc.aio.Metadata(*((name.replace("_", "-"), value) for name, value in trailers.items()))
    return grpc.aio.AioRpcError(status, grpc.aio.Metadata(), metadata, details=message)


DETAILS = retry_info_pb2.StatusDetails()
DETAILS.details.add(type_url="type.googleapis.com/google.rpc.Help", value=b"\xff")
DETAILS.details.add(
    type_url="type.googleapis.com/google.rpc.RetryInfo",
    value=retry_info_pb2.RetryInfo(retry_delay=Duration(seconds=7, nanos=500_000_000)).SerializeToString(),
)


@pytest.mark.parametrize(
    ("error", "after_s"),
    [
        (
            failed(grpc.StatusCode.RESOURCE_EXHAUSTED, ringcast_error="LIMIT_EXCEEDED", ringcast_retry_after_ms="2500"),
            2.5,
        ),
        (failed(grpc.StatusCode.RESOURCE_EXHAUSTED, grpc_status_details_bin=DETAILS.SerializeToString()), 7.5),
        (failed(grpc.StatusCode.UNAVAILABLE, grpc_status_details_bin=DETAILS.SerializeToString()), 7.5),
        (failed(grpc.StatusCode.UNAVAILABLE, grpc_status_details_bin=b"\xff"), None),
        (failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "over quota"), 0.0),
        (failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max (9 vs. 8)"), None),
        (failed(grpc.StatusCode.RESOURCE_EXHAUSTED, ringcast_error="LIMIT_EXCEEDED"), None),
        (failed(grpc.StatusCode.UNAVAILABLE), None),
    ],
)
def test_when_a_call_may_be_tried_again(error: grpc.aio.AioRpcError, after_s: float | None) -> None:
    assert error_from_rpc(error).retry_after_s == after_s


def test_an_error_says_when_to_try_again() -> None:
    error = LimitExceededError("too many", retry_after_s=1.5)
    trailers = {name.replace("-", "_"): value for name, value in error_trailers(error)}
    assert error_from_rpc(failed(STATUS[error.code], "too many", **trailers)).retry_after_s == 1.5
