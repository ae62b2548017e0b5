"""PromQL conditions against servers that answer in every bad way; tests/integration asks a real Prometheus."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from ringcast_config_service.promql import conditions
from ringcast_config_service.promql.conditions import MAX_ANSWER_BYTES, Conditions, Outcome, to_answer
from ringcast_config_service.promql.settings import PromqlSettings
from ringcast_service import ConfigError
from ringcast_testkit import attempt
from ringcast_testkit.servers import HttpServer
from ringcast_wire import ConditionFailedError, InvalidInputError, UnavailableError

TOKEN = "a-token-of-more-than-sixteen-characters"
Keys = Any  # of conftest.py


def vector(*values: str, **more: Any) -> bytes:
    samples = [{"metric": {"a": str(number)}, "value": [1.5, value]} for number, value in enumerate(values)]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": samples}, **more}).encode()


def result(kind: str, found: Any) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": found}}).encode()


ERROR = json.dumps({"status": "error", "errorType": "bad_data", "error": "1:4: parse error: unexpected end"}).encode()
NO_PROMETHEUS = "the answer is not that of a Prometheus"


@pytest.mark.parametrize(
    ("status", "data", "outcome", "why"),
    [
        (200, vector("1"), Outcome.MET, ""),
        (200, vector("1.0"), Outcome.MET, ""),
        (200, result("scalar", [1, "1"]), Outcome.MET, ""),
        (200, vector("0"), Outcome.NOT_MET, ""),
        (200, vector("-0"), Outcome.NOT_MET, ""),
        (200, result("scalar", [1, "0"]), Outcome.NOT_MET, ""),
        (200, vector(), Outcome.NO_DATA, "it has no sample"),
        (200, result("scalar", "a1"), Outcome.NO_ANSWER, NO_PROMETHEUS),
        (200, result("scalar", [1, True]), Outcome.NO_ANSWER, NO_PROMETHEUS),
        (200, result("vector", [{"value": {"a": 1, "1": 1}}]), Outcome.NO_ANSWER, NO_PROMETHEUS),
        (200, vector("NaN"), Outcome.NO_DATA, "its value is not a number (NaN)"),
        (200, vector("1", "1"), Outcome.WRONG, "it has 2 samples, and one is allowed: "),
        (200, vector("0.25"), Outcome.WRONG, "its value is 0.25, and only 1 and 0 are allowed: "),
        (200, vector("+Inf"), Outcome.WRONG, "its value is inf, "),
        (200, result("matrix", []), Outcome.WRONG, "its result is a 'matrix', "),
        (200, result("string", [1, "1"]), Outcome.WRONG, "its result is a 'string', "),
        (200, vector("1", warnings=["a part is missing"]), Outcome.NO_ANSWER, "Prometheus warns: 'a part is missing'"),
        (400, ERROR, Outcome.WRONG, "Prometheus refuses it: '1:4: parse error: unexpected end'"),
        (422, ERROR, Outcome.WRONG, "Prometheus refuses it: "),
        (400, b"<html>", Outcome.NO_ANSWER, "Prometheus answers with the status 400"),
        (401, b"", Outcome.NO_ANSWER, "Prometheus does not accept the login of the service (status 401)"),
        (403, b"", Outcome.NO_ANSWER, "Prometheus does not accept the login of the service (status 403)"),
        (302, b"", Outcome.NO_ANSWER, "Prometheus answers with the status 302"),
        (503, ERROR, Outcome.NO_ANSWER, "Prometheus answers with the status 503"),
        (500, vector("1"), Outcome.NO_ANSWER, "Prometheus answers with the status 500"),
        (206, vector("1"), Outcome.NO_ANSWER, "Prometheus answers with the status 206"),
        (200, b"", Outcome.NO_ANSWER, NO_PROMETHEUS),
        (200, b"1", Outcome.NO_ANSWER, NO_PROMETHEUS),
        (200, ERROR, Outcome.NO_ANSWER, NO_PROMETHEUS),
        (200, b'{"status": "success"}', Outcome.NO_ANSWER, NO_PROMETHEUS),
        (200, b"[" * 60_000, Outcome.NO_ANSWER, NO_PROMETHEUS),
        (200, result("vector", [{"value": 1}]), Outcome.NO_ANSWER, NO_PROMETHEUS),
        (200, result("vector", [{"value": [1, None]}]), Outcome.NO_ANSWER, NO_PROMETHEUS),
        (200, result("vector", 7), Outcome.NO_ANSWER, NO_PROMETHEUS),
        (200, result("scalar", "1"), Outcome.NO_ANSWER, NO_PROMETHEUS),
        (200, result("scalar", [1, "one"]), Outcome.NO_ANSWER, NO_PROMETHEUS),
    ],
)
def test_only_the_answer_1_is_good(status: int, data: bytes, outcome: Outcome, why: str) -> None:
    found = to_answer(status, data)
    assert (found.outcome, found.why[: len(why)] if why else found.why) == (outcome, why)


@given(st.binary(max_size=100) | st.recursive(st.text() | st.floats(), lambda each: st.lists(each)).map(json.dumps))
def test_no_answer_raises(data: bytes | str) -> None:
    raw = data if isinstance(data, bytes) else result("vector", json.loads(data))
    assert to_answer(200, raw).outcome is not Outcome.MET


def respond(body: bytes, status: int, _request: web.Request) -> web.Response:
    return web.Response(body=body, status=status)


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    async with HttpServer(lambda _: web.Response(body=vector("1"))).serving() as made:
        yield made


def forms(server: HttpServer) -> list[dict[str, str]]:
    """The fields of what it was asked."""
    return [dict(parse_qsl(asked.body.decode(), strict_parsing=True)) for asked in server.asked]


def asking(url: str, **files: str) -> Conditions:
    settings = PromqlSettings(url=url, **files)
    settings.endpoint.check()
    return Conditions(settings, Counter())


async def outcome(url: str, **files: str) -> tuple[Outcome, str]:
    (found,) = await asking(url, **files).ask(["up"])
    return found.outcome, found.why


@attempt(
    "a client with a PromQL condition that has line ends, `&query=` or the URL of another server in it",
    "have the service ask something else, or elsewhere",
    "it is one form field, sent to the URL of the operator",
)
async def test_a_condition_is_one_field_of_the_request(server: HttpServer) -> None:
    asked = ["up&query=1&timeout=1h", "http://example.org/\r\nHost: example.org\r\n\r\n", "a ?x=1#y ü"]
    found = await asking(f"{server.url}/prometheus/").ask(asked)
    assert [each.outcome for each in found] == [Outcome.MET] * 3
    assert {each.path for each in server.asked} == {"/prometheus/api/v1/query"}
    assert sorted(form["query"] for form in forms(server)) == sorted(asked)
    assert all(form.keys() == {"query", "timeout"} and form["timeout"] == "2s" for form in forms(server))


@attempt(
    "a server in place of Prometheus",
    "redirect the service, fill its memory, or keep it waiting",
    "it counts as no answer; what is read is bounded in size and time",
)
async def test_a_hostile_server_is_no_answer(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "QUERY_S", 0.3)

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

    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(vector("1"))
        assert request.transport is not None
        request.transport.close()
        return response

    packed = gzip.compress(vector("1") + b" " * 10_000_000)
    slow = "Prometheus does not answer within 0.3 s"
    for answer, why in (
        (lambda _: asyncio.Event().wait(), slow),
        (drips, slow),
        (endless, f"the answer is larger than {MAX_ANSWER_BYTES} bytes"),
        (cut, "Prometheus does not answer as it should (ClientPayloadError)"),
        (
            lambda _: web.Response(status=307, headers={"Location": "/elsewhere"}),
            "Prometheus answers with the status 307",
        ),
        (lambda _: web.Response(body=packed, headers={"Content-Encoding": "gzip"}), NO_PROMETHEUS),
    ):
        server.answer = answer
        assert await outcome(server.url) == (Outcome.NO_ANSWER, why)
    assert {each.path for each in server.asked} == {"/api/v1/query"}


async def test_the_login_is_read_for_each_request_and_never_said(
    server: HttpServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    asked = asking(server.url, token_file=str(file))
    server.answer = lambda request: web.Response(
        body=vector("1"), status=200 if request.headers.get("Authorization") == f"Bearer {TOKEN}2" else 401
    )
    (refused,) = await asked.ask(["up"])
    assert refused.why == "Prometheus does not accept the login of the service (status 401)"
    file.write_text(TOKEN + "2\n")
    assert (await asked.ask(["up"]))[0].outcome is Outcome.MET
    file.unlink()
    (unread,) = await asked.ask(["up"])
    assert (unread.outcome, unread.why) == (Outcome.NO_ANSWER, "the service can't read its login for Prometheus")
    assert "prometheus_token" in unread.detail
    assert [each.authorization for each in server.asked] == [f"Bearer {TOKEN}", f"Bearer {TOKEN}2"]
    assert "prometheus.silent" in caplog.text
    assert TOKEN not in caplog.text


async def test_only_a_certificate_of_the_authority_is_accepted(keys: Keys) -> None:
    async with HttpServer(lambda _: web.Response(body=vector("1"))).serving(keys.cert, keys.key) as server:
        assert await outcome(server.url, ca_file=keys.ca) == (Outcome.MET, "")
        assert await outcome(server.url) == (Outcome.NO_ANSWER, "the certificate of Prometheus is not accepted")
        assert len(server.asked) == 1
    assert await outcome(server.url) == (Outcome.NO_ANSWER, "Prometheus can't be reached")


async def test_what_can_not_be_met_is_refused_before_anything_is_published(server: HttpServer) -> None:
    asked = asking(server.url)
    place = "release 1 of store 's'"
    for body, status, refusal, sentence in (
        (
            vector("0"),
            200,
            ConditionFailedError,
            f"{place} can't be published: PromQL condition 'up' is not met: it is 0",
        ),
        (ERROR, 400, InvalidInputError, "PromQL condition 'up': Prometheus refuses it: '1:4: parse error: "),
        (vector("7"), 200, InvalidInputError, "PromQL condition 'up': its value is 7, and only 1 and 0 are allowed"),
        (b"", 503, UnavailableError, "PromQL condition 'up': Prometheus answers with the status 503"),
    ):
        server.answer = partial(respond, body, status)
        with pytest.raises(refusal) as refused:
            await asked.check(place, ["up"])
        assert str(refused.value).startswith(sentence)
    for body in (vector("1"), vector(), vector("NaN")):
        server.answer = partial(respond, body, 200)
        await asked.check(place, ["up"])
    counts: Counter[str] = Counter()
    nowhere = Conditions(PromqlSettings(), counts)
    with pytest.raises(ConditionFailedError, match="the service has no Prometheus"):
        await nowhere.check(place, ["up"])
    (found,) = await nowhere.ask(["up"])
    assert found.outcome is Outcome.NO_ANSWER, "another instance has one, and has let it be published"
    assert counts == {"no_answer": 1}
    assert await nowhere.ask([]) == []


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"token_file": "t"}, "prometheus_token is given without prometheus_url"),
        ({"ca_file": "t"}, "prometheus_ca is given without prometheus_url"),
        ({"url": "prometheus:9090"}, "prometheus_url 'prometheus:9090' can't be used: "),
        ({"url": "ftp://prometheus"}, "prometheus_url 'ftp://prometheus' can't be used: "),
        ({"url": "http://"}, "prometheus_url 'http://' can't be used: "),
        ({"url": "http://a:b/"}, "prometheus_url 'http://a:b/' can't be used: "),
        ({"url": "http://a/?x=1"}, "prometheus_url 'http://a/?x=1' can't be used: "),
        ({"url": "http://a/#x"}, "prometheus_url 'http://a/#x' can't be used: "),
        ({"url": "http://a/?"}, "prometheus_url 'http://a/?' can't be used: "),
        ({"url": "http://a/#"}, "prometheus_url 'http://a/#' can't be used: "),
        ({"url": "http://ops:secret@a/"}, "prometheus_url with a login in it can't be used: "),
        ({"url": "http://" + "a" * 600}, "prometheus_url 'http://aaa"),
        ({"url": "http://a", "ca_file": "t"}, "prometheus_ca is given, and prometheus_url is not https://"),
        ({"url": "http://a", "token_file": "t"}, "prometheus_token is given, and prometheus_url is neither https://"),
        ({"url": "http://[::1]", "token_file": "/none"}, "prometheus_token: token_file '/none' can't be read: "),
        ({"url": "https://a", "ca_file": "/none"}, "prometheus_ca '/none' can't be read: "),
        ({"url": "https://a", "ca_file": __file__}, "prometheus_ca is not a PEM file with certificates"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        PromqlSettings(**settings).endpoint.check()
    assert str(refused.value).startswith(sentence)
    assert "secret" not in str(refused.value)
