"""For how long changes of a config key may have been missed, or have waited to be handed over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from ringcast._bus.bus import Bus
from ringcast._common.place import read_place
from ringcast._delivery.handler import Applier
from ringcast._protocol.key import KeyMachine
from ringcast._worker.anti_entropy import AntiEntropy
from ringcast._worker.fetches import KeyFetches
from ringcast._worker.vitals import Vitals


class KeyStaleness:
    """Of one key, in seconds; 0 where nothing is late. Any thread may ask."""

    def __init__(
        self,
        bus: Bus,
        machine: KeyMachine,
        *,
        fetches: KeyFetches,
        anti_entropy: AntiEntropy,
        applier: Applier,
        vitals: Vitals,
        handler_stall_s: float,
    ) -> None:
        self._bus = bus
        self._machine = machine
        self._fetches = fetches
        self._anti_entropy = anti_entropy
        self._applier = applier
        self._vitals = vitals
        self._handler_stall_s = handler_stall_s
        self._loop = asyncio.get_running_loop()
        self._gained_at: dict[int, float] = {}
        self._refused_at = 0.0

    def owned(self, partitions: Iterable[int]) -> None:
        """These partitions are owned from now on."""
        now = self._loop.time()
        self._gained_at = {number: self._gained_at.get(number, now) for number in partitions}

    def refused(self) -> None:
        """The service's history of the key is refused from now on."""
        self._refused_at = self._loop.time()

    @property
    def total_s(self) -> float:
        """The longest of all."""
        return max(
            self._bus.lost_for_s,
            self.unanswered_for_s,
            self.unfetched_for_s,
            self.cached_age_s,
            self.refused_for_s,
            self.unloaded_for_s,
            self.stalled_for_s,
            self._vitals.failing_for_s,
        )

    def since_s(self, at: float) -> float:
        """How long ago that was, by the clock of the event loop. From any thread."""
        return max(0.0, self._loop.time() - at)

    @property
    def handler_running_s(self) -> float:
        """For how long the oldest call of the handler has been running, with its retries; 0 when none is."""
        return self._applier.calls.oldest_s

    @property
    def stalled_for_s(self) -> float:
        """For how long the handler or a callback has been running, if that is so long that it counts as stalled."""
        running_s = max(self.handler_running_s, self._applier.callback_running_s)
        return running_s if running_s > self._handler_stall_s else 0.0

    @property
    def oldest_unapplied_s(self) -> float:
        """The age of the oldest change that is known of and not applied yet: of its event, by the broker's clock, or
        for how long it can't be fetched or its partition is without rows."""
        tokens = (token for partition in list(self._machine.partitions.values()) for token in partition.unacknowledged)
        stored_ns = [place.stored_ns for place in map(read_place, tokens) if place is not None]
        waiting_s = max(0.0, (time.time_ns() - min(stored_ns)) / 1e9) if stored_ns else 0.0
        return max(waiting_s, self.unfetched_for_s, self.unloaded_for_s)

    @property
    def unanswered_for_s(self) -> float:
        """For how long the service has not answered what its head revisions are."""
        since = self._anti_entropy.unanswered_since  # once, for another thread may ask
        return 0.0 if since is None else self._loop.time() - since

    @property
    def unfetched_for_s(self) -> float:
        """For how long changes that are known of can't be fetched."""
        since = self._fetches.failing_since
        return 0.0 if since is None else self._loop.time() - since

    @property
    def refused_for_s(self) -> float:
        """For how long the service's history of the key has been refused."""
        if self._machine.history.refusal is None:
            return 0.0
        return self._loop.time() - self._refused_at

    @property
    def cached_age_s(self) -> float:
        """How old the oldest of the partitions is that still are as the cache on disk had them."""
        partitions = list(self._machine.partitions.values())
        as_of = [partition.as_of for partition in partitions if partition.cached and partition.owned]
        return self._loop.time() - min(as_of) if as_of else 0.0

    @property
    def unloaded_for_s(self) -> float:
        """For how long the longest-owned partition without rows has been owned."""
        partitions = list(self._machine.partitions.items())
        waiting = [number for number, part in partitions if part.owned and not part.live and not part.cached]
        since = [at for number in waiting if (at := self._gained_at.get(number)) is not None]
        return self._loop.time() - min(since) if since else 0.0
