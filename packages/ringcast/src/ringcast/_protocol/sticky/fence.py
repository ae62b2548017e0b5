"""The clocks of exclusive ownership: until when a worker may start calls, and after how long it can't have any.

Both sides measure durations on a clock of their own, so that only the rates of clocks matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from ringcast_wire import InvalidInputError, limits

CLOCK_SKEW: Final = 0.01
"""How far the rate of a clock may be from that of true time, as a share."""
DEFAULT_CALL_S: Final = 1.0
"""The default bound on one handler call."""


@dataclass(frozen=True, slots=True)
class FenceTimes:
    """``ttl_s``: how long a lease lasts after a refresh was asked for. ``call_s``: the bound on one handler call.

    Raises:
        InvalidInputError: ``ttl_s`` is not 0.1 to 3600, or ``call_s`` not 2.5 % to 50 % of it. A shorter bound would
            not cover two clocks that differ by as much as ``CLOCK_SKEW`` allows.
    """

    ttl_s: float = limits.LEASE_TTL_S
    call_s: float = DEFAULT_CALL_S

    def __post_init__(self) -> None:
        _check("ttl_s", self.ttl_s, 0.1, 3600.0)
        _check("call_s", self.call_s, 2.5 * CLOCK_SKEW * self.ttl_s, self.ttl_s / 2)

    @property
    def serve_s(self) -> float:
        """For so long after a refresh was asked for calls may start; each has ended within ``ttl_s``."""
        return self.ttl_s - self.call_s

    @property
    def give_away_s(self) -> float:
        """After so long without a refresh, on another clock, no call of the worker runs and none starts."""
        return self.ttl_s * (1 + CLOCK_SKEW) + self.call_s


def _check(field: str, value: float, least: float, most: float) -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise InvalidInputError(f"{field} must be between {least:g} and {most:g} seconds, got {value:g}", field=field)


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
