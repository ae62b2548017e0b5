"""The socket that workers register at: who may, what is refused, and what stands in its place."""

from __future__ import annotations

import asyncio
import grp
import os
import socket
import stat
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest
from click.testing import CliRunner
from ringcast_heartbeat_agent.__main__ import main
from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.leases.socket_front import BURST_BYTES, RATE_BYTES_S, Allowance, Peer, SocketFront
from ringcast_heartbeat_agent.leases.state import SocketPlace, State
from ringcast_service import ConfigError
from ringcast_testkit import PATIENCE_S, AgentProcess, ConfigServiceProcess, NatsServer, attempt
from ringcast_wire import leases, limits

pb = leases.pb

STORE = "store-of-the-lease-tests"


@pytest.fixture(scope="module")
def agent_socket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("leases") / "s.sock"


@pytest.fixture(scope="module")
def agent(
    agent_socket: Path, tmp_path_factory: pytest.TempPathFactory, shared_nats: NatsServer, writer: Any
) -> Iterator[AgentProcess]:
    writer.create(STORE)  # the first store of a NATS makes the bucket of leases
    options = ("--lease-socket", str(agent_socket), "--max-workers", "2", "--start-timeout", "1", "--client-share", "1")
    with AgentProcess(tmp_path_factory.mktemp("agent"), nats_url=shared_nats.url, options=options) as agent:
        yield agent


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """One that every user gets through to."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@asynccontextmanager
async def stream(path: Path) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(leases.target(str(path))) as channel:
        call = leases.LeasesStub(channel).Hold()
        try:
            yield call
        finally:
            call.cancel()


def registration(worker_id: str = "w", **fields: Any) -> pb.HoldRequest:
    told = {"version": 1, "worker_id": worker_id, "incarnation": "i", "pid": 1, "store": STORE, "keys": ["k"], **fields}
    return pb.HoldRequest(register=pb.Register(**told))


async def refused(path: Path, *requests: pb.HoldRequest) -> tuple[grpc.StatusCode, str]:
    """What a stream that begins with these messages ends with."""
    async with stream(path) as call, asyncio.timeout(PATIENCE_S):
        try:
            for request in requests:
                await call.write(request)
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError:
            pass
        return await call.code(), await call.details()


@pytest.mark.parametrize(
    ("request_", "code", "said"),
    [
        (pb.HoldRequest(pong=pb.Pong(number=1)), "INVALID_ARGUMENT", "the first message must be a registration"),
        (pb.HoldRequest(), "INVALID_ARGUMENT", "the first message must be a registration"),
        (registration(version=2), "INVALID_ARGUMENT", "version 2 is unknown: this agent speaks 1"),
        (registration("no spaces"), "INVALID_ARGUMENT", "worker_id 'no spaces' is not a valid name"),
        (registration("w" * 65), "INVALID_ARGUMENT", "worker_id"),
        (registration(store="a.b"), "INVALID_ARGUMENT", "store 'a.b' is not a valid name"),
        (registration(keys=["a", ">"]), "INVALID_ARGUMENT", "key '>' is not a valid name"),
        (registration(keys=[]), "INVALID_ARGUMENT", "keys must name each config key once, and at least one"),
        (registration(keys=["k", "k"]), "INVALID_ARGUMENT", "keys must name each config key once"),
        (
            registration(keys=[f"k{number}" for number in range(limits.MAX_KEYS_PER_STORE + 1)]),
            "RESOURCE_EXHAUSTED",
            "keys has 101 entries: at most 100 are allowed",
        ),
        (registration(store="nosuch"), "NOT_FOUND", "store 'nosuch' does not exist on this NATS"),
        (registration(incarnation=""), "INVALID_ARGUMENT", "incarnation has 0 characters: 1 to 64 are allowed"),
        (registration(incarnation="i" * 65), "INVALID_ARGUMENT", "incarnation has 65 characters"),
        (registration(keys=["k" * leases.MAX_MESSAGE_BYTES]), "RESOURCE_EXHAUSTED", "larger than max"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    agent: AgentProcess, agent_socket: Path, request_: pb.HoldRequest, code: str, said: str
) -> None:
    status, details = await refused(agent_socket, request_)
    assert (status.name, said in details) == (code, True), details
    assert agent.status()["leases"]["workers"] == []


async def test_who_does_not_register_is_not_waited_for(agent: AgentProcess, agent_socket: Path) -> None:
    async with stream(agent_socket) as call, asyncio.timeout(PATIENCE_S):
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await call.details() == "no registration came within 5 s"


@attempt(
    "processes that only keep the lease socket busy",
    "keep workers out",
    "they are few and are ended; workers register",
)
async def test_streams_that_do_not_register_are_few_and_keep_nobody_out(
    agent: AgentProcess, agent_socket: Path
) -> None:
    async with grpc.aio.insecure_channel(leases.target(str(agent_socket))) as channel, asyncio.timeout(PATIENCE_S):
        silent = [leases.LeasesStub(channel).Hold() for _ in range(200)]
        codes = await asyncio.gather(*(call.code() for call in silent))
        assert Counter(code.name for code in codes) == {"RESOURCE_EXHAUSTED": 184, "INVALID_ARGUMENT": 16}
        said = {await call.details() for call in silent}
    user = f"user {os.getuid()} has 16 streams that have not registered: at most that many are allowed"
    assert said == {user, "no registration came within 5 s"}
    async with stream(agent_socket) as call, asyncio.timeout(PATIENCE_S):
        await call.write(registration("one"))
        assert (await call.read()).registered.lease
        (told,) = (await asyncio.to_thread(agent.status))["leases"]["workers"]
        assert told["uid"] == os.getuid()
        await call.write(pb.HoldRequest(leave=pb.Leave()))
        while await call.read() is not grpc.aio.EOF:
            pass


async def test_whose_a_connection_is_and_how_much_it_may_say(open_directory: Path) -> None:
    """The front passes bytes on and knows the user of each connection; one who says too much is read more slowly."""
    place = SocketPlace(open_directory / "s.sock", mode=0o666, group="")
    front = SocketFront(place, most=2)
    came: asyncio.Queue[tuple[str, asyncio.StreamReader]] = asyncio.Queue()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.put_nowait((writer.get_extra_info("peername")[1:].decode(), reader))

    inner = await asyncio.start_unix_server(connected, front.inner)
    await front.start()
    users = [os.getuid(), *([1, 1] if os.getuid() == 0 else [])]
    calling = []
    try:
        for user in users:
            calling.append(socket.socket(socket.AF_UNIX))
            os.seteuid(user)
            try:
                calling[-1].connect(str(place.path))
            finally:
                os.seteuid(os.getuid())
            async with asyncio.timeout(PATIENCE_S):
                name, reader = await came.get()
            peer = front.peer_of(f"unix-abstract:{name}")
            assert peer == Peer(os.getpid(), user)
            await asyncio.to_thread(calling[-1].sendall, b"hello")
            assert await reader.readexactly(5) == b"hello"
        with socket.socket(socket.AF_UNIX) as more:  # one connection too many
            for _ in range(3 - users.count(os.getuid())):
                more = socket.socket(socket.AF_UNIX)
                more.connect(str(place.path))
                calling.append(more)
            more.settimeout(PATIENCE_S)
            assert await asyncio.to_thread(more.recv, 1) == b""
        calling[0].close()
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b"" if len(users) == 1 else True
        allowance = Allowance()
        assert allowance.pause_s(BURST_BYTES) == 0
        assert allowance.pause_s(10 * RATE_BYTES_S) == pytest.approx(10, abs=1)
    finally:
        for one in calling:
            one.close()
        inner.close()
        await front.stop()
    assert not front.inner.parent.exists()


async def test_bytes_that_are_no_grpc_do_no_harm(agent: AgentProcess, agent_socket: Path) -> None:
    for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4096, os.urandom(100_000)):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(agent_socket))
            raw.settimeout(PATIENCE_S)
            try:
                raw.sendall(junk)
                while raw.recv(65_536):
                    pass
            except (ConnectionError, BrokenPipeError):
                pass
    status, _ = await refused(agent_socket, pb.HoldRequest())
    assert status is grpc.StatusCode.INVALID_ARGUMENT


async def test_registrations_have_a_limit_and_ids_an_owner(agent: AgentProcess, agent_socket: Path) -> None:
    async with stream(agent_socket) as one, stream(agent_socket) as two, asyncio.timeout(PATIENCE_S):
        for worker_id, call in (("one", one), ("two", two)):
            await call.write(registration(worker_id, pid=41))
            answer = (await call.read()).registered
            assert (answer.lease, answer.ping_interval_s, answer.patience_s) == (
                agent.status()["leases"]["lease"],
                1.0,
                10.0,
            )
        status, details = await refused(agent_socket, registration("one", pid=42))
        assert (status.name, details) == ("ALREADY_EXISTS", "worker id 'one' is in use by process 41 on this host")
        status, details = await refused(agent_socket, registration("three"))
        assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details == "the agent holds 2 registrations: at most 2 are allowed"
        await one.write(registration("one", pid=41))  # twice
        while await one.read() is not grpc.aio.EOF:
            pass
        await two.write(pb.HoldRequest(leave=pb.Leave()))
        while await two.read() is not grpc.aio.EOF:
            pass
    await asyncio.to_thread(agent.process.wait_until, lambda: agent.status()["leases"]["workers"] == [])


async def test_the_metrics_of_an_agent_with_a_socket(agent: AgentProcess, agent_socket: Path, http_get: Any) -> None:
    """They are served by a thread of their own."""

    def of_leases() -> list[str]:
        answer = http_get(agent.metrics_url)
        assert answer.status == 200
        return [line for line in answer.body.splitlines() if line.startswith("ringcast_agent_lease")]

    assert "ringcast_agent_lease_held 1.0" in await asyncio.to_thread(of_leases)
    async with stream(agent_socket) as call, asyncio.timeout(PATIENCE_S):
        await call.write(registration("one"))
        assert (await call.read()).registered.lease
        assert "ringcast_agent_leases_registered 1.0" in await asyncio.to_thread(of_leases)
        await call.write(pb.HoldRequest(leave=pb.Leave()))
        while await call.read() is not grpc.aio.EOF:
            pass


@attempt(
    "a second agent of the host",
    "take the lease socket over",
    "it does not start",
)
def test_a_second_agent_is_refused_and_told_of_the_first(
    agent: AgentProcess, agent_socket: Path, shared_nats: NatsServer
) -> None:
    words = ["--nats", shared_nats.url, "--lease-socket", str(agent_socket), "--start-timeout", "0.2"]
    failed = CliRunner().invoke(main, [*words, "--metrics-listen", "off"])
    assert failed.exit_code == 1
    assert f"lease_socket {agent_socket} is served by process {agent.process.pid}" in failed.output
    assert agent.status()["leases"]["held"]


async def test_the_lease_is_taken_when_there_is_a_bucket_for_it(
    tmp_path: Path,
    nats_server: NatsServer,
    config_service: ConfigServiceProcess,
    writer_to: Callable[[ConfigServiceProcess], Any],
) -> None:
    path = tmp_path / "s.sock"
    options = ("--lease-socket", str(path))
    with AgentProcess(tmp_path / "agent", nats_url=nats_server.url, options=options) as agent:
        status, details = await refused(path, registration())
        assert (status.name, details) == ("UNAVAILABLE", "the agent has no lease at the moment")
        assert not agent.status()["leases"]["held"]
        await asyncio.to_thread(writer_to(config_service).create, "first")
        await asyncio.to_thread(agent.process.wait_until, lambda: agent.status()["leases"]["held"])
        async with stream(path) as call, asyncio.timeout(PATIENCE_S):
            await call.write(registration(store="first"))
            assert (await call.read()).registered.lease == agent.status()["leases"]["lease"]


def test_the_mode_and_group_of_the_socket(tmp_path: Path, shared_nats: NatsServer, agent: AgentProcess) -> None:
    assert agent.status()["leases"]["held"]
    path = tmp_path / "s.sock"
    group = grp.getgrgid(os.getgid()).gr_name
    options = ("--lease-socket", str(path), "--lease-mode", "0666", "--lease-group", group)
    with AgentProcess(tmp_path / "agent", nats_url=shared_nats.url, options=options):
        found = path.stat()
        assert (stat.S_ISSOCK(found.st_mode), stat.S_IMODE(found.st_mode)) == (True, 0o666)
        assert found.st_gid == os.getgid()
        for name in ("s.sock.lock", "s.sock.state"):
            assert stat.S_IMODE(path.with_name(name).stat().st_mode) == 0o600
    with AgentProcess(tmp_path / "agent", nats_url=shared_nats.url, options=options[:2]):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_what_can_not_be_the_socket_is_told(tmp_path: Path, shared_nats: NatsServer) -> None:
    def said(path: Path | str, *more: str) -> str:
        words = ["--nats", shared_nats.url, "--metrics-listen", "off", "--lease-socket", str(path), *more]
        failed = CliRunner().invoke(main, words)
        assert failed.exit_code != 0
        return failed.output

    file = tmp_path / "file"
    file.write_text("precious")
    assert f"lease_socket {file} exists and is no socket" in said(file)
    assert file.read_text() == "precious"
    assert "can't be used: [Errno 2]" in said(tmp_path / "nowhere" / "s.sock")
    path = tmp_path / "s.sock"
    assert "can't be given to group 'no-such-group'" in said(path, "--lease-group", "no-such-group")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lease_socket": "relative.sock"}, "lease_socket 'relative.sock' of 13 bytes is not the path of a socket"),
        ({"lease_socket": "/" + "x" * 107}, "is not the path of a socket: it must be absolute, of at most 107"),
        ({"lease_mode": "rw"}, "lease_mode is 'rw': it must be 0600 to 0777, in octal"),
        ({"lease_mode": "0066"}, "lease_mode is '0066'"),
        ({"max_workers": 0}, "max_workers is 0: it must be 1 to 4096"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config(**settings)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"lease": "x"}', '{"lease": "a.b.c", "incarnation": "i"}', '{"lease": "a.>", "incarnation": "i"}'],
)
def test_a_state_of_no_use_is_passed_over(tmp_path: Path, text: str) -> None:
    place = SocketPlace(tmp_path / "s.sock", mode=0o660, group="")
    assert place.read() is None
    (tmp_path / "s.sock.state").write_text(text)
    assert place.read() is None
    state = State.fresh("host-1")
    place.write(state)
    assert place.read() == state
    assert State.fresh("host-1").lease != state.lease


def test_a_state_that_can_not_be_written_leaves_no_older_one(tmp_path: Path) -> None:
    """With that the next agent would keep a lease alive whose last workers it does not know."""
    place = SocketPlace(tmp_path / "s.sock", mode=0o660, group="")
    place.write(State.fresh("host-1"))
    in_its_way = tmp_path / f"s.sock.state.{os.getpid()}.tmp"
    in_its_way.mkdir()
    with pytest.raises(OSError, match="directory"):
        place.write(State.fresh("host-1"))
    assert place.read() is None
    in_its_way.rmdir()
    place.write(state := State.fresh("host-1"))
    assert place.read() == state


def test_an_agent_goes_on_with_the_state_of_a_newer_one(tmp_path: Path) -> None:
    place, state = SocketPlace(tmp_path / "s.sock", mode=0o660, group=""), State.fresh("host-1")
    left = {**msgspec.json.decode(msgspec.json.encode(state)), "zone": "a"}
    (tmp_path / "s.sock.state").write_bytes(msgspec.json.encode(left))
    assert place.read() == state
