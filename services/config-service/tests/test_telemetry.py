"""What an operator sees: metrics as documented, and traces that go through the service whole."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import nats
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer
from ringcast_wire import WIRE_VERSION, BatchRequest, ReleaseState, UnknownStoreError, encode, names
from ringcast_wire.grpc import pb
from ringcast_wire.metrics import SERVICE

Bench = Any  # of conftest.py
Running = Any

OF_ANY_PROCESS = ("process_", "python_")
INCOMING = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE_ID = int(INCOMING.split("-")[1], 16)

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(url: str) -> tuple[dict[str, str], Samples]:
    """Kinds by name, and samples by name and labels, of what is ours."""
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read().decode())
    kinds, samples = {}, {}
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        if not name.startswith(OF_ANY_PROCESS):
            kinds[name] = family.type
            samples.update({(s.name, frozenset(s.labels.items())): s.value for s in family.samples})
    return kinds, samples


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


async def until(url: str, condition: Callable[[Samples], bool]) -> Samples:
    """Scrapes until a condition holds, as a monitoring system would."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            _, samples = await scrape(url)
            if condition(samples):
                return samples
            await asyncio.sleep(0.1)


def exposed_labels(samples: Samples) -> dict[str, set[frozenset[str]]]:
    """Which labels each metric has; those that the format adds to histograms are left out."""
    found: dict[str, set[frozenset[str]]] = {}
    for name, labels in samples:
        for suffix in ("_bucket", "_count", "_sum"):
            name = name.removesuffix(suffix) if name.removesuffix(suffix) in HISTOGRAMS else name
        found.setdefault(name, set()).add(frozenset(label for label, _ in labels) - {"le"})
    return found


HISTOGRAMS = {metric.name for metric in SERVICE if metric.kind == "histogram"}


@pytest.fixture
async def traced(nats_url: str, tmp_path: Any, start: Any) -> AsyncIterator[tuple[Running, InMemorySpanExporter]]:
    """An instance whose spans are kept."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with start(nats_url, f"sqlite:{tmp_path / 'traced.db'}", tracer_provider=provider) as running:
        yield running, exporter


async def spans_of(exporter: InMemorySpanExporter, *wanted: str) -> dict[str, ReadableSpan]:
    """The spans of the incoming trace by name, once those wanted have ended."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = {span.name: span for span in exporter.get_finished_spans() if span.context.trace_id == TRACE_ID}
            if found.keys() >= set(wanted):
                return found
            await asyncio.sleep(0.02)


def parent(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


async def exercise(service: ConfigServiceProcess, nats_url: str, store: str, connect: Any) -> None:
    """At least one of everything that is counted."""
    async with connect(service.address, nats_url) as client:
        await client.create(store)
        await client.put(store, "a")
        with pytest.raises(Exception, match="no store"):
            await client.put("nowhere", "a")
        await client.fetch(store, "heads")
        await client.fetch(store, 1)
        await client.fetch(store, "batch", encode(BatchRequest(WIRE_VERSION, ["a"])))
        with pytest.raises(UnknownStoreError):
            await client.fetch("nowhere", "full")
        await client.stub.ListDeadLetters(pb.ListDeadLettersRequest(store=store))


# --- Metrics ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_what_is_exposed_is_what_is_documented(
    kind: str, request: pytest.FixtureRequest, tmp_path: Any, nats_url: str, store_name: str, connect: Any
) -> None:
    """In both directions: names, types, and the labels of every sample."""
    sqlite = f"sqlite:{tmp_path / 'ringcast.db'}"
    database = sqlite if kind == "sqlite" else str(request.getfixturevalue("postgres_url"))
    with ConfigServiceProcess(tmp_path, nats_url=nats_url, database=database) as service:
        await exercise(service, nats_url, store_name, connect)
        await until(service.metrics_url, lambda found: value(found, "config_service_events_published_total") == 1)
        async with connect(service.address, nats_url) as client:
            await exceed_rate(client, f"{store_name}-slow")
            await break_schema(client, store_name)
        kinds, samples = await scrape(service.metrics_url)
    assert kinds == {metric.name: metric.kind for metric in SERVICE}
    labels = exposed_labels(samples)
    for metric in SERVICE:
        assert labels.get(metric.name, {frozenset(metric.labels)}) == {frozenset(metric.labels)}, metric.name
    unseen = kinds.keys() - labels.keys()
    only_postgres = {"config_service_transaction_retries_total", "config_service_database_connections"}
    assert unseen == (only_postgres if kind == "sqlite" else set())


