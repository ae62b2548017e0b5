"""What the commands for releases print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import click
from ringcast_client import ReleaseCertificate, ReleaseInfo, ReleaseRowInfo
from ringcast_wire import ReleaseOutcome, ReleaseState

from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.output import counted, print_json, print_table, shown_metadata, visible
from ringcast_cli._releases.release_words import approval_words, failure_words, gate_words, share_words, state_words

_MAX_SHOWN_CHARS: Final = 200
_MAX_ALIKE_CHARS: Final = 40
"""Of a text that has changed, before the place where it has, if that is far behind."""

Content: TypeAlias = tuple[str, Mapping[str, str]]
"""The value and metadata of a row."""


def say(info: ReleaseInfo, config: CliConfig, **more: float) -> None:
    """Prints how far a release is; ``more`` goes into the document."""
    if config.json:
        print_json({**asdict(info), **more})
        return
    state = state_words(info.state, info.rollout)
    click.echo(f"release {info.number} of {visible(info.store)} is {state}: {_counts(info)}")


def _counts(info: ReleaseInfo) -> str:
    parts = [f"{info.rows} rows"]
    if info.state not in {ReleaseState.DROPPED, ReleaseState.STAGED, ReleaseState.STAGING}:
        parts.append(f"{info.published} published")
    if info.state in {ReleaseState.UNDOING, ReleaseState.UNDONE}:
        parts.append(f"{info.undone} undone")
    if info.skipped:
        parts.append(f"{info.skipped} skipped")
    return ", ".join(parts)


def document(info: ReleaseInfo, certificate: ReleaseCertificate | None) -> dict[str, Any]:
    """A release as JSON has it."""
    return {**asdict(info), "certificate": certificate}


def proven_words(info: ReleaseInfo, certificate: ReleaseCertificate) -> str:
    """What a certificate says, in short."""
    workers = {worker.worker_id for key in certificate.keys for worker in key.workers}
    revisions = sum(len(key.revisions) for key in certificate.keys)
    by = f"{counted(len(workers), 'worker')} of {counted(len(certificate.keys), 'key')}"
    where = f"{counted(revisions, 'partition')} written"
    return f"release {info.number} of {visible(info.store)} is proven: applied by {by}, {where}"


def print_release(info: ReleaseInfo, certificate: ReleaseCertificate | None, config: CliConfig) -> None:
    """Prints all that is known of a release."""
    if config.json:
        print_json(document(info, certificate))
        return
    state = state_words(info.state, info.rollout)
    click.echo(f"release {info.number} of {visible(info.store)}: {state} ({_counts(info)}, {info.bytes} bytes)")
    click.echo(_line("staged", info.staged_at_ms, info.author, info.reason))
    if info.digest:
        click.echo(f"digest {info.digest}")
    for approval in info.approvals:
        click.echo(_line("approved", approval.approved_at_ms, approval.principal, approval.reason))
    if info.state is ReleaseState.STAGED and (waits := approval_words(len(info.approvals), info.approvals_needed)):
        click.echo(waits)
    if info.changed_by:
        click.echo(_line("changed", info.changed_at_ms, info.changed_by, info.change_reason))
    if info.rollout is not None:
        counts = enumerate(info.rollout.partitions, 1)
        waves = (
            share_words(info.rollout, wave) + (f" ({counted(count, 'partition')})" if count else "")
            for wave, count in counts
        )
        click.echo(f"waves {', '.join(waves)}")
        for condition in info.rollout.gate.promql:
            click.echo(f"condition {visible(condition)}")
        if info.state is ReleaseState.PUBLISHING and (waits := gate_words(info.rollout)):
            click.echo(waits)
        if info.rollout.failure:
            click.echo(failure_words(info.rollout))
    if info.proven_at_ms:
        click.echo(f"proven {time_words(info.proven_at_ms)}: every worker had applied it")
    if info.pinned:
        click.echo("pinned: its rows, and those of all releases after it, are kept")
    if not info.rows_kept:
        click.echo("its rows are removed: it can't be undone")
    if info.problem:
        click.echo(f"halted: {visible(info.problem)}")
    rows = [[key.key, str(key.added), str(key.changed), str(key.deleted)] for key in info.keys]
    print_table(["key", "added", "changed", "deleted"], rows, right=frozenset({1, 2, 3}))


def _line(what: str, at_ms: int, by: str, reason: str) -> str:
    why = f": {visible(reason)}" if reason else ""
    return f"{what} {time_words(at_ms)} by {visible(by)}{why}"


def time_words(at_ms: int) -> str:
    """A time to the second."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def print_row(row: ReleaseRowInfo) -> None:
    """Prints a row of a release, and what becomes of it."""
    sign = "-" if row.value is None else "+" if not row.staged_version else "~"
    place = f"{row.key}/{visible(row.row_id)}"
    before = None if row.old_value is None else (row.old_value, row.old_metadata)
    what = shown_change(before, None if row.value is None else (row.value, row.metadata))
    mark = " !" if row.conflict else ""
    state = "" if row.outcome is ReleaseOutcome.WAITING else f" ({row.outcome})"
    click.echo(f"{sign} {place}: {what}{state}{mark}")


def shown_change(before: Content | None, after: Content | None) -> str:
    """What becomes of a row, on one line: its value, and its metadata where it has some that come, go or change.

    ``None``: there is no row. Who reviews a change has to see all of it.
    """
    if before is None or after is None:
        value, metadata = after or before or ("", {})
        return _with_metadata(_cut(visible(value), 0), _cut(shown_metadata(metadata), 0))
    same_value, same_metadata = before[0] == after[0], before[1] == after[1]
    value = _cut(visible(after[0]), 0) if same_value else _difference(visible(before[0]), visible(after[0]))
    return _with_metadata(
        value, "" if same_metadata else _difference(shown_metadata(before[1]), shown_metadata(after[1]))
    )


def _with_metadata(value: str, metadata: str) -> str:
    return f"{value} ({metadata})" if metadata else value


def _difference(old: str, new: str) -> str:
    """Two texts on one line. Long ones that begin alike are shown from shortly before they differ."""
    differ = (place for place, (one, other) in enumerate(zip(old, new, strict=False)) if one != other)
    same = next(differ, min(len(old), len(new)))
    start = 0 if same < _MAX_SHOWN_CHARS - _MAX_ALIKE_CHARS else same - _MAX_ALIKE_CHARS
    return " -> ".join(_cut(text, start) for text in (old, new))


def _cut(text: str, start: int) -> str:
    end = start + _MAX_SHOWN_CHARS
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")
