"""Repositories over real databases, and short ways to write to them."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

import asyncpg
import grpc
import nats
import pytest
import trustme
from nats.aio.client import Client
from opentelemetry.trace import TracerProvider
from ringcast_config_service.app import App
from ringcast_config_service.config import Config
from ringcast_config_service.repository import (
    HistoryFilter,
    Lead,
    ListFilter,
    OutboxRecord,
    Repository,
    RowWrite,
    StoreRecord,
    WriteOutcome,
    WriteRequest,
    make_repository,
)
from ringcast_config_service.repository.sql.statements import Postgres
from ringcast_core import row_partition
from ringcast_testkit import PATIENCE_S, NatsServer, PostgresServer
from ringcast_wire import (
    ChunkAssembler,
    ErrorCode,
    Event,
    NodeRecord,
    RingcastError,
    StoreSettings,
    UnavailableError,
    check_row,
    decode_event,
    encode_record,
    error_from_code,
    names,
)
from ringcast_wire.grpc import ConfigServiceStub, error_from_rpc, pb
from ringcast_wire.owner_records import Entry, Rule, State, Table, encode_state, encode_table

Rows = dict[str, str | None]
_LOCK_TIMEOUT_MS = 60_000  # longer than the service waits: on a busy machine others keep SQLite's file for seconds


async def opened(address: str) -> Repository:
    """A repository, opened as the service does it, which tries again where the database does not answer."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            repo = make_repository(address, lock_timeout_ms=_LOCK_TIMEOUT_MS)
            try:
                await repo.open()
            except UnavailableError:
                await repo.close()
            else:
                return repo


