"""What only etcd does: compaction, users, TLS, several members."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import trustme
from aetcd import rpc
from ringcast_meta import LocalCache, Snapshot, StoreOptions, check_address, open_store
from ringcast_meta.etcd import EtcdLogin, EtcdStore
from ringcast_testkit import PATIENCE_S, EtcdServer, ReservedPort, until
from ringcast_wire import InvalidInputError, PermissionDeniedError, UnauthenticatedError, UnavailableError


async def compact(address: str, revision: int) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        await rpc.KVStub(channel).Compact(rpc.CompactionRequest(revision=revision, physical=True))


async def test_a_revision_that_is_compacted_under_a_watch(etcd_bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The network stands still for long; what the watch has still to get is compacted meanwhile."""
    patient = StoreOptions(silent_after_s=PATIENCE_S, call_timeout_s=PATIENCE_S / 2, check_interval_s=60.0)
    far, near = await etcd_bench.store(patient), await etcd_bench.store(near=True)
    async with far.watch("a.") as watch:
        first = await anext(watch)
        assert isinstance(first, Snapshot)
        # The first change comes by: so the server has the watch.
        revision = await near.create("a.x", b"")
        assert (await anext(watch)).revision == revision
        etcd_bench.silence()
        # More than the buffers of the connection and the queue of the server take (128 answers): it keeps the rest for
        # later.
        value = b"v" * 60_000
        for _ in range(400):
            revision = await near.put("a.x", value, last=revision)
        last = await near.put("a.x", b"last", last=revision)
        await compact(etcd_bench.server.address, last)
        etcd_bench.mend()
        async with asyncio.timeout(PATIENCE_S):
            while not isinstance(event := await anext(watch), Snapshot):
                assert event.revision <= last
        assert event.entries == (("a.x", b"last", last, False),)
    assert f"etcd has compacted revision {last}" in caplog.text


async def test_a_snapshot_of_many_pages_under_compaction(etcd_bench: Any) -> None:
    store, near = await etcd_bench.store(), await etcd_bench.store(near=True)
    keys = [f"a.{number:03}" for number in range(150)]
    revisions = dict(zip(keys, await asyncio.gather(*(near.create(key, b"1") for key in keys)), strict=True))
    async with LocalCache(store, "a.") as cache:
        for key in keys[:40]:
            revisions[key] = await near.put(key, b"2", last=revisions[key])
            await compact(etcd_bench.server.address, revisions[key])
        await cache.wait_for(revisions[keys[39]], PATIENCE_S)
        assert {key: entry.revision for key, entry in cache.entries().items()} == revisions


async def test_another_member_takes_over(etcd_bench: Any) -> None:
    nobody = ReservedPort()
    server: EtcdServer = etcd_bench.server
    options = StoreOptions(call_timeout_s=2.0, check_interval_s=0.1, silent_after_s=1.5)
    addresses = [f"127.0.0.1:{etcd_bench.proxy.port}", nobody.address, server.address]
    async with EtcdStore(addresses, options=options) as store, LocalCache(store, fresh_within_s=1.0) as cache:
        revision = await store.create("a", b"1")
        await cache.wait_for(revision, PATIENCE_S)
        etcd_bench.cut()
        await until(lambda: not cache.fresh or cache.stale_s < 0.05)
        entry = await store.get("a")
        assert entry is not None
        revision = await store.put("a", b"2", last=entry.revision)
        await cache.wait_for(revision, PATIENCE_S)
        await until(lambda: cache.fresh)


