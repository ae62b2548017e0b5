"""Releases that a server of the operator has to allow: with servers that answer well, badly, and not at all."""

from __future__ import annotations

import asyncio
import gzip
import json
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web
from ringcast_config_service import external_check
from ringcast_config_service.endpoints import Endpoint, EndpointLogin
from ringcast_config_service.external_check import MAX_ANSWER_BYTES, ExternalCheck, ExternalCheckSettings
from ringcast_config_service.repository import Authorship, PolicyChange, RowWrite, StageBatch, StagedRow
from ringcast_config_service.repository.release_records import Release, ReleaseKey
from ringcast_service import ConfigError
from ringcast_testkit import PATIENCE_S, attempt
from ringcast_wire import (
    ConditionFailedError,
    ErrorCode,
    ReleaseState,
    RingcastError,
    StorePolicy,
    UnavailableError,
)
from ringcast_wire.grpc import error_from_rpc, pb

TOKEN = "a-token-of-more-than-sixteen-characters"
DAY_MS = 86_400_000
KEYS = tuple(ReleaseKey(f"k{number:03}", number, 2, 3) for number in range(120))
RELEASE = Release(
    "s",
    7,
    "stage",
    ReleaseState.STAGED,
    *("", True, 12, 345, 1, 0, 0, 0, 0, "alice", "spring cleaning", "", "", "", 0, 0, 0),
    digest="1-abc",
    keys=KEYS,
)
NO_ANSWER = "answers with something else than a JSON object with digest and allow"


def yes(_request: web.Request, **more: Any) -> web.Response:
    return web.json_response({"digest": "1-abc", "allow": True, **more})


