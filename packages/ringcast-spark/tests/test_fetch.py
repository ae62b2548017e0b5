"""The clients of executors, without Spark: retries, deadlines, and servers that go away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trustme
from pyspark_ringcast._client.fetch import CONNECTION_NAME, shared_client
from pyspark_ringcast._client.service import find_store, read_heads, shared_stub
from pyspark_ringcast._common.batches import BatchMaker
from pyspark_ringcast._common.columns import Reply, read_reply
from pyspark_ringcast._common.options import Options, parse_options
from ringcast_client.blocking import BlockingBulkWrite, BlockingFetchClient
from ringcast_client.fetches import batch_request, partition_request
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer
from ringcast_wire import (
    KeyDeletedError,
    NatsLogin,
    RingcastError,
    StoreDeletedError,
    UnauthenticatedError,
    UnavailableError,
    UnknownKeyError,
    UnknownStoreError,
)
from ringcast_wire.grpc import pb

PARTITIONS = 4
LONG_S = 2 * PATIENCE_S
"""How long a call may be tried: so long that a test tells whether it was."""


@pytest.fixture
def options(nats_server: NatsServer, config_service: ConfigServiceProcess, store_name: str) -> Options:
    """Servers of this test's own, free to be killed, with an empty store."""
    words = {"servers": nats_server.url, "service": config_service.address, "store": store_name, "key": "k"}
    request = pb.CreateStoreRequest(name=store_name, partition_count=PARTITIONS)
    shared_stub(config_service.address).CreateStore(request)
    return parse_options({**words, "timeout_s": "20"}, {})


@pytest.fixture
def client(options: Options) -> Iterator[BlockingFetchClient]:
    with BlockingFetchClient(options.servers, options.login, name=CONNECTION_NAME) as client:
        yield client


def frames(count: int, size: int = 100) -> Iterator[pa.RecordBatch]:
    for start in range(0, count, size):
        numbers = range(start, min(count, start + size))
        yield pa.record_batch(
            {"row_id": [f"r{number}" for number in numbers], "value": [f"v{number}" for number in numbers]}
        )


def write(options: Options, count: int) -> int:
    bulk = BlockingBulkWrite(shared_stub(options.service), options.timeout_s)
    return sum(one.result.written for one in bulk.results(BatchMaker(options).batches(frames(count))))


def read(body: bytes) -> Reply:
    return read_reply(body, "s/k")


def test_fetches(options: Options, client: BlockingFetchClient) -> None:
    assert write(options, 300) == 300
    store, key = options.store, "k"
    found = client.heads(store, key, 5)
    heads = found.heads
    assert sum(heads) == 300
    assert heads == read_heads(options.service, store, key, 5)
    whole = client.fetch(partition_request(store, key, 1), 5, read)
    assert whole.entries == [(1, heads[1], True, heads[1])]
    since = client.fetch(partition_request(store, key, 1, heads[1] - 3, found.history), 5, read)
    assert since.entries == [(1, heads[1], False, 3)]
    named = client.fetch(batch_request(store, key, ["r1", "none"]), 5, read)
    assert named.batch.select(["row_id", "value"]).to_pylist() == [{"row_id": "r1", "value": "v1"}]
    bodies = list(client.fetch_bodies((partition_request(store, key, number % 4) for number in range(40)), 5))
    assert len(bodies) == 40
    assert bodies[:4] == bodies[4:8]


def test_what_is_not_there(options: Options, client: BlockingFetchClient) -> None:
    started = time.monotonic()
    with pytest.raises(UnknownStoreError, match="nowhere"):
        client.heads("nowhere", "k", LONG_S)
    with pytest.raises(UnknownKeyError, match="nothing"):
        client.heads(options.store, "nothing", LONG_S)
    with pytest.raises(UnknownStoreError, match="nowhere"):
        find_store(options.service, "nowhere", LONG_S)
    assert time.monotonic() - started < PATIENCE_S, "an error that another try does not mend was tried again"


def test_what_is_deleted(options: Options, client: BlockingFetchClient) -> None:
    write(options, 10)
    stub, started = shared_stub(options.service), time.monotonic()
    stub.DeleteKey(pb.DeleteKeyRequest(store=options.store, key="k"))
    for ask in (
        lambda: client.heads(options.store, "k", LONG_S),
        lambda: read_heads(options.service, options.store, "k", LONG_S),
        lambda: write(replace(options, timeout_s=LONG_S), 10),
    ):
        with pytest.raises(KeyDeletedError, match=r"config key 'k' of store .* was deleted at .*, it can be restored"):
            ask()
    stub.DeleteStore(pb.DeleteStoreRequest(name=options.store))
    with pytest.raises(StoreDeletedError, match="was deleted at"):
        find_store(options.service, options.store, LONG_S)
    with pytest.raises(StoreDeletedError, match="was deleted at"):
        client.heads(options.store, "k", LONG_S)
    assert time.monotonic() - started < PATIENCE_S, "an error that another try does not mend was tried again"


