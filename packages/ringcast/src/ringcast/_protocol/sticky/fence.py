"""The clocks of exclusive ownership: until when a worker may start calls, and after how long it can't have any.

Both sides measure durations on a clock of their own, so that only the rates of clocks matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from ringcast_wire import DEFAULT_CALL_BOUND_MS, DEFAULT_LEASE_TTL_MS, check_ownership_times

CLOCK_SKEW: Final = 0.01
"""How far the rate of a clock may be from that of true time, as a share."""


@dataclass(frozen=True, slots=True)
class FenceTimes:
    """``lease_ttl_ms``: how long a lease lasts after its refresh was sent. ``call_bound_ms``: the bound on one call.

    Raises:
        InvalidInputError: no store may have these times (``check_ownership_times``).
    """

    lease_ttl_ms: int = DEFAULT_LEASE_TTL_MS
    call_bound_ms: int = DEFAULT_CALL_BOUND_MS

    def __post_init__(self) -> None:
        check_ownership_times(self.lease_ttl_ms, self.call_bound_ms)

    @property
    def ttl_s(self) -> float:
        """How long a lease lasts, in seconds."""
        return self.lease_ttl_ms / 1000

    @property
    def call_s(self) -> float:
        """The bound on one handler call, in seconds."""
        return self.call_bound_ms / 1000

    @property
    def serve_s(self) -> float:
        """For so long after a refresh was asked for calls may start; each has ended within ``ttl_s``."""
        return self.ttl_s - self.call_s

    @property
    def give_away_s(self) -> float:
        """After so long without a refresh, on another clock, no call of the worker runs and none starts."""
        return self.ttl_s * (1 + CLOCK_SKEW) + self.call_s


class Fence:
    """Until when this worker may start calls, on its own monotonic clock."""

    def __init__(self, times: FenceTimes) -> None:
        self.times = times
        self.until = -math.inf

    def passed(self, now: float) -> bool:
        """Whether no call may start."""
        return now >= self.until

    def refreshed(self, asked_at: float) -> None:
        """A refresh that was asked for at ``asked_at`` has succeeded; answers may come in any order."""
        self.until = max(self.until, asked_at + self.times.serve_s)
