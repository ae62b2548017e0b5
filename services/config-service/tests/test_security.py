"""TLS, certificates of clients and tokens, with a real process and real clients."""

from __future__ import annotations

import ssl
import time
import warnings
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from ringcast_config_service.grpc.callers import certificate_name
from ringcast_config_service.grpc.cut_names import has_cut_name
from ringcast_config_service.security import Security, Tokens
from ringcast_service import ConfigError
from ringcast_testkit import ConfigServiceProcess, attempt
from ringcast_wire import InvalidInputError, PermissionDeniedError, Role, UnauthenticatedError
from ringcast_wire.grpc import ROLES, STATUS, ConfigServiceStub, ServiceLogin, error_from_rpc, pb
from ringcast_wire.tokens import digest, token_line

TOKEN = "a-token-of-more-than-sixteen-characters"  # of conftest.py
Keys = Any  # of conftest.py
TIMEOUT_S = 20.0


def principal_in(tokens: Tokens, token: str) -> str | None:
    found = tokens.find(digest(token))
    return found and found.principal


def serving(directory: Path, nats_url: str, *options: str) -> ConfigServiceProcess:
    return ConfigServiceProcess(directory, nats_url=nats_url, options=options)


async def list_stores(address: str, login: ServiceLogin) -> list[str]:
    async with login.aio_channel(address, ()) as channel:
        try:
            reply = await ConfigServiceStub(channel).ListStores(pb.ListStoresRequest(), timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
    return [store.name for store in reply.stores]


async def principal(address: str, login: ServiceLogin) -> str:
    """What the service takes a client for."""
    async with login.aio_channel(address, ()) as channel:
        reply = await ConfigServiceStub(channel).WhoAmI(pb.WhoAmIRequest(), timeout=TIMEOUT_S)
    return str(reply.principal)


async def refused(address: str, login: ServiceLogin) -> grpc.StatusCode:
    """How a call fails that does not get through; it is not worth waiting for a handshake that can't succeed."""
    async with login.aio_channel(address, (("grpc.enable_retries", 0),)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await ConfigServiceStub(channel).ListStores(pb.ListStoresRequest(), timeout=TIMEOUT_S)
    return failed.value.code()


async def test_only_who_has_a_token_gets_an_answer(tmp_path: Path, keys: Keys, nats_url: str) -> None:
    options = ("--tls-cert", keys.cert, "--tls-key", keys.key, "--tokens", keys.tokens)
    with serving(tmp_path, nats_url, *options) as service:
        for number, line in enumerate((TOKEN, f"{TOKEN}-2")):
            mine = keys.write(f"token{number}", line.encode())
            assert await list_stores(service.address, ServiceLogin(tls_ca_file=keys.ca, token_file=mine)) == []
        wrong = keys.write("wrong", f"{TOKEN}-3".encode())
        for login in (ServiceLogin(tls_ca_file=keys.ca), ServiceLogin(tls_ca_file=keys.ca, token_file=wrong)):
            with pytest.raises(UnauthenticatedError, match="a token that the config service knows is needed"):
                await list_stores(service.address, login)
        await writes_are_refused(service.address, ServiceLogin(tls_ca_file=keys.ca))
        async with ServiceLogin(tls_ca_file=keys.ca).aio_channel(service.address, ()) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        assert await refused(service.address, ServiceLogin()) is grpc.StatusCode.UNAVAILABLE


async def writes_are_refused(address: str, login: ServiceLogin) -> None:
    """A stream in both directions, and one back, end as a plain call does."""
    async with login.aio_channel(address, ()) as channel:
        stub = ConfigServiceStub(channel)
        calls = (
            # They send nothing: grpc.aio loses the status where a write fails after it (grpc issue 36066).
            stub.Write(timeout=TIMEOUT_S),
            stub.Change(timeout=TIMEOUT_S),
            stub.List(pb.ListRequest(store="s", key="k"), timeout=TIMEOUT_S),
        )
        for call in calls:
            assert await call.code() is STATUS[UnauthenticatedError.code]


async def test_tokens_and_certificates_may_be_replaced(tmp_path: Path, keys: Keys, nats_url: str) -> None:
    mine = keys.write("mine", TOKEN.encode())
    options = ("--tls-cert", keys.cert, "--tls-key", keys.key, "--tokens", keys.tokens)
    with serving(tmp_path, nats_url, *options) as service:
        login = ServiceLogin(tls_ca_file=keys.ca, token_file=mine)
        assert await list_stores(service.address, login) == []
        keys.write("new", b"another-token-of-enough-characters\n")
        (tmp_path / "new").replace(keys.tokens)
        with pytest.raises(UnauthenticatedError):
            await list_stores(service.address, login)
        keys.write("mine", b"another-token-of-enough-characters")
        assert await list_stores(service.address, login) == []
        keys.write("tokens", b"short")  # can't be used: what was before stays
        assert await list_stores(service.address, login) == []

        other = tmp_path / "other"
        other.mkdir()
        replaced = type(keys)(other)
        for name in ("127.0.0.1.crt", "127.0.0.1.key"):
            (other / name).replace(tmp_path / name)
        assert await refused(service.address, login) is grpc.StatusCode.UNAVAILABLE
        assert await list_stores(service.address, ServiceLogin(tls_ca_file=replaced.ca, token_file=mine)) == []


@attempt(
    "a client without a certificate, where one is required",
    "call",
    "the TLS handshake fails",
)
async def test_only_who_has_a_certificate_gets_an_answer(tmp_path: Path, keys: Keys, nats_url: str) -> None:
    options = ("--tls-cert", keys.cert, "--tls-key", keys.key, "--client-ca", keys.ca)
    with serving(tmp_path, nats_url, *options) as service:
        cert, key = keys.issue("writer.example.org")
        login = ServiceLogin(tls_ca_file=keys.ca, tls_cert_file=cert, tls_key_file=key)
        assert await list_stores(service.address, login) == []
        assert await list_stores(f"tls://{service.address}", login) == []
        assert await refused(service.address, ServiceLogin(tls_ca_file=keys.ca)) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("deploy", "certificate:deploy"),
        ("deploy\0.example.org", "host:127.0.0.1"),
        ("\0", "host:127.0.0.1"),
        ("certificate:deploy", "certificate:certificate:deploy"),
        ("*", "certificate:*"),
        ("two\nlines", "certificate:two%0Alines"),
        ("ends in a space ", "certificate:ends%20in%20a%20space%20"),
        ("d\N{CYRILLIC SMALL LETTER IE}ploy", "certificate:d\N{CYRILLIC SMALL LETTER IE}ploy"),
    ],
)
@attempt(
    "a client whose certificate has a NUL, a line end, spaces or a prefix of ours in its name",
    "pass for another principal",
    "it is another principal, or its host",
)
async def test_no_certificate_passes_for_another(
    start: Any, nats_url: str, tmp_path: Path, keys: Keys, name: str, expected: str
) -> None:
    security = Security(tls_cert_file=keys.cert, tls_key_file=keys.key, client_ca_file=keys.ca)
    async with start(nats_url, f"sqlite:{tmp_path / 'ringcast.db'}", security=security) as service:
        cert, key = keys.issue("127.0.0.2", name)
        login = ServiceLogin(tls_ca_file=keys.ca, tls_cert_file=cert, tls_key_file=key)
        found = await principal(service.app.grpc_address, login)
        assert found == expected
        async with login.aio_channel(service.app.grpc_address, ()) as channel:  # and it may be granted a role
            request = pb.GrantRoleRequest(principal=found, store="*", role=pb.ROLE_ADMIN)
            assert (await ConfigServiceStub(channel).GrantRole(request, timeout=TIMEOUT_S)).granted


