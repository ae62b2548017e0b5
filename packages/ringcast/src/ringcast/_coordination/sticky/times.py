"""The times of exclusive ownership, and the clock that they are measured on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from ringcast_wire import InvalidInputError, StoreSettings, check_ownership_times

from ringcast._protocol.sticky.fence import FenceTimes
from ringcast._protocol.sticky.leader import LeaderTimes

Clock: TypeAlias = Callable[[], float]
"""Seconds of a monotonic clock that goes on while the machine sleeps."""


def steady_clock() -> float:
    """The clock of fences. The one of the event loop may stand still while a machine sleeps, and the fence with it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def loop_time(at: float | None, clock: Clock) -> float | None:
    """A time of ``clock`` as one of the running loop."""
    return None if at is None else asyncio.get_running_loop().time() + at - clock()


@dataclass(frozen=True, slots=True, kw_only=True)
class StickyTimes:
    """In seconds. A session is refreshed every ``refresh_s``; sessions are read every ``read_s``, the table is read
    every ``check_s`` beside the watch.

    Raises:
        InvalidInputError: a session would be refreshed, or the others be read, fewer than two times before its fence.
    """

    fence: FenceTimes = field(default_factory=FenceTimes)
    leader: LeaderTimes = field(default_factory=LeaderTimes)
    refresh_s: float = 2.5
    read_s: float = 1.0
    check_s: float = 5.0
    report_s: float = 10.0
    """How often a worker measures loads, and a leader reads what workers report of them."""

    @property
    def half_life_s(self) -> float:
        """After so long a change counts half in a load."""
        return 3 * self.report_s

    @classmethod
    def of(cls, settings: StoreSettings) -> StickyTimes:
        """The times of a store, which all of its workers have to have alike.

        Raises:
            InvalidInputError: one is missing, or they prove nothing: the bound on calls does not go with the lease.
        """
        ttl_ms, call_ms = check_ownership_times(settings.lease_ttl_ms, settings.call_bound_ms)
        fence = FenceTimes(ttl_ms, call_ms)
        ttl_s = fence.ttl_s
        report_s = min(10.0, max(1.0, ttl_s))
        return cls(
            fence=fence,
            leader=LeaderTimes(rest_s=6 * report_s),
            refresh_s=ttl_s / 4,
            read_s=min(1.0, ttl_s / 10),
            check_s=max(1.0, ttl_s / 2),
            report_s=report_s,
        )

    def __post_init__(self) -> None:
        most = self.fence.serve_s / 2
        for name, value in (("refresh_s", self.refresh_s), ("read_s", self.read_s)):
            if not 0 < value <= most:
                raise InvalidInputError(
                    f"{name} must be above 0 and at most {most:g} seconds, got {value:g}", field=name
                )