async def break_schema(client: Any, store: str) -> None:
    """A value that is refused."""
    await client.stub.RegisterSchema(pb.RegisterSchemaRequest(store=store, key="checked", definition="{}"))
    with pytest.raises(Exception, match="breaks version 1 of its schema as a whole: the value is no JSON"):
        await client.put(store, "a", "", key="checked")


async def exceed_rate(client: Any, store: str) -> None:
    """Two batches, of which the second has to wait."""
    await client.create(store)
    policy = pb.StorePolicy(max_rows_per_second=500, burst_rows=1_000)
    await client.stub.SetStorePolicy(pb.SetStorePolicyRequest(name=store, policy=policy))
    batch = [pb.RowWrite(row_id=f"r{number}", value="1") for number in range(1_000)]
    await client.write(store, batch, batch)


async def test_what_happens_is_counted(
    config_service: ConfigServiceProcess, nats_server: NatsServer, store_name: str, connect: Any
) -> None:
    url = config_service.metrics_url
    await exercise(config_service, nats_server.url, store_name, connect)
    published = "config_service_events_published_total"
    samples = await until(url, lambda found: value(found, published) == 1)
    assert value(samples, "config_service_writes_total", store=store_name, outcome="ok") == 1
    assert value(samples, "config_service_rows_written_total", store=store_name, key="k") == 1
    assert value(samples, "config_service_write_duration_seconds_count", store=store_name) == 1
    assert value(samples, "config_service_write_group_size_sum") == 1
    assert value(samples, "config_service_transaction_duration_seconds_count") == 1
    for kind, outcome in (("heads", "ok"), ("partition", "ok"), ("batch", "ok"), ("full", "UNKNOWN_STORE")):
        assert value(samples, "config_service_fetches_total", kind=kind, outcome=outcome) == 1
        assert value(samples, "config_service_fetch_duration_seconds_count", kind=kind) == 1
    assert value(samples, "config_service_connected", to="nats") == 1
    assert value(samples, "config_service_connected", to="database") == 1
    assert value(samples, "config_service_outbox_depth") == 0
    assert value(samples, "config_service_outbox_age_seconds") == 0
    # An increase is seen only of a series that is there before.
    for reason in ("went_back", "forked", "stream_lost", "operator"):
        assert value(samples, "config_service_histories_total", reason=reason) == 0


async def test_labels_are_few_whatever_is_asked_for(
    config_service: ConfigServiceProcess, nats_server: NatsServer, store_name: str, connect: Any
) -> None:
    """A stranger's subjects and stores must not become series."""
    async with connect(config_service.address, nats_server.url) as client:
        for number in range(20):
            for what in (f"what{number}", "x" * 60):
                with pytest.raises(Exception, match="partition number"):
                    await client.fetch(f"s{number}", what)
            with pytest.raises(Exception, match="no store"):
                await client.put(f"s{number}", "a")
    _, samples = await scrape(config_service.metrics_url)
    assert value(samples, "config_service_fetches_total", kind="invalid", outcome="PROTOCOL") == 40
    assert not [labels for _, labels in samples if any(name == "store" for name, _ in labels)]


