"""The health of a worker: for probes, and for applications that need to know how old their rows may be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ringcast._bus.bus import Bus
from ringcast._cache.cache import Cache
from ringcast._worker.session import KeySession


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
    failing_because: str = ""
    """Why the worker can't be registered for the key, gets no events of it or can't read leases, or nothing."""
    withdrawn: bool = False
    """Whether it has left its partitions to other workers for that."""
    assigned: bool = True
    """Whether it is known which partitions are owned."""
    joining: bool = False
    """Whether the worker waits for its share: others own all partitions until ``stabilisation_s`` has passed."""
    unloaded_for_s: float = 0.0
    """How long one of the ``owned`` partitions has been without rows."""
    split_because: str = ""
    """Why the key is not fetched whole, in mode FULL, but by partitions; nothing once all are loaded."""
    unfetched_for_s: float = 0.0
    """For how long fetches have failed, of rows or of changes that are known of."""
    handler_running_s: float = 0.0
    """How long the handler, its further tries and the poison policy have been at a change."""
    callback_running_s: float = 0.0
    """How long ``on_assigned`` or ``on_revoked`` has been running."""
    call_over_bound_s: float = 0.0
    """In a store of exclusive ownership, how long a call has been running that is over the store's bound on calls."""
    unopened_values: int = 0
    """How often an encrypted value could not be opened since the start: its change went the way of one whose handler
    fails."""
    handler_stalled: bool = False
    """Whether either is longer than ``handler_stall_s``: changes wait behind it."""

    @property
    def ready(self) -> bool:
        """Whether all its rows are there, and changes come and go through."""
        return not (
            not (self.assigned or self.joining)
            or self.loaded < self.owned
            or self.refused_because
            or self.failing_because
            or self.withdrawn
            or self.unfetched_for_s
            or self.handler_stalled
        )


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
    quarantined_because: str
    """Why a file was quarantined since the start, or nothing."""


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
    end_seen: bool = False
    """Whether that agent sees this process end: in a store of exclusive ownership its death is known at once then."""
    login_refused: str = ""
    """Why it is not connected, where NATS refuses its login: at which servers and with which words; or nothing. It goes
    on trying, and reads the files of its login each time."""
    refused_subjects: tuple[str, ...] = ()
    """What NATS has not let this user publish or subscribe to within the last minute."""
    refused_consumers: tuple[str, ...] = ()
    """The consumers that it may not pull from: changes show late: only comparisons find them."""

    @property
    def ready(self) -> bool:
        """Whether it is connected, counts as alive, has all its rows, gets changes and hands them over."""
        good = all(key.ready for key in self.keys)
        reached = self.connected and self.lease_held and not self.refused_consumers
        return reached and self.staleness_s == 0 and good and bool(self.keys)


def staleness_s(bus: Bus, sessions: Iterable[KeySession]) -> float:
    """Seconds for which changes may have been missed, or have waited to be handed over; 0 if none is known of."""
    return max([bus.lost_for_s, *(session.staleness_s for session in sessions)])


def key_health(session: KeySession) -> KeyHealth:
    """The health of one key."""
    partitions = [partition for partition in list(session.machine.partitions.values()) if partition.owned]
    loaded = sum(partition.live and not partition.replace for partition in partitions)
    return KeyHealth(
        session.key,
        owned=len(partitions),
        loaded=loaded,
        blocked_rows=len(session.applier.poison.blocked()),
        paused=session.machine.paused,
        staleness_s=session.staleness_s,
        cached=sum(partition.cached for partition in partitions),
        refused_because=session.journal.reason(session.machine.history.refusal),
        deleted_because=str(session.ownership.deletion or ""),
        failing_because=session.vitals.failing_because,
        withdrawn=session.vitals.withdrawn,
        assigned=session.vitals.assigned,
        joining=session.vitals.joining,
        unloaded_for_s=session.staleness.unloaded_for_s,
        split_because=session.fetches.split_because if loaded < len(partitions) else "",
        unfetched_for_s=session.staleness.unfetched_for_s,
        handler_running_s=session.staleness.handler_running_s,
        callback_running_s=session.applier.callback_running_s,
        call_over_bound_s=session.applier.gate.over_bound_s if session.applier.gate is not None else 0.0,
        unopened_values=session.machine.stats.unopened,
        handler_stalled=session.staleness.stalled_for_s > 0,
    )


def cache_health(cache: Cache) -> CacheHealth:
    """The health of the cache."""
    return CacheHealth(
        str(cache.place.path),
        cache.restored_partitions,
        cache.restored_rows,
        cache.behind,
        cache.failing_because,
        cache.quarantined_because,
    )
