"""Tokens of issuers: clients log in at a real service, which reads the keys of the issuer over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest
from ringcast_config_service.grpc import stream_life
from ringcast_config_service.oidc.keys import MAX_KEY_SET_BYTES
from ringcast_config_service.oidc.settings import OidcSettings
from ringcast_config_service.security import Security
from ringcast_testkit import PATIENCE_S, attempt, until
from ringcast_testkit.issuer import (
    ISSUER,
    OTHER_RSA,
    RSA,
    IssuerServer,
    issuers_file,
    key_set,
    public,
    signed,
)
from ringcast_wire import RingcastError, Role, UnauthenticatedError, UnavailableError
from ringcast_wire.grpc import ROLES, ConfigServiceStub, ServiceLogin, error_from_rpc, pb
from ringcast_wire.tokens import digest, token_line

Keys = Any  # of conftest.py
SETTINGS = {"keys_every_s": 3_600.0, "keys_rest_s": 0.1, "leeway_s": 0.0}


@pytest.fixture
async def issuer() -> AsyncIterator[IssuerServer]:
    async with IssuerServer().serving() as found:
        yield found


class Client:
    """Calls of a client that sends what its file of tokens says."""

    def __init__(self, stub: ConfigServiceStub, file: Path) -> None:
        self.stub = stub
        self.file = file

    async def me(self, token: str = "") -> pb.WhoAmIResponse:
        """What the service takes it for; raises what it was refused with."""
        if token:
            self.file.write_text(token)
        try:
            found: pb.WhoAmIResponse = await self.stub.WhoAmI(pb.WhoAmIRequest(), timeout=PATIENCE_S)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        return found

    async def grant(self, principal: str, store: str, role: Role) -> None:
        await self.stub.GrantRole(pb.GrantRoleRequest(principal=principal, store=store, role=ROLES[role]))

    async def is_known(self, token: str) -> bool:
        try:
            await self.me(token)
        except RingcastError:
            return False
        return True


@pytest.fixture
def connect(start: Any, nats_url: str, tmp_path: Path, keys: Keys) -> Callable[..., Any]:
    """Starts a service that accepts the tokens of an issuer, and a client of it."""

    @asynccontextmanager
    async def connected(
        url: str, tokens: str = "", settings: dict[str, float] | None = None, **words: Any
    ) -> AsyncIterator[Any]:
        oidc = OidcSettings(issuers_file=issuers_file(tmp_path, url, **words), **{**SETTINGS, **(settings or {})})
        security = Security(tls_cert_file=keys.cert, tls_key_file=keys.key, token_file=tokens)
        database = f"sqlite:{tmp_path / 'ringcast.db'}"
        async with start(nats_url, database, security=security, oidc=oidc, change_stream_s=3_600.0) as service:
            file = Path(keys.write("mine", signed().encode()))
            login = ServiceLogin(tls_ca_file=keys.ca, token_file=str(file))
            async with login.aio_channel(service.app.grpc_address, ()) as channel:
                yield Client(ConfigServiceStub(channel), file), service

    return connected


async def test_a_token_of_an_issuer_logs_in_and_roles_count_for_it_and_its_groups(
    connect: Any, issuer: IssuerServer, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    root = "the-token-of-root-which-is-long"
    tokens = keys.write("named", token_line("root", root).encode() + b"\n")
    async with connect(issuer.url, tokens, groups_claim="groups") as (client, service):
        me = await client.me(root)
        assert (me.principal, list(me.groups), me.expires_at_ms) == ("root", [], 0)
        await client.grant("root", "*", Role.ADMIN)
        await client.grant(f"oidc:{ISSUER}#alice", "s", Role.READER)
        await client.grant(f"oidc-group:{ISSUER}#ops", "s", Role.ADMIN)
        exp = int(time.time()) + 200
        me = await client.me(signed(exp=exp))
        assert (me.principal, [(each.store, each.role) for each in me.roles]) == (
            f"oidc:{ISSUER}#alice",
            [("s", pb.ROLE_READER)],
        )
        assert me.expires_at_ms == exp * 1000
        create = pb.CreateStoreRequest(name="s", partition_count=8)
        with pytest.raises(
            grpc.aio.AioRpcError, match=rf"principal 'oidc:{ISSUER}#alice' has no role admin for store 's'"
        ):
            await client.stub.CreateStore(create)
        of_group = signed(groups=["ops"])
        me = await client.me(of_group)
        assert (list(me.groups), len(me.roles)) == ([f"oidc-group:{ISSUER}#ops"], 2)
        await client.stub.CreateStore(create)
        await client.grant("deploy", "s", Role.WRITER)  # decided in the database, by the group's role
        revoke = pb.RevokeRoleRequest(principal="deploy", store="s", role=pb.ROLE_WRITER)
        assert (await client.stub.RevokeRole(revoke)).revoked
        with pytest.raises(grpc.aio.AioRpcError, match="has no role admin for store"):
            await client.grant("deploy", "*", Role.WRITER)
        await client.me(root)
        entries = (await client.stub.ListAudit(pb.ListAuditRequest())).entries
        done = [each for each in entries if each.outcome == "done"]  # what was refused is added a moment later
        assert [each.principal for each in done if each.action == "CreateStore"] == [f"oidc:{ISSUER}#alice"]
        await client.stub.RevokeToken(pb.RevokeTokenRequest(digest=digest(of_group).hex()))
        with pytest.raises(UnauthenticatedError, match="a token that the config service knows is needed"):
            await client.me(of_group)
        assert of_group not in caplog.text
        assert of_group.rpartition(".")[2] not in str(entries)
        assert service.app._telemetry.measures.refusals.counts["unary", "unknown_token"] == 1


async def test_the_last_token_of_the_file_may_go_where_an_issuer_makes_those_of_an_admin(
    connect: Any, issuer: IssuerServer, keys: Keys
) -> None:
    root = "the-token-of-root-which-is-long"
    tokens = keys.write("named", token_line("root", root).encode() + b"\n")
    async with connect(issuer.url, tokens) as (client, _):
        await client.me(root)
        await client.grant("root", "*", Role.ADMIN)
        revoke = pb.RevokeTokenRequest(principal="root")
        with pytest.raises(grpc.aio.AioRpcError, match="could log in without this token of 'root'"):
            await client.stub.RevokeToken(revoke)
        await client.grant("oidc:https://another.example.org#alice", "*", Role.ADMIN)
        with pytest.raises(grpc.aio.AioRpcError, match="could log in without this token of 'root'"):
            await client.stub.RevokeToken(revoke)
        await client.grant(f"oidc:{ISSUER}#alice", "*", Role.ADMIN)
        assert (await client.stub.RevokeToken(revoke)).revoked == 1
        with pytest.raises(UnauthenticatedError):
            await client.me(root)
        await client.me(signed())
        await client.grant("bob", "*", Role.ADMIN)


async def test_new_keys_are_read_when_a_token_has_one(connect: Any, issuer: IssuerServer) -> None:
    rotated = signed(OTHER_RSA, headers={"kid": "two"})
    async with connect(issuer.url) as (client, _):
        await client.me(signed())
        assert issuer.reads == 1
        issuer.body = key_set(public(RSA, "one"), public(OTHER_RSA, "two"))
        await until(lambda: client.is_known(rotated))
        await client.me(signed())
        assert issuer.reads <= 3


@attempt(
    "a client with tokens of unknown keys",
    "have the service read the key set again and again",
    "one read in `--oidc-keys-rest`",
)
async def test_unknown_keys_do_not_have_the_url_read_all_the_time(connect: Any, issuer: IssuerServer) -> None:
    async with connect(issuer.url, settings={"keys_rest_s": 3_600.0}) as (client, _):
        for number in range(20):
            with pytest.raises(UnauthenticatedError, match="which its issuer does not have"):
                await client.me(signed(headers={"kid": f"key {number}"}))
        assert issuer.reads == 1


async def test_while_the_url_is_away_known_keys_go_on_and_others_can_not_be_judged(
    connect: Any, issuer: IssuerServer, caplog: pytest.LogCaptureFixture
) -> None:
    other = signed(OTHER_RSA, headers={"kid": "two"})
    async with connect(issuer.url) as (client, service):
        await client.me(signed())
        issuer.status = 503
        await until(lambda: can_not_be_judged(client, other))  # the known keys are not new any more
        with pytest.raises(UnavailableError, match="the token is not among the known keys of issuer"):
            await client.me()
        await until(lambda: "issuer_keys.unreadable" in caplog.text)
        with pytest.raises(UnavailableError, match=r"they can't be read .*the answer has the status 503"):
            await client.me(other)
        await client.me(signed())
        assert service.app._telemetry.measures.refusals.counts["unary", "no_issuer_keys"] >= 2
        issuer.status, issuer.body = 200, key_set(public(OTHER_RSA, "two"))
        await until(lambda: client.is_known(other))
        with pytest.raises((UnauthenticatedError, UnavailableError)):
            await client.me(signed())


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        ({"status": 302, "headers": {"Location": "https://login.example.org/keys"}}, "the answer has the status 302"),
        ({"body": b"x" * (MAX_KEY_SET_BYTES + 1)}, "the key set is larger than 262144 bytes"),
        ({"body": b"<html>"}, "the key set is not JSON with a list of keys"),
        ({"silent": True}, "they can't be read"),
    ],
)
@attempt(
    "a server in place of the key set",
    "redirect the service, fill its memory, or keep it waiting",
    "the answer is not used; reads are bounded in size and time",
)
async def test_a_service_starts_without_keys_and_reads_them_later(
    connect: Any, issuer: IssuerServer, spoil: dict[str, Any], sentence: str
) -> None:
    for name, value in spoil.items():
        setattr(issuer, name, value)
    async with connect(issuer.url, settings={"keys_timeout_s": 0.2}) as (client, service):
        with pytest.raises(UnavailableError, match=sentence):
            await client.me(signed())
        assert service.app._telemetry.measures.gauges["issuer_keys_age_seconds"]() > 0
        fresh = IssuerServer()
        issuer.status, issuer.body, issuer.silent, issuer.headers = 200, fresh.body, False, {}
        await until(lambda: client.is_known(signed()))


async def can_not_be_judged(client: Client, token: str) -> bool:
    try:
        await client.me(token)
    except UnavailableError:
        return True
    except UnauthenticatedError:
        pass
    return False


@attempt(
    "a client whose token expires",
    "go on over an open stream",
    "the stream is ended, and a new one is refused",
)
async def test_a_stream_ends_when_the_token_expires(
    connect: Any, issuer: IssuerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go on for an hour."""
    async with connect(issuer.url) as (client, _):
        await client.stub.CreateStore(pb.CreateStoreRequest(name="s", partition_count=8))
        exp = int(time.time()) + 3_600
        monkeypatch.setattr(stream_life, "time", SimpleNamespace(time=lambda: exp - 1))
        client.file.write_text(signed(exp=exp))
        stream = client.stub.Change()
        async with asyncio.timeout(PATIENCE_S):
            while await stream.read() is not grpc.aio.EOF:
                await stream.done_writing()
        assert await stream.code() is grpc.StatusCode.OK
        with pytest.raises(UnauthenticatedError, match="the token has expired"):
            await client.me(signed(exp=int(time.time()) - 1))
        await client.me(signed())  # the file is read again for each call


