"""The figures that are to be reached on a machine of 2 cores, and whether a run has reached them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.envelope.results import Case


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on one figure of the cases whose name begins with ``case``.

    ``why``: what is known to stand in the way, for reports of runs that have not reached it.
    """

    what: str
    scenario: str
    case: str
    figure: str
    bound: float
    at_least: bool = False
    why: str = ""

    def judge(self, cases: Sequence[Case]) -> Iterator[Verdict]:
        """One verdict for each case that has the figure."""
        for case in cases:
            figure = case.figures.get(self.figure)
            if case.scenario == self.scenario and case.name.startswith(self.case) and figure is not None:
                reached = figure.value >= self.bound if self.at_least else figure.value <= self.bound
                yield Verdict(self, case.name, figure.value, figure.unit, reached)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run says of a goal."""

    goal: Goal
    case: str
    value: float
    unit: str
    reached: bool

    @property
    def share(self) -> float:
        """How many times the bound the figure is."""
        return self.value / self.goal.bound

    @property
    def missed_by(self) -> float:
        """How many times better the figure would have to be."""
        return 1 / self.share if self.goal.at_least else self.share


_DISK = "No commit is faster than the disk flushes, and at 1,000/s a flush that takes long holds up all behind it."
_SHARED = (
    "Sender, service, database, broker and workers share two cores, of which a change keeps one busy for 1.5 ms: at "
    "1,000/s each waits for the others."
)

_MORE_IS_DONE = (
    "A change goes to another process by gRPC, and is committed to a database with its revision and its history, "
    "before anyone is told. A put into this peer is one message to the process that tells the subscribers; no history."
)

_UNDO = (
    "Service, database, broker and both workers share two cores, and each row is a write with its revision and history."
)

GOALS = (
    Goal("change to handler, p50 at 1,000/s", "latency", "sqlite, 1000/s", "p50_ms", 5, why=_SHARED),
    Goal("change to handler, p99 at 1,000/s", "latency", "sqlite, 1000/s", "p99_ms", 25, why=_DISK),
    Goal("change to handler, p50 at 1,000/s", "latency", "postgresql, 1000/s", "p50_ms", 5, why=_SHARED),
    Goal("change to handler, p99 at 1,000/s", "latency", "postgresql, 1000/s", "p99_ms", 25, why=_DISK),
    Goal("5,000 changes/s into one partition for 60 s, p99", "sustained", "5000/s into 1 partition", "p99_ms", 250),
    Goal("CPU an event beside the bare client's", "events", "256 partitions, 1 ", "cpu, worker over raw pull", 2),
    Goal(
        "events/s in one worker process", "events", "256 partitions, 1 ", "events_per_s, worker", 30_000, at_least=True
    ),
    Goal(
        "changes/s through one agent to 8 consumers",
        "dispatch",
        "8 consumers, no filters",
        "changes_per_s",
        20_000,
        at_least=True,
        why="Agent, server, worker and eight consumers share the cores: the rate varies by a fifth from run to run.",
    ),
    Goal("bootstrap of 8 MB beside the bare transport", "bootstrap", "8 MB", "worker over bare transport", 3),
    Goal(
        "partitions moved by a leaver of 50 workers, beside the ideal",
        "rebalance",
        "50 workers",
        "leave, moved over ideal",
        1.5,
    ),
    Goal("CPU of a put with roles and policies", "control", "puts", "cpu, roles and policies over open", 1.05),
    Goal(
        "CPU of a put with roles, audit log and policies",
        "control",
        "puts",
        "cpu, roles, audit and policies over none",
        1.05,
    ),
    Goal("a revoked token ends all of 100 connections", "access", "revocation", "until all have ended", 5),
    Goal("CPU of a put beside 10,000 roles", "access", "many roles", "cpu of a put, many over few", 1.05),
    Goal("worst crash under an agent", "ownership", "jump", "crash under an agent, dark at most_ms", 200),
    Goal("worst crash under an agent", "ownership", "sticky", "crash under an agent, dark at most_ms", 200),
    Goal("busiest of 20 workers over the mean, by load", "balance", "20 workers", "by load, busiest over mean", 1.25),
    Goal(
        "change to all subscribers beside a bare NATS KV, p50",
        "peers",
        "beside nats-kv",
        "p50, ours over theirs",
        1,
        why=_MORE_IS_DONE,
    ),
    Goal(
        "change to all subscribers beside etcd, p50",
        "peers",
        "beside etcd",
        "p50, ours over theirs",
        1,
        why=_MORE_IS_DONE,
    ),
    Goal(
        "change to all subscribers beside Redis, p50",
        "peers",
        "beside redis",
        "p50, ours over theirs",
        1,
        why=_MORE_IS_DONE,
    ),
    Goal(
        "undo of 100,000 rows, at the handlers", "undo", "sqlite, 100000 rows", "undone at the handlers", 5, why=_UNDO
    ),
    Goal(
        "undo of 100,000 rows, at the handlers",
        "undo",
        "postgresql, 100000 rows",
        "undone at the handlers",
        5,
        why=_UNDO,
    ),
    Goal("a bad wave of 1 %, undone at the handlers", "undo", "sqlite, a bad", "undone at the handlers", 1),
    Goal("a bad wave of 1 %, undone at the handlers", "undo", "postgresql, a bad", "undone at the handlers", 1),
)


def missed_by(cases: Sequence[Case]) -> Iterator[Verdict]:
    """The goals that the cases of a run have not reached."""
    for goal in GOALS:
        yield from (verdict for verdict in goal.judge(cases) if not verdict.reached)
