"""Long lists: the size of their messages, and clients that read slowly."""

from __future__ import annotations

import asyncio
import gc
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import asyncpg
import grpc
import pytest
from ringcast_config_service.grpc import lists
from ringcast_config_service.grpc.lists import parts
from ringcast_config_service.security import Security
from ringcast_testkit import PATIENCE_S
from ringcast_wire.grpc import ConfigServiceStub, ServiceLogin, pb

Running = Any  # of conftest.py
ROWS = 320
VALUE = "x" * 40_000  # all rows together are far more than what a client has room for that does not read


def test_messages_are_cut_by_what_they_are_when_encoded() -> None:
    small: list[Any] = [pb.Row(row_id=f"{number:08x}") for number in range(10_000)]
    with_metadata: list[Any] = [pb.Row(row_id="a", metadata={"m": "x" * 16_000}) for _ in range(500)]
    large: list[Any] = [pb.Row(row_id="a", value="é" * 520_000) for _ in range(3)]
    revisions: list[Any] = [pb.Revision(row=row, written_at_ms=2**50) for row in with_metadata]
    for messages, pack in (
        (small, lambda part: pb.ListResponse(rows=part)),
        (with_metadata, lambda part: pb.ListResponse(rows=part)),
        (large, lambda part: pb.ListResponse(rows=part)),
        (revisions, lambda part: pb.HistoryResponse(revisions=part)),
    ):
        cut = list(parts(messages))
        assert [message for part in cut for message in part] == messages
        assert max(pack(part).ByteSize() for part in cut) < 1.1 * 2**20
    assert len(list(parts(small))) == 1
    assert not list(parts([]))


async def test_rows_of_nothing_but_metadata_fit_any_client(service: Running, store_name: str) -> None:
    await service.create(store_name)
    for first in range(0, 600, 100):
        ids = range(first, first + 100)
        await service.write(store_name, [pb.RowWrite(row_id=f"r{n}", metadata={"m": "x" * 16_000}) for n in ids])
    where: dict[str, Any] = {"store": store_name, "key": "k"}
    assert await count(service.stub.List(pb.ListRequest(**where))) == 600
    assert await count(service.stub.History(pb.HistoryRequest(**where))) == 600


async def count(pages: Any) -> int:
    """Rows or revisions of a list."""
    return sum([len(page.rows if hasattr(page, "rows") else page.revisions) async for page in pages])


@asynccontextmanager
async def readers(service: Running, count: int) -> AsyncIterator[list[ConfigServiceStub]]:
    """Clients with a connection each."""
    async with AsyncExitStack() as stack:
        options = (("grpc.use_local_subchannel_pool", 1),)
        channels = [grpc.aio.insecure_channel(service.app.grpc_address, options) for _ in range(count)]
        yield [ConfigServiceStub(await stack.enter_async_context(channel)) for channel in channels]


async def fill(service: Running, store: str) -> None:
    await service.create(store, 8)
    for first in range(0, ROWS, 40):
        await service.write(store, [pb.RowWrite(row_id=f"r{n:03}", value=VALUE) for n in range(first, first + 40)])


