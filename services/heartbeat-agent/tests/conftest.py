"""Servers that the tests share, and what writes to them."""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple, cast

import dapr.conf
import pytest
from dapr.clients.grpc._response import ConfigurationResponse
from ringcast import Change
from ringcast_client import ConfigServiceClient, RowWrite
from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.dispatch.consumer_session import Delivery
from ringcast_heartbeat_agent.dispatch.group import GroupContext
from ringcast_heartbeat_agent.dispatch.key_shared import KeySharedGroup
from ringcast_heartbeat_agent.dispatch.positions import Positions
from ringcast_heartbeat_agent.dispatch.progress import History
from ringcast_heartbeat_agent.dispatch.seal_keeper import Lease, SealCounts, Sealed, SealKeeper
from ringcast_heartbeat_agent.dispatch.seal_pace import SealPace
from ringcast_testkit import AgentProcess, ConfigServiceProcess, NatsServer, until
from ringcast_testkit.dispatch import OwnsAll
from ringcast_testkit.seals import HostLease, SealBucket
from ringcast_wire import PartitionRows, Row, limits
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
        self._channel = service.channel()
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


class GroupRecord:
    """The service's rows of partition 0."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.revision = 0
        self.answers = asyncio.Event()
        self.answers.set()

    def write(self, row_id: str, value: str | None) -> Change:
        """The next version of a row, as the workers get it."""
        self.revision += 1
        self.rows[row_id] = Row(row_id, value or "", self.revision, value is None)
        return Change("s", "list", 0, row_id, value, self.revision, value is None)

    async def partition(self, *_place: Any, since: int, history: str) -> tuple[PartitionRows, str]:
        await self.answers.wait()
        whole = history != "h" or since > self.revision
        rows = [row for row in self.rows.values() if (not row.deleted if whole else row.version > since)]
        return PartitionRows(0, self.revision, whole, sorted(rows, key=lambda row: row.version)), "h"


class CountedPace(SealPace):
    """Counts the steps of a keeper, each of which begins with a look at the group."""

    steps = 0

    def take(self, now: float) -> int:
        self.steps += 1
        return super().take(now)


class GroupHost(OwnsAll):
    """One host: its worker, the group, and a consumer."""

    history = "h"
    changes_only = True

    def __init__(self, bucket: SealBucket, record: GroupRecord, name: str, *, owns: bool, policy: str = "drop") -> None:
        super().__init__()
        self.lease: Any = HostLease(bucket, name)
        self.owned = owns
        self.is_loaded = True
        self.revision = record.revision
        self.counts = SealCounts()
        self.pace = CountedPace()
        self.warnings: list[str] = []
        self._bucket = bucket
        self._record = record
        self._keeper: SealKeeper | None = None
        context = GroupContext(
            Config(window=100, retry_first_s=0.01, max_tries=2),
            asyncio.create_task,
            cast(Any, None),
            History(cast(Any, record), Positions()),
            cast(Any, self),
        )
        self.group = KeySharedGroup(self, "g", context, policy)
        self.member, _ = self.group.join(
            "one", (), capacity=1, changes_only=self.changes_only, session="", api="stream"
        )
        self.told: list[Delivery] = []
        self._reading = asyncio.create_task(self._read())

    # ---- what the group asks

    def keeper(self, place: Any, group: Sealed, lease: Lease) -> SealKeeper:
        self._keeper = SealKeeper(place, self._bucket, group, lease, self.counts, self.pace)
        self.keeping = asyncio.create_task(self._keeper.run(None))
        return self._keeper

    def warn(self, _store: str, why: str) -> None:
        self.warnings.append(why)

    def owns(self, _partition: int) -> bool:
        return self.owned

    def applied(self) -> dict[int, int]:
        return {0: self.revision} if self.owned else {}

    def loaded(self) -> Collection[int]:
        return {0} if self.owned and self.is_loaded else ()

    # ---- what the test does

    def take(self, change: Change) -> None:
        """The worker hands a change over."""
        self.group.take(change)
        self.revision = change.version

    def move(self, *, owns: bool) -> None:
        """The partition is this host's, or another's."""
        self.owned = owns
        self.group.partitions_changed()

    def answer(self, delivery: Delivery) -> None:
        self.group.answer(self.member, [delivery.offset], [delivery.attempt])

    def reject(self, delivery: Delivery) -> None:
        self.group.answer(self.member, [], [], [(delivery.offset, delivery.attempt, "no")])

    async def hears(self, count: int) -> list[tuple[str, int]]:
        """Waits for so many deliveries."""
        await until(lambda: len(self.told) >= count)
        return [(each.change.row_id, each.change.version) for each in self.told]

    async def holds(self, held: bool = True) -> None:
        await until(lambda: self._keeper is not None and self._keeper.is_held(0) is held)

    async def close_group(self) -> None:
        """Ends the group. What it could not give up it still tries to."""
        self._reading.cancel()
        self.group.close()
        await asyncio.wait({self.keeping}, timeout=0.1)

    async def close(self) -> None:
        await self.close_group()
        self.keeping.cancel()

    async def _read(self) -> None:
        async for frame in self.member.frames():
            self.told += frame.deliveries


class GroupHostWithRows(GroupHost):
    """A host whose worker has all rows, and whose consumer wants those that are there."""

    changes_only = False

    def row_ids(self, partitions: Collection[int] | None = None) -> list[str]:
        return list(self._record.rows)

    def change_of(self, row_id: str) -> Change | None:
        row = self._record.rows.get(row_id)
        return Change("s", "list", 0, row_id, row.value, row.version, row.deleted) if row is not None else None


class GroupHosts:
    """Makes hosts that share a bucket and a record."""

    def __init__(self) -> None:
        self.bucket = SealBucket()
        self.record = GroupRecord()
        self._made: list[GroupHost] = []

    def __call__(self, name: str, *, owns: bool, policy: str = "drop", with_rows: bool = False) -> GroupHost:
        kind = GroupHostWithRows if with_rows else GroupHost
        self._made.append(kind(self.bucket, self.record, name, owns=owns, policy=policy))
        return self._made[-1]

    async def close(self) -> None:
        for host in self._made:
            await host.close()


@pytest.fixture
async def hosts() -> AsyncIterator[GroupHosts]:
    """Makes hosts of one group that share its partition."""
    made = GroupHosts()
    yield made
    await made.close()