def element(tag: int, content: bytes) -> bytes:
    """An element of ASN.1."""
    size = len(content)
    count = (size.bit_length() + 7) // 8
    prefix = bytes((tag, size)) if size < 0x80 else bytes((tag, 0x80 + count)) + size.to_bytes(count, "big")
    return prefix + content


ECDSA = bytes.fromhex("300a06082a8648ce3d040302")
P256 = bytes.fromhex("301306072a8648ce3d020106082a8648ce3d030107")


def common_name(tag: int, text: bytes) -> bytes:
    return element(0x30, element(0x31, element(0x30, bytes.fromhex("0603550403") + element(tag, text))))


def certificate(owner: bytes, signer: bytes | None = None, extensions: bytes = b"") -> bytes:
    """The PEM of a certificate with these names; its signature is empty."""
    times = element(0x30, 2 * element(0x17, b"260101000000Z"))
    key = element(0x30, P256 + element(0x03, b"\0\4" + bytes(64)))
    content = bytes.fromhex("a003020102020101") + ECDSA + (signer or owner) + times + owner + key + extensions
    return ssl.DER_cert_to_PEM_cert(element(0x30, element(0x30, content) + ECDSA + element(0x03, b"\0"))).encode()


def alternatives(*names: tuple[int, bytes], critical: bool = False) -> bytes:
    value = element(0x30, b"".join(element(*name) for name in names))
    extension = bytes.fromhex("0603551d11") + (b"\1\1\xff" if critical else b"") + element(0x04, value)
    return certificate(common_name(UTF8, b"deploy"), extensions=element(0xA3, element(0x30, element(0x30, extension))))