@dataclass
class Bench:
    """A repository under test: ``address`` opens more instances on the same database, ``repo`` is the first."""

    address: str
    repo: Repository
    store: StoreRecord
    clock_ms: itertools.count[int] = field(default_factory=lambda: itertools.count(1_000))

    STEPS_BACK: ClassVar = {
        18: ("stores.wire_pin",),
        16: ("schema_modes.compatibility",),
        14: ("release_numbers.pinned",),
        13: ("partitions.schema_id", "value_schemas", "schema_modes"),
        12: ("partitions.releases_only", "releases.digest", "release_approvals"),
        11: ("schema_version.usable_from",),
        10: ("releases.rollout", "release_partitions"),
        9: ("release_proofs",),
        8: ("release_rows", "release_keys", "releases", "release_numbers"),
        7: ("stores.migration",),
        6: ("stores.policy", "partitions.cap_rows", "partitions.cap_bytes", "store_budgets"),
        5: ("stores.lease_ttl_ms", "stores.call_bound_ms"),
        4: ("audit_pending", "audit_log", "audit_chain", "revoked_tokens"),
        3: ("role_grants",),
        2: ("history.author", "history.reason"),
    }
    """The tables and columns that each version of the schema has added, newest first."""

    async def another(self) -> Repository:
        """One more instance, which the caller closes."""
        return await opened(self.address)

    def request(
        self, rows: Rows, key: str = "k", store: StoreRecord | None = None, metadata: dict[str, str] | None = None
    ) -> WriteRequest:
        """``{row_id: value}``; ``None`` deletes."""
        store = store or self.store
        return WriteRequest(
            store,
            key,
            [
                RowWrite(
                    row_partition(row_id, store.partition_count),
                    row_id,
                    value,
                    None if value is None else metadata,
                    check_row(row_id, value or "", metadata),
                )
                for row_id, value in rows.items()
            ],
        )

    async def group(self, requests: Sequence[WriteRequest]) -> list[WriteOutcome | RingcastError]:
        return (await self.repo.writer.write(requests, next(self.clock_ms))).outcomes

    async def write(self, rows: Rows, key: str = "k", metadata: dict[str, str] | None = None) -> WriteOutcome:
        """Writes one request; raises what it was refused with."""
        (outcome,) = await self.group([self.request(rows, key, metadata=metadata)])
        if isinstance(outcome, RingcastError):
            raise outcome
        return outcome

    async def live(self, key: str = "k") -> dict[str, str]:
        return {
            found.row.row_id: found.row.value
            async for page in self.repo.reader.list_rows(self.store.name, key, ListFilter())
            for found in page
        }

    async def lead(self, repo: Repository | None = None, holder: str = "bench", lease_ms: int = 60_000) -> Lead:
        """The lead of maintenance, for the repository under test or another one."""
        found = await (repo or self.repo).lead.take_lead(holder, lease_ms)
        assert found is not None, "another instance leads"
        return found

    async def make_older(self, version: int) -> None:
        """Takes the tables back to an older version of the schema."""
        added = [name for step, names_ in self.STEPS_BACK.items() if step > version for name in names_]
        for name in added:
            table, _, column = name.partition(".")
            await self.execute(f"ALTER TABLE {table} DROP COLUMN {column}" if column else f"DROP TABLE {table}")
        await self.execute(f"UPDATE schema_version SET version = {version}")

    async def execute(self, *statements: str) -> None:
        """Runs SQL that both databases take."""
        if self.address.startswith("sqlite:"):
            with sqlite3.connect(self.address.removeprefix("sqlite:")) as db:
                for statement in statements:
                    db.execute(statement)
            db.close()
        else:
            connection = await asyncpg.connect(self.address)
            for statement in statements:
                await connection.execute(statement)
            await connection.close()

    async def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """The records that a query finds."""
        if self.address.startswith("sqlite:"):
            with closing(sqlite3.connect(self.address.removeprefix("sqlite:"))) as db:
                return db.execute(statement).fetchall()
        connection = await asyncpg.connect(self.address)
        try:
            return [tuple(record) for record in await connection.fetch(statement)]
        finally:
            await connection.close()

    async def pass_time(self, ms: int) -> None:
        """Makes everything that was written so much older."""
        await self.execute(
            f"UPDATE rows SET written_at_ms = written_at_ms - {ms}",
            f"UPDATE history SET written_at_ms = written_at_ms - {ms}",
            f"UPDATE outbox SET created_at_ms = created_at_ms - {ms}",
            f"UPDATE maintenance SET until_ms = until_ms - {ms}, done_ms = done_ms - {ms}",
        )

    async def events(self) -> list[tuple[str, Event]]:
        """What waits in the outbox, and stays there."""
        return [(record.subject, decode_event(record.payload)) for record in await self.waiting()]

    async def waiting(self) -> list[OutboxRecord]:
        """The records in the outbox, of every store."""
        spans = await self.repo.events.outbox_spans()
        found = [await self.repo.events.outbox(span.store, 0, 1_000_000, 1 << 40) for span in spans]
        return sorted(record for records in found for record in records)

    async def check_gap_free(self, key: str = "k") -> None:
        """Every revision from 1 to the head stands in the history once, and the events cover each exactly once."""
        heads = (await self.repo.reader.heads(self.store.name, key)).heads
        written: dict[int, list[int]] = {}
        async for page in self.repo.reader.history(self.store.name, key, HistoryFilter()):
            for revision in page:
                written.setdefault(revision.partition, []).append(revision.row.version)
        told: dict[int, int] = {}
        for subject, event in await self.events():
            if subject.startswith(f"config.notify.{self.store.name}.{key}."):
                partition = int(subject.rpartition(".")[2])
                assert event.prev == told.get(partition, 0), f"partition {partition}: an event is missing"
                told[partition] = event.rev
        for partition, head in enumerate(heads):
            assert written.get(partition, []) == list(range(1, head + 1))
            assert told.get(partition, 0) == head


def make_store(name: str = "s", partition_count: int = 8, inline_max_bytes: int = 256) -> StoreRecord:
    return StoreRecord(name, StoreSettings(partition_count=partition_count), inline_max_bytes, 1)


@pytest.fixture
def new_store() -> Callable[..., StoreRecord]:
    return make_store


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Address of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'ringcast.db'}"
    return str(request.getfixturevalue("postgres_url"))


async def _bench(address: str) -> AsyncIterator[Bench]:
    repo = await opened(address)
    try:
        yield Bench(address, repo, await repo.stores.create_store(make_store()))
    finally:
        await repo.close()


@pytest.fixture
async def bench(database: str) -> AsyncIterator[Bench]:
    async for bench in _bench(database):
        yield bench


@pytest.fixture(params=["sqlite_bench", "postgres_bench", "serializable_bench"])
def any_bench(request: pytest.FixtureRequest) -> Bench:
    """Both databases, and PostgreSQL in the way in which CockroachDB is used."""
    found: Bench = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def another(any_bench: Bench) -> AsyncIterator[Repository]:
    """A second instance over the same database."""
    repo = await any_bench.another()
    yield repo
    await repo.close()


