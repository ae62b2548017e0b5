"""The token that an agent makes at its first start, and who finds it."""

from __future__ import annotations

import asyncio
import grp
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from dapr.clients import DaprClient
from dapr.proto.runtime.v1 import configuration_pb2, dapr_pb2_grpc
from ringcast.dispatch import Consumer, ConsumerError
from ringcast_heartbeat_agent.clients import Here, client_of, peer_of
from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.token_file import with_token
from ringcast_service import ConfigError
from ringcast_testkit import PATIENCE_S, AgentProcess, NatsServer, attempt
from ringcast_wire import agent_token


def test_a_token_is_made_at_the_first_start_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "of-user" / "agent.token"
    first = with_token(Config(token_file=str(path)))
    assert len(first.api_token) >= 32
    assert with_token(Config(token_file=str(path))).api_token == first.api_token == path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]
    assert with_token(Config(token_file=str(path), api_token="given")).api_token == "given"
    assert with_token(Config()).api_token == ""


def test_the_group_of_the_socket_may_read_it(tmp_path: Path) -> None:
    group = grp.getgrgid(os.getgid()).gr_name
    path = tmp_path / "s.sock.token"
    with_token(Config(token_file=str(path), lease_socket=str(tmp_path / "s.sock"), lease_group=group))
    assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_gid) == (0o640, os.getgid())


@attempt(
    "another user of the host",
    "have the agent use a token file that others may write, or a link in its place",
    "the agent does not start",
)
def test_a_file_that_is_of_no_use_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent.token"

    def said(text: str | None = None, mode: int = 0o600) -> str:
        if text is not None:
            path.write_text(text)
            path.chmod(mode)
        with pytest.raises(ConfigError) as caught:
            with_token(Config(token_file=str(path)))
        return str(caught.value)

    assert said("short") == f"token_file {path} holds no token of 16 or more printable characters"
    assert "holds no token" in said("x" * 20 + "\n\n" + "y" * 20)
    assert said("x" * 32, 0o620) == f"token_file {path} must be a file that only its owner, the agent's user, may write"
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    assert "can't be used" in said()
    path.unlink()
    path.mkdir()
    assert "can't be used" in said()


def test_where_it_is_looked_for(tmp_path: Path) -> None:
    home = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert agent_token.place_of_agent("/run/a/s.sock", home) == Path("/run/a/s.sock.token")
    assert agent_token.place_of_agent("", {**home, "RUNTIME_DIRECTORY": "/run/a:/run/b"}) == Path("/run/a/agent.token")
    place = agent_token.place_of_agent("", home)
    assert place == tmp_path / "ringcast" / "agent.token"
    assert agent_token.place_of_agent("", {}) == Path("~/.ringcast/agent.token").expanduser()
    with_token(Config(token_file=str(place)))
    assert agent_token.find(home) == place.read_text()
    (tmp_path / "s.sock.token").write_text("of-the-socket\n")
    assert agent_token.find({**home, "RINGCAST_AGENT": str(tmp_path / "s.sock")}) == "of-the-socket"
    assert agent_token.find({**home, "RINGCAST_AGENT_TOKEN_FILE": str(tmp_path / "nowhere")}) == ""
    assert agent_token.find({**home, "RINGCAST_AGENT_TOKEN_FILE": "off"}) == ""


