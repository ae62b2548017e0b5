"""Deleting, restoring and purging through the API: two instances on one database, and what NATS holds of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from nats.js.errors import KeyNotFoundError, NotFoundError
from ringcast_config_service.config import Config
from ringcast_service import ConfigError
from ringcast_testkit import PATIENCE_S
from ringcast_wire import ErrorCode, KeyDeletedError, PartitionRequest, StoreDeletedError, encode, names
from ringcast_wire.grpc import error_from_rpc, pb

Start = Callable[..., AbstractAsyncContextManager[Any]]
Running = Any  # of conftest.py


async def code_of(call: Any) -> tuple[grpc.StatusCode, ErrorCode]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), error_from_rpc(caught.value).code


async def meta_entry(service: Running, store: str) -> bytes | None:
    bucket = await service.nc.jetstream().key_value(names.meta_bucket(store))
    try:
        found: bytes | None = (await bucket.get(names.META_DELETED)).value
    except NotFoundError:
        return None
    return found


async def streams_of(service: Running, store: str) -> set[str]:
    """Those of the store that are there. A list of all would come in pages: tests share the server."""
    makers = (names.meta_bucket, names.nodes_bucket, names.groups_bucket)
    buckets = [f"KV_{make(store)}" for make in makers]
    found = set()
    for stream in (names.notify_stream(store), names.dead_stream(store), *buckets):
        with suppress(NotFoundError):
            await service.nc.jetstream().stream_info(stream)
            found.add(stream)
    return found


async def test_every_call_to_a_deleted_store_says_so(service: Running, store_name: str) -> None:
    stub = service.stub
    await service.create(store_name)
    await service.put(store_name, "a")
    deleted = await stub.DeleteStore(pb.DeleteStoreRequest(name=store_name))
    assert deleted.deletion.restorable_until_ms - deleted.deletion.deleted_at_ms == 7 * 86_400_000
    where: dict[str, Any] = {"store": store_name, "key": "k"}
    for call in (
        service.put(store_name, "a"),
        stub.Delete(pb.DeleteRequest(**where, row_id="a")),
        service.write(store_name, [pb.RowWrite(row_id="a", value="1")]),
        stub.Get(pb.GetRequest(**where, row_ids=["a"])),
        stub.Heads(pb.HeadsRequest(**where)),
        stub.GetStore(pb.GetStoreRequest(name=store_name)),
        stub.UpdateStore(pb.UpdateStoreRequest(name=store_name, inline_max_bytes=1)),
        stub.DeleteKey(pb.DeleteKeyRequest(**where)),
        service.create(store_name),
    ):
        assert await code_of(call) == (grpc.StatusCode.FAILED_PRECONDITION, ErrorCode.STORE_DELETED)
    for what in (0, names.FETCH_HEADS, names.FETCH_FULL):
        with pytest.raises(StoreDeletedError, match=r"was deleted at .* UTC, it can be restored until .* UTC"):
            await service.fetch(store_name, what, encode(PartitionRequest()) if what == 0 else b"")
    assert store_name not in {store.name for store in (await stub.ListStores(pb.ListStoresRequest())).stores}
    every = (await stub.ListStores(pb.ListStoresRequest(include_deleted=True))).stores
    assert {store.name: store.HasField("deletion") for store in every}[store_name]


async def test_workers_that_start_learn_it_from_the_bus(service: Running, store_name: str) -> None:
    await service.create(store_name)
    assert await meta_entry(service, store_name) is None
    await service.stub.DeleteStore(pb.DeleteStoreRequest(name=store_name))
    assert b"was deleted at" in (await meta_entry(service, store_name) or b"")
    await service.stub.RestoreStore(pb.RestoreStoreRequest(name=store_name))
    assert await meta_entry(service, store_name) is None
    await service.put(store_name, "a")


async def test_a_key(service: Running, store_name: str) -> None:
    await service.create(store_name)
    await service.put(store_name, "a")
    await service.stub.DeleteKey(pb.DeleteKeyRequest(store=store_name, key="k"))
    assert await code_of(service.put(store_name, "a")) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        ErrorCode.KEY_DELETED,
    )
    with pytest.raises(KeyDeletedError):
        await service.fetch(store_name, names.FETCH_HEADS)
    await service.put(store_name, "a", key="other")
    info = await service.stub.GetStore(pb.GetStoreRequest(name=store_name, include_deleted=True))
    assert [(key.name, key.HasField("deletion")) for key in info.keys] == [("k", True), ("other", False)]
    restored = await service.stub.RestoreKey(pb.RestoreKeyRequest(store=store_name, key="k"))
    assert (restored.rows, restored.HasField("deletion")) == (1, False)
    await service.put(store_name, "a")


async def test_a_purge_removes_what_is_on_the_bus_and_frees_the_name(service: Running, store_name: str) -> None:
    first = await service.create(store_name)
    await service.put(store_name, "a")
    assert len(await streams_of(service, store_name)) == 5
    await service.stub.DeleteStore(pb.DeleteStoreRequest(name=store_name, purge=True))
    assert await streams_of(service, store_name) == set()
    assert await code_of(service.put(store_name, "a")) == (grpc.StatusCode.NOT_FOUND, ErrorCode.UNKNOWN_STORE)
    again = await service.create(store_name, partition_count=2)
    assert again.history_id != first.history_id
    await service.put(store_name, "b")
    assert await code_of(service.stub.RestoreKey(pb.RestoreKeyRequest(store=store_name, key="x"))) == (
        grpc.StatusCode.NOT_FOUND,
        ErrorCode.UNKNOWN_KEY,
    )


class Gate:
    """Holds up the first call of a function, before it begins or once it has ended."""

    def __init__(self, function: Callable[..., Any], *, after: bool = False) -> None:
        self._function = function
        self._after = after
        self.reached, self.open = asyncio.Event(), asyncio.Event()

    async def __call__(self, *args: Any) -> Any:
        found = await self._function(*args) if self._after else None
        if not self.reached.is_set():
            self.reached.set()
            await self.open.wait()
        return found if self._after else await self._function(*args)


@pytest.mark.parametrize("step", ["purge_rows", "remove"])
async def test_a_purge_that_comes_late_leaves_the_streams_of_a_store_made_anew(
    step: str, start: Start, nats_url: str, postgres_url: str, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two instances purge one store, as they do when its retention ends. One stands still, and meanwhile the other is
    done and the name is used again."""
    async with start(nats_url, postgres_url) as one, start(nats_url, postgres_url) as late:
        await one.create(store_name)
        await one.put(store_name, "a")
        lifecycle = late.app.core.lifecycle
        owner = lifecycle._deletions if step == "purge_rows" else lifecycle._provisioner
        gate = Gate(getattr(owner, step), after=step == "purge_rows")
        monkeypatch.setattr(owner, step, gate)
        purge = pb.DeleteStoreRequest(name=store_name, purge=True)
        purging = asyncio.ensure_future(late.stub.DeleteStore(purge))
        await gate.reached.wait()
        await one.stub.DeleteStore(purge)
        await one.create(store_name, partition_count=2)
        await one.put(store_name, "b")
        gate.open.set()
        await purging
        assert len(await streams_of(one, store_name)) == 5
        await one.put(store_name, "c")
        heads = await one.stub.Heads(pb.HeadsRequest(store=store_name, key="k"))
        assert sum(heads.heads) == 2