@pytest.fixture(scope="module")
def shared_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One a file: each stream that there is makes the next one take longer, by the 200 subjects of its members."""
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="session")
def shared_postgres(shared_postgres: PostgresServer) -> PostgresServer:
    """It waits for no disk: no test stops it, so that nothing has to outlive it."""
    shared_postgres.ask("ALTER SYSTEM SET fsync = off")
    shared_postgres.ask("SELECT pg_reload_conf()")
    return shared_postgres


@pytest.fixture
async def postgres_bench(postgres_url: str) -> AsyncIterator[Bench]:
    async for bench in _bench(postgres_url):
        yield bench


@pytest.fixture
async def serializable_bench(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """PostgreSQL, taken for CockroachDB: writes are SERIALIZABLE, and nothing is copied."""
    monkeypatch.setattr(Postgres, "SERVER", "SELECT 'CockroachDB CCL v25.2.1'")
    monkeypatch.setattr(Postgres, "CLUSTER_IDENTITY", "SELECT 'a cluster', ''")
    monkeypatch.setattr(Postgres, "CLUSTER_IDENTITY", Postgres.SERVER_IDENTITY)
    async for bench in _bench(postgres_url):
        yield bench


@pytest.fixture
async def sqlite_bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async for bench in _bench(f"sqlite:{tmp_path / 'ringcast.db'}"):
        yield bench


@dataclass
class Clients:
    """Clients of an instance."""

    stub: ConfigServiceStub
    channel: grpc.aio.Channel
    nc: Client

    async def create(self, name: str, partition_count: int = 8, **words: object) -> pb.Store:
        request = pb.CreateStoreRequest(name=name, partition_count=partition_count, **words)  # type: ignore[arg-type]
        return await self.patiently(self.stub.CreateStore, request)

    async def migrate(self, request: pb.MigrateStoreRequest) -> pb.Store:
        return await self.patiently(self.stub.MigrateStore, request)

    async def is_refused(self, call: Any, match: str, code: ErrorCode = ErrorCode.INVALID_INPUT) -> None:
        with pytest.raises(grpc.aio.AioRpcError, match=match) as caught:
            await call
        assert error_from_rpc(caught.value).code is code

    async def patiently(self, call: Callable[[Any], Any], request: Any) -> pb.Store:
        """Calls again, as clients do, while NATS does not answer in time: the step in the database was taken then."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return cast(pb.Store, await call(request))
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise

    async def put(self, store: str, row_id: str, value: str = "v", key: str = "k") -> pb.PutResponse:
        request = pb.PutRequest(store=store, key=key, row_id=row_id, value=value)
        return cast(pb.PutResponse, await self.stub.Put(request))

    async def write(self, store: str, *batches: Sequence[pb.RowWrite], **words: object) -> list[pb.WriteResult]:
        """One bulk stream; its results."""

        async def requests() -> AsyncIterator[pb.WriteBatch]:
            for number, rows in enumerate(batches):
                yield pb.WriteBatch(store=store, key="k", sequence=number, rows=rows, **words)  # type: ignore[arg-type]

        return [result async for result in self.stub.Write(requests())]

    async def fetch(self, store: str, what: int | str, payload: bytes = b"", key: str = "k") -> bytes:
        """A whole reply put together; raises the error that the service answered with."""
        inbox = self.nc.new_inbox()
        subscription, assembler = await self.nc.subscribe(inbox), ChunkAssembler()
        await self.nc.publish(names.fetch_subject(store, key, what), payload, reply=inbox)
        try:
            while True:
                msg = await subscription.next_msg(timeout=PATIENCE_S)
                headers = msg.headers or {}
                if names.HEADER_ERROR in headers:
                    raise error_from_code(headers[names.HEADER_ERROR], msg.data.decode())
                if (body := assembler.add(headers.get(names.HEADER_CHUNK), msg.data)) is not None:
                    return body
        finally:
            await subscription.unsubscribe()


@dataclass
class Running(Clients):
    """An instance in this process, and clients of it."""

    app: App
    task: asyncio.Task[None]

    async def stop(self) -> None:
        self.app.stop()
        await self.task


@asynccontextmanager
async def connected(address: str, nats_url: str) -> AsyncIterator[Clients]:
    """Clients of an instance that runs elsewhere."""
    nc = await nats.connect(nats_url)
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            yield Clients(ConfigServiceStub(channel), channel, nc)
        finally:
            await nc.close()


