"""The gRPC API of a running instance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from ringcast_config_service.grpc.transport import _KINDS, _Servicer
from ringcast_config_service.repository import mapping
from ringcast_core import HASH_NAME, row_partition
from ringcast_testkit.refusals import refused
from ringcast_wire import ErrorCode, StoreSettings, limits, names
from ringcast_wire.grpc import SERVICE_NAME, ConfigServiceServicer, pb

Running = Any  # of conftest.py


def rows(count: int, value: str = "v") -> list[pb.RowWrite]:
    return [pb.RowWrite(row_id=f"r{number}", value=value) for number in range(count)]


# --- Stores -----------------------------------------------------------------------------------------------------------


async def test_stores(service: Running, store_name: str) -> None:
    made = await service.create(store_name, 16)
    assert (made.partition_count, made.mode, made.strategy, made.hash, made.inline_max_bytes) == (
        16,
        pb.MODE_PARTITIONED,
        pb.STRATEGY_JUMP,
        HASH_NAME,
        256,
    )
    assert await service.create(store_name, 16) == made
    await service.put(store_name, "é", "v")
    found = await service.stub.GetStore(pb.GetStoreRequest(name=store_name))
    assert [(key.name, key.rows, key.bytes) for key in found.keys] == [("k", 1, 3)]
    other = await service.create(f"{store_name}b", 1, mode=pb.MODE_FULL, strategy=pb.STRATEGY_RING, inline_max_bytes=0)
    assert (other.mode, other.strategy, other.inline_max_bytes) == (pb.MODE_FULL, pb.STRATEGY_RING, 0)
    listed = await service.stub.ListStores(pb.ListStoresRequest())
    assert [store.name for store in listed.stores] == [store_name, f"{store_name}b"]


async def test_stores_of_exclusive_ownership(service: Running, store_name: str) -> None:
    """With their own times, or the defaults, in every answer and for the workers."""
    made = await service.create(store_name, 4096, strategy=pb.STRATEGY_STICKY)
    assert (made.strategy, made.lease_ttl_ms, made.call_bound_ms) == (pb.STRATEGY_STICKY, 10_000, 1_000)
    own = {"strategy": pb.STRATEGY_STICKY, "lease_ttl_ms": 4_400, "call_bound_ms": 2_200}
    other = await service.create(f"{store_name}b", 16, **own)
    assert (other.lease_ttl_ms, other.call_bound_ms) == (4_400, 2_200)
    assert await service.create(f"{store_name}b", 16, **own) == other
    assert await service.stub.GetStore(pb.GetStoreRequest(name=other.name)) == other
    none = await service.create(f"{store_name}c", 16)
    assert not none.HasField("lease_ttl_ms")
    assert not none.HasField("call_bound_ms")
    listed = (await service.stub.ListStores(pb.ListStoresRequest())).stores
    assert [store.lease_ttl_ms for store in listed] == [10_000, 4_400, 0]
    refused_ = service.stub.CreateStore(
        pb.CreateStoreRequest(name=other.name, partition_count=16, strategy=pb.STRATEGY_STICKY)
    )
    code, field, said = await refused(refused_)
    assert (code, field) == (ErrorCode.ALREADY_EXISTS, "lease_ttl_ms")
    assert "exists with lease_ttl_ms 4400: it can't be created with lease_ttl_ms 10000" in said
    for store, ttl_ms in ((made.name, 10_000), (other.name, 4_400)):
        meta = await service.nc.jetstream().key_value(names.meta_bucket(store))
        entries = {name: (await meta.get(name)).value or b"" for name in StoreSettings.__struct_fields__}
        assert StoreSettings.from_kv(entries).lease_ttl_ms == ttl_ms


def _sticky(**settings: Any) -> pb.CreateStoreRequest:
    return pb.CreateStoreRequest(name="a", partition_count=1, strategy=pb.STRATEGY_STICKY, **settings)


@pytest.mark.parametrize(
    ("request_", "field", "sentence"),
    [
        (pb.CreateStoreRequest(name="a.b", partition_count=1), "name", "name 'a.b' is not a valid name: 1 to 64 char"),
        (pb.CreateStoreRequest(name="x" * 65, partition_count=1), "name", "is not a valid name"),
        (pb.CreateStoreRequest(name="", partition_count=1), "name", "name '' is not a valid name"),
        (pb.CreateStoreRequest(name="a", partition_count=0), "partition_count", "partition_count 0 is out of range"),
        (pb.CreateStoreRequest(name="a", partition_count=4097), "partition_count", "1 to 4096 partitions are allowed"),
        (pb.CreateStoreRequest(name="a", partition_count=1, mode=7), "mode", "mode 7 is unknown"),  # type: ignore[arg-type]
        (pb.CreateStoreRequest(name="a", partition_count=1, strategy=7), "strategy", "strategy 7 is"),  # type: ignore[arg-type]
        (_sticky(mode=pb.MODE_FULL), "mode", "the strategy sticky does not go with the mode FULL: only PARTITIONED"),
        (_sticky(lease_ttl_ms=99), "lease_ttl_ms", "lease_ttl_ms 99 is out of range: 100 to 3600000 ms are allowed"),
        (_sticky(lease_ttl_ms=3_600_001), "lease_ttl_ms", "lease_ttl_ms 3600001 is out of range"),
        (
            _sticky(lease_ttl_ms=2_000, call_bound_ms=1_001),
            "call_bound_ms",
            "call_bound_ms 1001 is out of range: 50 to 1000 ms are allowed with a lease_ttl_ms of 2000",
        ),
        (_sticky(call_bound_ms=249), "call_bound_ms", "250 to 5000 ms are allowed with a lease_ttl_ms of 10000"),
        (_sticky(lease_ttl_ms=1_000), "call_bound_ms", "call_bound_ms 1000 is out of range: 25 to 500 ms are allowed"),
        (
            pb.CreateStoreRequest(name="a", partition_count=1, lease_ttl_ms=10_000),
            "lease_ttl_ms",
            "lease_ttl_ms 10000 does not go with the strategy jump: only sticky has it",
        ),
        (
            pb.CreateStoreRequest(name="a", partition_count=1, strategy=pb.STRATEGY_RING, call_bound_ms=1),
            "call_bound_ms",
            "call_bound_ms 1 does not go with the strategy ring: only sticky has it",
        ),
        (pb.CreateStoreRequest(name="a", partition_count=1, inline_max_bytes=4097), "inline_max_bytes", "at most 4096"),
    ],
)
async def test_stores_that_are_refused(service: Running, request_: Any, field: str, sentence: str) -> None:
    code, found, said = await refused(service.stub.CreateStore(request_))
    assert (code, found) == (ErrorCode.INVALID_INPUT, field)
    assert sentence in said
    assert not (await service.stub.ListStores(pb.ListStoresRequest())).stores


async def test_a_store_with_other_settings(service: Running, store_name: str) -> None:
    await service.create(store_name, 8)
    request = pb.CreateStoreRequest(name=store_name, partition_count=9)
    code, field, said = await refused(service.stub.CreateStore(request))
    assert (code, field) == (ErrorCode.ALREADY_EXISTS, "partition_count")
    assert "8" in said
    assert "9" in said


# --- Single writes ----------------------------------------------------------------------------------------------------


async def test_put_get_delete(service: Running, store_name: str) -> None:
    await service.create(store_name)
    stub = service.stub
    key: dict[str, Any] = {"store": store_name, "key": "k"}
    put = await stub.Put(pb.PutRequest(**key, row_id="a", value="1", metadata={"by": "me"}))
    assert (put.partition, put.version) == (row_partition("a", 8), 1)
    await service.put(store_name, "b", "2")
    got = await stub.Get(pb.GetRequest(**key, row_ids=["b", "none", "a", "b"]))
    assert [(row.row_id, row.value, dict(row.metadata)) for row in got.rows] == [
        ("b", "2", {}),
        ("a", "1", {"by": "me"}),
        ("b", "2", {}),
    ]
    gone = await stub.Delete(pb.DeleteRequest(**key, row_id="a"))
    assert (gone.existed, gone.partition, gone.version) == (True, put.partition, 2)
    again = await stub.Delete(pb.DeleteRequest(**key, row_id="a"))
    assert (again.existed, again.partition, again.version) == (False, put.partition, 0)
    heads = (await stub.Heads(pb.HeadsRequest(**key))).heads
    assert heads[put.partition] == 2
    assert len(heads) == 8


@pytest.mark.parametrize(
    ("words", "code", "field", "sentence"),
    [
        ({"store": "none"}, ErrorCode.UNKNOWN_STORE, "store", "there is no store 'none'"),
        ({"store": "no.ne"}, ErrorCode.INVALID_INPUT, "store", "store 'no.ne' is not a valid name"),
        ({"key": "k k"}, ErrorCode.INVALID_INPUT, "key", "key 'k k' is not a valid name"),
        ({"row_id": ""}, ErrorCode.INVALID_INPUT, "row_id", "row_id '' has 0 bytes: 1 to 512"),
        ({"row_id": "x" * 513}, ErrorCode.INVALID_INPUT, "row_id", "has 513 bytes: 1 to 512"),
        ({"row_id": "a\0b"}, ErrorCode.INVALID_INPUT, "row_id", "NUL"),
        (
            {"value": "x" * limits.MAX_ROW_BYTES},
            ErrorCode.INVALID_INPUT,
            "value",
            "1048577 bytes, the limit is 1048576",
        ),
        ({"value": "x" * 5_000_000}, ErrorCode.INVALID_INPUT, "value", "the limit is 1048576"),
        ({"metadata": {"m": "x" * 17_000}}, ErrorCode.INVALID_INPUT, "metadata", "at most 16384"),
    ],
)
async def test_puts_that_are_refused(
    service: Running, store_name: str, words: dict[str, Any], code: ErrorCode, field: str, sentence: str
) -> None:
    await service.create(store_name)
    request = pb.PutRequest(**{"store": store_name, "key": "k", "row_id": "a", "value": "v", **words})
    found, found_field, said = await refused(service.stub.Put(request))
    assert (found, found_field) == (code, field)
    assert sentence in said
    assert not (await service.stub.GetStore(pb.GetStoreRequest(name=store_name))).keys


async def test_text_that_is_not_utf8(service: Running, store_name: str) -> None:
    await service.create(store_name)

    def spoil(message: Any) -> bytes:
        return bytes(message.SerializeToString().replace(b"XX", b"\xff\xfe"))

    put = spoil(pb.PutRequest(store=store_name, key="k", row_id="a", value="XX"))
    code, _, said = await refused(service.channel.unary_unary(f"/{SERVICE_NAME}/Put")(put))
    assert code is ErrorCode.INVALID_INPUT
    assert said == f"the request of {len(put)} bytes can't be read: String field had bad UTF-8"
    batch = spoil(pb.WriteBatch(store=store_name, key="k", rows=[pb.RowWrite(row_id="XX", value="v")]))
    call = service.channel.stream_stream(f"/{SERVICE_NAME}/Write")(iter([batch]))
    code, _, said = await refused(collect(call))
    assert (code, said.endswith("bad UTF-8")) == (ErrorCode.INVALID_INPUT, True)
    assert not (await service.stub.GetStore(pb.GetStoreRequest(name=store_name))).keys


async def test_a_field_of_a_client_of_a_build_to_come_is_refused(service: Running, store_name: str) -> None:
    """It may be what the write depends on: nothing is done without it. What another encoder adds is no such field."""
    await service.create(store_name)
    newer = b"\xb8\x3e\x01"  # field 999
    put = pb.PutRequest(store=store_name, key="k", row_id="a", value="v").SerializeToString()
    row = pb.RowWrite.FromString(pb.RowWrite(row_id="a", value="v").SerializeToString() + newer)
    batch = pb.WriteBatch(store=store_name, key="k", rows=[pb.RowWrite(row_id="b", value="v"), row])
    for name, call in (
        ("PutRequest", service.channel.unary_unary(f"/{SERVICE_NAME}/Put")(put + newer)),
        ("WriteBatch", collect(service.stub.Write(iter([batch])))),
        ("ListRequest", collect(service.stub.List(pb.ListRequest.FromString(newer)))),
    ):
        code, _, said = await refused(call)
        assert code is ErrorCode.MISMATCH
        assert said.startswith(f"{name} has a field that this config service does not know: upgrade it, or ")
    assert not (await service.stub.GetStore(pb.GetStoreRequest(name=store_name))).keys
    given_twice = pb.PutRequest(store="other").SerializeToString() + put
    await service.channel.unary_unary(f"/{SERVICE_NAME}/Put")(given_twice)


async def test_reads_of_what_is_not_there(service: Running, store_name: str) -> None:
    await service.create(store_name)
    for store, code in (("none", ErrorCode.UNKNOWN_STORE), (store_name, ErrorCode.UNKNOWN_KEY)):
        key: dict[str, Any] = {"store": store, "key": "none"}
        calls = [
            service.stub.Get(pb.GetRequest(**key, row_ids=["a"])),
            service.stub.Heads(pb.HeadsRequest(**key)),
            service.stub.Delete(pb.DeleteRequest(**key, row_id="a")),
            collect(service.stub.List(pb.ListRequest(**key))),
            collect(service.stub.History(pb.HistoryRequest(**key))),
        ]
        for call in calls:
            assert (await refused(call))[0] is code


async def collect(call: AsyncIterator[Any]) -> list[Any]:
    return [message async for message in call]


# --- Bulk writes ------------------------------------------------------------------------------------------------------


async def test_bulk_write(service: Running, store_name: str) -> None:
    await service.create(store_name)
    batches = [
        rows(100),
        [pb.RowWrite(row_id="r0", delete=True), pb.RowWrite(row_id="none", delete=True), *rows(2, "w")],
    ]
    first, second = await service.write(store_name, *batches)
    assert (first.sequence, first.written, first.deleted, first.unchanged) == (0, 100, 0, 0)
    # Of the two writes of r0 the later counts.
    assert (second.sequence, second.written, second.deleted, second.unchanged) == (1, 2, 0, 2)
    got = await service.stub.Get(pb.GetRequest(store=store_name, key="k", row_ids=["r0", "r1", "r2"]))
    assert [row.value for row in got.rows] == ["w", "w", "v"]


async def test_a_bulk_write_that_is_sent_again_changes_nothing(service: Running, store_name: str) -> None:
    await service.create(store_name)
    heads = pb.HeadsRequest(store=store_name, key="k")
    await service.write(store_name, rows(100), skip_unchanged=True)
    before = (await service.stub.Heads(heads)).heads
    (again,) = await service.write(store_name, rows(101), skip_unchanged=True)
    assert (again.written, again.unchanged) == (1, 100)
    assert sum((await service.stub.Heads(heads)).heads) == sum(before) + 1
    (plain,) = await service.write(store_name, rows(100))
    assert (plain.written, plain.unchanged) == (100, 0)


async def test_many_batches_are_answered_in_order(service: Running, store_name: str) -> None:
    await service.create(store_name)
    results = await service.write(store_name, *[rows(7, str(number)) for number in range(50)])
    assert [result.sequence for result in results] == list(range(50))
    got = await service.stub.Get(pb.GetRequest(store=store_name, key="k", row_ids=["r3"]))
    assert got.rows[0].value == "49"
    assert sum((await service.stub.Heads(pb.HeadsRequest(store=store_name, key="k"))).heads) == 350


async def test_an_invalid_row_refuses_its_batch_and_ends_the_stream(service: Running, store_name: str) -> None:
    await service.create(store_name)
    answered = []

    async def requests() -> AsyncIterator[pb.WriteBatch]:
        bad = [*rows(5, "bad"), pb.RowWrite(row_id="x" * 600, value="v")]
        for number, batch in enumerate([rows(5, "good"), bad, rows(5, "after")]):
            yield pb.WriteBatch(store=store_name, key="k", sequence=number, rows=batch)

    async def run() -> None:
        async for result in service.stub.Write(requests()):
            answered.append(result.sequence)  # noqa: PERF401  # kept when the stream fails

    code, field, said = await refused(run())
    assert (code, field, answered) == (ErrorCode.INVALID_INPUT, "row_id", [0])
    assert said.startswith("row 5 of the batch: row_id")
    assert {row.value for page in await collect(listed(service, store_name)) for row in page.rows} == {"good"}


def listed(service: Running, store: str, **words: Any) -> AsyncIterator[pb.ListResponse]:
    call: AsyncIterator[pb.ListResponse] = service.stub.List(pb.ListRequest(store=store, key="k", **words))
    return call


async def test_invalid_rows_can_be_skipped(service: Running, store_name: str) -> None:
    await service.create(store_name)
    batch = [pb.RowWrite(row_id="a", value="1"), pb.RowWrite(row_id="", value="1"), pb.RowWrite(row_id="b\0", value="")]
    first, second = await service.write(store_name, batch, batch[1:], on_invalid=pb.ON_INVALID_SKIP_ROW)
    assert (first.written, [(row.index, row.row_id) for row in first.rejected]) == (1, [(1, ""), (2, "b\0")])
    assert "1 to 512 bytes" in first.rejected[0].reason
    assert (second.written, len(second.rejected)) == (0, 2)


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        ([], "rows has 0 entries: 1 to 1000"),
        (rows(1001), "rows has 1001 entries: 1 to 1000"),
        (rows(4, "x" * 1_000_000), "bytes: at most 3145728 are allowed in a batch"),
    ],
    ids=["empty", "many", "large"],
)
async def test_batches_that_are_refused(
    service: Running, store_name: str, batch: list[pb.RowWrite], sentence: str
) -> None:
    await service.create(store_name)
    code, field, said = await refused(service.write(store_name, batch))
    assert (code, field) == (ErrorCode.INVALID_INPUT, "rows")
    assert sentence in said


async def test_a_batch_over_the_partition_limit(service: Running, store_name: str) -> None:
    await service.create(store_name, 1)
    large = [[pb.RowWrite(row_id=f"r{number}", value="x" * 1_040_000)] for number in range(9)]
    code, _, said = await refused(service.write(store_name, *large))
    assert code is ErrorCode.LIMIT_EXCEEDED
    assert "the limit is 8388608" in said
    pages = await collect(listed(service, store_name))
    assert sum(len(page.rows) for page in pages) == 8


async def test_a_client_that_goes_away_in_the_middle(service: Running, store_name: str) -> None:
    await service.create(store_name)
    never = asyncio.Event()

    async def requests() -> AsyncIterator[pb.WriteBatch]:
        yield pb.WriteBatch(store=store_name, key="k", rows=rows(3))
        await never.wait()

    call = service.stub.Write(requests())
    assert (await anext(aiter(call))).written == 3
    call.cancel()
    assert (await service.put(store_name, "r0")).version > 0  # the writer is free


# --- Lists ------------------------------------------------------------------------------------------------------------


async def test_listing(service: Running, store_name: str) -> None:
    await service.create(store_name)
    await service.write(store_name, rows(1000), rows(500, "w"))
    await service.stub.Delete(pb.DeleteRequest(store=store_name, key="k", row_id="r7"))
    found = [row for page in await collect(listed(service, store_name)) for row in page.rows]
    assert [(row.partition, row.row_id) for row in found] == sorted(
        (row_partition(f"r{n}", 8), f"r{n}") for n in range(1000) if n != 7
    )
    assert len([r for p in await collect(listed(service, store_name, limit=10)) for r in p.rows]) == 10
    deleted = [r for p in await collect(listed(service, store_name, include_deleted=True)) for r in p.rows if r.deleted]
    assert [row.row_id for row in deleted] == ["r7"]
    one = [row for page in await collect(listed(service, store_name, partition=0)) for row in page.rows]
    assert {row.partition for row in one} == {0}
    code, field, _ = await refused(collect(listed(service, store_name, partition=8)))
    assert (code, field) == (ErrorCode.INVALID_INPUT, "partition")


async def test_large_rows_fit_the_messages_of_any_client(service: Running, store_name: str) -> None:
    """A client with gRPC's default limit of 4 MiB reads a list of rows as large as they may be."""
    await service.create(store_name, 64)
    value = "é" * 520_000
    for number in range(10):
        await service.put(store_name, f"r{number}", value)
    pages = await collect(listed(service, store_name))
    assert [row.value == value for page in pages for row in page.rows] == [True] * 10
    history = service.stub.History(pb.HistoryRequest(store=store_name, key="k"))
    assert sum(len(page.revisions) for page in await collect(history)) == 10
    request = pb.GetRequest(store=store_name, key="k", row_ids=[f"r{number}" for number in range(10)])
    code, field, said = await refused(service.stub.Get(request))
    assert (code, field) == (ErrorCode.INVALID_INPUT, "row_ids")
    assert "ask for fewer rows" in said