async def test_slow_readers_hold_up_nobody_and_miss_nothing(
    start: Any, nats_url: str, database: str, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten that stop reading, where eight snapshots are all there are; what is there all the time they see once."""
    monkeypatch.setattr(lists, "_SLOW_S", 0.05)
    async with start(nats_url, database) as service, readers(service, 10) as stubs:
        await fill(service, store_name)
        where: dict[str, Any] = {"store": store_name, "key": "k"}
        calls = [stub.List(pb.ListRequest(**where)) for stub in stubs[:5]]
        calls += [stub.History(pb.HistoryRequest(**where)) for stub in stubs[5:]]
        begun = [await call.read() for call in calls]
        await service.put(store_name, "q", "new")  # what is held now is older
        async with asyncio.timeout(PATIENCE_S):
            assert await count(service.stub.List(pb.ListRequest(**where))) == ROWS + 1
        await until_nothing_is_held(database)
        await service.stub.Delete(pb.DeleteRequest(**where, row_id="r319"))
        await service.put(store_name, "r", "new")
        for call, first in zip(calls, begun, strict=True):
            assert_whole([first, *await rest(call)])


async def test_a_client_that_leaves_in_the_middle_of_a_list_is_no_error(
    start: Any, nats_url: str, database: str, store_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with start(nats_url, database) as service, readers(service, 4) as stubs:
        await fill(service, store_name)
        calls = [stub.List(pb.ListRequest(store=store_name, key="k")) for stub in stubs]
        for call in calls:
            await call.read()
            call.cancel()
        await until_nothing_is_held(database)
    gc.collect()
    assert not caplog.messages


async def rest(call: Any) -> list[Any]:
    """What a call has not given yet."""
    found = []
    while (page := await call.read()) is not grpc.aio.EOF:
        found.append(page)
    return found


def assert_whole(pages: list[Any]) -> None:
    """Every row that was there all the time is listed once, in order."""
    rows = [row for page in pages for row in getattr(page, "rows", ())]
    revisions = [revision.row for page in pages for revision in getattr(page, "revisions", ())]
    places = [(row.partition, row.row_id) for row in rows] or [(row.partition, row.version) for row in revisions]
    assert places == sorted(set(places))
    found = {row.row_id for row in rows or revisions}
    assert found >= {f"r{number:03}" for number in range(ROWS - 1)}


async def is_held(database: str) -> bool:
    """Whether a snapshot keeps PostgreSQL from tidying up, or SQLite from trimming its log."""
    if database.startswith("sqlite:"):
        with closing(sqlite3.connect(database.removeprefix("sqlite:"), timeout=0)) as file:
            try:
                return bool(file.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])
            except sqlite3.OperationalError:  # locked: the service is doing the same just now
                return True
    admin = await asyncpg.connect(database)
    sql = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%' AND datname = current_database()"
    found = await admin.fetchval(sql)
    await admin.close()
    return bool(found)


async def until_nothing_is_held(database: str) -> None:
    """Returns once no snapshot is open."""
    async with asyncio.timeout(PATIENCE_S):
        while await is_held(database):  # noqa: ASYNC110  # the databases don't say when one ends
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("withdrawn", ["token", "role"])
async def test_a_list_ends_when_its_token_or_role_is_withdrawn(
    withdrawn: str, start: Any, nats_url: str, tmp_path: Path, keys: Any, token: str, store_name: str
) -> None:
    """A client that reads slowly would go on for as long as its connection lives."""
    security = Security(tls_cert_file=keys.cert, tls_key_file=keys.key, token_file=keys.tokens)
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(
            start(nats_url, database, security=security, list_snapshot_s=0.000_001)
        )

        async def stub_of(secret: str) -> ConfigServiceStub:
            login = ServiceLogin(tls_ca_file=keys.ca, token_file=keys.write(f"of-{secret}", secret.encode()))
            channel = login.aio_channel(service.app.grpc_address, (("grpc.use_local_subchannel_pool", 1),))
            return ConfigServiceStub(await stack.enter_async_context(channel))

        reader, admin = await stub_of(token), await stub_of(f"{token}-2")
        await admin.CreateStore(pb.CreateStoreRequest(name=store_name, partition_count=8))
        for first in range(0, ROWS, 40):
            rows = [pb.RowWrite(row_id=f"r{n:03}", value=VALUE) for n in range(first, first + 40)]
            batch = pb.WriteBatch(store=store_name, key="k", rows=rows)
            assert [result.written async for result in admin.Write(iter([batch]))] == [40]
        of = {stub: (await stub.WhoAmI(pb.WhoAmIRequest())).principal for stub in (reader, admin)}
        await admin.GrantRole(pb.GrantRoleRequest(principal=of[admin], store="*", role=pb.ROLE_ADMIN))
        await admin.GrantRole(pb.GrantRoleRequest(principal=of[reader], store=store_name, role=pb.ROLE_READER))
        where: dict[str, Any] = {"store": store_name, "key": "k"}
        for call in (reader.List(pb.ListRequest(**where)), reader.History(pb.HistoryRequest(**where))):
            assert await call.read()
            if withdrawn == "token":
                (tmp_path / "next").write_text(f"{token}-2\n")
                (tmp_path / "next").replace(keys.tokens)
            else:
                request = pb.RevokeRoleRequest(principal=of[reader], store=store_name, role=pb.ROLE_READER)
                await admin.RevokeRole(request)
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(grpc.aio.AioRpcError):
                    await rest(call)
            expected = grpc.StatusCode.UNAUTHENTICATED if withdrawn == "token" else grpc.StatusCode.PERMISSION_DENIED
            assert await call.code() is expected
            (tmp_path / "next").write_text(f"{token}\n{token}-2\n")
            (tmp_path / "next").replace(keys.tokens)
            await admin.GrantRole(pb.GrantRoleRequest(principal=of[reader], store=store_name, role=pb.ROLE_READER))


async def test_a_snapshot_is_not_kept_for_longer_than_its_time(
    start: Any, nats_url: str, database: str, store_name: str
) -> None:
    """One page a snapshot: the list goes on behind it in the next."""
    async with start(nats_url, database, list_snapshot_s=0.000_001) as service:
        await fill(service, store_name)
        where: dict[str, Any] = {"store": store_name, "key": "k"}
        assert_whole([page async for page in service.stub.List(pb.ListRequest(**where))])
        assert_whole([page async for page in service.stub.History(pb.HistoryRequest(**where))])
        limited = [page async for page in service.stub.List(pb.ListRequest(**where, limit=100))]
        assert sum(len(page.rows) for page in limited) == 100