async def test_a_token_of_the_file_expires(connect: Any, issuer: IssuerServer, keys: Keys) -> None:
    secret = "the-token-of-deploy-which-is-long"
    root = secret + "-of-root"

    def tokens(expires_at_s: float) -> str:
        lines = token_line("deploy", secret, expires_at_s), token_line("root", root)
        path: str = keys.write("named", "\n".join([*lines, ""]).encode())
        return path

    exp = int(time.time()) + 3_600
    async with connect(issuer.url, tokens(exp)) as (client, service):
        me = await client.me(secret)
        assert (me.principal, me.expires_at_ms) == ("deploy", exp * 1000)
        for name in ("deploy", "root"):
            await client.grant(name, "*", Role.ADMIN)
        tokens(time.time() - 1)
        await until(lambda: has_expired(client, secret))
        assert service.app._telemetry.measures.refusals.counts["unary", "expired_token"] >= 1
        await client.me(root)
        with pytest.raises(grpc.aio.AioRpcError, match="could log in without this token of 'root'"):
            await client.stub.RevokeToken(pb.RevokeTokenRequest(principal="root"))


async def has_expired(client: Client, token: str) -> bool:
    try:
        await client.me(token)
    except UnauthenticatedError as error:
        return str(error) == "the token has expired"
    return False
