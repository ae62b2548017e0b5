"""The words of releases that both ends know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Final

import msgspec

from ringcast_wire._common import limits
from ringcast_wire._common.errors import InvalidInputError
from ringcast_wire._common.labels import check_label
from ringcast_wire._reports.messages import WorkerKind, partitions_of


class ReleaseState(StrEnum):
    """How far a release is."""

    STAGING = "staging"
    """Its rows are coming."""
    STAGED = "staged"
    PUBLISHING = "publishing"
    PUBLISHED = "published"
    STOPPED = "stopped"
    """Some of its waves are published, and no other will be."""
    UNDOING = "undoing"
    UNDONE = "undone"
    DROPPED = "dropped"
    EXPIRED = "expired"
    """It was staged for too long."""


class ReleaseOutcome(StrEnum):
    """What became of one row of a release."""

    WAITING = "waiting"
    PUBLISHED = "published"
    SKIPPED = "skipped"
    """Not published: the row was written since it was staged."""
    UNDONE = "undone"
    KEPT = "kept"
    """Published and not undone: the row was written since."""


class ReleaseGate(msgspec.Struct, frozen=True):
    """What has to hold after each wave of a release before the next one follows; otherwise the release is undone.

    Every worker has to have applied it within ``patience_ms``, the handlers may have given up ``max_refused`` of its
    rows at most, and both still have to hold ``bake_ms`` later. ``promql``: expressions that Prometheus has to answer
    with 1 all the time; with 0 the release is undone at once, and without an answer for ``patience_ms`` too.
    """

    bake_ms: int = 0
    max_refused: int = 0
    patience_ms: int = 60_000
    promql: tuple[str, ...] = ()


DEFAULT_GATE: Final = ReleaseGate()


class Rollout(msgspec.Struct, frozen=True):
    """How a release is published in waves, and how far it is.

    ``waves``: how many percent of the partitions that it writes to are in after each wave, 0 in front for that of
    ``canary``; ``partitions``: how many partitions that are. ``wave``: that is under way, or was last; 1 is the first.
    ``at_gate``: all its rows are published, and it is to be seen whether the next one may follow. ``waits_for``: what
    lacks there. ``failure``: why the release was undone by itself. ``gate``: what has to hold after each wave.
    ``canary``: the first wave has the partitions that workers with this label owned when it began; empty: it is drawn
    as the others. In a store of mode FULL it has none of its own, and is ``provisional``.
    """

    waves: tuple[int, ...]
    partitions: tuple[int, ...]
    wave: int = 1
    at_gate: bool = False
    paused: bool = False
    waits_for: str = ""
    failure: str = ""
    gate: ReleaseGate = DEFAULT_GATE
    canary: str = ""

    @property
    def provisional(self) -> bool:
        """Whether in the first wave nothing is published: the workers with the label lay the staged rows over."""
        return bool(self.canary) and self.partitions[:1] == (0,)


GATE_RANGES: Final = {
    "bake_ms": (0, 86_400_000),
    "max_refused": (0, limits.MAX_RELEASE_ROWS),
    "patience_ms": (500, 86_400_000),
}
"""The lowest and the highest value of each number of a gate."""


def check_gate(gate: ReleaseGate, waves: Sequence[int]) -> ReleaseGate:
    """Returns ``gate`` if each of its values is in its range, and ``waves`` has what its conditions need.

    Raises:
        InvalidInputError: one is not.
    """
    for field, (low, high) in GATE_RANGES.items():
        value = getattr(gate, field)
        if not low <= value <= high:
            raise InvalidInputError(f"{field} {value} is out of range: {low} to {high} is allowed", field=field)
    if gate.promql and not waves:
        raise InvalidInputError("promql needs waves: 100 is a single one, with a gate behind it", field="promql")
    if gate.promql and not gate.bake_ms:
        raise InvalidInputError(
            "promql needs a bake time: what Prometheus has read before the wave says nothing about it", field="bake_ms"
        )
    if len(gate.promql) > limits.MAX_CONDITIONS:
        raise InvalidInputError(
            f"promql has {len(gate.promql)} conditions: at most {limits.MAX_CONDITIONS} are allowed", field="promql"
        )
    for number, condition in enumerate(gate.promql, 1):
        size = len(condition.encode("utf-8", "surrogatepass"))
        if not condition.strip() or size > limits.MAX_CONDITION_BYTES:
            raise InvalidInputError(
                f"PromQL condition {number} has {size} bytes: 1 to {limits.MAX_CONDITION_BYTES} are allowed, and more "
                "than white space",
                field="promql",
            )
    return gate


def check_waves(waves: Sequence[int]) -> tuple[int, ...]:
    """Percents of partitions, as they may be given for the waves of a release; empty: all at once.

    Raises:
        InvalidInputError: they don't rise strictly from 1 or more to 100.
    """
    found = tuple(waves)
    if found and not (found[0] >= 1 and found[-1] == 100 and all(low < high for low, high in pairwise(found))):
        shown = ",".join(map(str, found[:10])) + (",…" if len(found) > 10 else "")
        raise InvalidInputError(
            f"waves {shown} are not allowed: they are whole percents from 1 on that rise strictly to 100, such as "
            "1,10,100",
            field="waves",
        )
    return found


def check_canary(canary: str, waves: Sequence[int], *, dry_wave: bool = False) -> tuple[int, ...]:
    """The waves of a release as services take them, with 0 in front for that of a canary, and one more for a dry one.

    ``canary``: empty for none.

    Raises:
        InvalidInputError: ``canary`` is no label, or there are no waves behind it, or these are not as they may be;
            or there is a dry wave and no canary.
    """
    found = check_waves(waves)
    if not canary:
        if dry_wave:
            raise InvalidInputError("dry_wave needs a canary: its workers judge the rows", field="dry_wave")
        return found
    check_label("canary", canary)
    if not found:
        raise InvalidInputError("canary needs waves: 100 is a single one behind that of the canary", field="canary")
    return (0, *((0,) if dry_wave else ()), *found)


class CertifiedWorker(msgspec.Struct, frozen=True):
    """A worker that has applied a release in the partitions that it owned: ``spans`` is first, count, first, …"""

    worker_id: str
    incarnation: str
    kind: WorkerKind
    spans: tuple[int, ...]


class KeyCertificate(msgspec.Struct, frozen=True):
    """That the workers of a key have applied a release: ``docs/releases.md`` says what that means.

    ``spans`` are the partitions in which the release wrote, and ``revisions`` the last one that it gave to each of
    them. ``history``: that the revisions belong to.
    """

    key: str
    history: str
    spans: tuple[int, ...]
    revisions: tuple[int, ...]
    workers: tuple[CertifiedWorker, ...]

    def partitions(self) -> Iterator[tuple[int, int]]:
        """Each partition with the last revision that the release gave to it."""
        return zip(partitions_of(self.spans), self.revisions, strict=True)
