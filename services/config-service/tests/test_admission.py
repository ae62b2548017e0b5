"""What may be open at once, and who is let in, before anything of a call is read."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from ringcast_config_service.grpc import callers, guard
from ringcast_config_service.grpc.admission import LIMITS, MAX_REQUEST_BYTES, CallKind, Limit
from ringcast_config_service.refusals import Refusals
from ringcast_config_service.security import Security
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, attempt
from ringcast_wire import ErrorCode
from ringcast_wire.grpc import SERVICE_NAME, ConfigServiceStub, ServiceLogin, error_from_rpc, pb

Running = Any  # of conftest.py
Keys = Any  # of conftest.py
ANOTHER = "a-token-of-more-than-sixteen-characters-2"  # the second of the file that conftest.py writes


async def refusal(call: Any) -> tuple[grpc.StatusCode, ErrorCode, str]:
    """What a call is refused with before it gets an answer."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read() if hasattr(call, "read") else await call
    error = error_from_rpc(caught.value)
    return caught.value.code(), error.code, str(error)


def watch(channel: grpc.aio.Channel) -> Any:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    return stub.Watch(health_pb2.HealthCheckRequest())


@asynccontextmanager
async def with_tokens(start: Any, nats_url: str, directory: Path, keys: Keys) -> AsyncIterator[Running]:
    """An instance in this process that asks for a token."""
    security = Security(tls_cert_file=keys.cert, tls_key_file=keys.key, token_file=keys.tokens)
    async with start(nats_url, f"sqlite:{directory / 'ringcast.db'}", security=security) as service:
        yield service


@asynccontextmanager
async def logged_in(service: Running, keys: Keys, token: str = "") -> AsyncIterator[grpc.aio.Channel]:
    """A connection of its own, with this token or without any."""
    login = ServiceLogin(
        tls_ca_file=keys.ca, token_file=keys.write(f"token-{len(token)}", token.encode()) if token else ""
    )
    async with login.aio_channel(service.app.grpc_address, (("grpc.use_local_subchannel_pool", 1),)) as channel:
        yield channel


def refused_calls(service: Running) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = service.app._telemetry.measures.refusals.counts
    return {labels: count for labels, count in counts.items() if count}


async def test_health_watches_leave_room_for_calls(
    service: Running, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LIMITS, CallKind.HEALTH_WATCH, Limit(3, 2, 2))
    monkeypatch.setitem(LIMITS, CallKind.UNARY, Limit(2, 2, 2))
    await service.create(store_name)
    watches = [watch(service.channel) for _ in range(2)]
    for one in watches:
        assert (await one.read()).status == health_pb2.HealthCheckResponse.SERVING
    said = "2 health watches of one principal are open: at most 2 may be"
    assert await refusal(watch(service.channel)) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        ErrorCode.LIMIT_EXCEEDED,
        said,
    )
    assert (await service.put(store_name, "a")).version == 1
    assert refused_calls(service) == {("health_watch", "limit_principal"): 1}
    watches[0].cancel()
    await until_let_in(lambda: watch(service.channel))