def test_nobody_answers(options: Options, client: BlockingFetchClient, config_service: ConfigServiceProcess) -> None:
    config_service.kill()
    with pytest.raises(UnavailableError, match="no config service answers: none is running on this NATS"):
        client.heads(options.store, "k", 1)
    with pytest.raises(UnavailableError, match="the config service did not answer"):
        find_store(options.service, options.store, 1)
    with BlockingFetchClient(
        ("nats://127.0.0.1:1",), NatsLogin(user="u", password="hunter2"), name=CONNECTION_NAME
    ) as other:
        with pytest.raises(UnavailableError, match=r"NATS at nats://127.0.0.1:1 can't be reached") as caught:
            other.heads(options.store, "k", 0.5)
        assert "hunter2" not in repr(caught.value)


def in_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except RingcastError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def test_a_read_goes_on_when_servers_come_back(
    options: Options, client: BlockingFetchClient, nats_server: NatsServer, config_service: ConfigServiceProcess
) -> None:
    write(options, 40)
    heads = client.heads(options.store, "k", 5)
    nats_server.kill()
    thread, found = in_background(lambda: client.heads(options.store, "k", LONG_S))
    nats_server.restart()
    thread.join(40)
    assert found == [heads]
    config_service.kill()
    thread, found = in_background(lambda: client.heads(options.store, "k", LONG_S))
    config_service.restart()
    thread.join(40)
    assert found == [heads]


def test_a_write_goes_on_when_the_service_comes_back(options: Options, config_service: ConfigServiceProcess) -> None:
    """Killed with batches on their way: each row is written once, whatever was sent twice."""
    seen = threading.Event()

    def slowly() -> Iterator[pa.RecordBatch]:
        for number, frame in enumerate(frames(20_000, 1_000)):
            if number == 12:
                seen.set()
                killed.wait(30)
            yield frame

    killed = threading.Event()
    bulk = BlockingBulkWrite(shared_stub(options.service), 30)
    thread, found = in_background(lambda: sum(1 for _ in bulk.results(BatchMaker(options).batches(slowly()))))
    assert seen.wait(30)
    config_service.kill()
    killed.set()
    config_service.restart()
    thread.join(60)
    assert found == [20]
    assert sum(read_heads(options.service, options.store, "k", 5)) == 20_000


def test_a_write_gives_up_when_its_time_is_up(options: Options, config_service: ConfigServiceProcess) -> None:
    write(options, 1_000)
    config_service.kill()
    started = time.monotonic()
    with pytest.raises(UnavailableError, match="the config service did not answer"):
        write(replace(options, timeout_s=1), 3_000)
    assert time.monotonic() - started < options.timeout_s
    config_service.restart()
    assert write(options, 3_000) == 2_000, "what was written before was written again, or not all of the rest"


def test_a_service_that_hangs(
    options: Options, config_service: ConfigServiceProcess, client: BlockingFetchClient
) -> None:
    write(options, 10)
    config_service.pause()
    try:
        with pytest.raises(UnavailableError):
            write(replace(options, timeout_s=1), 20)
        with pytest.raises(UnavailableError, match=r"fetch config\.fetch\..*: no answer within"):
            client.heads(options.store, "k", 1)
    finally:
        config_service.resume()
    assert write(options, 20) == 10


def test_a_refused_batch_ends_the_write(options: Options) -> None:
    """A partition over its limit: one clear error, and nothing after it is written."""
    big = (
        {"row_id": [f"big{number}-{index}" for index in range(4)], "value": ["x" * 1_000_000] * 4}
        for number in range(20)
    )
    bulk = BlockingBulkWrite(shared_stub(options.service), options.timeout_s)
    with pytest.raises(RingcastError, match="bytes of live rows, the limit is 8388608"):
        list(bulk.results(BatchMaker(options).batches(pa.record_batch(frame) for frame in big)))


def test_tls_and_a_token_by_the_environment(
    tmp_path: Path, nats_url: str, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    files = {
        "ca": authority.cert_pem.bytes(),
        "cert": issued.cert_chain_pems[0].bytes(),
        "key": issued.private_key_pem.bytes(),
        "token": b"a-token-of-more-than-sixteen-characters\n",
    }
    paths = {name: tmp_path / name for name in files}
    for name, data in files.items():
        paths[name].write_bytes(data)
    words = ("--tls-cert", str(paths["cert"]), "--tls-key", str(paths["key"]), "--tokens", str(paths["token"]))
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    with ConfigServiceProcess(tmp_path, nats_url=nats_url, database=database, options=words) as service:
        monkeypatch.setenv("RINGCAST_SERVICE_TLS_CA_FILE", str(paths["ca"]))
        with pytest.raises(UnauthenticatedError, match="a token that the config service knows is needed"):
            find_store(f"tls://{service.address}", store_name, 5)
        monkeypatch.setenv("RINGCAST_SERVICE_TOKEN_FILE", str(paths["token"]))
        with pytest.raises(UnknownStoreError, match=store_name):
            find_store(service.address, store_name, 5)


def test_one_client_a_process(options: Options, tmp_path: Path) -> None:
    first = shared_client(options)
    try:
        assert shared_client(replace(options, key="other", store="other")) is first
        other = shared_client(replace(options, servers=("nats://127.0.0.1:1",)))
        assert other is not first
        other.close()
        other.close()
    finally:
        first.close()
