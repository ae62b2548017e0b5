"""Dapr's API over HTTP, callbacks to a real application, and who may call."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import quote

import grpc
import pytest
from dapr.clients import DaprClient
from dapr.proto.runtime.v1 import configuration_pb2, dapr_pb2_grpc
from ringcast import Change
from ringcast_core import row_partition
from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.dapr.callbacks import CallbackSender
from ringcast_heartbeat_agent.dapr.handlers import Handlers
from ringcast_heartbeat_agent.dapr.items import KeySelection, item_of
from ringcast_heartbeat_agent.dapr.observers import Observers
from ringcast_heartbeat_agent.dapr.subscription import Subscription
from ringcast_heartbeat_agent.followers import Followers
from ringcast_heartbeat_agent.opening import Opener
from ringcast_heartbeat_agent.telemetry import Measures
from ringcast_testkit import PATIENCE_S, AgentProcess, NatsServer, attempt

PARTITIONS = 16


class Call(NamedTuple):
    """A callback as it came."""

    path: str
    token: str | None
    body: Any


class Application:
    """Takes callbacks, and answers with ``statuses``, then with 200."""

    def __init__(self) -> None:
        self.calls: queue.Queue[Call] = queue.Queue()
        self.statuses: list[int] = []
        application = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                application.calls.put(Call(self.path, self.headers["dapr-api-token"], body))
                self.send_response(application.statuses.pop(0) if application.statuses else 200)
                self.send_header("location", "/elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def next(self) -> Call:
        return self.calls.get(timeout=PATIENCE_S)


@pytest.fixture
def application() -> Iterator[Application]:
    made = Application()
    yield made
    made.close()


def metric(http_get: Any, agent: AgentProcess, name: str) -> float:
    """A sample of the agent's metrics, 0 if it is not there."""
    lines = http_get(agent.metrics_url).body.splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), 0.0)


@pytest.mark.parametrize("version", ["v1.0", "v1.0-alpha1"])
def test_reading(shared_agent: AgentProcess, writer: Any, http_get: Any, store_name: str, version: str) -> None:
    at = f"{shared_agent.http_url}/{version}/configuration/{store_name}"
    unknown = http_get(f"{at}?key=list")
    assert (unknown.status, unknown.body["errorCode"]) == (400, "ERR_CONFIGURATION_STORE_NOT_FOUND")
    assert unknown.body["message"] == f"configuration store {store_name} not found"
    writer.create(store_name)
    assert http_get(f"{at}?key=list") == (204, None)
    assert http_get(at) == (204, None)
    put = writer.put(store_name, "list", "a", "1", owner="me")
    writer.put(store_name, "other", "b", "2")
    metadata = {
        "owner": "me",
        "ringcast.key": "list",
        "ringcast.partition": str(row_partition("a", PARTITIONS)),
        "ringcast.deleted": "false",
    }
    assert http_get(f"{at}?key=list") == (200, {"a": {"value": "1", "version": str(put.version), "metadata": metadata}})
    assert http_get(f"{at}?key=list%2Fa&key=other").body.keys() == {"list/a", "other/b"}
    assert http_get(at).body.keys() == {"list/a", "other/b"}
    for nothing in ("orders.timeout", "", "no%20spaces", "list%2F", "never"):  # as of any key that is not there
        assert http_get(f"{at}?key={nothing}") == (204, None)
        assert http_get(f"{at}?key={nothing}&key=list").body.keys() == {"list/a"}


