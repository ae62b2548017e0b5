"""Judges a history. It knows nothing of how workers and services do what they do."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from reprlib import Repr
from typing import Any, Final, NamedTuple

from typing_extensions import override

from tests.simulation.history import History

PROMPT_S: Final = 4.0
"""How soon a change has to be with its owner while nothing is wrong; far less than the interval of heads comparisons,
so that it is the events that bring it."""

AGENT_S: Final = 1.0
"""How soon the partitions of a worker that dies under a living agent have another owner."""
GIVEN_S: Final = 2.95
"""For so long a consumer has a delivery that it does not answer: less than the agent waits, by the fastest clock."""

_SHORT: Final = Repr()


class Violation(NamedTuple):
    """A promise that was broken, and when it was seen."""

    kind: str
    time: float
    text: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.time:.3f} s: {self.text}"


class Version(NamedTuple):
    """A committed state of a row; ``value`` is ``None`` for a delete."""

    version: int
    value: str | None
    row: str

    @override
    def __str__(self) -> str:
        return f"{self.row} at version {self.version}, {_SHORT.repr(self.value)}"


@dataclass(slots=True)
class _Partition:
    """All commits of one partition, by version, and who owns it."""

    versions: list[int] = field(default_factory=list)
    commits: list[Version] = field(default_factory=list)
    rows: dict[str, list[Version]] = field(default_factory=dict)
    owners: dict[str, _Span] = field(default_factory=dict)
    undone: set[str] = field(default_factory=set)
    """Rows of which a version has been undone by a restored database."""
    history: str = ""
    """The one that the last commit was of, or that has begun since."""
    untold: set[int] = field(default_factory=set)
    """Versions of which the stream has stored no event yet."""

    @property
    def head(self) -> int:
        return self.versions[-1] if self.versions else 0

    def state(self, row: str, revision: int) -> Version | None:
        """What a row was at a revision, ``None`` before its first write."""
        found = self.rows.get(row, [])
        at = bisect_right(found, revision, key=lambda version: version.version)
        return found[at - 1] if at else None

    def dies(self, state: Version) -> bool:
        """Whether this is a delete of its row, or one has come since."""
        return any(
            version.value is None and version.version >= state.version for version in reversed(self.rows[state.row])
        )

    def undo(self, head: int) -> None:
        """Forgets what came after a revision; what the owners have had of it they have not had."""
        self.undone.update(commit.row for commit in self.commits if commit.version > head)
        self.untold = {version for version in self.untold if version <= head}
        self.versions = [version for version in self.versions if version <= head]
        self.commits = [commit for commit in self.commits if commit.version <= head]
        self.rows = {row: [version for version in found if version.version <= head] for row, found in self.rows.items()}
        self.rows = {row: found for row, found in self.rows.items() if found}
        for span in self.owners.values():
            span.begun.clear()
            span.covered = min(span.covered, head)
            for row, (version, value) in span.done.items():
                if version > head:
                    span.done[row] = (0, value)

    def live(self) -> dict[str, tuple[int, str]]:
        """The rows as they are now."""
        last = ((row, versions[-1]) for row, versions in self.rows.items())
        return {row: (version.version, version.value) for row, version in last if version.value is not None}


@dataclass(slots=True)
class _Span:
    """One ownership: from ``own`` to ``disown``."""

    since: float
    begun: dict[str, int] = field(default_factory=dict)
    """The version with which the handler was last called for each row."""
    done: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    """What the handler has last taken of each row."""
    covered: int = 0
    """The revision up to which everything is known to have been handed over, or superseded."""


class _Given(NamedTuple):
    """A delivery of a row that is in flight: until it is answered, its consumer is over, or its time has passed."""

    at: float
    consumer: str
    offset: int
    attempt: int


@dataclass(slots=True)
class _Group:
    """What one process has given its consumers of one config key."""

    flight: dict[str, _Given] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)
    settled: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    """Versions that were due while there was no consumer: the next one begins with the rows that are there."""
    wanted: dict[str, tuple[int, int, bool]] = field(default_factory=dict)
    """The partition of each row that it was told of, the last version, and whether the row is there."""


class _Due(NamedTuple):
    """Something to look at later."""

    time: float
    order: int
    kind: str
    key: str
    partition: int
    rev: int
    worker: str


class Checker:
    """Goes through a history once; :attr:`violations` are what it found."""

    def __init__(self, *, full: bool = False) -> None:
        self.violations: list[Violation] = []
        self.double_owned_s = 0.0
        """Time, summed over partitions, in which more than one living worker took itself for the owner."""
        self._full = full
        self._partitions: dict[tuple[str, int], _Partition] = defaultdict(_Partition)
        self._announced: set[tuple[str, str, int]] = set()
        self._shared: dict[tuple[str, int], float] = {}
        self._restored = False
        self._calm_since: float | None = None
        self._still = False
        self._groups: dict[tuple[str, str], _Group] = defaultdict(_Group)
        self._due: list[_Due] = []
        self._now = 0.0

    def judge(self, history: History) -> list[Violation]:
        """Takes a whole history in, and says what is wrong with it."""
        for fact in history.facts:
            self._now = fact[0]
            if self._due and self._due[0].time < self._now:
                self._look_at_due()
            getattr(self, "_on_" + fact[1])(*fact[2:])
        self._finish()
        return self.violations

    def _wrong(self, kind: str, text: str) -> None:
        self.violations.append(Violation(kind, self._now, text))

    def _on_circles(self, what: str) -> None:
        self._wrong("circles", what)

    def _on_failed(self, worker: str, what: str) -> None:
        self._wrong("failed", f"{worker}: {what}")

    # ---- commits and ownership

    def _on_commit(self, key: str, partition: int, rows: tuple[tuple[str, int, str | None], ...], history: str) -> None:
        found = self._partitions[key, partition]
        found.history = history
        for row, version, value in rows:
            if version != found.head + 1:
                self._wrong("revision", f"{key}/{partition}: revision {version} follows {found.head}")
            commit = Version(version, value, row)
            found.versions.append(version)
            found.untold.add(version)
            found.commits.append(commit)
            found.rows.setdefault(row, []).append(commit)
        self._later("prompt", key, partition, found.head)

    def _on_published(self, key: str, partition: int, prev: int, rev: int) -> None:
        found = self._partitions[key, partition]
        if rev > found.head:
            self._wrong("invented", f"{key}/{partition}: an event up to {rev}, the head is {found.head}")
        found.untold.difference_update(range(prev + 1, rev + 1))

    def _on_wiped(self) -> None:
        self._restored = True  # for the service, which can't tell

    def _on_restored(self, heads: dict[tuple[str, int], int]) -> None:
        self._restored = True
        for place, found in self._partitions.items():
            found.undo(heads.get(place, 0))

    def _on_began(self, histories: dict[str, str]) -> None:
        for (key, _), found in self._partitions.items():
            found.history = histories.get(key, found.history)

    def _on_put_back(self, worker: str, key: str, partition: int, before: int, after: int) -> None:
        if not self._restored:
            self._wrong("put back", f"{worker} {key}/{partition}: from {before} to {after}, with no reason")

    def _on_history(self, worker: str, key: str, before: str, after: str) -> None:
        if not self._restored:
            self._wrong("put back", f"{worker} {key}: from history {before} to {after}, with no reason")

    def _on_refused(self, worker: str, key: str, what: str) -> None:
        self._wrong("refused", f"{worker} {key}: {what}")

    def _on_own(self, worker: str, key: str, partition: int) -> None:
        found = self._partitions[key, partition]
        self._check_still(worker, key, partition)
        found.owners[worker] = _Span(self._now)
        if len(found.owners) == 2:
            self._shared[key, partition] = self._now
        self._later("prompt", key, partition, found.head)

    def _on_disown(self, worker: str, key: str, partition: int) -> None:
        found = self._partitions[key, partition]
        self._check_still(worker, key, partition)
        del found.owners[worker]
        if len(found.owners) == 1 and not self._full:
            self.double_owned_s += self._now - self._shared.pop((key, partition))
        if not found.owners:
            self._later("owner", key, partition, 0)

    def _check_still(self, worker: str, key: str, partition: int) -> None:
        if self._still:
            self._wrong("moved", f"{key}/{partition}: {worker}, though nothing but an agent has ended")

    def _on_end(self, worker: str) -> None:
        for (key, partition), found in self._partitions.items():
            if worker in found.owners:
                self._on_disown(worker, key, partition)

    def _on_assigned(self, worker: str, key: str, partitions: tuple[int, ...]) -> None:
        for partition in partitions:
            if (worker, key, partition) in self._announced:
                self._wrong("callback", f"{worker} {key}/{partition}: assigned twice")
            self._announced.add((worker, key, partition))
            owners = self._partitions[key, partition].owners
            if worker in owners:  # what was shown before that belongs to an ownership before this one
                owners[worker] = _Span(owners[worker].since)

    def _on_revoked(self, worker: str, key: str, partitions: tuple[int, ...]) -> None:
        for partition in partitions:
            self._announced.discard((worker, key, partition))
        group = self._groups[worker, key]  # of what comes back it is told again, but of rows that are gone
        group.wanted = {row: wanted for row, wanted in group.wanted.items() if wanted[0] not in partitions}

    # ---- hosts and their agents

    def _on_dies(self, worker: str) -> None:
        for (key, partition), found in self._partitions.items():
            if worker in found.owners:
                self._later("heir", key, partition, 0, worker, within_s=AGENT_S)

    def _on_still(self, still: bool) -> None:
        self._still = still

    def _on_dispatched(self, worker: str, key: str, partition: int, row: str, version: int, value: str | None) -> None:
        self._groups[worker, key].wanted[row] = partition, version, value is not None

    def _on_given(
        self, worker: str, key: str, row: str, version: int, consumer: str, offset: int, attempt: int
    ) -> None:
        group = self._groups[worker, key]
        what = f"{worker} {key} {row}: version {version} to {consumer}"
        before = group.flight.get(row)
        if before is not None and self._now < before.at + GIVEN_S:
            self._wrong("two in flight", f"{what}, {before.consumer} has had one since {before.at:.3f} s")
        if version < group.newest.get(row, 0) and not self._restored:
            self._wrong("fallen", f"{what} after version {group.newest[row]}")
        group.flight[row] = _Given(self._now, consumer, offset, attempt)
        group.newest[row] = version

    def _on_answered(self, worker: str, key: str, row: str, consumer: str, offset: int, attempt: int) -> None:
        flight = self._groups[worker, key].flight
        if row in flight and flight[row][1:] == (consumer, offset, attempt):
            del flight[row]

    def _on_consumer_over(self, worker: str, consumer: str) -> None:
        for (other, _), group in self._groups.items():
            if other == worker:
                group.flight = {row: given for row, given in group.flight.items() if given.consumer != consumer}

    def _on_settled(self, worker: str, key: str, row: str, version: int) -> None:
        settled = self._groups[worker, key].settled
        settled[row] = max(version, settled.get(row, 0))  # an answer that comes too late is one of an older version

    def _on_skipped(self, worker: str, key: str, row: str, version: int) -> None:
        self._groups[worker, key].skipped[row] = version  # the last one: nothing of the row comes after it

    def _on_given_up(self, worker: str, key: str, row: str, version: int) -> None:
        if self._groups[worker, key].settled.get(row, 0) < version:
            self._wrong("no dead letter", f"{worker} {key} {row}: version {version} was given up before it had one")

    # ---- the handler and acknowledgements

    def _on_handle(self, worker: str, key: str, partition: int, row: str, version: int, value: str | None) -> None:
        found = self._partitions[key, partition]
        what = f"{worker} {key}/{partition} {row}: version {version}"
        if (worker, key, partition) not in self._announced:
            self._wrong("callback", f"{what} came before its partition was assigned, or after it was revoked")
        if version > found.head:
            self._wrong("invented", f"{what} is above the head {found.head}")
        state = found.state(row, version)
        if value is not None:
            if state is None or state.version != version or state.value != value:
                self._wrong("invented", f"{what} with value {value!r} was never written, but {state}")
        elif row in found.undone:
            pass  # a version that has never been is taken back at the revision of whatever came last
        elif state is None or (state.value is not None and found.rows[row][-1].version == state.version):
            self._wrong("invented", f"{what} is a delete, but the row lives: {state}")
        span = found.owners.get(worker)
        if span is None:
            return  # lost while its changes were being handed over
        if version < span.begun.get(row, 0):
            self._wrong("stale", f"{what} came after version {span.begun[row]}")
        span.begun[row] = version

    def _on_handled(self, worker: str, key: str, partition: int, row: str, version: int, value: str | None) -> None:
        if (worker, key, partition) not in self._announced:
            self._wrong("callback", f"{worker} {key}/{partition} {row}: revoked while version {version} was handled")
        span = self._partitions[key, partition].owners.get(worker)
        if span is not None and version >= span.done.get(row, (0, None))[0]:
            span.done[row] = (version, value)

    def _on_ack(self, worker: str, key: str, partition: int, rev: int, history: str) -> None:
        found = self._partitions[key, partition]
        if history != found.history:
            return  # of a history that is over: there is nothing to be had any more
        span = found.owners.get(worker)
        if span is not None and (missing := self._missing(found, span, rev)) is not None:
            self._wrong("early ack", f"{worker} {key}/{partition}: rev {rev} without {missing}")

    def _on_deferred(self, worker: str, key: str, partition: int, rev: int, history: str) -> None:
        pass  # that the rows come all the same is seen by everything else

    def _missing(self, found: _Partition, span: _Span, rev: int) -> Version | None:
        """The first change up to a revision of which the handler has seen neither it nor what came after it."""
        at = bisect_right(found.versions, span.covered)
        for commit in found.commits[at : bisect_right(found.versions, rev)]:
            state = found.state(commit.row, rev)
            done = span.done.get(commit.row)
            assert state is not None
            if (done is None or done[1] is None) and found.dies(state):
                continue  # it came and went, and for the application it is not there
            if done is None or done[0] < state.version:
                return state
        span.covered = max(span.covered, min(rev, found.head))
        return None

    # ---- while all is well

    def _on_calm(self, calm: bool) -> None:
        self._calm_since = self._now if calm else None
        self._due = []
        if calm:
            for (key, partition), found in self._partitions.items():
                self._later("prompt", key, partition, found.head)
                self._later("owner", key, partition, 0)

    def _on_lease_back(self, worker: str) -> None:
        for (key, partition), found in self._partitions.items():
            if worker in found.owners:
                self._later("verify", key, partition, found.head, worker)

    def _later(
        self, kind: str, key: str, partition: int, rev: int, worker: str = "", *, within_s: float = PROMPT_S
    ) -> None:
        if self._calm_since is not None:
            due = _Due(self._now + within_s, len(self._due), kind, key, partition, rev, worker)
            heapq.heappush(self._due, due)

    def _look_at_due(self) -> None:
        while self._due and self._due[0].time < self._now:
            due = heapq.heappop(self._due)
            found = self._partitions[due.key, due.partition]
            place = f"{due.key}/{due.partition}"
            if due.kind == "heir":
                if not found.owners:
                    self._wrong("no heir", f"{place}: {AGENT_S:g} s after {due.worker} died under an agent")
                continue
            if due.kind == "owner" and not found.owners:
                self._wrong("no owner", f"{place}: since {due.time - PROMPT_S:.3f} s")
            for worker, span in found.owners.items():
                if due.kind == "owner" or span.since > due.time - PROMPT_S:
                    continue  # one that came later is looked at by itself
                if due.worker in ("", worker) and (missing := self._missing(found, span, due.rev)) is not None:
                    kind = "unverified" if due.kind == "verify" else "late"
                    self._wrong(kind, f"{place}: {worker} has not had {missing} of {due.time - PROMPT_S:.3f} s")

    # ---- the end

    def _on_held(self, worker: str, key: str, partition: int, applied: int, rows: dict[str, tuple[int, str]]) -> None:
        found = self._partitions[key, partition]
        place = f"{worker} {key}/{partition}"
        if applied != found.head:
            self._wrong("behind", f"{place}: applied {applied}, the head is {found.head}")
        self._compare(place, "holds", rows, found.live())

    def _on_unacked(self, consumer: str, count: int) -> None:
        self._wrong("unacknowledged", f"{consumer}: {count} deliveries are left")

    def _on_restless(self, why: str) -> None:
        self._wrong("restless", why)

    def _finish(self) -> None:
        for (key, partition), found in self._partitions.items():
            place = f"{key}/{partition}"
            if found.untold:
                self._wrong("untold", f"{place}: no event has told of {sorted(found.untold)}")
            if not self._full and len(found.owners) != 1:
                self._wrong("owners", f"{place} has {len(found.owners)}: {sorted(found.owners)}")
            for worker, span in found.owners.items():
                if (missing := self._missing(found, span, found.head)) is not None:
                    self._wrong("lost", f"{place}: {worker} never had {missing}")
                shown = {row: (version, value) for row, (version, value) in span.done.items() if value is not None}
                self._compare(f"{worker} {place}", "was shown", shown, found.live())

        for (worker, key), group in self._groups.items():
            for row, (partition, version, live) in group.wanted.items():
                settled = max(group.settled.get(row, 0), 0 if live else group.skipped.get(row, 0))
                if worker in self._partitions[key, partition].owners and settled < version:
                    self._wrong("unsettled", f"{worker} {key}/{partition} {row}: no consumer has had version {version}")

    def _compare(self, place: str, verb: str, have: dict[str, Any], want: dict[str, tuple[int, str]]) -> None:
        for row in sorted(have.keys() | want.keys()):
            if row not in want:
                self._wrong("risen", f"{place}: {verb} {row} as {have[row]}, which is deleted")
            elif have.get(row) != want[row]:
                self._wrong("wrong state", f"{place}: {verb} {row} as {have.get(row)}, it is {want[row]}")
