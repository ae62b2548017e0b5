"""Servers that the tests share, and what writes to them."""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import dapr.conf
import grpc
import pytest
from dapr.clients.grpc._response import ConfigurationResponse
from ringcast_client import ConfigServiceClient, RowWrite
from ringcast_testkit import AgentProcess, ConfigServiceProcess, NatsServer
from ringcast_wire import limits
from ringcast_wire.grpc import ConfigServiceStub, pb

PARTITIONS = 16
MOST_STORES = limits.MAX_STORES - 10
"""That the tests of one service leave behind."""


class Update(NamedTuple):
    """One item that a handler was called with."""

    id: str
    name: str
    value: str
    version: str
    metadata: dict[str, str]


class Updates:
    """A handler for the SDK's subscriptions, and what it was called with."""

    def __init__(self) -> None:
        self._calls: queue.Queue[Update] = queue.Queue()

    def __call__(self, subscription_id: str, response: ConfigurationResponse) -> None:
        for name, item in response.items.items():
            self._calls.put(Update(subscription_id, name, item.value, item.version, dict(item.metadata or {})))

    def next(self, timeout_s: float = 15.0) -> Update:
        """The next update."""
        return self._calls.get(timeout=timeout_s)

    def until(self, wanted: dict[str, str], timeout_s: float = 15.0) -> None:
        """Waits until these names have these values."""
        seen: dict[str, str] = {}
        while seen != wanted:
            update = self.next(timeout_s)
            seen[update.name] = update.value

    @property
    def waiting(self) -> int:
        """How many have not been looked at."""
        return self._calls.qsize()


class Writer:
    """Writes through the config service."""

    def __init__(self, service: ConfigServiceProcess) -> None:
        self._address = service.address
        self._stores: list[str] = []
        self._channel = grpc.insecure_channel(service.address)
        self._stub = ConfigServiceStub(self._channel)

    def create(self, store: str, mode: str = "PARTITIONED") -> None:
        """A new store; of those before it the first is removed where the service would soon take no more."""
        self._stores.append(store)
        if len(self._stores) > MOST_STORES:
            self._stub.DeleteStore(pb.DeleteStoreRequest(name=self._stores.pop(0), purge=True), wait_for_ready=True)
        self._stub.CreateStore(
            pb.CreateStoreRequest(name=store, partition_count=PARTITIONS, mode=f"MODE_{mode}"),
            wait_for_ready=True,
        )

    def put(self, store: str, key: str, row_id: str, value: str, **metadata: str) -> Any:
        """One row."""
        request = pb.PutRequest(store=store, key=key, row_id=row_id, value=value, metadata=metadata)
        return self._stub.Put(request, wait_for_ready=True)

    def put_many(self, store: str, key: str, rows: Iterable[tuple[str, str]]) -> None:
        """Many rows, as an import does it."""

        async def write() -> None:
            async with ConfigServiceClient(self._address) as client:
                async for _ in client.bulk_write(store, key, (RowWrite(*row) for row in rows)):
                    pass

        asyncio.run(write())

    def delete(self, store: str, key: str, row_id: str) -> Any:
        """One row."""
        return self._stub.Delete(pb.DeleteRequest(store=store, key=key, row_id=row_id))

    def close(self) -> None:
        """Ends the connection."""
        self._channel.close()


class Answer(NamedTuple):
    """An answer over HTTP."""

    status: int
    body: Any


def get(url: str, *, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
    """Asks over HTTP, as any program would."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, headers=sent, method=method, data=body)
    try:
        with urllib.request.urlopen(request, timeout=15) as response:
            text, status = response.read(), response.status
    except urllib.error.HTTPError as error:
        with error:
            text, status = error.read(), error.code
    try:
        return Answer(status, json.loads(text) if text else None)
    except ValueError:
        return Answer(status, text.decode())


@pytest.fixture(scope="session")
def http_get() -> Callable[..., Answer]:
    """See :func:`get`."""
    return get


@pytest.fixture(scope="session")
def shared_service(tmp_path_factory: pytest.TempPathFactory, shared_nats: NatsServer) -> Iterator[ConfigServiceProcess]:
    """A config service that no test stops."""
    directory = tmp_path_factory.mktemp("service")
    database = f"sqlite:{directory / 'ringcast.db'}"
    with ConfigServiceProcess(directory, nats_url=shared_nats.url, database=database) as service:
        yield service


@pytest.fixture(scope="session")
def shared_agent(
    tmp_path_factory: pytest.TempPathFactory, shared_nats: NatsServer, shared_service: ConfigServiceProcess
) -> Iterator[AgentProcess]:
    """An agent that no test stops; stores of their own keep the tests apart."""
    # Most tests are of other things than its token.
    options = ("--linger", "0.5", "--token-file", "off", "--callback-addresses", "http://127.0.0.1:*")
    with AgentProcess(tmp_path_factory.mktemp("agent"), nats_url=shared_nats.url, options=options) as agent:
        yield agent


@pytest.fixture(scope="session")
def writer(shared_service: ConfigServiceProcess) -> Iterator[Writer]:
    """Writes to the shared config service."""
    made = Writer(shared_service)
    yield made
    made.close()


@pytest.fixture
def updates() -> Callable[[], Updates]:
    """Makes handlers."""
    return Updates


@pytest.fixture
def writer_to() -> Iterator[Callable[[ConfigServiceProcess], Writer]]:
    """Makes writers to other config services."""
    made: list[Writer] = []

    def make(service: ConfigServiceProcess) -> Writer:
        made.append(Writer(service))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def sidecar(monkeypatch: pytest.MonkeyPatch) -> Callable[[AgentProcess], str]:
    """Tells the ``dapr`` package where the sidecar is, as the variables of its environment do."""

    def tell(agent: AgentProcess, token: str | None = None) -> str:
        monkeypatch.setattr(dapr.conf.settings, "DAPR_HTTP_ENDPOINT", agent.http_url)
        monkeypatch.setattr(dapr.conf.settings, "DAPR_GRPC_ENDPOINT", agent.grpc_address)
        monkeypatch.setattr(dapr.conf.settings, "DAPR_API_TOKEN", token or agent.token)
        return agent.grpc_address

    return tell


@pytest.fixture
def unused_port() -> int:
    """A port that nobody listens on: it was just given back."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


@pytest.fixture
async def write(writer: Writer, store_name: str) -> Any:
    """Writes rows of the test's store: a value each, or nothing to delete it."""
    await asyncio.to_thread(writer.create, store_name)

    def write_all(rows: dict[str, str | None]) -> None:
        for row_id, value in rows.items():
            if value is None:
                writer.delete(store_name, "list", row_id)
            else:
                writer.put(store_name, "list", row_id, value)

    async def write(**rows: str | None) -> None:
        await asyncio.to_thread(write_all, rows)

    return write
