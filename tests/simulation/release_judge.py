"""Judges releases: what is recorded of them against all that was ever committed, and proofs against all that is known.

It looks at the database after every transaction that writes, and at what goes over the bus. It knows nothing of how a
release is published.
"""

from __future__ import annotations

import copy
import re
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec
from ringcast_config_service.promql.conditions import Outcome
from ringcast_core import row_partition
from ringcast_wire import KeyCertificate, LeaseRecord, NodeRecord, Rollout, decode_record, names
from ringcast_wire.reports import WorkerReport, decode_report, partitions_of

from tests.simulation.broker import Broker
from tests.simulation.checker import Violation

REFUSED: Final = "bad"
"""Handlers refuse values that begin so."""
_OF_RELEASE: Final = re.compile(r"(undo of )?release (\d+)")
_DECIDED: Final = frozenset({"published", "skipped", "undone", "kept"})
_NOT_BEGUN: Final = frozenset({"staging", "staged", "dropped", "expired"})
_rollout: Final = msgspec.json.Decoder(Rollout)

Place = tuple[str, str]
"""A key and the id of a row."""


class Written(NamedTuple):
    """A row that a transaction has written, and the reason that it gives."""

    key: str
    partition: int
    row_id: str
    version: int
    value: str | None
    reason: str


class State(NamedTuple):
    """What a row was. ``stands_for``: the version of which an undo has brought this back, or its own."""

    version: int
    value: str | None
    stands_for: int


ABSENT: Final = State(0, None, 0)


class Recorded(NamedTuple):
    """What the database says of a release."""

    rollout: Rollout | None
    state: str
    work: str
    kept: bool
    reached: int
    published: int
    undone: int
    skipped: int

    @property
    def has_conditions(self) -> bool:
        """Whether its gates ask Prometheus."""
        return self.rollout is not None and bool(self.rollout.gate.promql)

    @property
    def is_paused(self) -> bool:
        """Whether no more rows of it are to be published for now."""
        return self.state == "publishing" and self.rollout is not None and self.rollout.paused

    @property
    def gate(self) -> int:
        """The wave at whose gate it is, also while it is paused; 0 for none."""
        there = self.state == "publishing" and self.rollout is not None and self.rollout.at_gate
        return self.rollout.wave if there and self.rollout is not None else 0


class _Row(NamedTuple):
    """What it says of a row of a release."""

    place: int
    key: str
    partition: int
    row_id: str
    value: str | None
    base: int
    outcome: str
    version: int
    undo_version: int
    wave: int


@dataclass
class _Model:
    """All that was committed: the rows, and what releases have written and written back."""

    rows: dict[Place, list[State]] = field(default_factory=lambda: defaultdict(list))
    published: dict[int, dict[Place, tuple[int, State]]] = field(default_factory=lambda: defaultdict(dict))
    """By release: the version that it gave to each row, and what that was before."""
    undone: dict[int, dict[Place, int]] = field(default_factory=lambda: defaultdict(dict))
    left: dict[int, set[Place]] = field(default_factory=lambda: defaultdict(set))
    """Rows that an undo has left as they were: another writer had written them."""
    recorded: dict[int, Recorded] = field(default_factory=dict)
    proofs: frozenset[int] = frozenset()

    def now(self, place: Place) -> State:
        found = self.rows[place]
        return found[-1] if found else ABSENT


class Round(NamedTuple):
    """A question to the workers of a key: who was registered and alive then, and who has answered what."""

    id: str
    there: frozenset[str]
    answers: dict[str, WorkerReport]