@pytest.mark.parametrize("limit", ["7", None])
def test_reading_in_pages(
    shared_agent: AgentProcess, writer: Any, http_get: Any, store_name: str, limit: str | None
) -> None:
    """Every row once, over both APIs; without a limit pages are as large as an answer may be."""
    writer.create(store_name)
    big = "ä" * (200_000 if limit is None else 10)
    wanted = {f"{key}/r{number}": big for key in ("a", "b") for number in range(20)}
    for key in ("a", "b"):
        writer.put_many(store_name, key, ((f"r{number}", big) for number in range(20)))
    asked = {"ringcast.limit": limit} if limit else {"ringcast.after": ""}
    at = f"{shared_agent.http_url}/v1.0/configuration/{store_name}"
    if limit is None:
        refused = http_get(f"{at}?key=a&key=b")
        assert (refused.status, refused.body["errorCode"]) == (500, "ERR_CONFIGURATION_GET")
        assert "Read it in pages (metadata ringcast.limit), or raise max_response_bytes" in refused.body["message"]
    for over in ("grpc", "http"):
        found: dict[str, str] = {}
        following: dict[str, str] | None = dict(asked)
        pages = 0
        while following is not None:
            if over == "grpc":
                with grpc.insecure_channel(shared_agent.grpc_address) as channel:
                    request = configuration_pb2.GetConfigurationRequest(
                        store_name=store_name, keys=["a", "b"], metadata=following
                    )
                    items = dapr_pb2_grpc.DaprStub(channel).GetConfiguration(request).items
                    page = {name: (item.value, dict(item.metadata)) for name, item in items.items()}
            else:
                query = "".join(f"&metadata.{name}={quote(value)}" for name, value in following.items())
                body = http_get(f"{at}?key=a&key=b{query}").body
                page = {name: (item["value"], item["metadata"]) for name, item in body.items()}
            assert not found.keys() & page.keys()
            assert limit is None or len(page) <= int(limit)
            found.update((name, value) for name, (value, _) in page.items())
            after = [told["ringcast.next"] for _, told in page.values() if "ringcast.next" in told]
            following = {**asked, "ringcast.after": after[0]} if after else None
            pages += 1
        assert found == wanted
        assert pages > 1
    odd = http_get(f"{at}?key=a&metadata.ringcast.after=nonsense")
    assert "ringcast.after 'nonsense' is not what an item gave as ringcast.next" in odd.body["message"]
    named = http_get(f"{at}?key=a%2Fr1&metadata.ringcast.limit=1")
    assert "keys names the row 'r1' of a: pages are of whole keys" in named.body["message"]


def test_callbacks(
    tmp_path: Path, shared_nats: NatsServer, application: Application, writer: Any, http_get: Any, store_name: str
) -> None:
    options = ("--app-url", application.url, "--token-file", "off")
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=options, env={"APP_API_TOKEN": "t0"}) as agent:
        at = f"{agent.http_url}/v1.0/configuration/{store_name}"
        writer.create(store_name)
        subscribed = http_get(f"{at}/subscribe?key=list")
        assert subscribed.status == 200
        row_id = "../x?y=ä/z"
        put = writer.put(store_name, "list", row_id, "1")
        call = application.next()
        assert call.path == f"/configuration/{store_name}/list", "what every router takes for one part"
        assert call.token == "t0"
        assert call.body["id"] == subscribed.body["id"]
        assert call.body["items"][row_id]["value"] == "1"
        assert call.body["items"][row_id]["version"] == str(put.version)

        application.statuses[:] = [500, 307]  # it is sent again, and no other address is called
        writer.put(store_name, "list", "b", "2")
        assert [[*application.next().body["items"]] for _ in range(3)] == [["b"]] * 3
        application.statuses[:] = [503, 503, 503]
        writer.put(store_name, "list", "b", "3")
        for _ in range(3):
            application.next()
        agent.process.wait_until(
            lambda: metric(http_get, agent, 'ringcast_agent_callbacks_total{outcome="given-up"}') == 1
        )
        agent.process.wait_until(lambda: "event=callback.given_up" in "".join(agent.process.log))
        (line,) = (line for line in agent.process.log if "event=callback.given_up" in line)
        assert f"store={store_name} item=b version=" in line
        assert f"status=503 url={application.url}/configuration/{store_name}/list" in line
        writer.delete(store_name, "list", "b")
        gone = application.next().body["items"]["b"]
        assert (gone["value"], gone["metadata"]["ringcast.deleted"]) == ("", "true")

        subscription = subscribed.body["id"]
        assert http_get(f"{at}/{subscription}/unsubscribe") == (200, {"ok": True})
        again = http_get(f"{at}/{subscription}/unsubscribe")
        assert again.status == 500
        assert again.body == {
            "message": f"failed to unsubscribe to configuration request {subscription}: subscription does not exist"
        }
        assert application.calls.qsize() == 0


