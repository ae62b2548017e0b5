"""How many events of a config key may wait for its handler, so that each is applied long before NATS wants an answer.

By Little's law (L = λ·W; J. D. C. Little, "A Proof for the Queuing Formula", Operations Research 9, 1961) an event that
finds L others before it waits for L/λ seconds where λ are applied a second. So no more are held than are applied within
``aim_s`` at the rate of late: an average over the time in which events waited, whose weight falls by e every ``aim_s``.
"""

from __future__ import annotations

import math
from typing import Final

from ringcast._protocol.partition import Partition

SHARE_OF_ACK_WAIT: Final = 2
"""In one part of so many of ``ack_wait_s`` an event should be applied. One that takes longer is reported to be in
progress."""
ROUNDS: Final = 8
"""How many of the fewest events that are held there are for each call of the handler that may run in parallel."""
MOST: Final = 4_096
"""Events that may be held however fast the handler is; more where ``max_ack_pending`` is set so."""
_PRESSED: Final = 4
"""While one part in so many of what may be held is held, others may wait at the broker: the next are pulled late."""
_REFILL: Final = 2
"""While the handler is busy no more events are pulled until one part in so many of what may be held is free: those
that come together are handed over together, and few of the calls that run in parallel wait for the slowest."""


class Pace:
    """Counts what waits for the handler, and how fast it goes. Time is an argument; nothing here waits.

    At least ``least`` events may be held, and at first just so many; at most ``most``. An event that waits for a fetch
    of its partition is not counted, since no handler is slow there.
    """

    def __init__(self, *, least: int = 128, most: int = MOST, aim_s: float = 15.0) -> None:
        self.waiting = 0
        self._least = min(least, most)
        self._most = most
        self._aim_s = aim_s
        self._rate = self._least / aim_s
        self._applied = 0
        self._waited_s = 0.0
        self._busy = False
        self._looked_at = 0.0

    @classmethod
    def of(cls, parallel: int, max_ack_pending: int, ack_wait_s: float) -> Pace:
        """That of a key whose handler is called ``parallel`` times at once.

        Each consumer has ``max_ack_pending`` from the server, and there may be several of them; so a lower one counts
        there, and not here.
        """
        return cls(least=ROUNDS * parallel, most=max(MOST, max_ack_pending), aim_s=ack_wait_s / SHARE_OF_ACK_WAIT)

    def serve(self, parallel: int) -> None:
        """Another handler takes the changes, with so many calls at once: nothing is known of it yet."""
        self._least = min(ROUNDS * parallel, self._most)
        self._rate = self._least / self._aim_s

    def count(self, partition: Partition) -> None:
        """Looks how many events of a partition wait now; to be called whenever that may have changed."""
        held = max(0, len(partition.tokens) - len(partition.waiting))
        self.waiting += held - partition.paced
        partition.paced = held

    def applied(self, events: int) -> None:
        """The handler has had so many more."""
        self._applied += events

    def look(self, now: float) -> None:
        """Lets the time go on; to be called after whatever happens."""
        if self._busy:
            self._waited_s += max(0.0, now - self._looked_at)
        if self._applied:
            waited_s = max(self._waited_s, 1e-6)
            share = -math.expm1(-waited_s / self._aim_s)
            self._rate += (self._applied / waited_s - self._rate) * share
            self._applied, self._waited_s = 0, 0.0
        self._busy, self._looked_at = self.waiting > 0, now

    @property
    def limit(self) -> int:
        """How many may be held. As long as nothing is applied it falls as if nothing ever were."""
        rate = self._rate * math.exp(-self._waited_s / self._aim_s)
        return min(max(self._least, int(rate * self._aim_s)), self._most)

    @property
    def is_pressed(self) -> bool:
        """Whether so much is held that some may well wait at the broker."""
        return self.waiting * _PRESSED >= self.limit

    def room(self, *, busy: bool) -> int:
        """How many may be pulled now; 0 while the handler is ``busy`` and too few could be."""
        limit = self.limit
        free = limit - self.waiting
        return max(0, free) if not busy or free * _REFILL >= limit else 0