class ReleaseJudge:
    """What it finds is in :attr:`violations`."""

    def __init__(self, now: Callable[[], float], broker: Broker, store: str, partitions: int, *, full: bool) -> None:
        self.violations: list[Violation] = []
        self.passed = self.proven = self.failed = self.halves = 0
        """How many gates were passed and failed, releases proven, and partitions seen half in, as their records say."""
        self.told: Mapping[str, Outcome] = {}
        """What Prometheus has told each instance last."""
        self._now = now
        self._broker = broker
        self._store = store
        self._partitions = partitions
        self._full = full
        self._model = _Model()
        self._backup = _Model()
        self._handled: dict[str, dict[Place, tuple[int, str | None]]] = defaultdict(dict)
        """By process: the version with which its handler was last called of each row, and has returned."""
        self._rounds: dict[tuple[str, str], Round] = {}
        """The last one of each instance and key."""
        self._claims: dict[tuple[int, int], list[str]] = {}
        """What is wrong with what was last taken for proven, by release and wave; 0: of a release as a whole."""

    def _wrong(self, kind: str, text: str) -> None:
        self.violations.append(Violation(kind, self._now(), text))

    @property
    def recorded(self) -> Mapping[int, Recorded]:
        """All releases, as the database has them."""
        return self._model.recorded

    # ---- what is committed

    def look(self, file: sqlite3.Connection, written: Sequence[Written]) -> None:
        """Takes a transaction in that was committed just now."""
        touched = {self._take(row) for row in written}
        if written:
            self._compare_rows(file)
        found = _recorded(file)
        for number, now in found.items():
            before = self._model.recorded.get(number)
            if now != before or number in touched:
                self._changed(file, number, before, now)
        self._model.recorded = found
        proofs = frozenset(number for (number,) in file.execute(_PROOFS))
        for number in sorted(proofs - self._model.proofs):
            self._check_proof(number)
        self._model.proofs = proofs

    def _take(self, row: Written) -> int:
        """Adds a write; the release that it is of, 0 for none."""
        model, place = self._model, (row.key, row.row_id)
        before = model.now(place)
        stands_for, number = row.version, 0
        if (found := _OF_RELEASE.match(row.reason)) is not None:
            number = int(found[2])
            what = f"release {number} {row.key}/{row.partition} {row.row_id}"
            self._check_order(what, number, undoes=bool(found[1]))
            if found[1]:
                stands_for = self._take_undone(what, number, place, row, before)
            elif place in model.published[number]:
                self._wrong("twice", f"{what}: published at {model.published[number][place][0]} and {row.version}")
            else:
                model.published[number][place] = row.version, before
        model.rows[place].append(State(row.version, row.value, stands_for))
        return number

    def _check_order(self, what: str, number: int, *, undoes: bool) -> None:
        """A row is written only while its release is being published and not paused, or being undone."""
        recorded = self._model.recorded.get(number)
        state = "unknown" if recorded is None else "paused" if recorded.is_paused else recorded.state
        if state != ("undoing" if undoes else "publishing"):
            self._wrong("no order", f"{what}: {'written back' if undoes else 'published'}, and the release is {state}")

    def _take_undone(self, what: str, number: int, place: Place, row: Written, before: State) -> int:
        published = self._model.published[number].get(place)
        if published is None or place in self._model.undone[number]:
            self._wrong("undo", f"{what}: written back, and it was not published, or is undone already")
            return row.version
        self._model.undone[number][place] = row.version
        version, image = published
        if before.stands_for != version:
            self._wrong("overwritten", f"{what}: undone over version {before.version}, which is another writer's")
        if row.value != image.value:
            self._wrong("image", f"{what}: it is {row.value!r} again, and was {image.value!r}")
        return image.stands_for

    def _compare_rows(self, file: sqlite3.Connection) -> None:
        """The rows of the database have to be what was committed: an undo changes nothing else."""
        there = {(key, row): (version, value) for key, row, version, value in file.execute(_ROWS)}
        for place, states in self._model.rows.items():
            if states and there.get(place) != (states[-1].version, states[-1].value):
                self._wrong("changed", f"{place}: it is {there.get(place)}, and was written as {states[-1]}")

    # ---- what is recorded

    def _changed(self, file: sqlite3.Connection, number: int, before: Recorded | None, now: Recorded) -> None:
        if not now.kept or now.work == "remove":
            return
        rows = [_Row(*record) for record in file.execute(_RELEASE_ROWS, (number,))]
        self._check_outcomes(number, now, rows)
        for row in rows:
            if wrong := _misplaced(now, row):
                text = f"release {number} {row.key}/{row.partition} {row.row_id}: it is {row.outcome}, and {wrong}"
                self._wrong("half a wave", f"{text} ({now.state}, {now.reached=}, {row.place=}, {row.wave=})")
        self._count_halves(rows)
        if before is not None and before.gate:
            self._left_gate(number, before, now)
        elif before is not None and _passes_by(before, now):
            self._wrong("gate", f"release {number} has not been at the gate of its wave: {before}")

    def _check_outcomes(self, number: int, now: Recorded, rows: list[_Row]) -> None:
        """What it says of each row has to be what has become of it, and the sums have to be those of the rows."""
        published, undone = self._model.published[number], self._model.undone[number]
        for row in rows:
            place = row.key, row.row_id
            what = f"release {number} {row.key}/{row.partition} {row.row_id}"
            version, image = published.get(place, (0, ABSENT))
            if row.version != version or (row.outcome in ("published", "undone", "kept")) != bool(version):
                self._wrong("record", f"{what}: {row.outcome} at {row.version}, and it was published at {version}")
            if row.undo_version != undone.get(place, 0) or (row.outcome == "undone") != (place in undone):
                text = f"{what}: {row.outcome} at {row.undo_version}, and it was undone at {undone.get(place)}"
                self._wrong("record", text)
            if version and (image.version if image.value is not None else 0) != row.base:
                self._wrong("overwritten", f"{what}: published over {image}, and it was staged for {row.base}")
            if row.outcome == "kept" and place not in self._model.left[number]:
                self._model.left[number].add(place)
                if self._model.now(place).stands_for == version:
                    self._wrong("not undone", f"{what}: it is left as published, and nobody else has written it")
        undoing = now.state in ("undoing", "undone")
        counted = sum(row.outcome == ("kept" if undoing else "skipped") for row in rows)
        sums = len(published), len(undone), counted
        if (now.published, now.undone, now.skipped) != sums:
            said = now.published, now.undone, now.skipped
            self._wrong("record", f"release {number} says published, undone, skipped {said}, and it is {sums}")

    def _count_halves(self, rows: list[_Row]) -> None:
        decided: dict[tuple[str, int], set[bool]] = defaultdict(set)
        for row in rows:
            decided[row.key, row.partition].add(row.outcome in _DECIDED)
        self.halves += sum(len(each) > 1 for each in decided.values())

    # ---- gates and proofs

    def _left_gate(self, number: int, before: Recorded, now: Recorded) -> None:
        wave = before.gate
        if now.state == "undoing" and now.rollout is not None and now.rollout.failure:
            self.failed += 1
        elif now.state == "published" or (now.rollout is not None and now.rollout.wave > wave):
            self.passed += 1
            for wrong in self._claims.get((number, wave), ["nothing was asked"]):
                self._wrong("gate", f"release {number} has passed the gate of wave {wave}: {wrong}")

    def _check_proof(self, number: int) -> None:
        self.proven += 1
        recorded = self._model.recorded[number]
        if recorded.state != "published" or recorded.work:
            state = f"{recorded.state} {recorded.work}".strip()
            self._wrong("proof", f"release {number} counts as proven, and is {state}")
        last = recorded.rollout.wave if recorded.rollout is not None else 0
        claims = [self._claims[each] for each in ((number, 0), (number, last)) if each in self._claims]
        if not any(not claim for claim in claims):
            for wrong in claims[-1] if claims else ["nothing was asked"]:
                self._wrong("proof", f"release {number} counts as proven: {wrong}")

    def claimed(self, instance: str, number: int, wave: int, proven: Sequence[KeyCertificate]) -> None:
        """An instance takes what a release has published for proven."""
        wrong = list(self._unproven(instance, number, proven))
        recorded = self._model.recorded.get(number)
        told = self.told.get(instance)
        if wave and recorded is not None and recorded.has_conditions and told is not Outcome.MET:
            wrong.append(f"{instance} was told {told} by Prometheus")
        self._claims[number, wave] = wrong

    def _unproven(self, instance: str, number: int, proven: Sequence[KeyCertificate]) -> Iterator[str]:
        wanted: dict[str, dict[int, list[tuple[str, int]]]] = defaultdict(lambda: defaultdict(list))
        for (key, row_id), (version, _) in self._model.published[number].items():
            wanted[key][self._partition(row_id)].append((row_id, version))
        certificates = {each.key: each for each in proven}
        for key, partitions in wanted.items():
            if key in certificates:
                yield from self._unproven_key(instance, number, certificates[key], partitions)
            else:
                yield f"nobody has shown that {key} is applied"

    def _unproven_key(
        self,
        instance: str,
        number: int,
        certificate: KeyCertificate,
        partitions: Mapping[int, Sequence[tuple[str, int]]],
    ) -> Iterator[str]:
        key = certificate.key
        asked = self._rounds.get((instance, key))
        if asked is None:
            yield f"{instance} has not asked the workers of {key}"
            return
        workers = {worker.incarnation: frozenset(partitions_of(worker.spans)) for worker in certificate.workers}
        if workers.keys() != asked.there:
            yield f"{key}: {sorted(workers)} prove it, and there were {sorted(asked.there)}"
        if silent := asked.there - asked.answers.keys():
            yield f"{key}: {sorted(silent)} did not answer"
        digests = {name: report.assignment for name, report in asked.answers.items() if name in asked.there}
        if not self._full and (len(set(digests.values())) != 1 or "" in digests.values()):
            yield f"{key}: the workers share the partitions out in several ways: {digests}"
        for partition, rows in partitions.items():
            owners = [name for name, owned in workers.items() if partition in owned]
            if len(owners) != (len(workers) if self._full else 1):
                yield f"{key}/{partition} is owned by {owners}"
            for row_id, version in rows:
                for name in owners:
                    if not self._has(name, (key, row_id), version):
                        had = self._handled[name].get((key, row_id))
                        yield f"{key}/{partition}: {name} has {row_id} as {had}, not version {version} or later"
                now = self._model.now((key, row_id))
                if now.version == version and (now.value or "").startswith(REFUSED):
                    yield f"{key}/{partition} {row_id}: handlers refuse it"

    def _has(self, worker: str, place: Place, version: int) -> bool:
        """Whether the handler of a process has had a version of a row, or a later one."""
        had = self._handled[worker].get(place)
        if had is not None and had[0] >= version:
            return True
        gone = any(state.value is None and state.version >= version for state in self._model.rows[place])
        return gone and (had is None or had[1] is None)  # it came and went

    def handled(self, worker: str, place: Place, version: int, value: str | None) -> None:
        """The handler of a process has returned."""
        self._handled[worker][place] = version, value

    def owned(self, worker: str, key: str, partition: int) -> None:
        """A process owns a partition from now on: its handler has all rows of it again, but for those that are gone."""
        had = self._handled[worker]
        for place in [each for each in had if each[0] == key and self._partition(each[1]) == partition]:
            del had[place]

    def _partition(self, row_id: str) -> int:
        return row_partition(row_id, self._partitions)

    def asked(self, instance: str, key: str, round_id: str) -> None:
        """An instance asks the workers of a key."""
        leases = {
            lease: decode_record(entry.value, LeaseRecord).incarnation
            for lease, entry in self._entries(names.LEASES_BUCKET)
        }
        there = set()
        for name, entry in self._entries(names.nodes_bucket(self._store)):
            if name.startswith(f"{key}.") and name.count(".") == 1:
                record = decode_record(entry.value, NodeRecord)
                if record.lease in leases:
                    there.add(record.incarnation)
        self._rounds[instance, key] = Round(round_id, frozenset(there), {})

    def _entries(self, bucket: str) -> Iterator[tuple[str, Any]]:
        found = self._broker.buckets.get(bucket)
        if found is not None:
            yield from ((name, entry) for name, entry in found.entries.items() if entry.value is not None)

    def answered(self, subject: str, data: bytes) -> None:
        """A worker answers."""
        report, round_id = decode_report(data), subject.rpartition(".")[2]
        for each in self._rounds.values():
            if each.id == round_id:
                each.answers[report.incarnation] = report

    # ---- backups

    def back_up(self) -> None:
        """The database is backed up."""
        self._backup = copy.deepcopy(self._model)

    def restore(self, heads: Mapping[tuple[str, int], int]) -> None:
        """It is as it was then: what workers have had of what came since they have not had."""
        self._model = copy.deepcopy(self._backup)
        self._claims.clear()
        self._rounds.clear()
        for had in self._handled.values():
            for (key, row_id), (version, value) in had.items():
                if version > heads.get((key, self._partition(row_id)), 0):
                    had[key, row_id] = 0, value