IP, MAIL, DNS, URI = (0x87, bytes((10, 0, 0, 1))), 0x81, 0x82, 0x86
UTF8, BMP, UNIVERSAL = 0x0C, 0x1E, 0x1C


@pytest.mark.parametrize(
    ("pem", "cut"),
    [
        (certificate(common_name(UTF8, b"deploy")), False),
        (certificate(common_name(UTF8, b"deploy\0.example")), True),
        (certificate(common_name(UTF8, b"owner"), signer=common_name(UTF8, b"\0")), True),
        (certificate(common_name(UTF8, b"x" * 200)), False),
        (certificate(common_name(UTF8, b"x" * 200 + b"\0")), True),
        (certificate(common_name(BMP, "deploy".encode("utf-16-be"))), False),
        (certificate(common_name(BMP, "deploy\0.example".encode("utf-16-be"))), True),
        (certificate(common_name(UNIVERSAL, "deploy".encode("utf-32-be"))), False),
        (certificate(common_name(UNIVERSAL, "deploy\0".encode("utf-32-be"))), True),
        (alternatives(IP, (DNS, b"a.example")), False),
        (alternatives(IP, (DNS, b"a.example"), critical=True), False),
        (alternatives(IP, (DNS, b"a\0.example"), critical=True), True),
        (alternatives((DNS, b"x" * 300), (URI, b"spiffe://a\0b")), True),
        (alternatives((MAIL, b"a\0@b.example")), True),
    ],
)
def test_a_name_with_a_nul_is_found_in_a_certificate(pem: bytes, cut: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert has_cut_name(pem) is cut


def test_what_cannot_be_read_as_a_certificate_has_no_name_to_trust() -> None:
    refused = (
        b"",
        b"\xff",
        ssl.DER_cert_to_PEM_cert(bytes.fromhex("0603550403")).encode(),
        certificate(common_name(UTF8, b"\xff")),
        certificate(common_name(0x03, b"\0deploy")),  # a string of bits
        alternatives((DNS, b"\xff")),
        alternatives((0xA3, b"")),  # an X.400 address
    )
    for data in refused:
        assert has_cut_name(data)


def test_a_file_of_tokens_that_changes_within_one_step_of_the_clock_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The half that was there first is not taken for the whole, nor are other tokens of the same length missed."""
    file, real = tmp_path / "tokens", Path.stat

    def coarse(path: Path, **words: Any) -> Any:
        found = real(path, **words)
        return SimpleNamespace(
            st_mtime_ns=1, st_ctime_ns=1, st_ctime=time.time(), st_ino=found.st_ino, st_size=found.st_size
        )

    now = [100.0]
    monkeypatch.setattr(Path, "stat", coarse)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    lines = f"{token_line('first', TOKEN)}\n", f"{token_line('later', f'{TOKEN}-2')}\n"
    file.write_text(lines[0])
    tokens = Tokens(str(file))
    assert (principal_in(tokens, TOKEN), principal_in(tokens, f"{TOKEN}-2")) == ("first", None)
    file.write_text("".join(lines))
    assert (principal_in(tokens, TOKEN), principal_in(tokens, f"{TOKEN}-2")) == ("first", "later")
    file.write_text(token_line("first", f"{TOKEN}-3") + "\n" + lines[1])
    now[0] += 1.0
    assert (principal_in(tokens, TOKEN), principal_in(tokens, f"{TOKEN}-3")) == (None, "first")


@pytest.mark.parametrize("spoil", [lambda file: file.write_text("deploy sha256:12"), Path.unlink])
@attempt(
    "a person who spoils the file of tokens",
    "open the service, or fill its log",
    "the tokens that were read before count, and one line a minute is logged",
)
def test_calls_while_the_tokens_cannot_be_read_log_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], object]
) -> None:
    file = tmp_path / "tokens"
    file.write_text(token_line("deploy", TOKEN) + "\n")
    tokens = Tokens(str(file))
    assert principal_in(tokens, TOKEN) == "deploy"
    assert not tokens.unusable
    spoil(file)
    for _ in range(100):
        assert principal_in(tokens, TOKEN) == "deploy"
    assert [record.getMessage().split()[0] for record in caplog.records] == ["event=login_file.unreadable"]
    assert tokens.unusable
    file.write_text(token_line("other", TOKEN) + "\n")
    assert principal_in(tokens, TOKEN) == "other"
    assert not tokens.unusable


@attempt(
    "a client that has read the file of tokens",
    "log in with the digests or names in it",
    "`UNAUTHENTICATED`",
)
async def test_each_caller_has_a_name(tmp_path: Path, keys: Keys, nats_url: str) -> None:
    named, plain = f"{TOKEN}-named", f"{TOKEN}-plain"
    tokens = keys.write("tokens", f"{token_line('deploy', named)}\n{plain}\n".encode())
    cert, key = keys.issue("writer.example.org")
    login = {"tls_ca_file": keys.ca, "tls_cert_file": cert, "tls_key_file": key}
    options = ("--tls-cert", keys.cert, "--tls-key", keys.key, "--client-ca", keys.ca)
    with serving(tmp_path, nats_url, *options) as service:
        assert await principal(service.address, ServiceLogin(**login)) == "certificate:writer.example.org"
    with serving(tmp_path, nats_url, *options, "--tokens", tokens) as service:
        mine = keys.write("mine", named.encode())
        assert await principal(service.address, ServiceLogin(**login, token_file=mine)) == "deploy"
        keys.write("mine", plain.encode())
        expected = f"token-{digest(plain).hex()[:8]}"
        assert await principal(service.address, ServiceLogin(**login, token_file=mine)) == expected
        for sent in (f"{TOKEN}-other", digest(named).hex(), f"sha256:{digest(named).hex()}", "deploy-and-some-more"):
            keys.write("mine", sent.encode())
            with pytest.raises(UnauthenticatedError):
                await list_stores(service.address, ServiceLogin(**login, token_file=mine))
    with serving(tmp_path, nats_url) as service:
        assert await principal(service.address, ServiceLogin()) == "host:127.0.0.1"


async def test_a_certificate_has_the_roles_of_its_principal(tmp_path: Path, keys: Keys, nats_url: str) -> None:
    options = ("--tls-cert", keys.cert, "--tls-key", keys.key, "--client-ca", keys.ca)
    put = pb.PutRequest(store="s", key="k", row_id="a", value="v")
    async with AsyncExitStack() as stack:
        service = stack.enter_context(serving(tmp_path, nats_url, *options))

        async def stub(name: str) -> ConfigServiceStub:
            cert, key = keys.issue(f"{name}.example.org")
            login = ServiceLogin(tls_ca_file=keys.ca, tls_cert_file=cert, tls_key_file=key)
            return ConfigServiceStub(await stack.enter_async_context(login.aio_channel(service.address, ())))

        async def denied(call: Awaitable[Any]) -> str:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            error = error_from_rpc(caught.value)
            assert isinstance(error, PermissionDeniedError)
            return str(error)

        admin, writer, nobody = await stub("admin"), await stub("writer"), await stub("nobody")
        mine: dict[str, Any] = {"store": "s", "role": ROLES[Role.WRITER], "principal": "certificate:writer.example.org"}
        await admin.GrantRole(
            pb.GrantRoleRequest(store="*", role=ROLES[Role.ADMIN], principal="certificate:admin.example.org")
        )
        await admin.CreateStore(pb.CreateStoreRequest(name="s", partition_count=4))
        await admin.GrantRole(pb.GrantRoleRequest(**mine))
        await writer.Put(put)
        refused = await denied(writer.CreateStore(pb.CreateStoreRequest(name="another", partition_count=4)))
        assert "'certificate:writer.example.org' has no role admin" in refused
        assert "'certificate:nobody.example.org' has no role writer" in await denied(nobody.Put(put))
        await admin.RevokeRole(pb.RevokeRoleRequest(**mine))
        assert "'certificate:writer.example.org' has no role writer" in await denied(writer.Put(put))


def test_a_token_without_text_that_is_utf_8_is_nobodys(keys: Keys) -> None:
    assert Tokens(keys.tokens).find(digest("\udcff" * 16)) is None


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"writer.example.org", "writer.example.org"),
        ("Jörg Müller".encode(), "Jörg Müller"),
        (b"spiffe://example.org/ns/a", "spiffe://example.org/ns/a"),
        (b"a\0b\n", "a%00b%0A"),
        (b"a%00b%0A", "a%2500b%250A"),
        (b"\xff", "%FF"),
    ],
)
def test_a_name_in_a_certificate_is_one_line(name: bytes, shown: str) -> None:
    assert certificate_name(name) == shown


def test_a_long_name_in_a_certificate_is_cut_and_stays_different() -> None:
    one, other = certificate_name(b"x" * 500 + b"1"), certificate_name(b"x" * 500 + b"2")
    assert one != other
    assert len(one) == len(other) == 128


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"tls_cert_file": "x"}, "tls_cert is given without tls_key"),
        ({"tls_key_file": "x"}, "tls_key is given without tls_cert"),
        ({"token_file": "x"}, "tokens is given without tls_cert: it needs TLS"),
        ({"client_ca_file": "x"}, "client_ca is given without tls_cert"),
        ({"tls_cert_file": "none", "tls_key_file": "none"}, "tls_cert 'none' can't be read: No such file"),
    ],
)
def test_files_that_make_no_sense_are_refused(files: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Security(**files).check()


def test_a_file_that_is_no_certificate_is_refused(keys: Keys) -> None:
    with pytest.raises(ConfigError, match="tls_cert is not a PEM file"):
        Security(tls_cert_file=keys.tokens, tls_key_file=keys.key).check()


@attempt(
    "a client that is set up without TLS",
    "send its token in the clear",
    "the client refuses to start",
)
def test_no_token_is_sent_in_the_clear(keys: Keys) -> None:
    with pytest.raises(InvalidInputError, match="would be sent in the clear"):
        ServiceLogin(token_file=keys.tokens).aio_channel("127.0.0.1:1", ())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds no token"),
        ("short", "token 1 is not 16 to 4096 visible ASCII characters"),
        (f"{TOKEN}\nwith a space in the midst", "token 2 is not"),
        ("x" * 70_000, "larger than 65536 bytes"),
    ],
)
def test_a_file_that_holds_no_token_is_refused_and_not_told(keys: Keys, text: str, sentence: str) -> None:
    path = keys.write("bad", text.encode())
    with pytest.raises(InvalidInputError, match=sentence) as told:
        ServiceLogin(tls_ca_file=keys.ca, token_file=path).check_login("a:1")
    assert TOKEN not in str(told.value)
    assert "midst" not in str(told.value)


def test_the_environment_says_how_to_log_in(keys: Keys) -> None:
    environ = {"RINGCAST_SERVICE_TLS_CA_FILE": keys.ca, "RINGCAST_SERVICE_TOKEN_FILE": keys.tokens, "OTHER": "x"}
    assert ServiceLogin.from_environment(environ) == ServiceLogin(tls_ca_file=keys.ca, token_file=keys.tokens)
