"""Spreading subjects over consumers, so that none has more filters than it may and none changes without need."""

from __future__ import annotations

from collections.abc import Iterable

from ringcast_wire import limits


class FilterPlan:
    """The filters of each of a worker's consumers. A subject stays on the consumer that it is on."""

    def __init__(self, most: int = limits.MAX_FILTERS_PER_CONSUMER) -> None:
        self._most = most
        self._consumers: list[set[str]] = []
        self._confirmed: dict[int, frozenset[str]] = {}
        self._unsure: set[int] = set()
        self._missing: set[int] = set()

    def want(self, subjects: Iterable[str]) -> None:
        """Plans for exactly these subjects."""
        wanted = set(subjects)
        for filters in self._consumers:
            filters &= wanted
            wanted -= filters
        for subject in sorted(wanted):
            self._roomy().add(subject)

    def due(self) -> list[tuple[int, frozenset[str]]]:
        """The consumers whose filters differ from what the server has; an empty set is a consumer to delete."""
        planned = ((index, frozenset(filters)) for index, filters in enumerate(self._consumers))
        return [
            (index, filters)
            for index, filters in planned
            if index in self._unsure or filters != self._confirmed.get(index, frozenset())
        ]

    def update_sent(self, index: int, filters: frozenset[str]) -> None:
        """An update to these filters is sent. Until the server confirms, it may have these or the last.

        So a request that times out, and takes effect all the same, is not mistaken for one that did nothing.
        """
        self._unsure.add(index)
        self._confirmed[index] = self._confirmed.get(index, frozenset()) & filters

    def suspect(self, subject: str) -> None:
        """Events of a subject do not come although they should: its consumer may have other filters than it was given.

        Another process with this worker's id may have changed them, one that was paused and did not know yet that its
        place was taken.
        """
        self._unsure.update(index for index, filters in enumerate(self._consumers) if subject in filters)

    def confirm(self, index: int, filters: frozenset[str]) -> None:
        """The server has taken these filters."""
        self._unsure.discard(index)
        self._missing.discard(index)
        self._confirmed[index] = filters

    def lost(self, index: int) -> None:
        """The server no longer has this consumer. It is due even if it is not wanted any more, so that pulling ends."""
        self._confirmed.pop(index, None)
        self._unsure.add(index)
        self._missing.add(index)

    def is_lost(self, index: int) -> bool:
        """Whether the server had this consumer and has not taken it again: it delivers nothing at all."""
        return index in self._missing

    @property
    def confirmed(self) -> frozenset[str]:
        """Every subject whose events the server delivers and that is wanted."""
        wanted = frozenset[str]().union(*self._consumers)
        return frozenset[str]().union(*self._confirmed.values()) & wanted

    def counts(self) -> dict[int, int]:
        """How many filters the server has confirmed for each consumer that has any."""
        return {index: len(filters) for index, filters in list(self._confirmed.items()) if filters}

    def _roomy(self) -> set[str]:
        for filters in self._consumers:
            if len(filters) < self._most:
                return filters
        self._consumers.append(set())
        return self._consumers[-1]
