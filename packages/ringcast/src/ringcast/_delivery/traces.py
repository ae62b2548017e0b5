"""The spans of one config key: made only where a tracer provider is configured."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ringcast_wire import field_text
from ringcast_wire.tracing import Tracing, checked_traceparent, end_span

from ringcast._bus.bus import Delivery
from ringcast._protocol.actions import Apply, FetchBatch, FetchFull, FetchPartition
from ringcast._protocol.batches import Batch
from ringcast._protocol.partition import Partition, Token

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_MAX_EVENTS: Final = 65_536
_MAX_IDS: Final = 128
"""Partition ids that a span lists."""

Fetch = FetchPartition | FetchBatch | FetchFull


class _Received:
    """An event on its way to the handler: the span of its arrival, and the batch that it became a part of."""

    __slots__ = ("at_ns", "batch", "span")

    def __init__(self, span: Span, at_ns: int) -> None:
        self.span = span
        self.at_ns = at_ns
        self.batch: Span | None = None


class _Rebalance:
    """A rebalance that goes on until what was acquired is loaded."""

    __slots__ = ("acquiring", "span")

    def __init__(self, span: Span) -> None:
        self.span = span
        self.acquiring = 0


class KeyTraces:
    """Follows events from their arrival to the handler, and partitions from their assignment until they are loaded."""

    def __init__(self, tracing: Tracing, **facts: str) -> None:
        self._tracing = tracing
        self._facts = facts
        self._events: dict[Token, _Received] = {}
        self._fetched: dict[int, Span] = {}
        self._acquiring: dict[int, tuple[Span, _Rebalance]] = {}
        self._applying: Span | None = None  # the batch that the application has
        self._answered: set[int] = set()  # those acquired whose fetch has ended

    # ---- events

    def received(self, partition: int, delivery: Delivery) -> None:
        """An event has come; if its write was traced, its arrival belongs to that trace."""
        parent = checked_traceparent(delivery.trace)
        if parent is None:
            return
        at_ns = time.time_ns()
        span = self._tracing.start("config.receive", parent, self._attributes(partition=partition), kind="CONSUMER")
        span.end()
        self._events[delivery.reply] = _Received(span, at_ns)
        if len(self._events) > _MAX_EVENTS:
            del self._events[next(iter(self._events))]

    def acknowledged(self, tokens: Iterable[Token]) -> None:
        """These events are done."""
        for token in tokens:
            event = self._events.pop(token, None)
            if event is None or event.batch is None or event.batch is self._applying:
                continue
            if event.batch.is_recording():
                event.batch.end()  # nothing in it was news, so it never went to the application

    def _batch(self, batch: Batch) -> Span:
        """The span of a batch, which begins with the arrival of its first event; the others are linked."""
        span: Span | None = batch.mark
        if span is None:
            events = [self._events[token] for token in batch.tokens() if token in self._events]
            facts = self._attributes(batch_size=batch.size, partitions=sorted(batch.revs)[:_MAX_IDS])
            batch.mark = span = self._tracing.start(
                "config.notification.batch",
                events[0].span if events else None,
                facts,
                links=[event.span for event in events[1:]],
                start_ns=min((event.at_ns for event in events), default=None),
            )
            for event in events:
                event.batch = span
        return span

    @contextmanager
    def applying(self, job: Apply) -> Iterator[None]:
        """The application's handler runs; its own spans belong below."""
        if job.batch is not None:
            parent: Span | None = self._batch(job.batch)
        else:
            parent = self._fetched.pop(job.changes[0].partition, None)
        span = self._tracing.start("config.apply", parent, self._attributes(rows=len(job.changes)))
        self._applying = parent if job.batch is not None else None
        try:
            with self._tracing.within(span):
                yield
        finally:
            self._applying = None
            if job.batch is not None and parent is not None:
                parent.end()

    # ---- fetches

    @contextmanager
    def fetching(self, fetch: Fetch, tokens: Iterable[Token]) -> Iterator[dict[str, str]]:
        """A fetch, with the headers by which the service goes on from it. ``tokens``: the events that wait for it."""
        span = self._fetch(fetch, [self._events[token].span for token in tokens if token in self._events])
        try:
            yield self._tracing.headers(span)
        except BaseException as error:
            end_span(span, field_text(error))
            raise
        finally:
            if isinstance(fetch, FetchPartition) and fetch.partition in self._acquiring:
                self._answered.add(fetch.partition)
        span.end()
        if isinstance(fetch, FetchPartition):
            self._fetched[fetch.partition] = span
        elif isinstance(fetch, FetchFull):
            self._fetched = dict.fromkeys(self._acquiring, span)

    def _fetch(self, fetch: Fetch, waiting: list[Span]) -> Span:
        if isinstance(fetch, FetchBatch):
            assert fetch.batch is not None
            rows = self._attributes(rows=len(fetch.row_ids))
            return self._tracing.start("config.fetch", self._batch(fetch.batch), rows, kind="CLIENT")
        if isinstance(fetch, FetchFull):
            return self._tracing.start("config.bootstrap.full", None, self._attributes(), kind="CLIENT")
        acquiring = self._acquiring.get(fetch.partition)
        parents = [acquiring[0]] if acquiring is not None else waiting[:1]
        name = "config.bootstrap.partition" if fetch.since is None else "config.fetch"
        facts = {"partition": fetch.partition} | ({} if fetch.since is None else {"since": fetch.since})
        links = [span for span in waiting if span not in parents]
        return self._tracing.start(
            name, parents[0] if parents else None, self._attributes(**facts), links=links, kind="CLIENT"
        )

    # ---- rebalances

    def assigned(self, trigger: str, gained: Iterable[int], lost: Iterable[int]) -> None:
        """Partitions came and went; the cycle ends when all that came are loaded."""
        gained, lost = sorted(gained), sorted(lost)
        facts = self._attributes(trigger=trigger, gained=len(gained), lost=len(lost))
        rebalance = _Rebalance(self._tracing.start("config.rebalance", None, facts))
        for number in lost:
            self._tracing.start("config.partition.dropped", rebalance.span, self._attributes(partition=number)).end()
            self._end_acquiring(number, "lost again")
            self._fetched.pop(number, None)
        for number in gained:
            span = self._tracing.start("config.partition.acquired", rebalance.span, self._attributes(partition=number))
            self._acquiring[number] = span, rebalance
        rebalance.acquiring = len(gained)
        if not gained:
            rebalance.span.end()

    def look_at(self, partitions: Mapping[int, Partition]) -> None:
        """Partitions may be loaded now: they have their rows, and the application has been given them."""
        if self._answered:
            for number in [n for n in self._answered if n in partitions and partitions[n].live]:
                self._end_acquiring(number, None)

    def close(self) -> None:
        """The worker ends."""
        for number in list(self._acquiring):
            self._end_acquiring(number, "the worker stopped")
        self.acknowledged(list(self._events))

    def _end_acquiring(self, number: int, failure: str | None) -> None:
        self._answered.discard(number)
        acquiring, rebalance = self._acquiring.pop(number, (None, None))
        if acquiring is None or rebalance is None:
            return
        end_span(acquiring, failure)
        rebalance.acquiring -= 1
        if not rebalance.acquiring:
            rebalance.span.end()

    def _attributes(self, **facts: Any) -> Mapping[str, Any]:
        return {**self._facts, **facts}