@pytest.fixture
def connect() -> Callable[..., AbstractAsyncContextManager[Clients]]:
    """:func:`connected`, for instances that are processes of their own."""
    return connected


@asynccontextmanager
async def running(
    nats_url: str, database: str, *, tracer_provider: TracerProvider | None = None, **settings: Any
) -> AsyncIterator[Running]:
    """Starts an instance and stops it the way a signal does."""
    config = Config(nats=(nats_url,), database=database, listen="127.0.0.1:0", **settings)
    app = App(config, tracer_provider)
    task = asyncio.create_task(app.run())
    ready = asyncio.create_task(app.ready.wait())
    await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        ready.cancel()
        await task
    nc = await nats.connect(nats_url)
    channel = grpc.aio.insecure_channel(app.grpc_address)
    try:
        yield Running(ConfigServiceStub(channel), channel, nc, app, task)
    finally:
        await channel.close()
        await nc.close()
        app.stop()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def start() -> Callable[..., AbstractAsyncContextManager[Running]]:
    """:func:`running`, for tests that start instances of their own."""
    return running


@pytest.fixture
async def service(nats_url: str, tmp_path: Path) -> AsyncIterator[Running]:
    """An instance on SQLite beside the shared NATS server."""
    async with running(nats_url, f"sqlite:{tmp_path / 'ringcast.db'}") as found:
        yield found


@dataclass
class Workers:
    """What workers of the key `k` of a store that migrates would write, and its operator."""

    service: Running
    store: str

    async def put(self, bucket: str, name: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        await self.service.nc.jetstream().publish(f"$KV.{bucket}.{name}", data, headers=headers)

    async def register(self, worker_id: str, lease: str = "", *, key: str = "k") -> None:
        record = encode_record(NodeRecord(slot=0, lease=lease or worker_id, incarnation="1"))
        await self.put(names.nodes_bucket(self.store), names.node_key(key, worker_id), record)

    async def leave(self, worker_id: str, *, may_call: bool = False) -> None:
        headers = {"KV-Operation": "DEL"} | ({names.HEADER_MAY_CALL: "1"} if may_call else {})
        await self.put(names.nodes_bucket(self.store), names.node_key("k", worker_id), b"", headers)

    async def say(self, worker_id: str, guarded: int, *, session: int = 0, agent: str = "") -> None:
        data = encode_state(State(lease=worker_id, session=session, guarded=guarded, agent=agent))
        await self.put(names.owners_bucket(self.store), names.state_key("k", worker_id), data)

    async def table(self, rule: Rule, number: int) -> None:
        data = encode_table(Table(1, (Entry(None, 1),) * 8, rule, 1, (), number))
        await self.put(names.owners_bucket(self.store), names.table_key("k"), data)

    async def go(self, stage: pb.MigrationStage, *gone: str) -> int:
        request = pb.MigrateStoreRequest(name=self.store, stage=stage, gone=gone)
        return int((await self.service.migrate(request)).migration.number)

    async def is_refused(self, stage: pb.MigrationStage, match: str) -> None:
        await self.service.is_refused(self.go(stage), match, ErrorCode.CONDITION_FAILED)


@pytest.fixture
def workers(service: Running, store_name: str) -> Workers:
    return Workers(service, store_name)


TOKEN = "a-token-of-more-than-sixteen-characters"


class Keys:
    """An authority, and what it has signed, in files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._authority = trustme.CA()
        self.ca = self.write("ca.pem", self._authority.cert_pem.bytes())
        self.tokens = self.write("tokens", f"# the first\n{TOKEN}\n\n{TOKEN}-2\n".encode())
        self.cert, self.key = self.issue("127.0.0.1")

    def write(self, name: str, data: bytes) -> str:
        """A file with this in it."""
        path = self._directory / name
        path.write_bytes(data)
        return str(path)

    def issue(self, name: str, common_name: str | None = None) -> tuple[str, str]:
        """The paths of a certificate and its key."""
        issued = self._authority.issue_cert(name, common_name=common_name)
        return (
            self.write(f"{name}.crt", issued.cert_chain_pems[0].bytes()),
            self.write(f"{name}.key", issued.private_key_pem.bytes()),
        )


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@pytest.fixture
def token() -> str:
    """The first of the tokens in :attr:`Keys.tokens`."""
    return TOKEN
