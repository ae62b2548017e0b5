"""How many rows a second a store takes, dealt out fairly to the principals that write to it.

A store with the policy ``max_rows_per_second`` has a bucket of rows, which fills at that rate up to ``burst_rows``. A
request begins when the bucket has as many rows as it has. While requests wait, what comes into the bucket is dealt out
to their principals in equal parts: one that needs less than its part leaves the rest to the others, so that a principal
with many connections, or a bulk write, takes nothing from one that writes a row now and then. Requests of one principal
begin in the order in which they came.

Each instance of the service has a bucket of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from ringcast_wire import LimitExceededError, StorePolicy, limits

from ringcast_config_service.caller import Caller
from ringcast_config_service.repository import StoreRecord
from ringcast_config_service.telemetry import Measures

CALL_WAIT_S: Final = 1.0
"""How long a single call waits for its rows."""
STREAM_WAIT_S: Final = 10.0
"""The same of a batch or change of a stream: its client waits for 30 s by default."""
_NEAR: Final = 1e-9
_MAX_BUCKETS: Final = 4 * limits.MAX_STORES
_MAX_RETRY_S: Final = 60.0


class Claim:
    """A request that waits, or has waited, for its rows."""

    __slots__ = ("may_begin", "on_grant", "principal", "rows")

    def __init__(self, principal: str, rows: int, on_grant: Callable[[], None] = lambda: None) -> None:
        """``on_grant`` is called once the request may begin."""
        self.principal = principal
        self.rows = rows
        self.on_grant = on_grant
        self.may_begin = False


class _Line:
    """The requests of one principal that wait, and what has been dealt out for the first of them."""

    __slots__ = ("claims", "credit")

    def __init__(self) -> None:
        self.claims: deque[Claim] = deque()
        self.credit = 0.0

    @property
    def need(self) -> float:
        return self.claims[0].rows - self.credit


class FairBucket:
    """Decides when requests may begin. Times are in seconds, of any clock that never goes back."""

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        self._rate = rate
        self._burst = burst
        self._free = burst
        self._at_s = now_s
        self._lines: dict[str, _Line] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits."""
        return not self._lines

    def change(self, rate: float, burst: float, now_s: float) -> None:
        """Another policy counts from now on."""
        if (rate, burst) != (self._rate, self._burst):
            self.advance(now_s)
            self._rate, self._burst = rate, burst
            self._free = min(self._free, burst)

    def add(self, claim: Claim, now_s: float) -> None:
        """A request has come; it may begin at once."""
        self.advance(now_s)
        self._lines.setdefault(claim.principal, _Line()).claims.append(claim)
        self.advance(now_s)

    def remove(self, claim: Claim, now_s: float) -> None:
        """A request waits no longer; what was dealt out for it goes back."""
        self.advance(now_s)
        line = self._lines.get(claim.principal)
        if line is None or claim not in line.claims:
            return
        line.claims.remove(claim)
        if not line.claims:
            del self._lines[claim.principal]
            self._free = min(self._burst, self._free + line.credit)
            self.advance(now_s)

    def advance(self, now_s: float) -> None:
        """Deals out what has come in."""
        free = self._free + self._rate * max(0.0, now_s - self._at_s)
        self._at_s = max(self._at_s, now_s)
        while self._lines:
            lines = list(self._lines.items())
            least = max(0.0, min(line.need for _, line in lines))
            part = min(least, free / len(lines))
            free = max(0.0, free - part * len(lines))
            for _, line in lines:
                line.credit += part
            if part < least:
                break
            for principal, line in lines:
                if line.need <= _NEAR:
                    line.credit = max(0.0, -line.need)
                    claim = line.claims.popleft()
                    if not line.claims:
                        free += line.credit
                        del self._lines[principal]
                    claim.may_begin = True
                    claim.on_grant()
        self._free = min(self._burst, free)

    def next_s(self) -> float:
        """Seconds until the next request may begin, if nothing else happens."""
        return min(line.need for line in self._lines.values()) * len(self._lines) / self._rate

    def wait_s(self, claim: Claim) -> float:
        """Seconds until a request that waits may begin, if the others stay as many."""
        line = self._lines[claim.principal]
        before = -line.credit
        for other in line.claims:
            before += other.rows
            if other is claim:
                break
        return before * len(self._lines) / self._rate


class WriteRates:
    """The buckets of the stores that have a rate, by what the settings of the store say that a request came with."""

    def __init__(self, measures: Measures, clock: Callable[[], float] = time.monotonic) -> None:
        self._measures = measures
        self._clock = clock
        self._buckets: dict[str, FairBucket] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    async def take(self, store: StoreRecord, rows: int, caller: Caller, most_s: float) -> None:
        """Returns when a request of so many rows may begin.

        Raises:
            LimitExceededError: it would have had to wait for longer than ``most_s``.
        """
        rate = store.policy.max_rows_per_second
        if rate is None:
            return
        bucket = self._bucket(store.name, store.policy, rate)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        claim = Claim(caller.principal, rows, lambda: None if granted.done() else granted.set_result(None))
        bucket.add(claim, self._clock())
        if claim.may_begin:
            return
        self._wake_at_next(store.name, bucket)
        try:
            async with asyncio.timeout(most_s):
                await granted
        except TimeoutError:
            if claim.may_begin:  # at the same moment
                return
            wait_s = min(_MAX_RETRY_S, max(0.001, bucket.wait_s(claim)))
            self._measures.writes_slowed[store.name, "refused"] += 1
            raise LimitExceededError(
                f"store {store.name!r} takes {rate} rows a second by its policy max_rows_per_second: this write of "
                f"{rows} rows would have to wait for another {wait_s:.3g} s",
                field="max_rows_per_second",
                retry_after_s=wait_s,
            ) from None
        else:
            self._measures.writes_slowed[store.name, "waited"] += 1
        finally:
            bucket.remove(claim, self._clock())
            self._wake_at_next(store.name, bucket)

    def _bucket(self, name: str, policy: StorePolicy, rate: int) -> FairBucket:
        burst = max(rate, limits.MAX_BATCH_ROWS) if policy.burst_rows is None else policy.burst_rows
        bucket = self._buckets.get(name)
        if bucket is None:
            if len(self._buckets) >= _MAX_BUCKETS:  # of stores that are gone
                self._buckets = {name: one for name, one in self._buckets.items() if not one.is_idle}
            bucket = self._buckets[name] = FairBucket(rate, burst, self._clock())
        bucket.change(rate, burst, self._clock())
        return bucket

    def _wake_at_next(self, name: str, bucket: FairBucket) -> None:
        """Sets the timer of a bucket for the next request that may begin."""
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()
        if not bucket.is_idle:
            delay_s = max(0.0, bucket.next_s())
            self._timers[name] = asyncio.get_running_loop().call_later(delay_s, self._advance, name, bucket)

    def _advance(self, name: str, bucket: FairBucket) -> None:
        bucket.advance(self._clock())
        self._wake_at_next(name, bucket)
