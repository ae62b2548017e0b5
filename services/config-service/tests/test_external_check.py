"""Releases that a server of the operator has to allow: with servers that answer well, badly, and not at all."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web
from ringcast_config_service.endpoints import Endpoint, EndpointLogin
from ringcast_config_service.external_check import check
from ringcast_config_service.external_check.check import ExternalCheck
from ringcast_config_service.external_check.messages import MAX_ANSWER_BYTES
from ringcast_config_service.external_check.settings import ExternalCheckSettings
from ringcast_config_service.repository.release_records import Release, ReleaseKey
from ringcast_testkit import PATIENCE_S, attempt, until
from ringcast_testkit.check_servers import CHECK_METHOD, CheckServer, GrpcCheck, HttpCheck, check_answer
from ringcast_testkit.servers import GrpcServer, HttpServer
from ringcast_wire import (
    ConditionFailedError,
    ReleaseState,
    RingcastError,
    UnavailableError,
)
from ringcast_wire.metrics import Histogram

TOKEN = "a-token-of-more-than-sixteen-characters"
DAY_MS = 86_400_000
KEYS = tuple(ReleaseKey(f"k{number:03}", number, 2, 3) for number in range(120))
RELEASE = Release(
    "s",
    7,
    "stage",
    ReleaseState.STAGED,
    *("", True, 12, 345, 1, 0, 0, 0, 0, "alice", "spring cleaning", "", "", "", 0, 0, 0),
    digest="12-abc",
    keys=KEYS,
)
NO_ANSWER = "answers with something else than a JSON object with digest and allow"
NO_RESPONSE = "answers with something else than a CheckReleaseResponse with digest and allow"
METHOD = CHECK_METHOD.removeprefix("/")


@pytest.fixture(params=[HttpCheck, GrpcCheck], ids=["http", "grpc"])
def over(request: pytest.FixtureRequest) -> CheckServer:
    made: CheckServer = request.param()
    return made


@pytest.fixture
async def either(over: CheckServer) -> AsyncIterator[CheckServer]:
    """A server of each transport."""
    async with over.serving():
        yield over


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    async with HttpServer(lambda _: web.json_response({"digest": "12-abc", "allow": True})).serving() as made:
        yield made


@pytest.fixture
async def grpc_server() -> AsyncIterator[GrpcServer]:
    async with GrpcCheck().server.serving() as made:
        yield made


def asking(
    url: str, counts: Counter[str] | None = None, duration: Histogram | None = None, **files: str
) -> ExternalCheck:
    settings = ExternalCheckSettings(url=url, **files)
    settings.endpoint.check()
    return ExternalCheck(settings, Counter() if counts is None else counts, duration or Histogram((1.0,)))


async def refusal(asked: ExternalCheck) -> RingcastError:
    with pytest.raises(RingcastError) as caught:
        await asked.check(RELEASE)
    return caught.value


async def test_a_yes_lets_it_be_published_and_the_question_is_bounded(either: CheckServer) -> None:
    await asking(either.url).check(RELEASE)
    ((path, _, authorization),) = either.server.asked
    (said,) = either.asked
    keys = said.pop("keys")
    assert (path, authorization) == ("/may" if isinstance(either, HttpCheck) else f"/{METHOD}", "")
    assert said == {
        "store": "s",
        "release": 7,
        "digest": "12-abc",
        "author": "alice",
        "reason": "spring cleaning",
        "rows": 12,
        "bytes": 345,
        "key_count": 120,
    }
    assert len(keys) == 100
    assert keys[1] == {"key": "k001", "added": 1, "changed": 2, "deleted": 3}


async def test_a_no_is_a_refusal_with_its_reason(either: CheckServer) -> None:
    either.says = {"allow": False, "reason": "not\nnow" + "!" * 900}
    refused = await refusal(asking(either.url))
    assert isinstance(refused, ConditionFailedError)
    said = "release 7 of store 's' can't be published: the external check refuses it: 'not\\nnow!!!"
    assert str(refused).startswith(said)
    assert len(str(refused)) < 600
    either.says = {"allow": False}
    assert str(await refusal(asking(either.url))).endswith("can't be published: the external check refuses it")


async def test_checks_are_counted_by_what_came_of_them(either: CheckServer) -> None:
    counts: Counter[str] = Counter()
    duration = Histogram((30.0,))
    asked = asking(either.url, counts, duration)
    await asked.check(RELEASE)
    either.says = {"allow": False}
    await refusal(asked)
    either.says = {}
    assert str(await refusal(asked)).endswith(NO_RESPONSE if isinstance(either, GrpcCheck) else NO_ANSWER)
    assert counts == {"allowed": 1, "refused": 1, "unanswered": 1}
    assert duration.counts == [3, 0]
    with pytest.raises(ConditionFailedError):
        await ExternalCheck(ExternalCheckSettings(), counts, duration).check(RELEASE)
    assert sum(counts.values()) == 3, "nobody was asked"


async def test_the_answer_for_another_release_is_a_refusal(either: CheckServer) -> None:
    either.says = {"allow": True, "digest": "12-abd"}
    refused = await refusal(asking(either.url))
    assert isinstance(refused, UnavailableError)
    assert str(refused).endswith("the external check answers for another release, of the digest '12-abd'")


async def test_a_server_that_takes_the_connection_and_says_nothing_is_a_refusal(
    over: CheckServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "CHECK_S", 0.3)

    async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    mute = await asyncio.start_server(says_nothing, "127.0.0.1", 0)
    async with mute:
        scheme = "grpc" if isinstance(over, GrpcCheck) else "http"
        asked = asking(f"{scheme}://127.0.0.1:{mute.sockets[0].getsockname()[1]}")
        refused = await refusal(asked)
    assert isinstance(refused, UnavailableError)
    assert str(refused).endswith("can't be published: the external check does not answer within 0.3 s")


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (200, b"", NO_ANSWER),
        (200, b"yes", NO_ANSWER),
        (200, b"true", NO_ANSWER),
        (200, b"{}", NO_ANSWER),
        (200, b'{"allow": true}', NO_ANSWER),
        (200, b'{"digest": "12-abc"}', NO_ANSWER),
        (200, b'{"digest": "12-abc", "allow": "true"}', NO_ANSWER),
        (200, b'{"digest": "12-abc", "allow": 1}', NO_ANSWER),
        (200, b'{"digest": "12-abc", "allow": null}', NO_ANSWER),
        (200, b'{"digest": "12-abc", "allow": false, "allow": true}', NO_ANSWER),
        (200, b'{"digest": "12-abc", "allow": true, "reason": 7}', NO_ANSWER),
        (200, b"[" * 16_000, NO_ANSWER),
        (200, b"\xff\xfe", NO_ANSWER),
        (200, b'{"digest": "12-abd", "allow": true}', "answers for another release, of the digest '12-abd'"),
        (201, b'{"digest": "12-abc", "allow": true}', "answers with the status 201"),
        (401, b"", "does not accept the login of the service (status 401)"),
        (403, b"", "does not accept the login of the service (status 403)"),
        (500, b'{"digest": "12-abc", "allow": true}', "answers with the status 500"),
    ],
)
async def test_nonsense_is_a_refusal(server: HttpServer, status: int, body: bytes, why: str) -> None:
    server.answer = lambda _: web.Response(body=body, status=status)
    refused = await refusal(asking(f"{server.url}/may"))
    assert isinstance(refused, UnavailableError)
    assert str(refused) == f"release 7 of store 's' can't be published: the external check {why}"


@attempt(
    "a server in place of the external check of releases",
    "redirect the service, fill its memory, or keep it waiting",
    "the release is not published; what is read is bounded in size and time",
)
async def test_a_hostile_server_is_a_refusal(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def drips(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b" ")
        await asyncio.Event().wait()
        return response

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" " * 65_536)

    packed = gzip.compress(b'{"digest": "12-abc", "allow": true}' + b" " * 10_000_000)
    slow = "the external check does not answer within 0.3 s"
    for answer, why in (
        (lambda _: asyncio.Event().wait(), slow),
        (drips, slow),
        (endless, f"the answer is larger than {MAX_ANSWER_BYTES} bytes"),
        (
            lambda _: web.Response(status=307, headers={"Location": "/elsewhere"}),
            "the external check answers with the status 307",
        ),
        (lambda _: web.Response(body=packed, headers={"Content-Encoding": "gzip"}), f"the external check {NO_ANSWER}"),
    ):
        server.answer = answer
        monkeypatch.setattr(check, "CHECK_S", 0.3 if why == slow else PATIENCE_S)
        refused = await refusal(asking(f"{server.url}/may"))
        assert isinstance(refused, UnavailableError)
        assert str(refused).endswith(f"can't be published: {why}")
    assert {each.path for each in server.asked} == {"/may"}


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (grpc.StatusCode.UNAVAILABLE, "can't be reached"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "does not answer within 5 s"),
        (grpc.StatusCode.UNAUTHENTICATED, "does not accept the login of the service (status UNAUTHENTICATED)"),
        (grpc.StatusCode.PERMISSION_DENIED, "does not accept the login of the service (status PERMISSION_DENIED)"),
        (grpc.StatusCode.UNIMPLEMENTED, f"has no method {METHOD} (status UNIMPLEMENTED)"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "answers with the status RESOURCE_EXHAUSTED"),
        (grpc.StatusCode.CANCELLED, "answers with the status CANCELLED"),
        (grpc.StatusCode.INTERNAL, "answers with the status INTERNAL"),
    ],
)
async def test_a_status_is_a_refusal(grpc_server: GrpcServer, status: grpc.StatusCode, why: str, caplog: Any) -> None:
    async def fails(_: bytes, context: Any) -> bytes:
        await context.abort(status, "the disk is full")
        return b""

    grpc_server.answer = fails
    refused = await refusal(asking(grpc_server.url))
    assert isinstance(refused, UnavailableError)
    assert str(refused) == f"release 7 of store 's' can't be published: the external check {why}"
    assert "the disk is full" in caplog.text


@attempt(
    "a gRPC server in place of the external check of releases",
    "fill the memory of the service, or keep it waiting",
    "the release is not published; what is read is bounded in size and time",
)
async def test_a_hostile_grpc_server_is_a_refusal(grpc_server: GrpcServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def gives(data: bytes) -> Callable[[bytes, Any], Any]:
        async def answer(_: bytes, context: Any) -> bytes:
            return data

        return answer

    async def silent(_: bytes, context: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def raises(_: bytes, context: Any) -> bytes:
        raise RuntimeError

    large = check_answer(digest="12-abc", allow=True, reason=" " * 1_000_000)
    too_large = f"the answer is larger than {MAX_ANSWER_BYTES} bytes"
    for answer, why in (
        (gives(b"yes"), f"the external check {NO_RESPONSE}"),
        (gives(b""), f"the external check {NO_RESPONSE}"),
        (gives(check_answer(digest="12-abc")), f"the external check {NO_RESPONSE}"),
        (gives(large), too_large),
        (raises, "the external check answers with the status UNKNOWN"),
        (silent, "the external check does not answer within 0.3 s"),
    ):
        grpc_server.answer = answer
        monkeypatch.setattr(check, "CHECK_S", 0.3 if answer is silent else PATIENCE_S)
        refused = await refusal(asking(grpc_server.url))
        assert isinstance(refused, UnavailableError)
        assert str(refused).endswith(f"can't be published: {why}")
    packed = GrpcCheck()
    packed.server.packs = True
    async with packed.serving():
        await asking(packed.url).check(RELEASE)
        packed.says = {"allow": True, "reason": " " * 1_000_000}
        assert str(await refusal(asking(packed.url))).endswith(f"can't be published: {too_large}")


async def test_a_server_of_something_else_is_a_refusal(server: HttpServer) -> None:
    async with GrpcServer("/ringcast.config.v1.ConfigService/GetStore", GrpcCheck()._answer).serving() as other:
        said = str(await refusal(asking(other.url)))
        assert said.endswith(f"the external check has no method {METHOD} (status UNIMPLEMENTED)")
        assert other.asked == []
    said = str(await refusal(asking(server.url.replace("http:", "grpc:"))))
    assert said.endswith("the external check can't be reached")


async def test_a_login_that_takes_long_to_read_is_a_refusal(
    either: CheckServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "CHECK_S", 0.3)
    read = threading.Event()

    def login(_: Endpoint) -> EndpointLogin:
        read.wait(30)
        return EndpointLogin("", True)

    asked = asking(either.url)
    monkeypatch.setattr(Endpoint, "login", login)
    try:
        assert str(await refusal(asked)).endswith("the external check does not answer within 0.3 s")
    finally:
        read.set()
    assert either.asked == []


async def test_the_login_is_read_for_each_request_and_never_said(
    either: CheckServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    asked = asking(either.url, token_file=str(file))
    await asked.check(RELEASE)
    either.login = TOKEN + "2"
    assert "does not accept the login of the service (status " in str(await refusal(asked))
    file.write_text(TOKEN + "2\n")
    await asked.check(RELEASE)
    file.unlink()
    assert "can't read its login for the external check" in str(await refusal(asked))
    assert either.logins == [f"Bearer {TOKEN}", f"Bearer {TOKEN}", f"Bearer {TOKEN}2"]
    assert "event=external_check.silent" in caplog.text
    assert TOKEN not in caplog.text


async def test_only_a_certificate_of_the_authority_is_accepted(over: CheckServer, keys: Any) -> None:
    not_accepted = "certificate of the external check is not accepted"
    async with over.serving(keys.cert, keys.key):
        await asking(over.url, ca_file=keys.ca).check(RELEASE)
        assert not_accepted in str(await refusal(asking(over.url)))
        assert len(over.asked) == 1
    assert "the external check can't be reached" in str(await refusal(asking(over.url)))


async def test_the_certificate_has_to_be_of_the_server(over: CheckServer, keys: Any) -> None:
    async with over.serving(*keys.issue("check.example.org")):
        said = str(await refusal(asking(over.url, ca_file=keys.ca)))
        assert said.endswith("the certificate of the external check is not accepted")
        assert over.asked == []


async def test_grpc_trusts_the_authorities_of_the_machine_too(
    keys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = GrpcCheck()
    async with over.serving(keys.cert, keys.key):
        asked = asking(over.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
        assert str(await refusal(asked)).endswith("the certificate of the external check is not accepted")
        monkeypatch.setenv("SSL_CERT_FILE", keys.ca)
        await asked.check(RELEASE)
        directory = tmp_path / "certs"
        directory.mkdir()
        (directory / "0a1b2c3d.0").symlink_to(keys.ca)
        (directory / "0a1b2c3d.1").symlink_to(tmp_path / "removed")
        monkeypatch.delenv("SSL_CERT_FILE")
        monkeypatch.setenv("SSL_CERT_DIR", str(directory))
        await asked.check(RELEASE)


async def test_a_token_that_the_server_repeats_is_not_said(
    either: CheckServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    asked = asking(either.url, token_file=str(file))
    either.says = {"allow": False, "reason": f"\x00\x1b[31mwho is {TOKEN}?"}
    assert str(await refusal(asked)).endswith("refuses it: '\\x00\\x1b[31mwho is …?'")
    either.says = {"allow": True, "digest": TOKEN}
    assert str(await refusal(asked)).endswith("of the digest '…'")

    async def fails(_: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.INTERNAL, f"who is {TOKEN}?")
        return b""

    if isinstance(either, GrpcCheck):
        either.server.answer = fails
        await refusal(asked)
        assert "who is …?" in caplog.text
    assert TOKEN not in caplog.text


@pytest.mark.parametrize("digest", [None, "11-abc"])
async def test_a_release_without_a_whole_digest_is_not_asked_about(either: CheckServer, digest: str | None) -> None:
    """An older build has staged it, or some of its rows: what would be allowed nobody could say."""
    either.says = {"allow": True, "digest": digest or ""}
    with pytest.raises(ConditionFailedError, match="an older build of the service has staged it, without the digest"):
        await asking(either.url).check(replace(RELEASE, digest=digest))
    assert either.asked == []


@attempt(
    "a writer of a store",
    "publish a thousand times at once while the external check hangs",
    "four are asked about at once; a release of another store is published meanwhile",
)
async def test_one_store_leaves_room_for_checks_of_another(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "CHECK_S", PATIENCE_S)
    ends = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        if (await request.json())["store"] == "s":
            await ends.wait()
        return web.json_response({"digest": "12-abc", "allow": True})

    server.answer = answer
    asked = asking(f"{server.url}/may")
    flood = [asyncio.create_task(asked.check(RELEASE)) for _ in range(50)]
    await until(lambda: len(server.asked) == 4)
    await asked.check(replace(RELEASE, store="other"))
    assert len(server.asked) == 5
    for each in flood[:20]:
        each.cancel()
    await asyncio.wait(flood[:20])
    ends.set()
    await asyncio.gather(*flood[20:])


async def test_a_check_that_has_no_turn_in_time_is_a_refusal(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "_MAX_CHECKS", 1)
    monkeypatch.setattr(check, "CHECK_S", PATIENCE_S)
    server.answer = lambda _: asyncio.Event().wait()
    asked = asking(f"{server.url}/may")
    first = asyncio.create_task(asked.check(RELEASE))
    await until(lambda: len(server.asked) == 1)
    monkeypatch.setattr(check, "CHECK_S", 0.1)
    with pytest.raises(UnavailableError, match="the external check is asked about too many releases at once"):
        await asked.check(replace(RELEASE, store="other"))
    assert len(server.asked) == 1
    first.cancel()
    await asyncio.wait((first,))


async def test_without_a_server_nothing_is_published() -> None:
    refused = await refusal(asking(""))
    assert isinstance(refused, ConditionFailedError)
    assert "has no server that it could ask (--external-check-url)" in str(refused)
