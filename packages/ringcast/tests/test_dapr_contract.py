"""One suite for both Dapr-shaped clients, with a real NATS server and a real config service."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import ringcast
import ringcast.aio
from ringcast.aio import ConfigurationResponse
from ringcast_client import ConfigServiceClient, RowWrite
from ringcast_core import row_partition
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer
from ringcast_wire import InvalidInputError, MismatchError, Mode, UnavailableError, UnknownStoreError, limits

PARTITIONS = 16
Called = tuple[str, str, str, str, dict[str, str]]


class _Sync:
    """Makes the synchronous client look like the other one: each call runs in a thread."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.client = ringcast.DaprClient(*arguments, **options)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self.client, name)
        return lambda *arguments, **options: asyncio.to_thread(call, *arguments, **options)


KINDS: dict[str, Callable[..., Any]] = {"async": ringcast.aio.DaprClient, "sync": _Sync}


class Servers:
    """Where the servers of this file are, and how to write to them."""

    def __init__(self, nats: NatsServer, service: ConfigServiceProcess) -> None:
        self.nats = nats
        self.service = service

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[ConfigServiceClient]:
        async with ConfigServiceClient(self.service.address) as client:
            yield client

    async def create(self, store: str, mode: Mode = Mode.PARTITIONED) -> None:
        async with self.admin() as admin:
            await admin.create_store(store, partition_count=PARTITIONS, mode=mode)

    async def put(self, store: str, key: str, rows: dict[str, str]) -> None:
        async with self.admin() as admin:
            async for _ in admin.bulk_write(store, key, [RowWrite(name, value) for name, value in rows.items()]):
                pass


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    directory = tmp_path_factory.mktemp("dapr")
    with NatsServer(directory / "nats") as nats:
        database = f"sqlite:{directory / 'ringcast.db'}"
        with ConfigServiceProcess(directory, nats_url=nats.url, database=database) as service:
            yield Servers(nats, service)


@pytest.fixture(params=list(KINDS))
async def client(request: pytest.FixtureRequest, servers: Servers, store_name: str) -> AsyncIterator[Any]:
    made = KINDS[request.param](servers.nats.url, worker_id=f"w-{store_name}")
    yield made
    await made.close()