async def test_rows_too_large_for_an_answer_are_not_read(
    service: Running, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Get could have the service read 64 MiB of which it sends nothing."""
    await service.create(store_name, 64)
    for number in range(4):
        await service.put(store_name, f"r{number}", "x" * 1_000_000)
    read: list[int] = []
    as_it_is = mapping.fetch_reply

    def noted(*words: Any) -> Any:
        read.append(1)
        return as_it_is(*words)

    monkeypatch.setattr(mapping, "fetch_reply", noted)
    ids = [f"r{number}" for number in range(4)]
    get = partial(pb.GetRequest, store=store_name, key="k")
    code, field, _ = await refused(service.stub.Get(get(row_ids=ids)))
    assert (code, field, read) == (ErrorCode.INVALID_INPUT, "row_ids", [])
    assert len((await service.stub.Get(get(row_ids=ids[:3]))).rows) == 3
    assert read == [1]


async def test_history(service: Running, store_name: str) -> None:
    await service.create(store_name)
    for value in ("1", "2"):
        await service.put(store_name, "a", value)
    await service.put(store_name, "b")
    await service.stub.Delete(pb.DeleteRequest(store=store_name, key="k", row_id="a"))

    async def found(**words: Any) -> list[tuple[str, str, bool]]:
        pages = await collect(service.stub.History(pb.HistoryRequest(store=store_name, key="k", **words)))
        return [(r.row.row_id, r.row.value, r.row.deleted) for page in pages for r in page.revisions]

    assert await found(row_id="a") == [("a", "1", False), ("a", "2", False), ("a", "", True)]
    assert len(await found()) == 4
    assert await found(row_id="a", since=1, limit=1) == [("a", "2", False)]
    home = row_partition("a", 8)
    code, field, said = await refused(found(row_id="a", partition=(home + 1) % 8))
    assert (code, field) == (ErrorCode.INVALID_INPUT, "partition")
    assert f"partition {home} does" in said
    assert (await refused(found(since=-1)))[1] == "since"


# --- Health and reflection --------------------------------------------------------------------------------------------


async def test_health(service: Running) -> None:
    health: Any = health_pb2_grpc.HealthStub(service.channel)
    for name in ("", SERVICE_NAME):
        found = await health.Check(health_pb2.HealthCheckRequest(service=name))
        assert found.status == health_pb2.HealthCheckResponse.SERVING


async def test_reflection(service: Running) -> None:
    def look() -> tuple[list[str], list[str]]:
        with grpc.insecure_channel(service.app.grpc_address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            described = database.FindFileContainingSymbol(SERVICE_NAME).service[0]
            return sorted(database.get_services()), [method.name for method in described.method]

    services, methods = await asyncio.to_thread(look)
    assert SERVICE_NAME in services
    assert "grpc.health.v1.Health" in services
    assert methods == [method.name for method in pb.DESCRIPTOR.services_by_name["ConfigService"].methods]


def test_every_method_has_its_work_and_a_stream_its_own_admission() -> None:
    """A method that is only declared answers UNIMPLEMENTED; a stream that counts as a short call blocks those."""
    methods = pb.DESCRIPTOR.services_by_name["ConfigService"].methods
    names = [method.name for method in methods]
    assert [name for name in names if getattr(_Servicer, name) is getattr(ConfigServiceServicer, name)] == []
    streams = {f"{SERVICE_NAME}/{method.name}" for method in methods if method.server_streaming}
    assert streams - _KINDS.keys() == set()
