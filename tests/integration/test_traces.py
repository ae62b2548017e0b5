"""One change is one trace, from the call that writes it to the handler, through the service, NATS and a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from ringcast import Change, Worker
from ringcast_client import ConfigServiceClient, RowWrite
from ringcast_config_service.app import App
from ringcast_config_service.config import Config
from ringcast_core import row_partition
from ringcast_testkit import PATIENCE_S


@dataclass
class System:
    """A service, a client and workers whose spans all go to one exporter, as they would to one collector."""

    nats_url: str
    store: str
    client: ConfigServiceClient
    provider: TracerProvider
    exporter: InMemorySpanExporter

    def worker(self, name: str = "w", **settings: Any) -> Worker:
        settings.setdefault("tracer_provider", self.provider)
        return Worker(
            servers=self.nats_url, store=self.store, keys=["list"], worker_id=f"{self.store}-{name}", **settings
        )

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    async def spans(self, root: trace.Span, count: int) -> list[ReadableSpan]:
        """The ended spans of a trace, once there are so many."""
        trace_id = root.get_span_context().trace_id
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = [span for span in self.exporter.get_finished_spans() if span.context.trace_id == trace_id]
                if len(found) >= count:
                    return found
                await asyncio.sleep(0.02)


@pytest.fixture
async def system(nats_url: str, store_name: str, tmp_path: Path) -> AsyncIterator[System]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    app = App(Config(nats=(nats_url,), database=database, listen="127.0.0.1:0"), provider)
    running = asyncio.create_task(app.run())
    ready = asyncio.create_task(app.ready.wait())
    await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
    assert ready.done()
    try:
        async with ConfigServiceClient(app.grpc_address, tracer_provider=provider) as client:
            yield System(nats_url, store_name, client, provider, exporter)
    finally:
        app.stop()
        await running


def paths(spans: list[ReadableSpan], root: trace.Span) -> set[str]:
    """Each span as the names that lead to it from the root."""
    by_id = {span.context.span_id: span for span in spans}

    def path(span: ReadableSpan) -> str:
        assert span.parent is not None
        if span.parent.span_id == root.get_span_context().span_id:
            return span.name
        return f"{path(by_id[span.parent.span_id])} > {span.name}"

    return {path(span) for span in spans if span.context.span_id != root.get_span_context().span_id}


HEARD = "config.put > config.service.put > config.commit > config.publish > config.receive"
BATCH = f"{HEARD} > config.notification.batch"


async def put_traced(system: System, **row: str) -> trace.Span:
    """A row written by an application that traces itself."""
    with system.provider.get_tracer("application").start_as_current_span("request") as root:
        await system.client.put(system.store, "list", **row)  # type: ignore[arg-type]
    return root


async def test_one_change_is_one_trace_from_the_put_to_the_handler(system: System) -> None:
    """Put, commit, publish, receive, fetch (answered by the service, with its database), apply."""
    handled: list[trace.SpanContext] = []

    def handler(change: Change) -> None:
        with system.provider.get_tracer("application").start_as_current_span("handled") as span:
            handled.append(span.get_span_context())

    await system.client.create_store(system.store, partition_count=4, inline_max_bytes=0)
    async with system.worker(handler=handler) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        root = await put_traced(system, row_id="a", value="1")
        spans = await system.spans(root, 11)
    assert paths(spans, root) == {
        "config.put",
        "config.put > config.service.put",
        "config.put > config.service.put > config.commit",
        "config.put > config.service.put > config.commit > config.publish",
        HEARD,
        BATCH,
        f"{BATCH} > config.fetch",
        f"{BATCH} > config.fetch > config.service.fetch",
        f"{BATCH} > config.fetch > config.service.fetch > config.database.read",
        f"{BATCH} > config.apply",
        f"{BATCH} > config.apply > handled",
    }
    assert [context.trace_id for context in handled] == [root.get_span_context().trace_id]
    (batch,) = system.named("config.notification.batch")
    attributes = dict(batch.attributes or {})
    assert attributes["batch_size"] == 1
    assert (attributes["store"], attributes["key"]) == (system.store, "list")
    (partition,) = attributes["partitions"]  # type: ignore[misc]
    assert 0 <= int(str(partition)) < 4
    assert all(span.status.is_ok for span in spans)


async def test_a_value_that_rides_in_the_event_needs_no_fetch(system: System) -> None:
    await system.client.create_store(system.store, partition_count=4)
    async with system.worker(handler=lambda change: None) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        root = await put_traced(system, row_id="a", value="1")
        spans = await system.spans(root, 8)
    assert f"{BATCH} > config.apply" in paths(spans, root)
    assert not [span for span in spans if span.name == "config.fetch"]


async def test_a_batch_belongs_to_its_first_event_and_links_the_others(system: System) -> None:
    await system.client.create_store(system.store, partition_count=1)
    going, go = asyncio.Event(), asyncio.Event()

    async def handler(change: Change) -> None:
        going.set()
        await go.wait()

    async with system.worker(handler=handler, window_s=60.0) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        await system.client.put(system.store, "list", "first", "1")
        await going.wait()  # while it is handled, the others gather
        roots = [await put_traced(system, row_id=f"r{number}", value="1") for number in range(3)]
        await worker.wait_until("list", lambda: worker.stats().events >= 4, timeout_s=PATIENCE_S)
        go.set()
        await system.spans(roots[0], 8)
    ids = [root.get_span_context().trace_id for root in roots]
    (batch,) = [span for span in system.named("config.notification.batch") if span.context.trace_id == ids[0]]
    assert [link.context.trace_id for link in batch.links] == ids[1:]
    assert dict(batch.attributes or {})["batch_size"] == 3
    received = {span.context.span_id for span in system.named("config.receive")}
    assert {link.context.span_id for link in batch.links} <= received


async def test_each_write_of_a_group_has_a_trace_of_its_own(system: System) -> None:
    """They are committed and published together, and are not mixed up."""
    await system.client.create_store(system.store, partition_count=64)
    async with system.worker(handler=lambda change: None) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        rows = {row_partition(f"r{number}", 64): f"r{number}" for number in range(40)}  # one a partition
        assert len(rows) > 20
        for number in count():  # whether writes meet in a commit is a matter of time
            puts = (put_traced(system, row_id=row_id, value=f"{number}") for row_id in rows.values())
            for root in await asyncio.gather(*puts):
                found = {span.name for span in await system.spans(root, 6)}
                assert found >= {"request", "config.put", "config.service.put", "config.commit", "config.receive"}
            commits = [event for span in system.named("config.commit") for event in span.events]
            sizes = {dict(event.attributes or {})["requests"] for event in commits}
            if sizes - {1}:
                break


async def test_a_write_too_large_to_list_is_fetched_in_its_own_trace(system: System) -> None:
    """Its event says no rows, so that the partition is caught up: still the trace of the write."""
    await system.client.create_store(system.store, partition_count=1)
    async with system.worker(handler=lambda change: None) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        with system.provider.get_tracer("application").start_as_current_span("import") as root:
            rows = [RowWrite(f"row-{number}", "v" * 200) for number in range(1_000)]
            results = [result async for result in system.client.bulk_write(system.store, "list", rows)]
        assert sum(result.written for result in results) == 1_000
        spans = await system.spans(root, 9)
    heard = "config.service.write > config.commit > config.publish > config.receive"
    assert paths(spans, root) >= {
        heard,
        f"{heard} > config.fetch",
        f"{heard} > config.fetch > config.service.fetch > config.database.read",
        f"{heard} > config.fetch > config.apply",
    }


async def test_a_rebalance_has_a_span_for_each_partition_that_moved(system: System) -> None:
    await system.client.create_store(system.store, partition_count=8)
    await system.client.put(system.store, "list", "a", "1")
    async with system.worker("one") as one:
        await one.wait_ready(timeout_s=PATIENCE_S)
        (start,) = system.named("config.rebalance")
        assert dict(start.attributes or {})["trigger"] == "join"
        acquired = system.named("config.partition.acquired")
        assert all(span.parent is not None and span.parent.span_id == start.context.span_id for span in acquired)
        assert {dict(span.attributes or {})["partition"] for span in acquired} == set(range(8))
        bootstraps = system.named("config.bootstrap.partition")
        parents = {span.parent.span_id for span in bootstraps if span.parent is not None}
        assert parents == {span.context.span_id for span in acquired}
        answers = {span.parent.span_id for span in system.named("config.service.fetch") if span.parent is not None}
        assert answers == {span.context.span_id for span in bootstraps}
        system.exporter.clear()
        async with system.worker("two") as two:
            await two.wait_ready(timeout_s=PATIENCE_S)
            await one.wait_until("list", lambda: len(one.owned("list")) < 8, timeout_s=PATIENCE_S)
            moved = set(range(8)) - one.owned("list")
            dropped = system.named("config.partition.dropped")
            assert {dict(span.attributes or {})["partition"] for span in dropped} == moved
            cycles = {span.context.span_id for span in system.named("config.rebalance")}
            assert {span.parent.span_id for span in dropped if span.parent is not None} <= cycles


async def test_without_a_provider_there_are_no_spans(system: System) -> None:
    await system.client.create_store(system.store, partition_count=1)
    async with system.worker(handler=lambda change: None, tracer_provider=None) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        result = await system.client.put(system.store, "list", "a", "1")
        await worker.wait_for("list", result.partition, result.version, timeout_s=PATIENCE_S)
    assert not system.named("config.receive")
    assert not system.named("config.rebalance")
