"""``ringcast meta get`` and ``watch`` against real servers."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio
import pytest
from aetcd import rpc
from ringcast_meta import MetadataStore, open_store
from ringcast_testkit import ConfigServiceProcess, EtcdServer, ManagedProcess, NatsServer, ReservedPort
from ringcast_wire import NatsLogin

from tests.integration.cli_process import Cli

T = TypeVar("T")


@pytest.fixture(params=["nats", "etcd"])
def place(request: pytest.FixtureRequest) -> tuple[str, Any]:
    """The address of an empty store, and its server."""
    if request.param == "nats":
        nats: NatsServer = request.getfixturevalue("nats_server")
        return f"{nats.url}/cluster", nats
    etcd: EtcdServer = request.getfixturevalue("etcd_server")
    return f"etcd://{etcd.address}/ringcast", etcd


def of_store(address: str, work: Callable[[MetadataStore], Awaitable[T]], **more: Any) -> T:
    """What something returns that is done with the store of an address; its bucket is made if need be."""

    async def run() -> T:
        async with open_store(address, create=True, **more) as store:
            return await work(store)

    return asyncio.run(run())


@contextmanager
def watching(cli: Cli, *words: object) -> Iterator[ManagedProcess]:
    process = cli.start("meta", "watch", *words)
    try:
        yield process
    finally:
        process.kill()


def printed(process: ManagedProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in list(process.log) if line.startswith("{")]


def test_get(lone_cli: Cli, place: tuple[str, Any]) -> None:
    address, _ = place
    text = of_store(address, lambda store: store.create("services.a", "127.0.0.1:7420 ✓\x1b".encode()))
    raw = of_store(address, lambda store: store.create("services.b", b"\xff\x00"))
    assert lone_cli.ok("meta", "get", address, "services.a").out == "127.0.0.1:7420 ✓\\x1b\n"
    assert lone_cli.ok("meta", "get", address, "services.a", "--json").document == {
        "key": "services.a",
        "revision": text,
        "leased": False,
        "value": "127.0.0.1:7420 ✓\x1b",
    }
    assert lone_cli.ok("meta", "get", address, "services.b").out == "\\xff\\x00\n"
    assert lone_cli.ok("meta", "get", address, "services.b", "--json").document == {
        "key": "services.b",
        "revision": raw,
        "leased": False,
        "base64": "/wA=",
    }
    assert lone_cli.refused("meta", "get", address, "services.c") == (
        f"nothing stands under key 'services.c' in {address}"
    )
    assert lone_cli.refused("meta", "get", address, "services.*").startswith("key 'services.*' is not valid: 1 to 256")


def test_watch(lone_cli: Cli, place: tuple[str, Any]) -> None:
    address, server = place
    first = of_store(address, lambda store: store.create("services.a", b"1"))
    gone = of_store(address, lambda store: store.create("services.gone", b"1"))
    of_store(address, lambda store: store.create("other.x", b"1"))
    once = lone_cli.ok("meta", "watch", address, "services.", "--once")
    assert (once.out, once.err) == (f"{first}\tput\tservices.a\t1\n{gone}\tput\tservices.gone\t1\n", "")
    assert lone_cli.ok("meta", "watch", address, "--limit", 1).out.endswith("\tput\tother.x\t1\n")
    with watching(lone_cli, address, "services.", "--json") as watch:
        watch.wait_until(lambda: len(printed(watch)) == 2)
        second = of_store(address, lambda store: store.put("services.a", b"2", last=first))
        deleted = of_store(address, lambda store: store.delete("services.gone", last=gone))
        watch.wait_until(lambda: len(printed(watch)) == 4)
        server.kill()
        server.restart()
        third = of_store(address, lambda store: store.put("services.a", b"3", last=second))
        watch.wait_until(lambda: len(printed(watch)) == 5)
        watch.signal(signal.SIGINT)
        assert watch.wait() == 0
        assert printed(watch)[2:] == [
            {"key": "services.a", "revision": second, "leased": False, "value": "2"},
            {"key": "services.gone", "revision": deleted, "deleted": True},
            {"key": "services.a", "revision": third, "leased": False, "value": "3"},
        ]
        assert any("event=metadata_watch.broken prefix=services." in line for line in watch.log)


def test_a_person_is_told_when_all_is_printed(lone_cli: Cli, place: tuple[str, Any]) -> None:
    address, _ = place
    revision = of_store(address, lambda store: store.create("a", b"1"))
    with watching(lone_cli, address) as watch:
        watch.wait_until(lambda: f"complete at revision {revision}: 1 entries\n" in watch.log)
        deleted = of_store(address, lambda store: store.delete("a", last=revision))
        watch.wait_until(lambda: f"{deleted}\tdelete\ta\n" in watch.log)
        watch.signal(signal.SIGTERM)
        assert watch.wait() == 0


@pytest.mark.parametrize("words", [("get", "a"), ("watch",)])
def test_what_can_not_be_read_is_one_sentence(lone_cli: Cli, nats_server: NatsServer, words: tuple[str, ...]) -> None:
    def refused(address: str) -> str:
        return lone_cli.refused("meta", words[0], address, *words[1:], "--timeout", 3)

    nobody = ReservedPort().address
    assert refused(f"nats://{nobody}/cluster") == f"NATS at nats://{nobody} can't be reached: connection refused"
    assert refused(f"etcd://{nobody}/ringcast").startswith("no answer from etcd to Range: ")
    assert refused(f"{nats_server.url}/none") == "bucket 'none': NATS answers 'stream not found' (10059)"
    assert "is not a metadata store: nats://host:port/bucket" in refused("redis://u:secret@here/x")
    assert "secret" not in refused("redis://u:secret@here/x")
    assert refused("memory:") == "address memory: is of one process: there is nothing to look at"


def test_a_prefix_that_is_none(lone_cli: Cli, nats_server: NatsServer) -> None:
    sentence = lone_cli.refused("meta", "watch", f"{nats_server.url}/cluster", "services")
    assert sentence.startswith("prefix 'services' is not valid: it must be empty, or whole words of a key with a dot")


def test_a_credential_of_nats_without_rights(lone_cli: Cli, tmp_path: Path) -> None:
    reads = ["$JS.API.STREAM.INFO.KV_cluster", "$JS.API.STREAM.MSG.GET.KV_cluster"]
    rights = {
        "admin": {"publish": [">"], "subscribe": [">"]},
        "reader": {"publish": reads, "subscribe": ["_INBOX.tools.>"]},
        "nobody": {"publish": ["other"], "subscribe": ["_INBOX.tools.>"]},
    }
    users = [{"user": name, "password": "secret", "permissions": each} for name, each in rights.items()]
    with NatsServer(tmp_path / "guarded", authorization={"users": users}) as server:
        address, admin = f"{server.url}/cluster", NatsLogin(user="admin", password="secret")
        of_store(address, lambda store: store.create("a", b"1"), login=admin)

        def of(user: str, password: str = "secret") -> Cli:
            return Cli(tmp_path, user=user, password=password, timeout_s="30")

        assert of("reader").ok("meta", "get", address, "a").out == "1\n"
        sentence = "bucket 'cluster': NATS does not let this user publish to $JS.API."
        assert of("reader").refused("meta", "watch", address).startswith(f"{sentence}CONSUMER.CREATE.KV_cluster.")
        for words in (("get", address, "a"), ("watch", address)):
            assert of("nobody").refused("meta", *words) == f"{sentence}STREAM.MSG.GET.KV_cluster"
            assert of("nobody", "wrong").refused("meta", *words) == (
                f"NATS at {server.url} refuses the login, or asks for one that was not given"
            )
        error = json.loads(of("nobody")("meta", "get", address, "a", "--json").err)
        assert error["error"]["code"] == "PERMISSION_DENIED"


async def _guard(server: EtcdServer) -> None:
    async with grpc.aio.insecure_channel(server.address) as channel:
        auth = rpc.AuthStub(channel)
        for name in ("root", "reader", "nobody"):
            await auth.UserAdd(rpc.AuthUserAddRequest(name=name, password="secret"))
        await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="root", role="root"))
        await auth.RoleAdd(rpc.AuthRoleAddRequest(name="reader"))
        granted = rpc.Permission(permType=rpc.Permission.Type.READ, key=b"ringcast/", range_end=b"ringcast0")
        await auth.RoleGrantPermission(rpc.AuthRoleGrantPermissionRequest(name="reader", perm=granted))
        await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="reader", role="reader"))
        await auth.AuthEnable(rpc.AuthEnableRequest())


def test_a_user_of_etcd(lone_cli: Cli, etcd_server: EtcdServer, tmp_path: Path) -> None:
    address = f"etcd://{etcd_server.address}/ringcast"
    of_store(address, lambda store: store.create("a", b"1"))
    asyncio.run(_guard(etcd_server))
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "wrong").write_text("wrong\n")
    login = ("--etcd-user", "reader", "--etcd-password-file", tmp_path / "secret")
    assert lone_cli.ok("meta", "get", address, "a", *login).out == "1\n"
    assert lone_cli.ok("meta", "watch", address, "--once", *login).out.endswith("\tput\ta\t1\n")
    for words in (("get", address, "a"), ("watch", address)):
        nobody = lone_cli.refused("meta", *words, "--etcd-user", "nobody", "--etcd-password-file", tmp_path / "secret")
        assert nobody == "etcd answers Range with 'etcdserver: permission denied' (PERMISSION_DENIED)"
        wrong = lone_cli.refused("meta", *words, "--etcd-user", "reader", "--etcd-password-file", tmp_path / "wrong")
        assert wrong.startswith("etcd answers Authenticate with ")
        assert (
            lone_cli.refused("meta", *words, "--etcd-user", "reader")
            == "user is given without password: both are needed"
        )
        assert lone_cli.refused("meta", *words, *login[:3], tmp_path / "none") == (
            f"etcd_password_file '{tmp_path / 'none'}' can't be read: No such file or directory"
        )


def test_the_instances_of_the_config_service(
    lone_cli: Cli, place: tuple[str, Any], nats_url: str, tmp_path: Path
) -> None:
    address, _ = place
    address = address.replace("/cluster", "/config_cluster")
    options = ("--cluster-store", address)
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    with ConfigServiceProcess(tmp_path, nats_url=nats_url, database=database, options=options) as service:
        service.process.wait_until(lambda: any("event=cluster.registered" in line for line in service.process.log))
        (entry,) = lone_cli.ok("meta", "watch", address, "services.", "--once", "--json").documents
        assert json.loads(entry["value"])["address"] == service.address
        with watching(lone_cli, address, "services.", "--json") as watch:
            watch.wait_until(lambda: len(printed(watch)) == 1)
            service.process.signal(signal.SIGTERM)
            watch.wait_until(lambda: len(printed(watch)) == 2)
            assert printed(watch)[1]["key"] == entry["key"]
            assert printed(watch)[1]["deleted"]
