"""Until when a write may still be written.

For a client that no longer waits for a write the outcome is not known. It, or any other client, may write the row
again, and that write must not be overtaken by the old one, however long the instance with the old one hangs, and
whatever instance commits the new one. So a request has a permit, and the plan checks the permit: *after* the
transaction has locked the heads of its partitions, in each attempt.

Why that is enough. Say the client gives up at t1 and the new write arrives at t2 > t1. A permit expires at t1 or before
(see below), or is withdrawn. If the old transaction finds its permit valid, it does so before t1 and has the locks; the
new one needs the same locks, so it comes after the old one's commit or end. If it finds the permit expired, nothing is
written. A head that is not there can't be locked, but then the one that is second to create it begins again, and checks
the permit again (repository/postgres/session.py). In SQLite the lock is that of the file, taken before the plan.

Why it expires no later than t1. It does on the clock of the instance, which counts while a process or a host sleeps. A
client of a stream learns that clock from the stream's initial metadata. What it takes the clock to be is late by the
time that the metadata took to arrive, so the time t1 that it computes on that clock is before the true t1. A virtual
machine whose clock is stopped and not corrected afterwards is not covered: there an instance has to be ended first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from ringcast_wire import UnavailableError

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock_s() -> float:
    """Seconds of a clock that never goes back, and counts while the process or the host sleeps."""
    return time.clock_gettime(_CLOCK)


def _not_withdrawn() -> bool:
    return False


class Permit:
    """Of one request. ``expires_s`` is on :func:`clock_s`; ``withdrawn``: whether no call waits any more."""

    __slots__ = ("expires_s", "withdrawn")

    def __init__(self, expires_s: float = math.inf) -> None:
        self.expires_s = expires_s
        self.withdrawn: Callable[[], bool] = _not_withdrawn

    @property
    def left_s(self) -> float:
        """How long its caller still waits, at least."""
        return max(0.0, self.expires_s - clock_s())

    def check(self) -> None:
        """Called with the locks held, from any thread.

        Raises:
            UnavailableError: the request must not be written any more.
        """
        if self.withdrawn():
            raise UnavailableError("the caller is gone: the write was not written")
        if self.expires_s <= clock_s():
            raise UnavailableError("the write did not begin in the time that its caller waits: it was not written")
