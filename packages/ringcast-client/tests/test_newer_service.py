"""A service that is newer than the client answers with values that the client does not know."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from ringcast_client import ConfigServiceClient
from ringcast_wire import ProtocolError
from ringcast_wire.grpc import ConfigServiceServicer, add_ConfigServiceServicer_to_server, pb

NEWER: Any = 99
MIGRATING = pb.Migration(stage=NEWER)
RELEASE_ROWS = pb.ListReleaseRowsResponse(rows=[pb.ReleaseRow(outcome=NEWER)])


class Newer(ConfigServiceServicer):
    """Answers each call with what is set."""

    def __init__(self) -> None:
        self.reply: Any = None

    async def _answer(self, request: Any, context: Any) -> Any:
        return self.reply

    GetStore = ListRoles = GetSchema = ListSchemas = GetRelease = ListReleaseRows = ListRowReleases = _answer


@pytest.fixture
async def newer() -> AsyncIterator[tuple[Newer, ConfigServiceClient]]:
    service, server = Newer(), grpc.aio.server()
    add_ConfigServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with ConfigServiceClient(f"127.0.0.1:{port}") as client:
        yield service, client
    await server.stop(None)


async def rows(client: ConfigServiceClient) -> None:
    _ = [row async for row in client.release_rows("s", 1)]


@pytest.mark.parametrize(
    ("reply", "call", "what"),
    [
        (pb.KeySchema(kind=NEWER), lambda c: c.schema("s", "k"), "a kind of schema"),
        (pb.KeySchema(kind=pb.SCHEMA_KIND_REGEX, mode=NEWER), lambda c: c.schema("s", "k"), "a mode of a schema"),
        (
            pb.KeySchema(kind=pb.SCHEMA_KIND_REGEX, compatibility=NEWER),
            lambda c: c.schema("s", "k"),
            "a compatibility of schemas",
        ),
        (pb.ListSchemasResponse(schemas=[pb.KeySchema(kind=NEWER)]), lambda c: c.schemas("s"), "a kind of schema"),
        (pb.Store(name="s", mode=NEWER), lambda c: c.get_store("s"), "a mode of a store"),
        (pb.Store(name="s", mode=pb.MODE_FULL, strategy=NEWER), lambda c: c.get_store("s"), "a strategy of a store"),
        (
            pb.Store(name="s", mode=pb.MODE_FULL, strategy=pb.STRATEGY_JUMP, migration=MIGRATING),
            lambda c: c.get_store("s"),
            "a stage of a migration",
        ),
        (pb.ListRolesResponse(roles=[pb.RoleGrant(role=NEWER)]), lambda c: c.list_roles(), "a role"),
        (pb.Release(state=NEWER), lambda c: c.release("s", 1), "a state of a release"),
        (RELEASE_ROWS, rows, "an outcome of a row of a release"),
    ],
)
async def test_what_this_client_does_not_know_is_said_in_one_sentence(
    newer: tuple[Newer, ConfigServiceClient], reply: Any, call: Callable[[Any], Awaitable[Any]], what: str
) -> None:
    service, client = newer
    service.reply = reply
    with pytest.raises(ProtocolError) as caught:
        await call(client)
    assert str(caught.value) == (
        f"the config service answers with {what} that this client does not know (99): it is newer than the client, "
        "update the client"
    )