async def until_let_in(open_call: Any) -> None:
    """Returns once a call is let in: the service hears of the end of another one a moment after its client."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            call = open_call()
            with contextlib.suppress(grpc.aio.AioRpcError):
                await call.read()
                return


async def test_a_limit_in_all(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIMITS, CallKind.CHANGES, Limit(1, 9, 9))
    call = service.stub.Change()
    await call.wait_for_connection()
    said = "1 streams of changes are open: at most 1 may be"
    assert (await refusal(service.stub.Change()))[2] == said
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.stub.Change().read()
    assert error_from_rpc(caught.value).retry_after_s == 1.0
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    await call.code()
    again = service.stub.Change()
    await again.wait_for_connection()


@attempt(
    "a principal",
    "use up all calls of the service",
    "refused beyond its share; others are served",
)
async def test_one_principal_leaves_room_for_another(
    start: Any, nats_url: str, tmp_path: Path, keys: Keys, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LIMITS, CallKind.CHANGES, Limit(9, 2, 3))
    async with (
        with_tokens(start, nats_url, tmp_path, keys) as service,
        logged_in(service, keys, token) as first,
        logged_in(service, keys, ANOTHER) as second,
    ):
        for _ in range(2):
            await ConfigServiceStub(first).Change().wait_for_connection()
        said = (await refusal(ConfigServiceStub(first).Change()))[2]
        assert said == "2 streams of changes of one principal are open: at most 2 may be"
        await ConfigServiceStub(second).Change().wait_for_connection()
        said = (await refusal(ConfigServiceStub(second).Change()))[2]
        assert said == "3 streams of changes from one host are open: at most 3 may be"
        assert refused_calls(service) == {("changes", "limit_principal"): 1, ("changes", "limit_host"): 1}


@attempt(
    "clients without a token",
    "use up all calls of the service",
    "refused before anything is read; clients with a token are served",
)
async def test_calls_without_a_token_take_nothing_from_those_with_one(
    start: Any, nats_url: str, tmp_path: Path, keys: Keys, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LIMITS, CallKind.UNARY, Limit(1, 1, 1))
    monkeypatch.setitem(LIMITS, CallKind.CHANGES, Limit(1, 1, 1))
    async with (
        with_tokens(start, nats_url, tmp_path, keys) as service,
        logged_in(service, keys) as anonymous,
        logged_in(service, keys, token) as known,
    ):
        stub = ConfigServiceStub(anonymous)
        calls = [stub.ListStores(pb.ListStoresRequest()) for _ in range(200)] + [stub.Change() for _ in range(200)]
        assert {(await refusal(call))[0] for call in calls} == {grpc.StatusCode.UNAUTHENTICATED}
        await ConfigServiceStub(known).Change().wait_for_connection()
        assert not (await ConfigServiceStub(known).ListStores(pb.ListStoresRequest())).stores
        assert refused_calls(service) == {("unary", "no_token"): 200, ("changes", "no_token"): 200}


@attempt(
    "a client whose token was withdrawn",
    "go on writing over a stream that is open",
    "`UNAUTHENTICATED` with its next message, which is not written",
)
@pytest.mark.parametrize("kind", ["changes", "bulk"])
async def test_a_stream_writes_nothing_for_a_token_that_was_withdrawn(
    start: Any, nats_url: str, tmp_path: Path, keys: Keys, token: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "LOGIN_S", 0.0)

    def message(number: int) -> pb.Changes | pb.WriteBatch:
        if kind == "changes":
            change = pb.RowChange(number=number, row_id=f"row{number}", value="v")
            return pb.Changes(store="s", key="k", changes=[change])
        return pb.WriteBatch(store="s", key="k", sequence=number, row_ids=[f"row{number}"], values=["v"])

    async with (
        with_tokens(start, nats_url, tmp_path, keys) as service,
        logged_in(service, keys, token) as first,
        logged_in(service, keys, ANOTHER) as second,
    ):
        stubs = ConfigServiceStub(first), ConfigServiceStub(second)
        await stubs[0].CreateStore(pb.CreateStoreRequest(name="s", partition_count=2))
        streams = [stub.Change() if kind == "changes" else stub.Write() for stub in stubs]
        for number, stream in enumerate(streams, 1):
            await stream.write(message(number))
            await stream.read()
        keys.write("tokens", f"{ANOTHER}\n".encode())
        await streams[0].write(message(3))
        assert (await refusal(streams[0]))[:2] == (grpc.StatusCode.UNAUTHENTICATED, ErrorCode.UNAUTHENTICATED)
        again = stubs[0].Change() if kind == "changes" else stubs[0].Write()
        assert (await refusal(again))[0] is grpc.StatusCode.UNAUTHENTICATED
        await streams[1].write(message(4))
        await streams[1].read()
        pages = stubs[1].List(pb.ListRequest(store="s", key="k"))
        assert sorted([row.row_id async for page in pages for row in page.rows]) == ["row1", "row2", "row4"]
        assert refused_calls(service)[kind, "unknown_token"] == 2


@attempt(
    "a client with a token",
    "send a small compressed request that becomes a large one",
    "`RESOURCE_EXHAUSTED` at 6 MiB, without a token `UNAUTHENTICATED`; the connection stays",
)
async def test_a_compressed_request_becomes_no_larger_than_another(
    start: Any, nats_url: str, tmp_path: Path, keys: Keys, token: str
) -> None:
    large = pb.PutRequest(store="s", key="k", row_id="r", value="0" * (2 * MAX_REQUEST_BYTES))
    small = pb.PutRequest(store="s", key="k", row_id="r", value="0" * 1_000)
    async with (
        with_tokens(start, nats_url, tmp_path, keys) as service,
        logged_in(service, keys) as anonymous,
        logged_in(service, keys, token) as known,
    ):
        stub = ConfigServiceStub(known)
        await stub.CreateStore(pb.CreateStoreRequest(name="s", partition_count=2))
        compressed: Any = {"compression": grpc.Compression.Gzip}
        said = await refusal(ConfigServiceStub(anonymous).Put(large, **compressed))
        assert said[0] is grpc.StatusCode.UNAUTHENTICATED
        code, _, why = await refusal(stub.Put(large, **compressed))
        assert (code, "larger than max" in why) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)
        assert (await stub.Put(small, **compressed)).version == 1


@attempt(
    "a client without a token",
    "have the service read large requests",
    "refused before a message is read",
)
async def test_nothing_is_read_of_a_call_without_a_token(tmp_path: Path, nats_url: str, keys: Keys, token: str) -> None:
    """Sixty requests of the largest size at once: with a login they would take a gigabyte and more."""
    options = ("--tls-cert", keys.cert, "--tls-key", keys.key, "--tokens", keys.tokens)
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    body = bytes(MAX_REQUEST_BYTES - 1024)
    with ConfigServiceProcess(tmp_path, nats_url=nats_url, database=database, options=options) as service:
        async with ServiceLogin(tls_ca_file=keys.ca).aio_channel(service.address, ()) as channel:
            put: Any = channel.unary_unary(f"/{SERVICE_NAME}/Put")
            before = peak_mib(service.process.pid)
            found = await asyncio.gather(*(refusal(put(body)) for _ in range(60)))
            assert {code for code, *_ in found} == {grpc.StatusCode.UNAUTHENTICATED}
            assert peak_mib(service.process.pid) - before < 60


def peak_mib(pid: int) -> int:
    """The most memory that a process ever had."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


