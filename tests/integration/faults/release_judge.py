"""The judge of releases: what the load asked for, what the record says of each release and of its rows, and what the
workers hold, put side by side.

Each release is whole or not at all. Of one that is published every row has its value at the revision that the release
names; of one that is undone every row has what it was before, at a later one. Excepted are rows that another writer has
written in between, which the release has to name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tests.integration.faults.histories import Findings
from tests.integration.faults.record import Revision
from tests.integration.faults.release_record import AskedRelease, FoundRelease, FoundRow

FINDINGS: Final = (
    *("half_release", "release_state", "overwritten_row", "conflict", "lost_release", "invented_release"),
    "release_not_held",
)
OUTCOMES: Final[dict[str, frozenset[str]]] = {
    "staging": frozenset({"waiting"}),
    "staged": frozenset({"waiting"}),
    "dropped": frozenset({"waiting"}),
    "published": frozenset({"published", "skipped"}),
    "undone": frozenset({"waiting", "skipped", "undone", "kept"}),
}
"""What may have become of the rows of a release in each state; in any other it is not done."""
_CONFLICTS: Final = frozenset({"skipped", "kept"})


class _Past:
    """What each row was, by revision."""

    def __init__(self, revisions: Iterable[Revision]) -> None:
        self.at = {(r.key, r.partition, r.version): (r.row_id, r.value) for r in revisions}
        self._rows: defaultdict[tuple[str, str], list[tuple[int, str | None]]] = defaultdict(list)
        for (key, _, version), (row_id, value) in sorted(self.at.items()):
            self._rows[key, row_id].append((version, value))

    def of(self, row: FoundRow) -> Sequence[tuple[int, str | None]]:
        """Version and value of each write to a row, in their order."""
        return self._rows.get((row.key, row.row_id), ())

    def before(self, row: FoundRow, version: int) -> str | None:
        """What a row was just before a revision; ``None``: not there."""
        return next((value for written, value in reversed(self.of(row)) if written < version), None)

    def now(self, row: FoundRow) -> str | None:
        """What it is at the end."""
        return self.before(row, 1 << 62)


def judge_releases(found: Iterable[FoundRelease], revisions: Sequence[Revision], findings: Findings) -> None:
    """Each release of the record is whole or not at all, and nothing that others wrote is overwritten.

    A release writes a row only where the row is as it was when the release was staged, and writes it back only where
    the row is as the release has made it. Values are unlike each other, so they tell by whom a row was written last.
    """
    past = _Past(revisions)
    for release in found:
        _judge_state(release, findings)
        for row in release.rows:
            what = f"release {release.number} ({release.state}): {row.key}/{row.row_id}"
            _judge_row(row, past, what, findings)


def _judge_state(release: FoundRelease, findings: Findings) -> None:
    what = f"release {release.number}"
    if release.state not in OUTCOMES or release.work:
        findings.add("release_state", f"{what} is {release.state} in the end, with work {release.work!r}")
        return
    if not release.rows and release.state == "dropped":
        return  # they are removed
    outcomes = [row.outcome for row in release.rows]
    if wrong := set(outcomes) - OUTCOMES[release.state]:
        counts = {outcome: outcomes.count(outcome) for outcome in sorted(wrong)}
        findings.add("half_release", f"{what} is {release.state}, and of its {len(outcomes)} rows are {counts}")
    conflict = "kept" if release.state == "undone" else "skipped"  # an undo counts its own alone
    said = (release.row_count, release.published, release.undone, release.skipped)
    counted = (
        len(release.rows),
        sum(row.version > 0 for row in release.rows),
        sum(row.undo_version > 0 for row in release.rows),
        outcomes.count(conflict),
    )
    if said != counted:
        findings.add(
            "release_state", f"{what} says rows, published, undone, skipped are {said}, its rows say {counted}"
        )


def _judge_row(row: FoundRow, past: _Past, what: str, findings: Findings) -> None:
    if row.version:
        _judge_write(row, row.version, row.value, row.old if row.base else None, past, what, findings)
        if row.base and past.at.get((row.key, row.partition, row.base)) != (row.row_id, row.old):
            findings.add("overwritten_row", f"{what} was {row.old!r} at {row.base}, says the release")
    elif row.value is not None and any(value == row.value for _, value in past.of(row)):
        findings.add("half_release", f"{what} is {row.outcome}, and the record has its value")
    if row.undo_version:
        _judge_write(row, row.undo_version, row.old if row.base else None, row.value, past, what, findings)
    if bool(row.version) != (row.outcome in {"published", "undone", "kept"}):
        findings.add("half_release", f"{what} is {row.outcome} at {row.version}")
    if bool(row.undo_version) != (row.outcome == "undone"):
        findings.add("half_release", f"{what} is {row.outcome}, written back at {row.undo_version}")
    if row.outcome in _CONFLICTS:
        # What others wrote since: with the row not there at first, whatever made it be there.
        since = row.version or row.base
        if not any(version > since and (since or value is not None) for version, value in past.of(row)):
            findings.add("conflict", f"{what} is {row.outcome}, and nobody else has written it since {since}")


def _judge_write(
    row: FoundRow, version: int, value: str | None, before: str | None, past: _Past, what: str, findings: Findings
) -> None:
    """That a release has written a value at a version, and what was there before."""
    written = past.at.get((row.key, row.partition, version))
    if written != (row.row_id, value):
        findings.add("half_release", f"{what} should be {value!r} at {version}, the record has {written}")
    elif (there := past.before(row, version)) != before:
        findings.add("overwritten_row", f"{what} was {there!r} when it was written at {version}, not {before!r}")


def judge_asked(
    asked: Iterable[AskedRelease], found: Iterable[FoundRelease], revisions: Iterable[Revision], findings: Findings
) -> None:
    """What was acknowledged of each release is so: staged as it was asked for, dropped, published, undone."""
    there = {release.name: release for release in found}
    landed = {(revision.key, revision.row_id, revision.value) for revision in revisions if revision.value is not None}
    names = set()
    for each in asked:
        names.add(each.name)
        if each.taken_back or not each.number:
            continue
        release = there.get(each.name)
        if release is None or release.number != each.number:
            findings.add("lost_release", f"{each.name} was staged as {each.number}, the record has {release}")
            continue
        if wrong := _not_as_asked(each, release):
            findings.add("lost_release", f"release {each.number} {wrong}")
        if each.dropped and any((row.key, row.row_id, row.value) in landed for row in each.rows):
            findings.add("half_release", f"release {each.number} was dropped, and the record has a value of it")
    for name, release in there.items():
        if name not in names:
            findings.add("invented_release", f"release {release.number} ({name}) was never asked for")


def _not_as_asked(each: AskedRelease, release: FoundRelease) -> str:
    if each.dropped:
        return "" if release.state == "dropped" else f"was dropped, and is {release.state}"
    staged = [(row.key, row.row_id, row.value, row.base) for row in each.rows]
    if staged != [(row.key, row.row_id, row.value, row.base) for row in release.rows]:
        return f"was staged with {len(staged)} rows, and has {len(release.rows)}, or others"
    wanted = "undone" if each.undone or release.failure else "published" if each.published else "staged"
    return "" if release.state == wanted else f"was to be {wanted}, and is {release.state}"


def judge_held(
    found: Iterable[FoundRelease],
    revisions: Iterable[Revision],
    held: Mapping[str, Mapping[str, Mapping[str, tuple[str, int, int]]]],
    findings: Findings,
) -> None:
    """What workers hold of the rows of releases is what the record has in the end. ``held``: by worker, key and row."""
    past = _Past(revisions)
    for release in found:
        for row in release.rows:
            theirs = {name: keys.get(row.key, {}).get(row.row_id) for name, keys in held.items()}
            rows = {name: each[0] for name, each in theirs.items() if each is not None}
            now = past.now(row)
            wanted = set() if now is None else {now}
            if set(rows.values()) != wanted:
                what = f"release {release.number} ({release.state}): {row.key}/{row.row_id}"
                findings.add("release_not_held", f"{what} is {now!r}, workers hold {rows}")