def _recorded(file: sqlite3.Connection) -> dict[int, Recorded]:
    return {
        number: Recorded(None if rollout is None else _rollout.decode(rollout), *words)
        for number, rollout, *words in file.execute(_RELEASES)
    }


def _passes_by(before: Recorded, now: Recorded) -> bool:
    """Whether the next wave of a release has begun, or it has ended, though it was not at a gate."""
    if before.rollout is None or now.rollout is None:
        return False
    return now.state == "published" != before.state or now.rollout.wave > before.rollout.wave


def _misplaced(now: Recorded, row: _Row) -> str:
    """What is wrong with what has become of a row, by how far its release says that it is; empty if nothing."""
    decided = row.outcome in _DECIDED
    if now.state in _NOT_BEGUN:
        return "nothing of the release is published" if decided else ""
    if now.state == "published":
        return "" if decided else "all of the release is published"
    if now.state == "undone":
        return "all of the release is undone" if row.outcome == "published" else ""
    if now.state == "undoing":
        if row.outcome == "published" and row.place >= now.reached:
            return "it is behind where the undo is"
        return "it is before where the undo is" if row.outcome in ("undone", "kept") and row.place < now.reached else ""
    if now.rollout is None:
        return "" if decided is (row.place <= now.reached) else "the release is not there"
    if row.wave != now.rollout.wave:
        return "" if decided is (row.wave < now.rollout.wave) else "it is of another wave than the one under way"
    if now.state == "stopped":
        return ""  # the outcome says it
    if now.gate:
        return "" if decided else "the wave is at its gate"
    return "" if decided is (row.place <= now.reached) else "the wave is not there"


_ROWS: Final = """
SELECT k.name, r.row_id, r.version, CASE WHEN r.deleted THEN NULL ELSE r.value END
FROM rows r JOIN config_keys k ON k.key_id = r.key_id
"""
_RELEASES: Final = "SELECT number, rollout, state, work, kept, reached, published, undone, skipped FROM releases"
_RELEASE_ROWS: Final = """
SELECT s.place, s.config_key, s.partition, s.row_id, s.value, s.base, s.outcome, s.version, s.undo_version,
    coalesce((SELECT p.wave FROM release_partitions p WHERE p.store = s.store AND p.number = s.number
        AND p.partition = s.partition), 0)
FROM release_rows s WHERE s.number = ? ORDER BY s.place
"""
_PROOFS: Final = (
    "SELECT r.number FROM release_proofs p JOIN releases r ON r.store = p.store AND r.stage_id = p.stage_id"
)