class Recorder:
    """A handler, and what it was called with. Plain functions are called in threads, so it hands over to the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: asyncio.Queue[Called] = asyncio.Queue()
        self.threads: set[str] = set()

    def __call__(self, subscription_id: str, response: ConfigurationResponse) -> None:
        self.threads.add(threading.current_thread().name)
        for name, item in response.items.items():
            call = (subscription_id, name, item.value, item.version, dict(item.metadata or {}))
            self._loop.call_soon_threadsafe(self._calls.put_nowait, call)

    async def next(self) -> Called:
        async with asyncio.timeout(PATIENCE_S):
            return await self._calls.get()

    async def until(self, wanted: dict[str, str]) -> None:
        """Waits until the rows and values have all come."""
        seen: dict[str, str] = {}
        while seen != wanted:
            _, name, value, *_ = await self.next()
            seen[name] = value

    @property
    def waiting(self) -> int:
        return self._calls.qsize()


async def test_a_whole_key_is_answered_by_row_id(client: Any, servers: Servers, store_name: str) -> None:
    await servers.create(store_name)
    async with servers.admin() as admin:
        await admin.put(store_name, "list", "a", "1", {"owner": "me"})
        second = await admin.put(store_name, "list", "b", "2")
        await admin.put(store_name, "list", "c", "3")
        await admin.delete(store_name, "list", "c")
    response = await client.get_configuration(store_name, ["list"])
    assert {name: item.value for name, item in response.items.items()} == {"a": "1", "b": "2"}
    assert response.items["a"].metadata == {
        "owner": "me",
        "ringcast.key": "list",
        "ringcast.partition": str(row_partition("a", PARTITIONS)),
        "ringcast.deleted": "false",
    }
    assert response.items["b"].version == str(second.version)
    assert response.headers == {}


async def test_one_row_has_the_name_that_was_asked_for(client: Any, servers: Servers, store_name: str) -> None:
    await servers.create(store_name)
    await servers.put(store_name, "list", {"a": "1", "b/c": "2", "gone": "x"})
    async with servers.admin() as admin:
        await admin.delete(store_name, "list", "gone")
    response = await client.get_configuration(
        store_name=store_name, keys=["list/a", "list/b/c", "list/gone", "list/never"], config_metadata={"other": "x"}
    )
    assert {name: item.value for name, item in response.items.items()} == {"list/a": "1", "list/b/c": "2"}


async def test_rows_of_several_keys_don_t_hide_each_other(client: Any, servers: Servers, store_name: str) -> None:
    await servers.create(store_name)
    await servers.put(store_name, "one", {"a": "1"})
    await servers.put(store_name, "two", {"a": "2", "b": "3"})
    response = await client.get_configuration(store_name, ["one", "two/b", "two"])
    assert {name: item.value for name, item in response.items.items()} == {"one/a": "1", "two/a": "2", "two/b": "3"}


async def test_a_key_that_was_never_written_has_no_items(client: Any, servers: Servers, store_name: str) -> None:
    await servers.create(store_name)
    assert (await client.get_configuration(store_name, ["never"])).items == {}
    assert (await client.get_configuration(store_name, ["never/a"])).items == {}


async def test_a_key_too_large_for_one_answer_is_read_in_parts(client: Any, servers: Servers, store_name: str) -> None:
    await servers.create(store_name)
    # Just under what a partition may hold, in each of them: above what one answer may be.
    ids: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}
    for number in range(2_000):
        some = ids[row_partition(f"row-{number}", PARTITIONS)]
        if len(some) < 5:
            some.append(f"row-{number}")
    rows = {row_id: row_id[-1] * 1_000_000 for some in ids.values() for row_id in some}
    assert sum(map(len, rows.values())) > limits.MAX_REPLY_BYTES
    await servers.put(store_name, "large", rows)
    response = await client.get_configuration(store_name, ["large"])
    assert {name: item.value for name, item in response.items.items()} == rows


@pytest.mark.parametrize("mode", list(Mode))
async def test_the_handler_gets_what_is_there_and_then_each_change(
    client: Any, servers: Servers, store_name: str, mode: Mode
) -> None:
    await servers.create(store_name, mode)
    await servers.put(store_name, "list", {"a": "1", "b": "2"})
    recorder = Recorder()
    subscription = await client.subscribe_configuration(store_name, ["list"], recorder, {"mode": mode.value})
    await recorder.until({"a": "1", "b": "2"})
    async with servers.admin() as admin:
        put = await admin.put(store_name, "list", "a", "3", {"why": "test"})
        told = {"ringcast.key": "list", "ringcast.partition": str(put.partition)}
        assert await recorder.next() == (
            subscription,
            "a",
            "3",
            str(put.version),
            {"why": "test", **told, "ringcast.deleted": "false"},
        )
        deleted = await admin.delete(store_name, "list", "a")
        assert await recorder.next() == (
            subscription,
            "a",
            "",
            str(deleted.version),
            {**told, "ringcast.deleted": "true"},
        )
    assert len(recorder.threads) == 1, "calls of a plain handler come from one thread"
    assert recorder.threads != {threading.main_thread().name}


async def test_a_subscription_may_be_to_single_rows(client: Any, servers: Servers, store_name: str) -> None:
    await servers.create(store_name)
    await servers.put(store_name, "list", {"a": "1", "b": "2"})
    recorder = Recorder()
    await client.subscribe_configuration(store_name, ["list/b", "list/c"], recorder)
    await recorder.until({"b": "2"})
    await servers.put(store_name, "list", {"a": "3"})
    await servers.put(store_name, "list", {"c": "4"})
    assert (await recorder.next())[1:3] == ("c", "4")
    assert recorder.waiting == 0


async def test_after_unsubscribing_the_handler_is_not_called(client: Any, servers: Servers, store_name: str) -> None:
    await servers.create(store_name, Mode.FULL)
    first, second = Recorder(), Recorder()
    one = await client.subscribe_configuration(store_name, ["list"], first)
    two = await client.subscribe_configuration(store_name, ["list"], second)
    assert one != two
    assert await client.unsubscribe_configuration(store_name, one) is True
    assert await client.unsubscribe_configuration(store_name, one) is False
    assert await client.unsubscribe_configuration("other", two) is False
    await servers.put(store_name, "list", {"a": "1"})
    assert (await second.next())[1] == "a"
    assert first.waiting == 0


async def test_a_cache_directory_in_the_environment_is_not_for_these_clients(
    client: Any, servers: Servers, store_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGCAST_CACHE_DIR", str(tmp_path / "cache"))
    await servers.create(store_name)
    await servers.put(store_name, "list", {"a": "1"})
    recorder = Recorder()
    await client.subscribe_configuration(store_name, ["list"], recorder)
    await recorder.until({"a": "1"})
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("mode", [Mode.PARTITIONED, Mode.FULL])
async def test_a_subscribed_key_is_answered_with_every_row(
    client: Any, servers: Servers, store_name: str, mode: Mode
) -> None:
    """As the agent answers it, whoever owns the rows."""
    await servers.create(store_name, mode)
    rows = {f"r{number}": str(number) for number in range(50)}
    await servers.put(store_name, "list", rows)
    other = ringcast.aio.DaprClient(servers.nats.url, worker_id=f"x-{store_name}")
    try:
        recorder = Recorder()
        for each in (client, other):
            await each.subscribe_configuration(store_name, ["list"], recorder)
        for each in (client, other):
            found = (await each.get_configuration(store_name, ["list"])).items
            assert {name: item.value for name, item in found.items()} == rows
    finally:
        await other.close()


async def test_errors_are_those_of_grpc_too(client: Any, servers: Servers, store_name: str) -> None:
    for call, status, kind in (
        (client.get_configuration("nowhere", ["list"]), grpc.StatusCode.NOT_FOUND, UnknownStoreError),
        (client.get_configuration(store_name, ["no spaces"]), grpc.StatusCode.INVALID_ARGUMENT, InvalidInputError),
        (client.subscribe_configuration("nowhere", ["l"], Recorder()), grpc.StatusCode.NOT_FOUND, UnknownStoreError),
    ):
        with pytest.raises(grpc.RpcError) as told:
            await call
        error: Any = told.value
        assert (error.code(), error.details()) == (status, str(error))
        assert isinstance(error, kind)


async def test_an_async_handler_of_the_sync_client_may_call_it(servers: Servers, store_name: str) -> None:
    """It runs in the subscription's thread, so that the client's own loop is free."""
    await servers.create(store_name)
    await servers.put(store_name, "list", {"a": "1"})
    found: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    sync = ringcast.DaprClient(servers.nats.url, worker_id=f"w-{store_name}")

    async def handler(subscription_id: str, response: ConfigurationResponse) -> None:
        items = sync.get_configuration(store_name, ["list"]).items
        loop.call_soon_threadsafe(found.put_nowait, {name: item.value for name, item in items.items()})

    call: Any = sync.subscribe_configuration
    await asyncio.to_thread(call, store_name, ["list"], handler)
    async with asyncio.timeout(PATIENCE_S):
        assert await found.get() == {"a": "1"}
    await asyncio.to_thread(sync.close)


def test_a_process_that_was_forked_off_can_use_the_client(servers: Servers, store_name: str) -> None:
    asyncio.run(servers.create(store_name))
    asyncio.run(servers.put(store_name, "list", {"a": "1"}))
    code = (
        "import os, ringcast\n"
        f"with ringcast.DaprClient({servers.nats.url!r}, worker_id='fork') as client:\n"
        f"    read = lambda: print(sorted(client.get_configuration({store_name!r}, ['list']).items), flush=True)\n"
        "    read()\n"
        "    if (child := os.fork()) == 0:\n"
        "        read()\n"
        "        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
        "    read()\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert run.stdout.splitlines() == ["['a']"] * 3, run.stderr


async def test_a_handler_that_raises_is_called_again(client: Any, servers: Servers, store_name: str) -> None:
    await servers.create(store_name)
    recorder = Recorder()
    failures = iter([True, True, False])

    def handler(subscription_id: str, response: ConfigurationResponse) -> None:
        recorder(subscription_id, response)
        if next(failures):
            raise RuntimeError("on purpose")

    await client.subscribe_configuration(store_name, ["list"], handler)
    await servers.put(store_name, "list", {"a": "1"})
    calls = [await recorder.next() for _ in range(3)]
    assert [call[1:4] for call in calls] == [("a", "1", "1")] * 3


async def test_what_is_refused(client: Any, servers: Servers, store_name: str) -> None:
    await servers.create(store_name)
    recorder = Recorder()
    subscribe, get = client.subscribe_configuration, client.get_configuration
    with pytest.raises(UnknownStoreError, match="nowhere"):
        await get("nowhere", ["list"])
    with pytest.raises(UnknownStoreError, match="nowhere"):
        await subscribe("nowhere", ["list"], recorder)
    for keys, said in (
        ([], "keys with 0 entries is not a list of 1 to 1000"),
        ("list", "keys 'list' is not a list"),
        ([5], "keys has the entry 5: it must be text"),
        (["no spaces"], "keys 'no spaces' is not a valid name"),
        (["list/"], "row_id '' has 0 bytes"),
    ):
        for call in (get(store_name, keys), subscribe(store_name, keys, recorder)):
            with pytest.raises(InvalidInputError, match=said):
                await call
    with pytest.raises(MismatchError, match="mode mismatch: the store has PARTITIONED, FULL was requested"):
        await subscribe(store_name, ["list"], recorder, {"mode": "FULL"})
    with pytest.raises(MismatchError, match="partition_count mismatch: the store has 16, 8 was requested"):
        await subscribe(store_name, ["list"], recorder, {"partition_count": "8"})
    with pytest.raises(InvalidInputError, match="mode"):
        await subscribe(store_name, ["list"], recorder, {"mode": "HALF"})
    await subscribe(store_name, ["list"], recorder)
    with pytest.raises(InvalidInputError, match="keys has 'list', which this client is subscribed to already"):
        await subscribe(store_name, ["other", "list/a"], recorder)
    await subscribe(store_name, ["other"], recorder)


async def test_of_two_subscriptions_at_once_that_would_split_a_key_one_is_refused(
    client: Any, servers: Servers, store_name: str
) -> None:
    await servers.create(store_name)
    calls = (client.subscribe_configuration(store_name, keys, Recorder()) for keys in (["list"], ["list", "more"]))
    results = await asyncio.gather(*calls, return_exceptions=True)
    refused = [result for result in results if isinstance(result, InvalidInputError)]
    assert len(refused) == 1, results
    assert "which this client is subscribed to already" in str(refused[0])


async def test_closing_ends_everything_and_using_it_again_starts_anew(
    client: Any, servers: Servers, store_name: str
) -> None:
    await servers.create(store_name)
    recorder = Recorder()
    options = {"worker_id": f"again-{store_name}"}
    await client.subscribe_configuration(store_name, ["list"], recorder, options)
    await client.close()
    await client.close()
    await servers.put(store_name, "list", {"a": "1"})
    # The worker id is free at once: closing has given the lease back.
    await client.subscribe_configuration(store_name, ["list"], recorder, options)
    assert (await recorder.next())[1:3] == ("a", "1")


async def test_unsubscribing_within_the_handler(client: Any, servers: Servers, store_name: str) -> None:
    await servers.create(store_name)
    loop, calls = asyncio.get_running_loop(), asyncio.Queue[tuple[str, bool]]()

    def from_thread(subscription_id: str, response: ConfigurationResponse) -> None:
        ended = client.client.unsubscribe_configuration(store_name, subscription_id)
        loop.call_soon_threadsafe(calls.put_nowait, (next(iter(response.items)), ended))

    async def from_loop(subscription_id: str, response: ConfigurationResponse) -> None:
        ended = await client.unsubscribe_configuration(store_name, subscription_id)
        calls.put_nowait((next(iter(response.items)), ended))

    handler = from_thread if isinstance(client, _Sync) else from_loop
    await client.subscribe_configuration(store_name, ["list"], handler)
    await servers.put(store_name, "list", {"a": "1"})
    async with asyncio.timeout(PATIENCE_S):
        assert await calls.get() == ("a", True)
    recorder = Recorder()
    await client.subscribe_configuration(store_name, ["list"], recorder, {"worker_id": f"n-{store_name}"})
    await servers.put(store_name, "list", {"b": "2"})
    await recorder.until({"a": "1", "b": "2"})
    assert calls.empty()


async def test_reading_within_the_handler(client: Any, servers: Servers, store_name: str) -> None:
    await servers.create(store_name)
    await servers.put(store_name, "list", {"a": "1", "b": "2"})
    loop, calls = asyncio.get_running_loop(), asyncio.Queue[dict[str, str]]()

    def values(response: ConfigurationResponse) -> dict[str, str]:
        return {name: item.value for name, item in response.items.items()}

    def from_thread(_: str, __: ConfigurationResponse) -> None:
        held = values(client.client.get_configuration(store_name, ["list"]))
        loop.call_soon_threadsafe(calls.put_nowait, held)

    async def from_loop(_: str, __: ConfigurationResponse) -> None:
        calls.put_nowait(values(await client.get_configuration(store_name, ["list"])))

    handler = from_thread if isinstance(client, _Sync) else from_loop
    await client.subscribe_configuration(store_name, ["list"], handler)
    async with asyncio.timeout(PATIENCE_S):
        assert await calls.get() == {"a": "1", "b": "2"}


@pytest.mark.parametrize("kind", list(KINDS))
async def test_a_server_that_is_down_is_named(kind: str) -> None:
    nowhere = KINDS[kind]("nats://127.0.0.1:1", timeout_s=0.5)
    try:
        with pytest.raises(UnavailableError, match=r"nats://127\.0\.0\.1:1"):
            await nowhere.get_configuration("store", ["list"])
        with pytest.raises(UnavailableError, match=r"nats://127\.0\.0\.1:1"):
            await nowhere.subscribe_configuration("store", ["list"], print)
    finally:
        await nowhere.close()


def test_the_context_managers_of_both() -> None:
    with ringcast.DaprClient() as client:
        assert isinstance(client, ringcast.DaprClient)

    async def run() -> None:
        async with ringcast.aio.DaprClient() as client:
            assert isinstance(client, ringcast.aio.DaprClient)

    asyncio.run(run())
