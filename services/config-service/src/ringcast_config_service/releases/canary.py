"""Which partitions the workers with a label own, as one round of reports says. It is decided without NATS.

In a store of mode FULL every worker owns all: there it is said which workers have the label, and whether others live.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain
from typing import NamedTuple

from ringcast_wire.reports import ReportRound

from ringcast_config_service.releases.proof import Fleet, Lack, agreement, counted, incomplete, ownership


class LabelledOwners(NamedTuple):
    """Of one key: the workers with a label, and which of the partitions that were asked for they own.

    ``shared``: other workers own partitions of the key. ``lack``: why none of this is known.
    """

    workers: tuple[str, ...] = ()
    partitions: frozenset[int] = frozenset()
    shared: bool = False
    lack: Lack | None = None


def labelled_owners(
    label: str,
    key: str,
    partitions: Collection[int],
    before: Fleet,
    found: ReportRound,
    after: Fleet,
    *,
    full: bool = False,
) -> LabelledOwners:
    """Who owns which of ``partitions``, if all workers have answered and agree. A key without workers has no owners.

    ``full``: every worker owns all.
    """
    if not before.living and not before.unreadable:
        return LabelledOwners()
    reports = counted(before, found)
    workers = {name for name, report in reports.items() if label in report.labels}
    shared = any(report.spans for name, report in reports.items() if name not in workers)
    if full:
        if (lack := next(incomplete(key, before, found, after), None)) is not None:
            return LabelledOwners(lack=lack)
        return LabelledOwners(tuple(sorted(workers)), frozenset(partitions) if workers else frozenset(), shared)
    owners: dict[int, list[str]] = {number: [] for number in sorted(partitions)}
    for name, report in reports.items():
        for number, _ in report.partitions():
            if number in owners:
                owners[number].append(name)
    lacks = chain(incomplete(key, before, found, after), agreement(key, before, found), ownership(key, owners))
    if (lack := next(lacks, None)) is not None:
        return LabelledOwners(lack=lack)
    owned = frozenset(number for number, (owner,) in owners.items() if owner in workers)
    return LabelledOwners(tuple(sorted(workers)), owned, shared)
