"""The bucket of the simulation of exclusive ownership: compare-and-set, expiry, losses, and readers that lag behind."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from fnmatch import fnmatch
from operator import itemgetter


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as the store has it."""

    revision: int
    incarnation: int
    stored_at: float


class Store:
    """Leases and other records, of one count of revisions.

    Leases expire by the server's clock; what is read of them may be as old as ``lag_s``.
    """

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self.revision = 0
        self.leases: dict[str, Lease] = {}
        self._past: list[tuple[float, dict[str, Lease]]] = []
        self.nodes: dict[str, tuple[int, bytes]] = {}
        self.is_compared = True

    def put_lease(self, name: str, incarnation: int, last: int, now: float) -> tuple[int, Lease | None]:
        """The new revision, or 0 and what stands there."""
        self._expire(now)
        found = self.leases.get(name)
        if (found.revision if found else 0) != last:
            return 0, found
        self.revision += 1
        self.leases[name] = Lease(self.revision, incarnation, now)
        self._remember(now)
        return self.revision, None

    def drop_lease(self, name: str, now: float) -> None:
        self.leases.pop(name, None)
        self._remember(now)

    def read_leases(self, now: float, lag_s: float) -> dict[str, int]:
        self._expire(now)
        past = bisect_right(self._past, now - lag_s, key=itemgetter(0))
        return {name: lease.revision for name, lease in (self._past[past - 1][1] if past else {}).items()}

    def put(self, name: str, value: bytes, last: int, among: str = "") -> int:
        """The new revision, or 0 where it is not ``last``, or the newest ``among`` names of a pattern is not."""
        compared = [one for one in self.nodes if fnmatch(one, among)] if among else [name]
        newest = max((self.nodes[one][0] for one in compared if one in self.nodes), default=0)
        if newest != last and (self.is_compared or not name.endswith(".lead.table")):
            return 0
        self.revision += 1
        self.nodes[name] = self.revision, value
        return self.revision

    def lose(self, name: str) -> None:
        """A record is not there any more, and nothing tells of it."""
        self.nodes.pop(name, None)

    def _expire(self, now: float) -> None:
        for name, lease in list(self.leases.items()):
            if now - lease.stored_at >= self._ttl_s:
                self.drop_lease(name, now)

    def _remember(self, now: float) -> None:
        self._past.append((now, dict(self.leases)))
        if len(self._past) > 400:
            del self._past[:200]
