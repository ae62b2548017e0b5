"""Traces that go on in another process."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracerProvider, SpanKind
from ringcast_wire.tracing import Tracing, checked_traceparent, end_span, make_tracing

INCOMING = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter: InMemorySpanExporter) -> Tracing:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    made = make_tracing("test", provider)
    assert made is not None
    return made


def test_nothing_is_made_where_no_provider_is_configured() -> None:
    assert make_tracing("test") is None
    assert make_tracing("test", NoOpTracerProvider()) is None


def test_a_span_goes_on_from_what_came_in(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    span = tracing.start("a", INCOMING, {"x": 1}, kind="CONSUMER", start_ns=5)
    assert tracing.traceparent(span).split("-")[1] == INCOMING.split("-")[1]
    child = tracing.start("b", span, links=[INCOMING, "nonsense", None])
    child.end()
    span.end()
    inner, outer = exporter.get_finished_spans()
    assert outer.parent is not None
    assert f"{outer.parent.span_id:016x}" == "b7ad6b7169203331"
    assert (outer.kind, outer.start_time, dict(outer.attributes or {})) == (SpanKind.CONSUMER, 5, {"x": 1})
    assert inner.parent is not None
    assert inner.parent.span_id == outer.context.span_id
    assert [f"{link.context.span_id:016x}" for link in inner.links] == ["b7ad6b7169203331"]


def test_without_a_parent_a_trace_begins_whatever_is_current(tracing: Tracing) -> None:
    with tracing.current("outer") as outer:
        assert tracing.here() is outer
        alone = tracing.start("alone", None)
        assert alone.get_span_context().trace_id != outer.get_span_context().trace_id
        alone.end()
    assert tracing.here() is None


def test_an_error_in_the_body_is_recorded(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    span = tracing.start("a", None)

    def fail() -> None:
        with tracing.within(span):
            assert tracing.here() is span
            raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        fail()
    end_span(tracing.start("b", None), "no answer")
    first, second = exporter.get_finished_spans()
    assert not first.status.is_ok
    assert (second.status.is_ok, second.status.description) == (False, "no answer")


def test_a_header_is_what_comes_in_elsewhere(tracing: Tracing) -> None:
    span = tracing.start("a", None)
    (value,) = tracing.headers(span).values()
    assert checked_traceparent(value) == value


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        "",
        "x" * 55,
        INCOMING + "-more",
        INCOMING.upper(),
        "ff" + INCOMING[2:],
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
        INCOMING + "\n",
    ],
)
def test_what_is_no_traceparent_is_left_out(value: object) -> None:
    assert checked_traceparent(value) is None