async def test_a_check_of_streams_that_is_overtaken_by_a_purge_leaves_nothing(
    start: Start, nats_url: str, postgres_url: str, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the old settings on NATS the name could not be used again."""
    async with start(nats_url, postgres_url) as one, start(nats_url, postgres_url) as late:
        await one.create(store_name)
        provisioner = late.app.core.provisioner
        gate = Gate(provisioner._ensure_stream)
        monkeypatch.setattr(provisioner, "_ensure_stream", gate)
        checking = asyncio.ensure_future(provisioner.ensure_all())
        await gate.reached.wait()
        await one.stub.DeleteStore(pb.DeleteStoreRequest(name=store_name, purge=True))
        assert await streams_of(one, store_name) == set()
        gate.open.set()
        await checking
        assert await streams_of(one, store_name) == set()
        await one.create(store_name, partition_count=2)
        await one.put(store_name, "a")


async def test_what_is_locked_is_refused_by_its_name(service: Running, store_name: str) -> None:
    await service.create(store_name)
    for change, sentence in (
        ({"partition_count": 9}, "partition_count of store '.*' was locked at 8 when it was created: .* become 9"),
        ({"mode": pb.MODE_FULL}, "mode of store '.*' was locked at PARTITIONED"),
        ({"strategy": pb.STRATEGY_RING}, "strategy of store '.*' was locked at jump"),
        ({"strategy": pb.STRATEGY_STICKY}, "strategy of store '.*' was locked at jump .* become sticky"),
        ({"lease_ttl_ms": 10_000}, "lease_ttl_ms of store '.*' goes with the strategy sticky: it can't become 10000"),
        ({"inline_max_bytes": 5_000}, "inline_max_bytes 5000 is too large"),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match=sentence) as caught:
            await service.stub.UpdateStore(pb.UpdateStoreRequest(name=store_name, **change))
        assert error_from_rpc(caught.value).field == next(iter(change))
    same = pb.UpdateStoreRequest(name=store_name, partition_count=8, mode=pb.MODE_PARTITIONED, inline_max_bytes=3)
    assert (await service.stub.UpdateStore(same)).inline_max_bytes == 3


async def test_a_purged_key_leaves_no_wishes_to_a_later_one(service: Running, store_name: str) -> None:
    await service.create(store_name, strategy=pb.STRATEGY_STICKY)
    await service.put(store_name, "a")
    wishes = await service.nc.jetstream().key_value(names.wishes_bucket(store_name))
    await wishes.put(names.wishes_key("k"), b'{"drains": ["w"]}')
    await service.stub.DeleteKey(pb.DeleteKeyRequest(store=store_name, key="k"))
    assert (await wishes.get(names.wishes_key("k"))).value, "a restored key is the same"
    await service.stub.DeleteKey(pb.DeleteKeyRequest(store=store_name, key="k", purge=True))
    with pytest.raises(KeyNotFoundError):
        await wishes.get(names.wishes_key("k"))


async def test_the_times_of_exclusive_ownership_are_locked(service: Running, store_name: str) -> None:
    made = await service.create(store_name, strategy=pb.STRATEGY_STICKY, lease_ttl_ms=4_000, call_bound_ms=200)
    for change, sentence in (
        ({"lease_ttl_ms": 4_001}, "lease_ttl_ms of store '.*' was locked at 4000 when it was created: .* become 4001"),
        ({"call_bound_ms": 1_000}, "call_bound_ms of store '.*' was locked at 200 when it was created"),
        ({"strategy": pb.STRATEGY_JUMP}, "strategy of store '.*' was locked at sticky"),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match=sentence) as caught:
            await service.stub.UpdateStore(pb.UpdateStoreRequest(name=store_name, **change))
        assert error_from_rpc(caught.value).field == next(iter(change))
    same = pb.UpdateStoreRequest(name=store_name, lease_ttl_ms=4_000, call_bound_ms=200)
    assert await service.stub.UpdateStore(same) == made


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_another_instance_refuses_writes_at_once(
    kind: str, start: Start, nats_url: str, tmp_path: Path, store_name: str, request: pytest.FixtureRequest
) -> None:
    """It has the store in memory; what it writes is decided where the deletion is."""
    database = f"sqlite:{tmp_path / 'r.db'}" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    async with start(nats_url, database) as one, start(nats_url, database) as other:
        await one.create(store_name)
        for number in range(20):
            await other.put(store_name, f"row{number}")
        await one.stub.DeleteStore(pb.DeleteStoreRequest(name=store_name))
        for number in range(20):
            assert (await code_of(other.put(store_name, f"row{number}")))[1] is ErrorCode.STORE_DELETED
        await one.stub.DeleteStore(pb.DeleteStoreRequest(name=store_name, purge=True))
        await one.create(store_name, partition_count=1)

        refused = set()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await other.put(store_name, "new")
                    break
                except grpc.aio.AioRpcError as error:
                    refused.add(error_from_rpc(error).code)
                    await asyncio.sleep(0.05)
        assert refused <= {ErrorCode.UNAVAILABLE}, "for as long as it has the old settings in memory"
        heads = await one.stub.Heads(pb.HeadsRequest(store=store_name, key="k"))
        assert list(heads.heads) == [1]


async def test_retention_ends_and_the_purge_follows(
    start: Start, nats_url: str, tmp_path: Path, store_name: str
) -> None:
    settings = {"deletion_retention_ms": 1_000, "compaction_interval_s": 0.1}
    async with start(nats_url, f"sqlite:{tmp_path / 'r.db'}", **settings) as service:
        await service.create(store_name)
        await service.put(store_name, "a")
        await service.put(store_name, "a", key="other")
        await service.stub.DeleteKey(pb.DeleteKeyRequest(store=store_name, key="k"))

        async def ends_with(call: Callable[[], Any], wanted: ErrorCode) -> None:
            async with asyncio.timeout(PATIENCE_S):
                code = None
                while code is not wanted:
                    await asyncio.sleep(0.05)
                    _, code = await code_of(call())

        heads = pb.HeadsRequest(store=store_name, key="k")
        await ends_with(lambda: service.stub.Heads(heads), ErrorCode.UNKNOWN_KEY)
        await service.stub.DeleteStore(pb.DeleteStoreRequest(name=store_name))
        get = pb.GetStoreRequest(name=store_name)
        await ends_with(lambda: service.stub.GetStore(get), ErrorCode.UNKNOWN_STORE)
        assert await streams_of(service, store_name) == set()


def test_a_retention_has_bounds() -> None:
    for value in (999, 3_651 * 86_400_000):
        with pytest.raises(ConfigError, match="deletion_retention_ms"):
            Config(database="sqlite:x", deletion_retention_ms=value)


async def test_a_deleted_key_does_not_stand_in_the_way_of_the_others_after_a_restart(
    start: Start, nats_url: str, tmp_path: Path, store_name: str
) -> None:
    database = f"sqlite:{tmp_path / 'r.db'}"
    async with start(nats_url, database) as service:
        await service.create(store_name)
        await service.put(store_name, "a")
        await service.put(store_name, "a", key="other")
        await service.stub.DeleteKey(pb.DeleteKeyRequest(store=store_name, key="k"))
    async with start(nats_url, database) as service:
        await service.put(store_name, "a", key="other")
        assert (await code_of(service.put(store_name, "a")))[1] is ErrorCode.KEY_DELETED
        await service.stub.RestoreKey(pb.RestoreKeyRequest(store=store_name, key="k"))
        await service.put(store_name, "a")
