"""How a worker is: for probes, and for applications that want to know how old their rows may be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ringcast._cache import Cache
from ringcast._connection import Connection
from ringcast._session import KeySession


@dataclass(frozen=True, slots=True)
class KeyHealth:
    """One config key: ``loaded`` of the ``owned`` partitions have their rows; ``paused``: no events are taken in."""

    key: str
    owned: int
    loaded: int
    blocked_rows: int
    paused: bool
    staleness_s: float
    cached: int = 0
    """Owned partitions that are still as the cache on the disk had them."""
    refused_because: str = ""
    """Why the service's new history of the key is not taken, or nothing (``max_delete_share``)."""
    deleted_because: str = ""
    """What the service says of a key that is deleted, which this worker has given up, or nothing."""


@dataclass(frozen=True, slots=True)
class CacheHealth:
    """The cache on the disk. ``restored_rows`` of ``restored_partitions`` were read from it at the start."""

    path: str
    restored_partitions: int
    restored_rows: int
    behind: int
    """Partitions that have changed since they were written."""
    failing_because: str
    """Why it can't be written at the moment, or nothing."""
    set_aside_because: str
    """Why a file was set aside in this life, or nothing."""


@dataclass(frozen=True, slots=True)
class Health:
    """A worker at one moment. One that is not ``ready`` still serves the rows that it has."""

    connected: bool
    lease_held: bool
    staleness_s: float
    keys: tuple[KeyHealth, ...]
    cache: CacheHealth | None = None
    """``None`` for a worker without one."""
    by_agent: bool = False
    """Whether the agent of the host keeps the lease."""

    @property
    def ready(self) -> bool:
        """Whether it is connected, counts as alive, has all its rows and hears of changes."""
        loaded = all(key.loaded == key.owned and not key.refused_because for key in self.keys)
        return self.connected and self.lease_held and self.staleness_s == 0 and loaded and bool(self.keys)


def staleness_s(connection: Connection, sessions: Iterable[KeySession]) -> float:
    """Seconds for which changes may have been missed; 0 while there is a connection and the service answers."""
    return max([connection.lost_for_s, *(session.staleness_s for session in sessions)])


def key_health(session: KeySession) -> KeyHealth:
    """The health of one key."""
    partitions = list(session.machine.partitions.values())
    return KeyHealth(
        session.key,
        owned=len(partitions),
        loaded=sum(partition.live and not partition.replace for partition in partitions),
        blocked_rows=len(session.applier.poison.blocked()),
        paused=session.paused,
        staleness_s=session.staleness_s,
        cached=sum(partition.cached for partition in partitions),
        refused_because=session.refused_because,
        deleted_because=str(session.deletion or ""),
    )


def cache_health(cache: Cache) -> CacheHealth:
    """The health of the cache."""
    return CacheHealth(
        str(cache.place.path),
        cache.restored_partitions,
        cache.restored_rows,
        cache.behind,
        cache.failing_because,
        cache.set_aside_because,
    )
