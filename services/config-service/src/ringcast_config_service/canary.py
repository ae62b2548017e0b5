"""Which partitions the workers with a label own, as one round of reports says. It is decided without NATS."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain
from typing import NamedTuple

from ringcast_wire.reports import ReportRound

from ringcast_config_service.proof import Fleet, Lack, agreement, counted, incomplete, ownership


class LabelledOwners(NamedTuple):
    """Of one key: the workers with a label, and which of the partitions that were asked for they own.

    ``shared``: other workers own partitions of the key. ``lack``: why none of this is known.
    """

    workers: tuple[str, ...] = ()
    partitions: frozenset[int] = frozenset()
    shared: bool = False
    lack: Lack | None = None


def labelled_owners(
    label: str, key: str, partitions: Collection[int], before: Fleet, found: ReportRound, after: Fleet
) -> LabelledOwners:
    """Who owns which of ``partitions``, if all workers have answered and agree. A key without workers has no owners."""
    if not before.living and not before.unreadable:
        return LabelledOwners()
    reports = counted(before, found)
    owners: dict[int, list[str]] = {number: [] for number in sorted(partitions)}
    for name, report in reports.items():
        for number, _ in report.partitions():
            if number in owners:
                owners[number].append(name)
    lacks = chain(incomplete(key, before, found, after), agreement(key, before, found), ownership(key, owners))
    if (lack := next(lacks, None)) is not None:
        return LabelledOwners(lack=lack)
    workers = {name for name, report in reports.items() if label in report.labels}
    return LabelledOwners(
        tuple(sorted(workers)),
        frozenset(number for number, (owner,) in owners.items() if owner in workers),
        any(report.spans for name, report in reports.items() if name not in workers),
    )
