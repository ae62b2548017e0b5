"""Calls that neither the service nor the time-out ends, but what is between: a proxy, or a connection that breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from ringcast_client import ConfigServiceClient
from ringcast_client._calls.calls import _READS
from ringcast_wire import OutcomeUnknownError, RingcastError, UnavailableError
from ringcast_wire.grpc import ConfigServiceServicer, add_ConfigServiceServicer_to_server, pb

Breaking = tuple["Between", grpc.aio.Server, ConfigServiceClient]
WRITES = {
    *("GrantRole", "RevokeRole", "RevokeToken", "CreateStore", "UpdateStore", "MigrateStore", "SetStorePolicy"),
    *("DeleteStore", "RestoreStore", "DeleteKey", "RestoreKey", "NewHistory", "RegisterSchema", "SetSchemaMode"),
    *("Put", "Delete", "Commit", "Change", "Write", "StageRelease", "PublishRelease", "ApproveRelease"),
    *("RevokeApproval", "PauseRelease", "ResumeRelease", "StopRelease", "UndoRelease", "DropRelease", "PinRelease"),
    *("UnpinRelease", "ReplayDeadLetters", "DiscardDeadLetters"),
}
"""What changes something, and so is not made again."""
LONG = {"VerifyAudit"}
"""It reads the whole audit log: it is not begun again without being asked for."""
STATUSES = ["UNAVAILABLE", "INTERNAL", "UNKNOWN", "ABORTED"]


class Between(ConfigServiceServicer):
    """Takes a write, and ends the call as a proxy does whose service has not answered: with a bare status."""

    def __init__(self) -> None:
        self.status = grpc.StatusCode.INTERNAL
        self.taken = asyncio.Event()
        self.hangs = False

    async def _break(self, request: Any, context: Any) -> Any:
        self.taken.set()
        if self.hangs:
            await asyncio.Event().wait()
        await context.abort(self.status, "upstream reset")

    Put = Delete = Commit = _break

    async def Change(self, requests: Any, context: Any) -> Any:
        await context.send_initial_metadata(())
        async for _ in requests:
            await self._break(requests, context)
        yield pb.ChangeResults()


@pytest.fixture
async def breaking() -> AsyncIterator[Breaking]:
    between, server = Between(), grpc.aio.server()
    add_ConfigServiceServicer_to_server(between, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with ConfigServiceClient(f"127.0.0.1:{port}") as client:
        yield between, server, client
    await server.stop(None)


def test_each_method_of_the_service_reads_or_writes() -> None:
    methods = {method.name for method in pb.DESCRIPTOR.services_by_name["ConfigService"].methods}
    assert methods >= WRITES
    assert methods - WRITES - LONG == _READS


async def write(client: ConfigServiceClient, how: str) -> None:
    if how == "put":
        await client.put("s", "k", "row", "value")
    elif how == "delete":
        await client.delete("s", "k", "row")
    else:
        async with client.changes("s", "k") as writer:
            await writer.put("row", "value")


async def error_of(client: ConfigServiceClient, how: str) -> RingcastError:
    with pytest.raises(RingcastError) as caught:
        await write(client, how)
    return caught.value


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("how", ["put", "delete", "change"])
async def test_what_was_sent_and_breaks_without_a_word_of_the_service_may_be_stored(
    breaking: Breaking, status: str, how: str
) -> None:
    between, _, client = breaking
    between.status = grpc.StatusCode[status]
    error = await error_of(client, how)
    assert isinstance(error, OutcomeUnknownError)
    assert "upstream reset" in str(error)
    assert "is not known" in str(error)


async def test_a_change_that_a_proxy_has_no_room_for_may_be_stored(breaking: Breaking) -> None:
    breaking[0].status = grpc.StatusCode.RESOURCE_EXHAUSTED
    assert isinstance(await error_of(breaking[2], "change"), OutcomeUnknownError)


@pytest.mark.parametrize("how", ["put", "change"])
async def test_a_service_that_ends_in_the_middle_of_a_write_may_have_stored_it(breaking: Breaking, how: str) -> None:
    between, server, client = breaking
    between.hangs = True
    asked = asyncio.create_task(error_of(client, how))
    await between.taken.wait()
    await server.stop(None)
    assert isinstance(await asked, OutcomeUnknownError)


async def test_a_write_that_did_not_leave_is_not_stored(breaking: Breaking) -> None:
    _, server, client = breaking
    await server.stop(None)
    error = await error_of(client, "put")
    assert type(error) is UnavailableError


async def test_a_read_that_breaks_is_not_answered(breaking: Breaking) -> None:
    """Of what writes nothing there is no outcome to know."""
    with pytest.raises(RingcastError) as caught:
        await breaking[2].get_store("s")
    assert not isinstance(caught.value, OutcomeUnknownError)