@attempt(
    "an application of the host",
    "have the agent call other hosts, or a metadata service of the cloud",
    "refused: only listed addresses are called",
)
def test_where_callbacks_may_go(
    tmp_path: Path, shared_nats: NatsServer, application: Application, writer: Any, http_get: Any, store_name: str,
    shared_agent: AgentProcess,
) -> None:  # fmt: skip
    addresses = f"{application.url},http://app.example,https://10.0.0.7:*"
    options = ("--callback-addresses", addresses, "--app-url", "http://127.0.0.1:8080", "--token-file", "off")
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=options) as agent:
        at = f"{agent.http_url}/v1.0/configuration/{store_name}/subscribe?key=list"
        writer.create(store_name)
        nowhere = http_get(f"{shared_agent.http_url}/v1.0/configuration/{store_name}/subscribe?key=list")
        assert (nowhere.status, nowhere.body["errorCode"]) == (500, "ERR_APP_CHANNEL_NIL")
        for url in (
            "http://10.0.0.8:80",
            "http://127.0.0.1:8081",  # any process may listen there
            "http://10.0.0.7",
            "https://10.0.0.7:*",  # nobody can call that
            "http://app.example:8080",
            "http://127.0.0.1.example.org",
            "http://169.254.169.254",
            "http://user:secret@127.0.0.1",
            "http://[::ffff:10.0.0.8]:80",
            "ftp://127.0.0.1",
            "http://127.0.0.1:99999",
            "http://127.0.0.1/?x=1",
            "http://" + "a" * 3_000,
        ):
            refused = http_get(f"{at}&metadata.ringcast.callback_url={quote(url, safe='')}")
            assert (refused.status, refused.body["errorCode"]) == (500, "ERR_CONFIGURATION_SUBSCRIBE"), url
        for url in (
            f"{application.url}/base/",
            "http://app.example:80",
            "https://10.0.0.7:8080",
            "http://127.0.0.1:8080",
        ):
            assert http_get(f"{at}&metadata.ringcast.callback_url={quote(url, safe='')}").status == 200, url
        writer.put(store_name, "list", "a", "1")
        assert application.next().path == f"/base/configuration/{store_name}/list"


@attempt(
    "a process without the token",
    "read rows, or subscribe",
    "401 or `UNAUTHENTICATED`",
)
def test_who_may_call(
    tmp_path: Path, shared_nats: NatsServer, sidecar: Any, writer: Any, http_get: Any, store_name: str
) -> None:
    writer.create(store_name)
    writer.put(store_name, "list", "a", "1")
    with AgentProcess(tmp_path, nats_url=shared_nats.url, env={"DAPR_API_TOKEN": "secret"}) as agent:
        at = f"{agent.http_url}/v1.0/configuration/{store_name}?key=list"
        assert http_get(at) == (401, "invalid api token")
        assert http_get(at, dapr_api_token="wrong").status == 401
        assert http_get(at, dapr_api_token="secret").status == 200
        assert http_get(f"{agent.http_url}/v1.0/metadata").status == 401
        assert http_get(f"{agent.http_url}/v1.0/healthz").status == 204
        assert http_get(f"{agent.http_url}/v1.0/healthz/outbound").status == 204
        sidecar(agent, "secret")
        with DaprClient() as client:
            assert client.get_configuration(store_name, ["list"]).items["a"].value == "1"
        request = configuration_pb2.GetConfigurationRequest(store_name=store_name, keys=["list"])
        with grpc.insecure_channel(agent.grpc_address) as channel:
            stub = dapr_pb2_grpc.DaprStub(channel)
            for metadata, said in (
                ((), "missing api token in request metadata"),
                ((("dapr-api-token", "wrong"),), "authentication error: api token mismatch"),
            ):
                for call in (stub.GetConfiguration, lambda *a, **o: next(stub.SubscribeConfiguration(*a, **o))):
                    with pytest.raises(grpc.RpcError) as told:
                        call(request, metadata=metadata)
                    assert told.value.code() is grpc.StatusCode.UNAUTHENTICATED
                    assert told.value.details() == said


@attempt(
    "a web page in a browser of the host",
    "call the agent, by a name of its own or from its origin",
    "403",
)
def test_requests_of_web_pages_are_refused(
    tmp_path: Path, shared_nats: NatsServer, writer: Any, http_get: Any, store_name: str
) -> None:
    """Whatever they ask for, with a token or not: a page may have its name point to this host."""
    writer.create(store_name)
    writer.put(store_name, "list", "a", "1")
    options = ("--allowed-hosts", "agent.internal")
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=options) as agent:
        port = agent.http_url.rpartition(":")[2]
        for path in (f"/v1.0/configuration/{store_name}?key=list", "/v1.0/healthz", "/ringcast/v1/status"):
            for headers in (
                {"Host": "evil.example"},
                {"Host": f"evil.example:{port}"},
                {"Host": ""},
                {"Host": "127.0.0.1.evil.example"},
                {"Origin": "http://evil.example"},
                {"Origin": "null"},
                {"Sec_Fetch_Site": "cross-site"},
                {"Sec_Fetch_Site": "same-origin"},
            ):
                refused = http_get(f"{agent.http_url}{path}", dapr_api_token=agent.token, **headers)
                assert refused.status == 403, headers
            for host in (f"localhost:{port}", "LOCALHOST", f"127.0.0.1:{port}", "[::1]:80", "agent.internal"):
                answer = http_get(
                    f"{agent.http_url}{path}", dapr_api_token=agent.token, Host=host, Sec_Fetch_Site="none"
                )
                assert answer.status in (200, 204), host