async def test_users(etcd_bench: Any) -> None:
    server: EtcdServer = etcd_bench.server
    async with grpc.aio.insecure_channel(server.address) as channel:
        auth = rpc.AuthStub(channel)
        await auth.UserAdd(rpc.AuthUserAddRequest(name="root", password="r"))
        await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="root", role="root"))
        await auth.UserAdd(rpc.AuthUserAddRequest(name="ringcast", password="secret"))
        await auth.RoleAdd(rpc.AuthRoleAddRequest(name="ringcast"))
        granted = rpc.Permission(permType=rpc.Permission.Type.READWRITE, key=b"ringcast/", range_end=b"ringcast0")
        await auth.RoleGrantPermission(rpc.AuthRoleGrantPermissionRequest(name="ringcast", perm=granted))
        await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="ringcast", role="ringcast"))
        await auth.AuthEnable(rpc.AuthEnableRequest())
    login = EtcdLogin(user="ringcast", password="secret")
    assert "secret" not in repr(login)
    address = f"etcd://{server.address}/ringcast"
    async with open_store(address, login=login) as store, LocalCache(store) as cache, store.lease(30) as lease:
        revision = await store.create("a", b"", lease=lease)
        await cache.wait_for(revision, PATIENCE_S)
        # Tokens are in the memory of a server: it comes back without them.
        await asyncio.to_thread(etcd_bench.restart)
        entry = None
        while entry is None:
            try:
                entry = await store.get("a")
            except UnavailableError:
                continue
        await store.put("a", b"2", last=entry.revision)
        await until(lambda: cache.fresh and cache.entries()["a"].value == b"2")
    async with open_store(f"etcd://{server.address}/other", login=login) as store:
        with pytest.raises(PermissionDeniedError, match="permission denied"):
            await store.get("a")
        with pytest.raises(PermissionDeniedError, match="permission denied"):
            await store.create("a", b"")
        async with LocalCache(store) as cache:
            with pytest.raises(PermissionDeniedError):
                await cache.wait_complete(PATIENCE_S)
    async with open_store(f"etcd://{server.address}/ringcast", login=EtcdLogin(user="ringcast", password="x")) as store:
        with pytest.raises(UnauthenticatedError):
            await store.get("a")
    async with open_store(f"etcd://{server.address}/ringcast") as store:
        with pytest.raises(UnauthenticatedError):
            await store.get("a")


async def test_tls(tmp_path: Path, etcd_bench: Any) -> None:
    authority = trustme.CA()
    server_certificate, own = authority.issue_cert("127.0.0.1"), authority.issue_cert("client@ringcast")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name, certificate in (("server", server_certificate), ("own", own)):
        certificate.private_key_pem.write_to_path(tmp_path / f"{name}.key")
        certificate.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
    flags = ("--cert-file", "server.pem", "--key-file", "server.key", "--trusted-ca-file", "ca.pem")
    words = [flag if flag.startswith("--") else str(tmp_path / flag) for flag in flags]
    with EtcdServer(tmp_path / "tls", *words, "--client-cert-auth", scheme="https") as server:
        login = EtcdLogin(
            tls_ca_file=str(tmp_path / "ca.pem"),
            tls_cert_file=str(tmp_path / "own.pem"),
            tls_key_file=str(tmp_path / "own.key"),
        )
        async with (
            open_store(f"etcd+tls://{server.address}/ringcast", login=login) as store,
            LocalCache(store) as cache,
        ):
            await cache.wait_for(await store.create("a", b""), PATIENCE_S)
        bare = EtcdLogin(tls_ca_file=str(tmp_path / "ca.pem"))
        options = StoreOptions(call_timeout_s=1.0)
        async with open_store(f"etcd+tls://{server.address}/ringcast", login=bare, options=options) as store:
            with pytest.raises(UnavailableError):
                await store.get("a")


@pytest.mark.parametrize(
    ("login", "sentence"),
    [
        (EtcdLogin(user="u"), "user is given without password"),
        (EtcdLogin(tls_key_file="k"), "tls_key_file is given without tls_cert_file"),
        (EtcdLogin(tls_ca_file="/nowhere"), "tls_ca_file '/nowhere' is not a file"),
    ],
)
def test_a_login_that_makes_no_sense(login: EtcdLogin, sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence):
        EtcdStore(["127.0.0.1:1"], login=login)


@pytest.mark.parametrize(
    "endpoints", [[], ["nowhere"], ["h:0"], ["h:70000"], ["a/b:1"], ["h h:1"], ["u@h:1"], ["fe80::1:1"], ["h:1"] * 17]
)
def test_endpoints_that_are_none(endpoints: list[str]) -> None:
    with pytest.raises(InvalidInputError, match="endpoints "):
        EtcdStore(endpoints)


@pytest.mark.parametrize("host", ["nowhere", "h:0", "h h:1", "u:hunter2@h:1", "fe80::1:2379"])
def test_an_address_of_etcd_whose_host_is_none(host: str) -> None:
    """The settings of a process are refused then, and not its first call."""
    with pytest.raises(InvalidInputError, match="is not an address: host:port is expected, with a port of 1") as caught:
        check_address(f"etcd://127.0.0.1:2379,{host}/ringcast")
    assert (caught.value.field, "hunter2" in str(caught.value)) == ("address", False)