async def test_releases_are_counted_by_state(
    start: Any, nats_url: str, tmp_path: Any, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringcast_config_service.releases.driver._COUNT_S", 0.0)
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    async with start(nats_url, database, metrics_listen="127.0.0.1:0") as service:
        url = f"http://{service.app.metrics_address}/metrics"
        samples = await until(url, lambda found: value(found, "config_service_releases", state="halted") == 0)
        states = {dict(labels)["state"] for name, labels in samples if name == "config_service_releases"}
        assert states == {*ReleaseState, "halted"}
        await service.create(store_name)
        rows = [pb.KeyedWrite(key="k", row=pb.RowWrite(row_id="a", value="1", if_absent=True))]
        staged = pb.StageReleaseRequest(store=store_name, stage_id="one", rows=rows, complete=True)
        await service.stub.StageRelease(staged)
        await until(url, lambda found: value(found, "config_service_releases", state="staged") == 1)


async def test_an_outbox_that_grows_old_is_seen(
    config_service: ConfigServiceProcess, nats_server: NatsServer, store_name: str, connect: Any
) -> None:
    url = config_service.metrics_url
    async with connect(config_service.address, nats_server.url) as client:
        await client.create(store_name)
        await asyncio.to_thread(nats_server.kill)
        for number in range(3):
            await client.put(store_name, f"r{number}")
        samples = await until(url, lambda found: (value(found, "config_service_outbox_depth") or 0) == 3)
        assert value(samples, "config_service_connected", to="nats") == 0
        assert value(samples, "config_service_connected", to="database") == 1
        await until(url, lambda found: (value(found, "config_service_outbox_age_seconds") or 0) > 0.5)
        await asyncio.to_thread(nats_server.start)
        samples = await until(url, lambda found: value(found, "config_service_outbox_depth") == 0)
        assert value(samples, "config_service_events_published_total") == 3
        assert value(samples, "config_service_outbox_age_seconds") == 0


async def test_metrics_can_be_off(nats_url: str, tmp_path: Any, start: Any) -> None:
    async with start(nats_url, f"sqlite:{tmp_path / 'x.db'}") as running:
        assert running.app.metrics_address == ""


# --- Traces -----------------------------------------------------------------------------------------------------------


async def put(running: Running, store: str, row_id: str, metadata: tuple[tuple[str, str], ...]) -> None:
    request = pb.PutRequest(store=store, key="k", row_id=row_id, value="v")
    await running.stub.Put(request, metadata=metadata)


async def published_header(running: Running, store: str, partition: int) -> Mapping[str, str]:
    subject = names.notify_subject(store, "k", partition)
    subscription = await running.nc.jetstream().subscribe(subject, ordered_consumer=True)
    try:
        return (await subscription.next_msg(timeout=PATIENCE_S)).headers or {}
    finally:
        await subscription.unsubscribe()


async def test_a_write_is_one_trace_as_far_as_the_stream(
    traced: tuple[Running, InMemorySpanExporter], store_name: str
) -> None:
    running, exporter = traced
    await running.create(store_name, partition_count=1)
    await put(running, store_name, "a", (("traceparent", INCOMING),))
    found = await spans_of(exporter, "config.publish")
    assert parent(found["config.service.put"]) == int(INCOMING.split("-")[2], 16)
    assert parent(found["config.commit"]) == found["config.service.put"].context.span_id
    assert parent(found["config.publish"]) == found["config.commit"].context.span_id
    header = (await published_header(running, store_name, 0))["traceparent"]
    assert header.split("-")[2] == f"{found['config.publish'].context.span_id:016x}"


async def test_a_bulk_write_carries_its_trace_too(
    traced: tuple[Running, InMemorySpanExporter], store_name: str
) -> None:
    running, exporter = traced
    await running.create(store_name, partition_count=1)

    async def requests() -> AsyncIterator[pb.WriteBatch]:
        yield pb.WriteBatch(store=store_name, key="k", sequence=1, rows=[pb.RowWrite(row_id="a", value="v")])

    results = [r async for r in running.stub.Write(requests(), metadata=(("traceparent", INCOMING),))]
    assert [result.written for result in results] == [1]
    found = await spans_of(exporter, "config.publish", "config.service.write")
    assert parent(found["config.commit"]) == found["config.service.write"].context.span_id
    assert dict(found["config.commit"].attributes or {}) == {"store": store_name, "key": "k", "rows": 1}


async def test_changes_of_one_stream_carry_a_trace_each(
    traced: tuple[Running, InMemorySpanExporter], store_name: str
) -> None:
    running, exporter = traced
    await running.create(store_name, partition_count=1)
    call = running.stub.Change()
    rows = [
        pb.RowChange(number=0, row_id="a", traceparent="?"),
        pb.RowChange(number=1, row_id="b", traceparent=INCOMING),
    ]
    await call.write(pb.Changes(store=store_name, key="k", changes=rows[1:]))
    await spans_of(exporter, "config.publish")
    found = await spans_of(exporter, "config.commit")
    assert parent(found["config.commit"]) == int(INCOMING.split("-")[2], 16)
    await call.write(pb.Changes(store=store_name, key="k", changes=rows[:1]))  # what is no trace is left out
    assert not (await call.read()).results[0].error
    call.cancel()


async def test_a_refused_write_ends_its_spans_as_failed(traced: tuple[Running, InMemorySpanExporter]) -> None:
    running, exporter = traced
    with pytest.raises(Exception, match="no store"):
        await put(running, "nowhere", "a", (("traceparent", INCOMING),))
    found = await spans_of(exporter, "config.service.put")
    assert not found["config.service.put"].status.is_ok


async def test_a_fetch_goes_on_in_the_trace_of_its_asker(
    traced: tuple[Running, InMemorySpanExporter], store_name: str
) -> None:
    running, exporter = traced
    await running.create(store_name, partition_count=1)
    await put(running, store_name, "a", ())
    inbox = running.nc.new_inbox()
    answers = await running.nc.subscribe(inbox)
    subject = names.fetch_subject(store_name, "k", 0)
    await running.nc.publish(subject, b"", reply=inbox, headers={"traceparent": INCOMING})
    assert (await answers.next_msg(timeout=PATIENCE_S)).data
    found = await spans_of(exporter, "config.service.fetch")
    assert parent(found["config.service.fetch"]) == int(INCOMING.split("-")[2], 16)
    assert parent(found["config.database.read"]) == found["config.service.fetch"].context.span_id


async def test_a_fetch_without_a_trace_makes_no_span(
    traced: tuple[Running, InMemorySpanExporter], store_name: str
) -> None:
    running, exporter = traced
    await running.create(store_name, partition_count=1)
    await put(running, store_name, "a", ())
    exporter.clear()
    await running.fetch(store_name, 0)
    assert [span.name for span in exporter.get_finished_spans() if span.name != "config.publish"] == []


@pytest.mark.parametrize(("sent", "arrives"), [(INCOMING, True), ("nonsense", False), (None, False)])
async def test_without_a_provider_what_came_in_is_passed_on(
    service: Running, store_name: str, sent: str | None, arrives: bool
) -> None:
    await service.create(store_name, partition_count=1)
    await put(service, store_name, "a", (("traceparent", sent),) if sent else ())
    headers = await published_header(service, store_name, 0)
    assert headers.get("traceparent") == (INCOMING if arrives else None)


async def test_a_trace_goes_on_when_another_process_publishes(
    bench: Bench, nats_url: str, store_name: str, start: Any
) -> None:
    """The writer died between its commit and the publish: the outbox has what the next one goes on from."""
    store = await bench.repo.stores.create_store(bench.store.__class__(store_name, bench.store.settings, 256, 1))
    request = bench.request({"a": "1"}, store=store)
    object.__setattr__(request, "traceparent", INCOMING)
    await bench.group([request])
    await bench.repo.close()
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    listener = await nats.connect(nats_url)
    try:
        # Before the store's stream is there: an event that comes too early for it is published again.
        published = await listener.subscribe(names.notify_subject(store_name, "k", request.rows[0].partition))
        await listener.flush()
        async with start(nats_url, bench.address, tracer_provider=provider):
            found = await spans_of(exporter, "config.publish")
            assert parent(found["config.publish"]) == int(INCOMING.split("-")[2], 16)
            headers = (await published.next_msg(timeout=PATIENCE_S)).headers or {}
            assert headers["traceparent"].split("-")[1] == INCOMING.split("-")[1]
    finally:
        await listener.close()
