"""How many rows a second a store takes, dealt out fairly to the principals that write to it.

A store with the policy ``max_rows_per_second`` has a bucket of rows, which fills at that rate up to ``burst_rows``. A
request begins when the bucket has as many rows as it has. While requests wait, what comes into the bucket is dealt out
to their principals in equal parts: one that needs less than its part leaves the rest to the others, so that a principal
with many connections, or a bulk write, takes nothing from one that writes a row now and then. Requests of one principal
begin in the order in which they came.

A request that is refused is told when to come again. Until then its principal goes on getting its part, up to what the
request needs: otherwise one whose large requests take longer than anybody waits here would never write a row, while
others ask all the time.

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
"""How long a single call waits for its rows, and half of the time that its client waits at most."""
STREAM_WAIT_S: Final = 5.0
"""The same of a batch or change of a stream: its client waits for 10 s by default."""
_NEAR: Final = 1e-9
_MAX_BUCKETS: Final = 4 * limits.MAX_STORES
_MAX_RETRY_S: Final = 60.0
_COME_BACK_S: Final = 5.0
"""For how much longer than it was told to wait a part is kept for one that was refused."""
_MAX_LINES: Final = 1_024
"""Principals of one store beyond which nothing is kept for those that were refused."""


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
    """The requests of one principal that wait, and what has been dealt out for the first of them; where none waits, for
    ``kept`` rows of one that was refused and may come again until ``until_s``."""

    __slots__ = ("claims", "credit", "kept", "until_s")

    def __init__(self) -> None:
        self.claims: deque[Claim] = deque()
        self.credit = 0.0
        self.kept = 0
        self.until_s = 0.0

    @property
    def need(self) -> float:
        return (self.claims[0].rows if self.claims else self.kept) - self.credit


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
        return not any(line.claims for line in self._lines.values())

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

    def remove(self, claim: Claim, now_s: float, keep_s: float = 0.0) -> None:
        """A request waits no longer; what was dealt out for it goes back, unless it comes again within ``keep_s``."""
        self.advance(now_s)
        line = self._lines.get(claim.principal)
        if line is None or claim not in line.claims:
            return
        line.claims.remove(claim)
        if keep_s and len(self._lines) <= _MAX_LINES:
            line.kept, line.until_s = claim.rows, now_s + keep_s
        self._close(claim.principal, line)
        self.advance(now_s)

    def advance(self, now_s: float) -> None:
        """Deals out what has come in."""
        self._free += self._rate * max(0.0, now_s - self._at_s)
        self._at_s = max(self._at_s, now_s)
        for principal, line in list(self._lines.items()):
            self._close(principal, line)
        while lines := self._in_need():
            least = max(0.0, min(line.need for _, line in lines))
            part = min(least, self._free / len(lines))
            self._free = max(0.0, self._free - part * len(lines))
            for _, line in lines:
                line.credit += part
            if part < least:
                break
            for principal, line in lines:
                if line.claims and line.need <= _NEAR:
                    line.credit = max(0.0, -line.need)
                    claim = line.claims.popleft()
                    line.kept = max(0, line.kept - claim.rows)
                    self._close(principal, line)
                    claim.may_begin = True
                    claim.on_grant()
        self._free = min(self._burst, self._free)

    def _in_need(self) -> list[tuple[str, _Line]]:
        """Those to which something is dealt out."""
        return [(principal, line) for principal, line in self._lines.items() if line.claims or line.need > _NEAR]

    def _close(self, principal: str, line: _Line) -> None:
        """Forgets a principal of which nothing waits and for which nothing is kept."""
        if not line.claims and (not line.kept or line.until_s <= self._at_s):
            self._free += line.credit
            del self._lines[principal]

    def next_s(self) -> float:
        """Seconds until the next request may begin, or another gets a larger part, if nothing else happens."""
        lines = self._in_need()
        return max(0.0, min(line.need for _, line in lines)) * len(lines) / self._rate

    def wait_s(self, claim: Claim) -> float:
        """Seconds until a request that waits may begin, if the others stay as many."""
        line = self._lines[claim.principal]
        before = -line.credit
        for other in line.claims:
            before += other.rows
            if other is claim:
                break
        return before * len(self._in_need()) / self._rate


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
        keep_s = 0.0
        try:
            async with asyncio.timeout(most_s):
                await granted
        except TimeoutError:
            if claim.may_begin:  # at the same moment
                return
            wait_s = min(_MAX_RETRY_S, max(0.001, bucket.wait_s(claim)))
            keep_s = wait_s + _COME_BACK_S
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
            bucket.remove(claim, self._clock(), keep_s)
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