class Server:
    """Answers as its attribute says, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answer: Callable[[web.Request], Any] = yes
        self.asked: list[tuple[str, dict[str, Any], str]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> Any:
        said = json.loads(await request.text()) if request.method == "POST" else {}
        self.asked.append((request.path_qs, said, request.headers.get("Authorization", "")))
        found = self.answer(request)
        return await found if asyncio.iscoroutine(found) else found

    @asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        host, port = runner.addresses[0][:2]
        self.url = f"http{'s' if tls else ''}://{host}:{port}/may"
        try:
            yield self
        finally:
            await runner.cleanup()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server().serving() as made:
        yield made


def asking(url: str, **files: str) -> ExternalCheck:
    settings = ExternalCheckSettings(url=url, **files)
    settings.endpoint.check()
    return ExternalCheck(settings)


async def refusal(asked: ExternalCheck) -> RingcastError:
    with pytest.raises(RingcastError) as caught:
        await asked.check(RELEASE)
    return caught.value


async def test_a_yes_lets_it_be_published_and_the_question_is_bounded(server: Server) -> None:
    await asking(server.url).check(RELEASE)
    ((path, said, authorization),) = server.asked
    keys = said.pop("keys")
    assert (path, authorization) == ("/may", "")
    assert said == {
        "store": "s",
        "release": 7,
        "digest": "1-abc",
        "author": "alice",
        "reason": "spring cleaning",
        "rows": 12,
        "bytes": 345,
        "key_count": 120,
    }
    assert len(keys) == 100
    assert keys[1] == {"key": "k001", "added": 1, "changed": 2, "deleted": 3}


async def test_a_no_is_a_refusal_with_its_reason(server: Server) -> None:
    server.answer = lambda _: web.json_response({"digest": "1-abc", "allow": False, "reason": "not\nnow" + "!" * 900})
    refused = await refusal(asking(server.url))
    assert isinstance(refused, ConditionFailedError)
    said = "release 7 of store 's' can't be published: the external check refuses it: 'not\\nnow!!!"
    assert str(refused).startswith(said)
    assert len(str(refused)) < 600
    server.answer = lambda _: web.json_response({"digest": "1-abc", "allow": False})
    assert str(await refusal(asking(server.url))).endswith("can't be published: the external check refuses it")


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (200, b"", NO_ANSWER),
        (200, b"yes", NO_ANSWER),
        (200, b"true", NO_ANSWER),
        (200, b"{}", NO_ANSWER),
        (200, b'{"allow": true}', NO_ANSWER),
        (200, b'{"digest": "1-abc"}', NO_ANSWER),
        (200, b'{"digest": "1-abc", "allow": "true"}', NO_ANSWER),
        (200, b'{"digest": "1-abc", "allow": 1}', NO_ANSWER),
        (200, b'{"digest": "1-abc", "allow": null}', NO_ANSWER),
        (200, b'{"digest": "1-abc", "allow": true, "reason": 7}', NO_ANSWER),
        (200, b"[" * 16_000, NO_ANSWER),
        (200, b"\xff\xfe", NO_ANSWER),
        (200, b'{"digest": "1-abd", "allow": true}', "answers for another release, of the digest '1-abd'"),
        (201, b'{"digest": "1-abc", "allow": true}', "answers with the status 201"),
        (401, b"", "does not accept the login of the service (status 401)"),
        (403, b"", "does not accept the login of the service (status 403)"),
        (500, b'{"digest": "1-abc", "allow": true}', "answers with the status 500"),
    ],
)
async def test_nonsense_is_a_refusal(server: Server, status: int, body: bytes, why: str) -> None:
    server.answer = lambda _: web.Response(body=body, status=status)
    refused = await refusal(asking(server.url))
    assert isinstance(refused, UnavailableError)
    assert str(refused) == f"release 7 of store 's' can't be published: the external check {why}"


@attempt(
    "a server in place of the external check of releases",
    "redirect the service, fill its memory, or keep it waiting",
    "the release is not published; what is read is bounded in size and time",
)
async def test_a_hostile_server_is_a_refusal(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
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

    packed = gzip.compress(b'{"digest": "1-abc", "allow": true}' + b" " * 10_000_000)
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
        monkeypatch.setattr(external_check, "CHECK_S", 0.3 if why == slow else PATIENCE_S)
        refused = await refusal(asking(server.url))
        assert isinstance(refused, UnavailableError)
        assert str(refused).endswith(f"can't be published: {why}")
    assert {path for path, _, _ in server.asked} == {"/may"}


async def test_a_login_that_takes_long_to_read_is_a_refusal(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_check, "CHECK_S", 0.3)
    read = threading.Event()

    def login(_: Endpoint) -> EndpointLogin:
        read.wait(30)
        return EndpointLogin("", True)

    monkeypatch.setattr(Endpoint, "login", login)
    check = ExternalCheck(ExternalCheckSettings(url=server.url))
    try:
        assert str(await refusal(check)).endswith("the external check does not answer within 0.3 s")
    finally:
        read.set()
    assert server.asked == []


async def test_the_login_is_read_for_each_request_and_never_said(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    asked = asking(server.url, token_file=str(file))
    await asked.check(RELEASE)
    file.unlink()
    assert "can't read its login for the external check" in str(await refusal(asked))
    assert [authorization for _, _, authorization in server.asked] == [f"Bearer {TOKEN}"]
    assert "event=external_check.silent" in caplog.text
    assert TOKEN not in caplog.text


async def test_only_a_certificate_of_the_authority_is_accepted(keys: Any) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(keys.cert, keys.key)
    async with Server().serving(tls) as server:
        await asking(server.url, ca_file=keys.ca).check(RELEASE)
        assert "certificate of the external check is not accepted" in str(await refusal(asking(server.url)))
        assert len(server.asked) == 1
    assert "the external check can't be reached" in str(await refusal(asking(server.url)))


async def test_without_a_server_nothing_is_published() -> None:
    refused = await refusal(ExternalCheck(ExternalCheckSettings()))
    assert isinstance(refused, ConditionFailedError)
    assert "has no server that it could ask (--external-check-url)" in str(refused)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"token_file": "t"}, "external_check_token is given without external_check_url"),
        ({"url": "check:9090"}, "external_check_url 'check:9090' can't be used: "),
        ({"url": "http://a", "token_file": "t"}, "external_check_token is given, and external_check_url is neither"),
        ({"url": "https://a", "ca_file": "/none"}, "external_check_ca '/none' can't be read: "),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ExternalCheckSettings(**settings).endpoint.check()
    assert str(refused.value).startswith(sentence)


def keyed(row_id: str) -> pb.KeyedWrite:
    return pb.KeyedWrite(key="k", row=pb.RowWrite(row_id=row_id, value="v", if_absent=True))


async def test_a_store_that_wants_it_publishes_only_what_is_allowed(
    start: Any, nats_url: str, tmp_path: Path, server: Server, store_name: str
) -> None:
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    allow = False

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"digest": (await request.json())["digest"], "allow": allow, "reason": "on holiday"})

    server.answer = answer
    publish = pb.PublishReleaseRequest(store=store_name, number=1)
    async with start(nats_url, database, external_check=ExternalCheckSettings(url=server.url)) as service:
        await service.create(store_name)
        stage = pb.StageReleaseRequest(store=store_name, stage_id="one", rows=[keyed("a")], complete=True)
        staged = await service.stub.StageRelease(stage)
        policy = pb.StorePolicy(external_check=True)
        await service.stub.SetStorePolicy(pb.SetStorePolicyRequest(name=store_name, policy=policy))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.stub.PublishRelease(publish)
        refused = error_from_rpc(caught.value)
        assert (refused.code, refused.field) == (ErrorCode.CONDITION_FAILED, "external_check")
        assert str(refused).endswith("the external check refuses it: 'on holiday'")
        ((_, asked, _),) = server.asked
        assert asked["digest"] == staged.digest
        assert asked["keys"] == [{"key": "k", "added": 1, "changed": 0, "deleted": 0}]
        assert (await service.stub.GetRelease(pb.GetReleaseRequest(store=store_name, number=1))).state == staged.state
    async with start(nats_url, database) as service:
        await service.is_refused(
            service.stub.PublishRelease(publish), "no server that it could ask", ErrorCode.CONDITION_FAILED
        )
    allow = True
    async with start(nats_url, database, external_check=ExternalCheckSettings(url=server.url)) as service:
        await service.stub.PublishRelease(publish)
        assert len(server.asked) == 2
        await service.stub.PublishRelease(publish)
        assert len(server.asked) == 2, "it is published, or about to be: nobody is asked again"


async def test_nothing_is_published_that_was_not_asked_about(bench: Any) -> None:
    row = RowWrite(0, "a", "v", None, 2, 0)
    by = Authorship("alice", "")
    await bench.repo.releases.stage(bench.store, StageBatch("one", 0, [StagedRow("k", row)], True), by)
    await bench.repo.policies.set_policy("s", PolicyChange(StorePolicy(external_check=True)))
    assert await bench.ask("SELECT usable_from FROM schema_version") == [(16,)]
    with pytest.raises(UnavailableError, match="external_check of its store was set just now"):
        await bench.repo.releases.publish("s", 1, DAY_MS, by)
    assert (await bench.repo.releases.get("s", 1)).state is ReleaseState.STAGED
    begun = await bench.repo.releases.publish("s", 1, DAY_MS, by, allowed=True)
    assert begun.state is ReleaseState.PUBLISHING