def test_health_and_metadata(shared_agent: AgentProcess, writer: Any, http_get: Any, store_name: str) -> None:
    writer.create(store_name)
    http_get(f"{shared_agent.http_url}/v1.0/configuration/{store_name}?key=list")
    told = http_get(f"{shared_agent.http_url}/v1.0/metadata").body
    assert {"name": store_name, "type": "configuration.ringcast", "version": "v1"} in told["components"]
    assert told["runtimeVersion"].startswith("ringcast-")
    health = f"{shared_agent.http_url}/v1.0/healthz"
    assert http_get(health).status == 204
    assert http_get(f"{health}?appid={told['id']}").status == 204
    assert http_get(f"{health}?appid=other").body["errorCode"] == "ERR_HEALTH_APPID_NOT_MATCH"
    for path in ("state/x/y", "invoke/app/method/m", "nowhere"):
        unserved = http_get(f"{shared_agent.http_url}/v1.0/{path}")
        assert (unserved.status, unserved.body["errorCode"]) == (404, "ERR_METHOD_NOT_FOUND")
        assert "a Ringcast agent, which serves configuration, health and metadata" in unserved.body["message"]
    assert http_get(f"{shared_agent.http_url}/v1.0/shutdown").status == 405
    refused = http_get(f"{shared_agent.http_url}/v1.0/shutdown", method="POST")
    assert (refused.status, refused.body["errorCode"]) == (403, "ERR_SHUTDOWN_REFUSED")
    entry = f"{shared_agent.http_url}/v1.0/metadata/{store_name}"
    assert http_get(entry, method="PUT", body=b"mine").status == 204
    assert http_get(f"{shared_agent.http_url}/v1.0/metadata").body["extended"][store_name] == "mine"
    assert http_get(entry, method="PUT", body=b"x" * 1_025).body["errorCode"] == "ERR_METADATA_SET"


def test_an_application_that_has_gone_loses_its_subscription(
    tmp_path: Path, shared_nats: NatsServer, writer: Any, http_get: Any, store_name: str
) -> None:
    gone = Application()
    gone.close()
    options = ("--app-url", gone.url, "--callback-patience", "0.2", "--token-file", "off")
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=options) as agent:
        writer.create(store_name)
        assert http_get(f"{agent.http_url}/v1.0/configuration/{store_name}/subscribe?key=list").status == 200
        assert metric(http_get, agent, 'ringcast_agent_subscriptions{api="http"}') == 1
        writer.put(store_name, "list", "a", "1")
        ended = 'ringcast_agent_subscriptions_ended_total{api="http",reason="unreachable"}'
        agent.process.wait_until(lambda: metric(http_get, agent, ended) == 1)
        assert metric(http_get, agent, 'ringcast_agent_subscriptions{api="http"}') == 0


async def test_an_address_that_can_not_be_called_ends_its_subscription_alone() -> None:
    """Whatever is thrown for it: else it would end everything that the agent does."""
    config, measures, unused = Config(callback_patience_s=0.01), Measures(), cast(Any, None)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        observers = Observers(config, Followers(config, tasks), unused, None, Opener(""))
        handlers = Handlers(config, unused, unused, Opener(""), observers, unused, tasks, measures)
        sender = CallbackSender(config, tasks, handlers, measures)
        sender.start()
        subscription = Subscription(
            "s", KeySelection(["list"]), max_items=1, max_bytes=1_000, api="http", callback_url="http://127.0.0.1:*"
        )
        handlers.subscriptions[subscription.id] = subscription
        subscription.offer("list", "a", item_of(Change("s", "list", 0, "a", "1", 1)))
        sender.follow(subscription)
    await sender.stop()
    assert measures.ended["http", "unreachable"] == 1


def test_callbacks_after_an_outage(
    tmp_path: Path,
    nats_server: NatsServer,
    config_service: Any,
    writer_to: Callable[..., Any],
    application: Application,
    http_get: Any,
    store_name: str,
) -> None:
    """An HTTP subscription can't be told of an outage: it waits for its end."""
    writer = writer_to(config_service)
    writer.create(store_name)
    options = ("--app-url", application.url, "--stale-after", "0.1", "--token-file", "off")
    with AgentProcess(tmp_path, nats_url=nats_server.url, options=options) as agent:
        assert http_get(f"{agent.http_url}/v1.0/configuration/{store_name}/subscribe?key=list").status == 200
        nats_server.kill()
        writer.put(store_name, "list", "a", "1")
        agent.process.wait_until(lambda: http_get(f"{agent.http_url}/v1.0/healthz/outbound").status == 500)
        nats_server.restart()
        assert application.next().body["items"]["a"]["value"] == "1"
