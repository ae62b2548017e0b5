"""What an agent measures: plain numbers, read at a scrape."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal, Protocol

from ringcast_wire.metrics import Histogram, Metric, Sample

from ringcast_heartbeat_agent.leases.registry import CLOSED, NOT_BACK, SILENT

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_CALL: Final = ("api", "method")
_GROUP: Final = ("store", "key", "group")
OF_GROUP: Final = ("consumers", "in_flight", "lag", "behind", "blocked_rows")
"""What is measured of each group, by its name in the figures of a group."""


def _metric(
    name: str, kind: Literal["counter", "gauge", "histogram"], labels: tuple[str, ...], unit: str, text: str
) -> Metric:
    buckets = _BUCKETS if kind == "histogram" else ()
    return Metric(f"ringcast_agent_{name}", kind, labels, unit, text, "agent", "", buckets)


_ENDS: Final = "Ended subscriptions, by cause: client, upstream, stopping, sealed or unreachable."

_BEHIND: Final = "Subscriptions that take updates slower than rows change, and so read what has changed."

_GIVEN_UP: Final = "Workers that did not leave in order: closed, silent, or not-back after a restart of the agent."

_EVENTS: Final = "What happened to messages of groups: offered, deliveries, acked, rejected and so on."

AGENT: Final = (
    _metric("requests_total", "counter", (*_CALL, "outcome"), "requests", "Requests by API (grpc, http) and outcome."),
    _metric("request_duration_seconds", "histogram", _CALL, "seconds", "Until the answer; of a subscription: its id."),
    _metric("subscriptions", "gauge", ("api",), "subscriptions", "Subscriptions now."),
    _metric("subscriptions_ended_total", "counter", ("api", "reason"), "subscriptions", _ENDS),
    _metric("updates_waiting", "gauge", (), "updates", "Updates that wait for their subscribers."),
    _metric("subscriptions_behind", "gauge", (), "subscriptions", _BEHIND),
    _metric(
        "staleness_seconds", "gauge", (), "seconds", "For how long changes of a followed key may have been missed."
    ),
    _metric("updates_sent_total", "counter", ("api",), "updates", "Updates handed to subscribers."),
    _metric("callbacks_total", "counter", ("outcome",), "calls", "Calls of applications: done, repeated or given-up."),
    _metric("keys_followed", "gauge", (), "keys", "Config keys that the agent follows now."),
    _metric("connected", "gauge", (), "", "Whether NATS is connected."),
    _metric("login_refused", "gauge", (), "", "Whether NATS refuses the agent's login."),
    _metric("groups", "gauge", (), "groups", "Groups now."),
    _metric("consumers", "gauge", ("mode",), "consumers", "Consumers now, by mode (reliable, lossy)."),
    _metric("in_flight", "gauge", ("mode",), "messages", "Deliveries that are not answered yet."),
    _metric("lag", "gauge", ("mode",), "messages", "Messages that are not settled, and those still to come in."),
    _metric("blocked_rows", "gauge", ("mode",), "rows", "Rows that poison blocks, until an operator resolves them."),
    _metric("group_consumers", "gauge", _GROUP, "consumers", "Consumers of a group now."),
    _metric("group_in_flight", "gauge", _GROUP, "messages", "Deliveries of a group that are not answered yet."),
    _metric("group_lag", "gauge", _GROUP, "messages", "Messages of a group not settled, and rows still to come in."),
    _metric(
        "group_behind",
        "gauge",
        _GROUP,
        "rows",
        "Changed rows of a group that wait for room, or for their turn in their routing key.",
    ),
    _metric("group_blocked_rows", "gauge", _GROUP, "rows", "Rows of a group that poison blocks."),
    _metric("groups_not_durable", "gauge", (), "groups", "Groups whose seals can't be kept."),
    _metric("partitions_awaited", "gauge", (), "partitions", "Partitions that groups wait for: other hosts hold them."),
    _metric("seals_written_total", "counter", (), "seals", "Seals of groups that were written."),
    _metric("seals_refused_total", "counter", (), "seals", "Seals not written, since another process had written."),
    _metric("seals_failed_total", "counter", (), "seals", "Seals that NATS did not answer for, or did not take."),
    _metric("dispatch_events_total", "counter", ("event",), "events", _EVENTS),
    _metric("leases_registered", "gauge", (), "workers", "Workers that the agent keeps the lease for."),
    _metric("lease_held", "gauge", (), "", "Whether the host's lease is held; 0 without a lease socket, too."),
    _metric("lease_losses_total", "counter", (), "leases", "How often the host's lease was lost and granted again."),
    _metric("lease_records_deleted_total", "counter", (), "records", "Records of dead workers that were deleted."),
    _metric("workers_given_up_total", "counter", ("reason",), "workers", _GIVEN_UP),
    _metric("registrations_refused_total", "counter", ("reason",), "registrations", "Refused, by the error's code."),
    _metric(
        "dead_letter_failures_total",
        "counter",
        (),
        "sends",
        "Dead letters that the stream did not store; each is sent again.",
    ),
    _metric(
        "unopened_values_total",
        "counter",
        (),
        "values",
        "Encrypted values that could not be opened for a subscriber, a consumer or a read.",
    ),
)
"""Every metric of the agent; those of its workers are the SDK's."""


