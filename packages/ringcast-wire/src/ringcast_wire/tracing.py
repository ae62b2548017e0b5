"""One trace from a write to the handlers that hear of it, over gRPC metadata and NATS headers (W3C ``traceparent``).

Needs ``opentelemetry-api`` (the extra ``tracing``) and a provider that the program has configured: without either
:func:`make_tracing` gives ``None``, and its caller does nothing. What came in is passed on all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ringcast_wire._common.names import HEADER_TRACE

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer, TracerProvider

_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)

Parent: TypeAlias = "str | Span | None"
"""A ``traceparent`` that came in, a span of this process, or nothing: a new trace."""


def checked_traceparent(value: object) -> str | None:
    """What came in, if it is a ``traceparent``; anything else is treated as if nothing had come."""
    return value if isinstance(value, str) and _TRACEPARENT.fullmatch(value) else None


def make_tracing(name: str, provider: TracerProvider | None = None) -> Tracing | None:
    """Spans of ``provider``, by default the one that the program has configured; ``None`` where there is none."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    found = provider or trace.get_tracer_provider()
    if isinstance(found, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return Tracing(found.get_tracer(name))


def end_span(span: Span, failure: str | None = None) -> None:
    """Ends a span, which has failed if there is something to say about that."""
    if failure is not None:
        from opentelemetry.trace import StatusCode

        span.set_status(StatusCode.ERROR, failure)
    span.end()


class Tracing:
    """Starts spans of one tracer. Their parents are named, never guessed from what happens to be current."""

    def __init__(self, tracer: Tracer) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = tracer
        self._trace = trace
        self._context = context
        self._propagator = TraceContextTextMapPropagator()

    def start(
        self,
        name: str,
        parent: Parent,
        attributes: Mapping[str, Any] | None = None,
        *,
        links: Iterable[Parent] = (),
        kind: str = "INTERNAL",
        start_ns: int | None = None,
    ) -> Span:
        """A span that has begun, at ``start_ns`` of the wall clock or now; its caller ends it."""
        contexts = [self._trace.get_current_span(self._under(link)).get_span_context() for link in links]
        return self._tracer.start_span(
            name,
            self._under(parent),
            kind=self._trace.SpanKind[kind],
            attributes=dict(attributes or {}),
            links=[self._trace.Link(context) for context in contexts if context.is_valid],
            start_time=start_ns,
        )

    @contextmanager
    def current(
        self, name: str, attributes: Mapping[str, Any] | None = None, *, kind: str = "INTERNAL"
    ) -> Iterator[Span]:
        """A span below the current one, and current itself, for as long as the body runs; errors are recorded."""
        with self._tracer.start_as_current_span(
            name, kind=self._trace.SpanKind[kind], attributes=dict(attributes or {})
        ) as span:
            yield span

    @contextmanager
    def within(self, span: Span) -> Iterator[None]:
        """Makes a span the current one; it is ended when the body is left, and an error recorded."""
        with self._trace.use_span(span, end_on_exit=True):
            yield

    def here(self) -> Span | None:
        """The current span, if there is one that is recorded."""
        span = self._trace.get_current_span()
        return span if span.is_recording() else None

    def traceparent(self, span: Span) -> str:
        """What takes the trace on elsewhere."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._trace.set_span_in_context(span, self._empty()))
        return carrier[HEADER_TRACE]

    def headers(self, span: Span) -> dict[str, str]:
        """The same as headers of a message."""
        return {HEADER_TRACE: self.traceparent(span)}

    def _under(self, parent: Parent) -> Context:
        if parent is None:
            return self._empty()
        if isinstance(parent, str):
            return self._propagator.extract({HEADER_TRACE: parent}, self._empty())
        return self._trace.set_span_in_context(parent, self._empty())

    def _empty(self) -> Context:
        return self._context.Context()


__all__ = ["Parent", "Tracing", "checked_traceparent", "end_span", "make_tracing"]
