"""What an agent knows of processes that it has seen end.

An agent keeps no session for its workers: a worker refreshes its own, and its fence is its own affair. But an agent
knows what no lease can show: that a process has ended. The kernel says so. A process that has ended runs no call, and
starts none. So its sessions are over at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from ringcast_wire.ended_sessions import MAX_GONE, Span


class Witness:
    """What one agent knows of the workers of one store, by processes. Nothing here waits, and no clock is needed.

    What is said once stays true: so it is never taken back, and the oldest only makes room.
    """

    def __init__(self) -> None:
        self._spans: dict[Hashable, dict[str, tuple[str, Span]]] = {}
        """Of processes that are not known to have ended: by key, the worker id and its sessions."""
        self._gone: dict[str, dict[str, Span]] = {}

    def reported(self, process: Hashable, worker_id: str, key: str, span: Span) -> None:
        """A process says which sessions of a key it has had. It said so itself, and of itself."""
        self._spans.setdefault(process, {})[key] = worker_id, span

    def forget(self, process: Hashable) -> None:
        """The process is not looked after any more, and may live."""
        self._spans.pop(process, None)

    def ended(self, process: Hashable) -> frozenset[str]:
        """The kernel says that the process has ended; returns the keys whose records are others now."""
        spans = self._spans.pop(process, {})
        for key, (worker_id, span) in spans.items():
            gone = self._gone.setdefault(key, {})
            before = gone.pop(worker_id, None)
            # Two processes of one id may end in another order than they began.
            gone[worker_id] = span if before is None or span.last > before.last else before
            while len(gone) > MAX_GONE:
                del gone[next(iter(gone))]
        return frozenset(spans)

    def record(self, key: str) -> Mapping[str, Span]:
        """What is to be said of a key."""
        return self._gone.get(key, {})