@attempt(
    "a process that does not know the token of the agent",
    "read rows or the status, or take part in a group",
    "401 or `UNAUTHENTICATED`; nobody had to turn that on",
)
async def test_without_being_told_anything_an_agent_wants_a_token(
    tmp_path: Path, shared_nats: NatsServer, http_get: Any, writer: Any, sidecar: Any, store_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """And the clients of its user find it."""
    writer.create(store_name)
    writer.put(store_name, "list", "a", "1")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for variable in ("RUNTIME_DIRECTORY", "DAPR_API_TOKEN", agent_token.VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    with AgentProcess(tmp_path / "agent", nats_url=shared_nats.url, options=("--token-file", "")) as agent:
        assert agent.token == (tmp_path / "ringcast" / "agent.token").read_text()
        at = f"{agent.http_url}/v1.0/configuration/{store_name}?key=list"
        assert http_get(at).status == 401
        assert http_get(f"{agent.http_url}/ringcast/v1/status").status == 401
        assert http_get(at, dapr_api_token=agent.token).status == 200
        place: dict[str, Any] = {"store": store_name, "key": "list", "group": "g", "name": "one"}
        async with Consumer(agent.grpc_address, **place) as consumer:
            async for delivery in consumer:
                assert delivery.row_id == "a"
                break
        with pytest.raises(ConsumerError) as refused:
            async with Consumer(agent.grpc_address, token="", **place):
                pass
        assert refused.value.code is grpc.StatusCode.UNAUTHENTICATED
        sidecar(agent)
        with DaprClient() as client:  # it sends no token when it subscribes: see the next test
            assert client.get_configuration(store_name, ["list"]).items["a"].value == "1"
        token = agent.token
        agent.restart()
        assert agent.token == token


async def test_a_consumer_that_is_refused_after_a_restart_raises_the_refusal_itself(
    tmp_path: Path, shared_nats: NatsServer, writer: Any, store_name: str
) -> None:
    """Both from its iterator and from :meth:`Consumer.run`, whose group of tasks would wrap it."""
    writer.create(store_name)
    writer.put(store_name, "list", "a", "1")
    place: dict[str, Any] = {"store": store_name, "key": "list", "group": "g"}
    with AgentProcess(tmp_path / "agent", nats_url=shared_nats.url) as agent:
        served = asyncio.Event()

        async def run() -> None:
            async with Consumer(agent.grpc_address, name="run", token=agent.token, **place) as consumer:
                await consumer.run(lambda _: served.set())

        async def iterate() -> None:
            async with Consumer(agent.grpc_address, name="iterate", token=agent.token, **place) as consumer:
                registered.set()
                async for delivery in consumer:
                    delivery.ack()
                    served.set()

        registered = asyncio.Event()
        tasks = [asyncio.create_task(run()), asyncio.create_task(iterate())]
        async with asyncio.timeout(PATIENCE_S):
            await served.wait()
            await registered.wait()
        await asyncio.to_thread(agent.terminate)
        (tmp_path / "agent" / "agent.token").write_text("another-token-of-this-agent")
        await asyncio.to_thread(agent.start)
        async with asyncio.timeout(PATIENCE_S):
            ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        assert isinstance(end, ConsumerError)
        assert end.code is grpc.StatusCode.UNAUTHENTICATED
        assert "api token" in str(end)


def test_users_that_need_no_token(
    tmp_path: Path, shared_nats: NatsServer, http_get: Any, writer: Any, store_name: str
) -> None:
    writer.create(store_name)
    writer.put(store_name, "list", "a", "1")
    request = configuration_pb2.SubscribeConfigurationRequest(store_name=store_name, keys=["list"])

    def subscribed(agent: AgentProcess, *metadata: tuple[str, str]) -> str:
        """With which status."""
        with grpc.insecure_channel(agent.grpc_address) as channel:
            stream = dapr_pb2_grpc.DaprStub(channel).SubscribeConfiguration(request, metadata=metadata)
            try:
                return "OK" if next(stream).id else ""
            except grpc.RpcError:
                return str(stream.code().name)

    other = os.getuid() + 1
    for users, free in ((str(other), False), (f"{other},{os.getuid()}", True)):
        options = ("--trusted-users", users)
        with AgentProcess(tmp_path / users, nats_url=shared_nats.url, options=options) as agent:
            at = f"{agent.http_url}/v1.0/configuration/{store_name}?key=list"
            assert http_get(at).status == (200 if free else 401)
            assert http_get(at, dapr_api_token="wrong").status == 401
            assert subscribed(agent) == ("OK" if free else "UNAUTHENTICATED")
            assert subscribed(agent, ("dapr-api-token", "wrong")) == "UNAUTHENTICATED"
            assert subscribed(agent, ("dapr-api-token", agent.token)) == "OK"
    with pytest.raises(ConfigError, match="no-such-user"):
        Config(trusted_users=("no-such-user",))


def whose(address: Any, listening: socket.socket) -> str:
    return client_of(peer_of(address), Here.of(listening.getsockname()))


def test_whose_a_connection_is() -> None:
    mine = f"uid {os.getuid()}"
    for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
        with socket.socket(family) as listening, socket.socket(family) as calling:
            listening.bind((host, 0))
            listening.listen()
            calling.connect(listening.getsockname())
            accepted, address = listening.accept()
            with accepted:
                assert whose(address, listening) == mine
                calling.shutdown(socket.SHUT_WR)  # closed in one direction: still that user's
                assert whose(address, listening) == mine
                calling.close()  # of one that nobody has any more the kernel says that it is root's
                assert whose(address, listening) == "unknown of this host"
    with socket.socket(socket.AF_INET6) as listening, socket.socket() as calling:
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.bind(("::", 0))
        listening.listen()
        calling.connect(("127.0.0.1", listening.getsockname()[1]))
        accepted, address = listening.accept()
        with accepted:
            assert whose(address, listening) == mine
            assert whose(address, accepted) == mine
    assert client_of("unix:", Here("127.0.0.1", 1)) == "unix:"
    assert client_of("ipv4:192.0.2.1:5", Here("127.0.0.1", 1)) == "address 192.0.2.1"


def test_a_connection_from_the_same_port_to_elsewhere_is_not_the_callers() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as agent,
        socket.create_server(("127.0.0.1", 0)) as elsewhere,
        socket.create_connection(elsewhere.getsockname()) as calling,
    ):
        address = calling.getsockname()
        assert whose(address, elsewhere) == f"uid {os.getuid()}"
        assert whose(address, agent) == "unknown of this host"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can take two users")
@attempt(
    "a process of another user of the host",
    "pass for a trusted user by sharing its port",
    "neither counts as trusted",
)
def test_of_two_users_on_one_port_neither_is_taken() -> None:
    call = (
        "import os, socket, sys; os.setuid(65534); one = socket.socket();"
        "one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1);"
        "one.bind(('127.0.0.1', int(sys.argv[1]))); one.connect(('127.0.0.2', int(sys.argv[2])));"
        "print('on', flush=True); sys.stdin.read()"
    )
    with socket.create_server(("127.0.0.1", 0)) as agent, socket.socket() as other, socket.socket() as calling:
        number = agent.getsockname()[1]
        other.bind(("127.0.0.2", number))
        other.listen()
        calling.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        calling.bind(("127.0.0.1", 0))
        port = calling.getsockname()[1]
        words = [sys.executable, "-I", "-c", call, str(port), str(number)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
            assert stranger.stdout is not None
            assert stranger.stdout.readline() == b"on\n"
            calling.connect(agent.getsockname())
            address = calling.getsockname()
            assert whose(address, agent) == "uid 0"
            assert whose(address, other) == "uid 65534"
            assert client_of(peer_of(address), Here("0.0.0.0", number)) == "unknown of this host"
            stranger.communicate()
