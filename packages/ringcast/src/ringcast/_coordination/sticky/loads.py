"""Reports of loads: what a worker writes of its partitions, and what a leader reads of all workers.

They are records of their own, which no watch tells of: a leader reads those of its key with one request now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final

from ringcast_wire import EventLog, ProtocolError, names

from ringcast._bus.buckets import Bucket, ConflictError
from ringcast._bus.bus import TRANSIENT
from ringcast._coordination.sticky.times import Clock, StickyTimes
from ringcast._protocol.sticky.leader import TOUCH_S
from ringcast._protocol.sticky.loads import KeyLoad, LoadMeter, decode_loads, encode_loads, reported

_NOTICEABLE: Final = 0.1
"""Loads are reported again once they differ by this share of what was reported."""
_LEAST: Final = 100
"""Or by so many thousandths of a change a second, if that is more."""
_RECORDS_AT_ONCE: Final = 200


class LoadReporter:
    """Writes the loads of one worker. ``revisions``: what each partition of a key that it owns is at."""

    def __init__(
        self,
        bucket: Bucket,
        worker_id: str,
        keys: tuple[str, ...],
        revisions: Callable[[str], Mapping[int, int]],
        times: StickyTimes,
        clock: Clock,
        log: EventLog,
    ) -> None:
        self._bucket = bucket
        self._name = names.load_key(worker_id)
        self._revisions = revisions
        self._times = times
        self._clock = clock
        self._log = log
        self._meters = {key: LoadMeter(times.half_life_s) for key in keys}
        self._last = 0
        self._reported: dict[str, KeyLoad] = {}
        self._reported_at: float | None = None
        self._totals: Mapping[str, float] = {}

    def load(self, key: str) -> float:
        """The changes a second of the partitions of a key. From any thread."""
        return self._totals.get(key, 0.0)

    async def run(self) -> None:
        """Reports until cancelled, as often as loads are noticeably others."""
        while True:
            await asyncio.sleep(self._times.report_s)
            now = self._clock()
            for key, meter in self._meters.items():
                meter.look(self._revisions(key), now)
            rates = {key: meter.rates() for key, meter in self._meters.items()}
            self._totals = {key: sum(found.values()) for key, found in rates.items()}
            loads = reported(rates)
            is_due = self._reported_at is None or now >= self._reported_at + TOUCH_S
            if (loads and is_due) or differ(self._reported, loads):
                await self._report(loads, now)

    async def _report(self, loads: dict[str, KeyLoad], now: float) -> None:
        try:
            async with asyncio.timeout(self._times.report_s):
                self._last = await self._bucket.put(self._name, encode_loads(loads), last=self._last)
        except ConflictError:
            await self._look()  # that of a process before, or a write whose answer was lost: the next one replaces it
        except TRANSIENT as error:
            self._log.debug("loads.report_failed", error=error)
        else:
            self._reported, self._reported_at = loads, now

    async def _look(self) -> None:
        try:
            entry = await self._bucket.get(self._name)
        except TRANSIENT as error:
            self._log.debug("loads.report_failed", error=error)
        else:
            self._last = entry.revision if entry is not None else 0


def differ(before: Mapping[str, KeyLoad], after: Mapping[str, KeyLoad]) -> bool:
    """Whether loads are so different that they are to be reported again."""
    if before.keys() != after.keys():
        return True
    for key, now in after.items():
        was = before[key]
        old, new = dict(was.top), dict(now.top)
        if was.measured != now.measured or old.keys() != new.keys():
            return True
        moved = sum(abs(rate - old[number]) for number, rate in new.items()) + abs(was.total - now.total)
        if moved > max(_LEAST, _NOTICEABLE * was.total):
            return True
    return False


async def read_loads(bucket: Bucket, workers: Collection[str], log: EventLog) -> dict[str, dict[str, KeyLoad]]:
    """What these workers report, by key and worker; a report that can't be read counts for nothing.

    Raises:
        UnavailableError, BusError, TimeoutError: one of the answers has not come, or is not whole.
    """
    found: dict[str, dict[str, KeyLoad]] = {}
    ordered = sorted(workers)
    for start in range(0, len(ordered), _RECORDS_AT_ONCE):
        asked = ordered[start : start + _RECORDS_AT_ONCE]
        entries = await bucket.read([names.load_key(worker_id) for worker_id in asked], "loads")
        for worker_id in asked:
            entry = entries.get(names.load_key(worker_id))
            if entry is None or entry.data is None:
                continue
            try:
                loads = decode_loads(entry.data)
            except ProtocolError as error:
                log.debug("loads.unreadable", worker=worker_id, error=error)
                continue
            for key, load in loads.items():
                found.setdefault(key, {})[worker_id] = load
    return found
