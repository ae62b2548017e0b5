"""Notifies the application of the partitions that it gets and loses, beside its changes."""

from __future__ import annotations

from ringcast._protocol.actions import Announce
from ringcast._protocol.outbox import Outbox


class Announcements:
    """Keeps the order for each partition: a loss is announced after the gain before it, or not at all without one.

    Announcements of different partitions do not wait for each other, nor for changes that are being handed over: the
    session announces a loss only after the calls that run have ended.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._waiting: list[tuple[bool, frozenset[int]]] = []
        self._active: dict[int, Announce] = {}
        self._unannounced: frozenset[int] = frozenset()
        self._known: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._waiting or self._active)

    def add(self, assigned: bool, partitions: frozenset[int]) -> None:
        """The worker has got partitions, or lost them."""
        if not assigned:
            partitions = self._strike_out(partitions)
        if partitions:
            self._waiting.append((assigned, partitions))
        self._find_unannounced()

    def _strike_out(self, lost: frozenset[int]) -> frozenset[int]:
        """Takes back gains that were not announced; returns the losses that have to be."""
        struck: frozenset[int] = frozenset()
        waiting = []
        for assigned, partitions in self._waiting:
            gone = partitions & lost if assigned else frozenset()
            struck |= gone
            if partitions - gone:
                waiting.append((assigned, partitions - gone))
        self._waiting = waiting
        return lost - struck

    def _find_unannounced(self) -> None:
        gains = [partitions for assigned, partitions in self._waiting if assigned]
        gains += [announce.partitions for announce in self._active.values() if announce.assigned]
        self._unannounced = frozenset[int]().union(*gains)

    def start(self) -> None:
        """Emits what can be announced now."""
        busy = {number for announce in self._active.values() for number in announce.partitions}
        waiting = []
        for assigned, partitions in self._waiting:
            if free := partitions - busy:
                number = self._outbox.number()
                announce = self._active[number] = Announce(number, assigned, free)
                if assigned:
                    self._known |= free
                self._outbox.put(announce)
            if free != partitions:
                waiting.append((assigned, partitions - free))
            busy |= partitions
        self._waiting = waiting

    def done(self, number: int) -> bool:
        """The application has got an announcement; ``False`` if none has this number."""
        announce = self._active.pop(number, None)
        if announce is None:
            return False
        if not announce.assigned:
            self._known -= announce.partitions
        self._find_unannounced()
        return True

    def is_announced(self, partition: int) -> bool:
        """Whether the application knows that it has an owned partition: only then do its changes come."""
        return partition not in self._unannounced

    def revokes(self, partition: int) -> bool:
        """Whether the application is still to be told that a partition is lost, or is being told."""
        waiting = any(partition in partitions for assigned, partitions in self._waiting if not assigned)
        return waiting or any(
            partition in announce.partitions for announce in self._active.values() if not announce.assigned
        )

    @property
    def known(self) -> frozenset[int]:
        """The partitions whose gain was announced, and whose loss was not."""
        return frozenset(self._known)

    @property
    def active(self) -> list[int]:
        """The numbers of those that are emitted and not done."""
        return [*self._active]
