from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
from ringcast_wire import InvalidInputError, RingcastError, UnavailableError, UnknownStoreError
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
