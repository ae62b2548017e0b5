"""Which leases other workers have found ended. They act upon that, so waiting for such a lease is of no use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ringcast_wire import EndedLeases, NodeRecord, names

from ringcast._protocol.kv_mirror import KvMirror

_ENDED: Final = names.ENDED_PATTERN.partition(".")[0]


def is_given_up(nodes: KvMirror, lease: str, keys: Iterable[str]) -> bool:
    """Whether a worker has reported the end of a lease after each record of these keys that names it was written.

    A worker that reports an end has read it, has waited for its own grace to be over, and assigns partitions without
    the members of that lease. One that lives writes its records again when it is reported, or has lost its lease and
    has it again: an older report is of an end before that.
    """
    reports = (nodes.revision(name) for name in nodes.group(_ENDED) if lease in _reported(nodes, name))
    reported_at = max(reports, default=0)
    return reported_at > 0 and all(
        nodes.revision(name) < reported_at
        for key in keys
        for name in nodes.group(key)
        if name.count(".") == 1 and (node := nodes.get(name, NodeRecord)) is not None and node.lease == lease
    )


def _reported(nodes: KvMirror, name: str) -> tuple[str, ...]:
    report = nodes.get(name, EndedLeases)
    return report.leases if report is not None else ()
