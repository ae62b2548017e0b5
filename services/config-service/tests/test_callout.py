"""The auth callout without a server: keys, claims, and settings; tests/integration has it with one."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nacl.signing import SigningKey
from nats.aio.client import Client
from ringcast_config_service.access import Access
from ringcast_config_service.callout.claims import AUDIENCE, ConnectOptions, answer_token, read_request, user_token
from ringcast_config_service.callout.keys import Sealer, Signer
from ringcast_config_service.callout.permits import Permits, RefusedError
from ringcast_config_service.callout.server import MAX_REQUEST_BYTES, CalloutServer
from ringcast_config_service.callout.settings import CalloutSettings
from ringcast_config_service.telemetry import Measures
from ringcast_service import ConfigError, end_tasks
from ringcast_testkit import PATIENCE_S, NatsServer
from ringcast_wire import InvalidInputError
from ringcast_wire.nats_keys import ACCOUNT, CURVE, SERVER, decode_key, decode_seed, encode_key, encode_seed
from ringcast_wire.permissions import CALLOUT_REQUESTS
from ringcast_wire.worker_tokens import worker_token_line

SERVER_KEY = SigningKey(bytes(range(32)))
SERVER_ID = encode_key(SERVER, bytes(SERVER_KEY.verify_key))


def part(value: Any) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")


def signed(claims: dict[str, Any], *, algorithm: str = "ed25519-nkey", key: SigningKey = SERVER_KEY) -> bytes:
    text = part({"typ": "JWT", "alg": algorithm}) + b"." + part(claims)
    return text + b"." + base64.urlsafe_b64encode(key.sign(text).signature).rstrip(b"=")


def claims(**changes: Any) -> dict[str, Any]:
    nats = {
        "server_id": {"id": SERVER_ID},
        "user_nkey": "UABC",
        "connect_opts": {"user": "w", "pass": "a-secret"},
        "type": "authorization_request",
    }
    return {"iss": SERVER_ID, "aud": AUDIENCE, "iat": 1, "exp": 3, "nats": nats, **changes}


def body(token: str) -> dict[str, Any]:
    middle = token.split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
    return found


def test_keys_are_written_as_the_package_nkeys_does() -> None:
    import nkeys

    seed = bytes(range(32))
    text = encode_seed(ACCOUNT, seed)
    assert text.encode() == bytes(nkeys.encode_seed(seed, nkeys.PREFIX_BYTE_ACCOUNT))
    assert Signer(text).public == nkeys.from_seed(bytearray(text.encode())).public_key.decode()
    assert decode_seed(ACCOUNT, text) == seed


@pytest.mark.parametrize("text", ["", "x", "A" * 56, "SA" + "A" * 56, encode_seed(CURVE, bytes(32)), "é" * 56])
def test_what_is_no_key_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        decode_seed(ACCOUNT, text)
    assert not text or text not in str(refused.value)
    with pytest.raises(InvalidInputError):
        decode_key(SERVER, text)


def test_only_the_receiver_opens_what_is_sealed() -> None:
    one, two, third = (Sealer(encode_seed(CURVE, os.urandom(32))) for _ in range(3))
    sealed = one.seal(b"secret", two.public)
    assert two.open(sealed, one.public) == b"secret"
    for opener, sender, data in (
        (third, one, sealed),
        (two, third, sealed),
        (two, one, b"xkv1"),
        (two, one, b"secret"),
    ):
        with pytest.raises(InvalidInputError):
            opener.open(data, sender.public)


def test_a_request_of_a_server_is_read() -> None:
    request = read_request(signed(claims()))
    assert (request.nats.connect_opts.user, request.nats.connect_opts.password) == ("w", "a-secret")
    assert request.exp - request.iat == 2


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"a.b.c",
        signed(claims(aud="other")),
        signed(claims(), algorithm="none"),
        signed(claims(), key=SigningKey(bytes(32))),
        signed(claims(iss="N")),
        signed(claims(nats={"server_id": {"id": SERVER_ID}, "user_nkey": "U", "type": "user"})),
        signed(claims()) + b"x",
        signed(claims()).replace(b".", b".."),
    ],
)
def test_what_no_server_has_signed_is_refused_without_its_token(token: bytes) -> None:
    with pytest.raises(InvalidInputError) as refused:
        read_request(token)
    assert "a-secret" not in str(refused.value)


def test_an_answer_names_server_user_account_and_end() -> None:
    signer, request = Signer(encode_seed(ACCOUNT, bytes(32))), read_request(signed(claims()))
    jwt = user_token(
        signer, user="UABC", name="w@p~t", account="WORKERS", publish=["a"], subscribe=["b"], issued_at=5, expires_at=9
    )
    answer = body(answer_token(signer, request, issued_at=5, jwt=jwt))
    assert (answer["aud"], answer["sub"], answer["iss"]) == (SERVER_ID, "UABC", signer.public)
    user = body(answer["nats"]["jwt"])
    assert (user["aud"], user["sub"], user["exp"]) == ("WORKERS", "UABC", 9)
    assert (user["nats"]["pub"], user["nats"]["sub"]) == ({"allow": ["a"]}, {"allow": ["b"]})
    refusal = body(answer_token(signer, request, issued_at=5, error="no"))
    assert refusal["nats"]["error"] == "no"
    assert "jwt" not in refusal["nats"]


def test_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    tokens, issuer, wrong, empty = (tmp_path / name for name in ("tokens", "issuer", "wrong", "empty"))
    tokens.write_text("none\n")
    empty.touch()
    issuer.write_text(encode_seed(ACCOUNT, bytes(32)) + "\n")
    wrong.write_text("not-a-seed")
    good: dict[str, Any] = {"token_file": str(tokens), "issuer_seed_file": str(issuer), "password": "p"}
    CalloutSettings().check()
    CalloutSettings(**good).check()
    for changes, sentence in (
        ({"issuer_seed_file": ""}, "callout_tokens is given without callout_issuer"),
        ({"password": ""}, "callout_tokens is given without callout_password"),
        ({"token_file": ""}, "is given without callout_tokens"),
        ({"issuer_seed_file": str(wrong)}, "callout_issuer: it holds no seed of NATS that begins with SA"),
        ({"xkey_seed_file": str(issuer)}, "callout_xkey: it holds no seed of NATS that begins with SX"),
        ({"token_file": str(tmp_path / "none")}, "can't be read"),
        ({"token_file": str(empty)}, "it holds no token"),
        ({"consumer_prefix": "a.b"}, "callout_consumer_prefix 'a.b' is not a valid name"),
    ):
        with pytest.raises(ConfigError) as refused:
            CalloutSettings(**(good | changes)).check()
        assert sentence in str(refused.value)
        assert "not-a-seed" not in str(refused.value)


class Asked:
    """A callout over a real server, whose requests the test sends itself."""

    def __init__(self, nc: Client, directory: Path, *, waiting: int) -> None:
        token_file = directory / "tokens"
        token_file.write_text(worker_token_line("p", "a-secret", "worker=w s/k") + "\n")
        self.nc, self.measures = nc, Measures()
        access = Access(None, self.measures.refusals, None)  # type: ignore[arg-type]  # no role is ever read
        permits = Permits(str(token_file), access, consumer_prefix="ringcast", partitions=4)
        signer = Signer(encode_seed(ACCOUNT, bytes(32)))
        self.server = CalloutServer(nc, permits, signer, None, self.measures, waiting=waiting, valid_s=600)

    async def counted(self, outcome: str, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.measures.callouts[outcome] < count:
                await self.nc.flush()


@pytest.fixture
async def nc(nats_server: NatsServer) -> AsyncIterator[Client]:
    client = await nats.connect(nats_server.url)
    yield client
    await client.close()


async def test_requests_beyond_those_that_may_wait_are_dropped_and_counted(nc: Client, tmp_path: Path) -> None:
    asked = Asked(nc, tmp_path, waiting=2)
    await asked.server.start()
    answers = await nc.subscribe("answers")
    for _ in range(5):
        await nc.publish(CALLOUT_REQUESTS, signed(claims()), reply="answers")
    await asked.counted("busy", 3)
    running = asyncio.create_task(asked.server.run())
    for _ in range(2):
        answer = body((await answers.next_msg(timeout=PATIENCE_S)).data.decode())
        assert body(answer["nats"]["jwt"])["name"].startswith("w@p~")
    assert asked.measures.callouts["granted"] == 2
    await end_tasks([running])


async def test_what_makes_no_sense_or_is_late_has_no_answer(nc: Client, tmp_path: Path) -> None:
    asked = Asked(nc, tmp_path, waiting=16)
    await asked.server.start()
    answers = await nc.subscribe("answers")
    running = asyncio.create_task(asked.server.run())
    for data in (b"", b"x" * (MAX_REQUEST_BYTES + 1), signed(claims(aud="other")), signed(claims(exp=1))):
        await nc.publish(CALLOUT_REQUESTS, data, reply="answers")
    await nc.publish(CALLOUT_REQUESTS, signed(claims()), reply="answers")  # the first with an answer
    assert "jwt" in body((await answers.next_msg(timeout=PATIENCE_S)).data.decode())["nats"]
    found = {outcome: count for outcome, count in asked.measures.callouts.items() if count}
    assert found == {"malformed": 3, "late": 1, "granted": 1}
    await end_tasks([running])


def test_permissions_hold_while_line_and_id_do(tmp_path: Path) -> None:
    token_file = tmp_path / "tokens"
    token_file.write_text(worker_token_line("p", "a-secret", "worker=w-* s/k") + "\n")
    access = Access(None, Measures().refusals, None)  # type: ignore[arg-type]  # no role is ever read
    permits = Permits(str(token_file), access, consumer_prefix="ringcast", partitions=4)
    name = permits.permit(ConnectOptions("w-1", "a-secret")).name
    before = permits.version
    assert permits.still(name)
    assert permits.still("worker-0")  # of the server's files
    assert not permits.still(name.replace("w-1", "x"))
    for spoiled in ("", "p", worker_token_line("p", "a-secret", "worker=w-* s/k,anothe")):
        token_file.write_text(spoiled)
        assert permits.still(name), "an empty or cut file withdraws nothing"
        assert permits.permit(ConnectOptions("w-1", "a-secret")).name == name
        assert permits.file_unusable
    token_file.write_text(worker_token_line("p", "a-secret", "worker=w-* s/k,another") + "\n")
    assert not permits.still(name)
    assert permits.version != before
    assert not permits.file_unusable
    with pytest.raises(RefusedError, match="sent a token that is unknown"):
        permits.permit(ConnectOptions("w-1", "b-secret"))
