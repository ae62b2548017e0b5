"""Dapr subscriptions that share rows: with each other, and with consumers that answer."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from dapr.clients import DaprClient
from ringcast_testkit import PATIENCE_S, AgentProcess
from ringcast_testkit.dispatch import following, status_until

ROWS = [f"row{number}" for number in range(30)]


class Application:
    """Takes callbacks; answers what ``refuse`` names with 500, and everything else with 200."""

    def __init__(self) -> None:
        self.calls: queue.Queue[str] = queue.Queue()
        self.refuse: set[str] = set()
        application = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                (name,) = json.loads(self.rfile.read(int(self.headers["content-length"])))["items"]
                self.send_response(500 if name in application.refuse else 200)
                self.send_header("content-length", "0")
                self.end_headers()
                application.calls.put(name)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def application() -> Iterator[Application]:
    made = Application()
    yield made
    made.close()


async def test_the_sdk_shares_rows_with_a_consumer(
    shared_agent: AgentProcess, sidecar: Any, writer: Any, updates: Any, store_name: str
) -> None:
    sidecar(shared_agent)

    def put_all(value: str) -> None:
        for row_id in ROWS:
            writer.put(store_name, "list", row_id, value)

    await asyncio.to_thread(writer.create, store_name)
    await asyncio.to_thread(writer.put, store_name, "list", "before", "0")
    heard = updates()
    with DaprClient() as client:
        metadata = {"ringcast.group": "g", "ringcast.consumer": "dapr"}
        subscription = client.subscribe_configuration(store_name, ["list"], heard, metadata)
        async with following(shared_agent, store_name, "other", changes_only=True) as other:
            await asyncio.to_thread(put_all, "1")
            group = await status_until(shared_agent, store_name, lambda group: group["cursor"] == len(ROWS))
            assert [(one["name"], one["api"]) for one in group["consumers"]] == [
                ("dapr", "dapr-grpc"),
                ("other", "stream"),
            ]
            theirs = {delivery.row_id for delivery in other.deliveries}
            mine = {(await asyncio.to_thread(heard.next, PATIENCE_S)).name for _ in range(len(ROWS) - len(theirs))}
            assert mine == set(ROWS) - theirs
            assert 0 < len(theirs) < len(ROWS)
            assert not heard.waiting
            assert client.unsubscribe_configuration(store_name, subscription)
            await status_until(shared_agent, store_name, lambda group: len(group["consumers"]) == 1)
            await asyncio.to_thread(put_all, "2")
            await other.values(dict.fromkeys(ROWS, "2"))


async def test_rows_by_name_are_filters(
    shared_agent: AgentProcess, sidecar: Any, writer: Any, updates: Any, store_name: str
) -> None:
    sidecar(shared_agent)
    await asyncio.to_thread(writer.create, store_name)
    heard = updates()
    with DaprClient() as client:
        metadata = {"ringcast.group": "g"}
        client.subscribe_configuration(store_name, ["list/a", "list/b"], heard, metadata)
        for row_id in "abc":
            await asyncio.to_thread(writer.put, store_name, "list", row_id, "1")
        group = await status_until(shared_agent, store_name, lambda group: group["cursor"] == 3)
        assert group["counts"]["skipped"] == 1
        assert group["consumers"][0]["filters"] == ["a", "b"]
        names = {(await asyncio.to_thread(heard.next, PATIENCE_S)).name for _ in "ab"}
        assert names == {"list/a", "list/b"}


async def test_a_callback_that_is_not_taken_is_rejected(
    shared_agent: AgentProcess, http_get: Any, writer: Any, application: Application, store_name: str
) -> None:
    await asyncio.to_thread(writer.create, store_name)
    application.refuse.add("bad")
    query = f"key=list&metadata.ringcast.callback_url={application.url}&metadata.ringcast.group=g"
    url = f"{shared_agent.http_url}/v1.0/configuration/{store_name}/subscribe?{query}"
    answer = await asyncio.to_thread(http_get, url)
    assert answer.status == 200
    await asyncio.to_thread(writer.put, store_name, "list", "bad", "1")
    await status_until(shared_agent, store_name, lambda group: group["counts"]["rejected"] > 0)
    await asyncio.to_thread(writer.put, store_name, "list", "good", "1")
    group = await status_until(shared_agent, store_name, lambda group: group["counts"]["acked"] == 1)
    assert group["cursor"] == 0
    application.refuse.clear()
    group = await status_until(shared_agent, store_name, lambda group: group["cursor"] == 2)
    assert group["counts"]["acked"] == 2
    names = [application.calls.get(timeout=PATIENCE_S) for _ in range(application.calls.qsize())]
    # Three times for each rejection, of which a slow machine sees more than one.
    assert (names.count("bad") % 3, names.count("good")) == (1, 1)
    gone = f"{shared_agent.http_url}/v1.0/configuration/{store_name}/{answer.body['id']}/unsubscribe"
    assert (await asyncio.to_thread(http_get, gone)).status == 200


async def test_a_group_that_can_not_be_joined(
    shared_agent: AgentProcess, http_get: Any, writer: Any, application: Application, store_name: str
) -> None:
    await asyncio.to_thread(writer.create, store_name)
    query = f"key=list&metadata.ringcast.callback_url={application.url}&metadata.ringcast.group=g"
    url = f"{shared_agent.http_url}/v1.0/configuration/{store_name}/subscribe?{query}"
    async with following(shared_agent, store_name, mode="lossy"):
        answer = await asyncio.to_thread(http_get, url)
    assert (answer.status, answer.body["errorCode"]) == (500, "ERR_CONFIGURATION_SUBSCRIBE")
    assert "group g is lossy, not reliable" in answer.body["message"]