class KeyPlace(Protocol):
    """Which config key a group is of."""

    store: str
    key: str


class GroupNumbers(Protocol):
    """A group, as its metrics see it."""

    name: str

    @property
    def source(self) -> KeyPlace:
        """Its config key."""

    def figures(self) -> object:
        """Its figures of now: an object with an attribute for each of ``OF_GROUP``."""


class Measures:
    """Counters and histograms of one agent. ``gauges`` are asked at each scrape: they only read numbers."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.durations: defaultdict[tuple[str, str], Histogram] = defaultdict(lambda: Histogram(_BUCKETS))
        self.ended: Counter[tuple[str, str]] = Counter()
        self.sent: Counter[str] = Counter()
        self.callbacks: Counter[str] = Counter({"done": 0, "repeated": 0, "given-up": 0})
        self.events: Callable[[], Counter[str]] = Counter
        """What happened in groups, by event; asked at each scrape."""
        self.groups: Callable[[], Iterable[GroupNumbers]] = tuple
        """The groups; asked at each scrape."""
        self.given_up: Counter[str] = Counter(dict.fromkeys((CLOSED, SILENT, NOT_BACK), 0))
        self.refused: Counter[str] = Counter({"IN_USE": 0})
        self.gauges: dict[tuple[str, tuple[str, ...]], Callable[[], float]] = {}

    def request_answered(self, api: str, method: str, outcome: str, seconds: float) -> None:
        """A request has been answered."""
        self.requests[api, method, outcome] += 1
        self.durations[api, method].observe(seconds)

    def samples(self) -> Iterator[Sample]:
        """Everything as it is now."""
        for call, count in list(self.requests.items()):
            yield Sample("ringcast_agent_requests_total", call, count)
        for method, histogram in list(self.durations.items()):
            yield Sample("ringcast_agent_request_duration_seconds", method, histogram)
        for end, count in list(self.ended.items()):
            yield Sample("ringcast_agent_subscriptions_ended_total", end, count)
        for api, count in list(self.sent.items()):
            yield Sample("ringcast_agent_updates_sent_total", (api,), count)
        for outcome, count in list(self.callbacks.items()):
            yield Sample("ringcast_agent_callbacks_total", (outcome,), count)
        for event, count in self.events().items():
            yield Sample("ringcast_agent_dispatch_events_total", (event,), count)
        for group in list(self.groups()):
            place = (group.source.store, group.source.key, group.name)
            figures = group.figures()
            for what in OF_GROUP:
                yield Sample(f"ringcast_agent_group_{what}", place, getattr(figures, what))
        for reason, count in list(self.given_up.items()):
            yield Sample("ringcast_agent_workers_given_up_total", (reason,), count)
        for reason, count in list(self.refused.items()):
            yield Sample("ringcast_agent_registrations_refused_total", (reason,), count)
        for (name, labels), read in self.gauges.items():
            yield Sample(f"ringcast_agent_{name}", labels, read())