async def test_a_refused_call_leaves_no_frames_to_the_collector(
    start: Any, tmp_path: Path, nats_url: str, keys: Keys
) -> None:
    """Calls that anybody may make must not fill the memory that stops all others while it is cleared."""

    def frames() -> list[str]:
        found = (one.f_code.co_qualname for one in gc.get_objects() if isinstance(one, FrameType))
        return [name for name in found if name.startswith(("Admission.", "GuardedServer."))]

    async with with_tokens(start, nats_url, tmp_path, keys) as service, logged_in(service, keys) as channel:
        stub: Any = ConfigServiceStub(channel)
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                assert (await refusal(stub.ListStores(pb.ListStoresRequest())))[1] is ErrorCode.UNAUTHENTICATED
            async with asyncio.timeout(PATIENCE_S):
                while frames():  # noqa: ASYNC110  # nothing tells of it
                    await asyncio.sleep(0)
        finally:
            gc.enable()


async def test_a_call_without_a_request(service: Running) -> None:
    call = service.channel.stream_unary(f"/{SERVICE_NAME}/ListStores")()
    await call.done_writing()
    assert (await refusal(call))[1:] == (ErrorCode.INVALID_INPUT, "the call came without a request")


def test_hosts() -> None:
    assert callers.host_of("ipv4:10.1.2.3:4567") == "10.1.2.3"
    assert callers.host_of("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:4567") == "2001:db8:1:2::"
    assert callers.host_of("ipv6:%5B::ffff:10.1.2.3%5D:4567") == "10.1.2.3"
    assert callers.host_of("ipv6:[fe80::1%25eth0]:4567") == "fe80::"
    assert callers.host_of("unix:/run/ringcast.sock") == "/run/ringcast.sock"


def test_refusals_are_logged_now_and_then(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr("ringcast_config_service.refusals.time.monotonic", lambda: now)
    refusals = Refusals()
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            refusals.login("unary", "no_token", "10.0.0.1")
        refusals.login("unary", "unknown_token", "10.0.0.1")
        now += 60
        refusals.login("bulk", "no_token", "10.0.0.1")
    assert [record.getMessage() for record in caplog.records] == [
        "event=login.refused host=10.0.0.1 call=unary reason=no_token unlogged=0",
        "event=login.refused host=10.0.0.1 call=unary reason=unknown_token unlogged=0",
        "event=login.refused host=10.0.0.1 call=bulk reason=no_token unlogged=49",
    ]
    assert (refusals.counts["unary", "no_token"], refusals.counts["bulk", "no_token"]) == (50, 1)
    caplog.clear()
    now += 60
    with caplog.at_level(logging.WARNING):
        for number in range(5_000):
            refusals.call("unary", "limit_host", f"10.0.{number >> 8}.{number & 255}")
    assert len(caplog.records) == 20
