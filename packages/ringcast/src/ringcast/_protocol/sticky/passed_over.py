"""Workers that the leader offers nothing for a while, since they have not prepared in time what it offered them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ringcast._protocol.sticky.clocks import Clocks


class PassedOver:
    """Who is passed over. ``prepare_s``: an offer has to be prepared within it. ``passed_over_s``: for how long."""

    def __init__(self, prepare_s: float, passed_over_s: float) -> None:
        self._prepare_s = prepare_s
        self._passed_over_s = passed_over_s
        self._offers = Clocks()
        self._dues: list[float] = []
        self._until: dict[str, float] = {}

    @property
    def names(self) -> frozenset[str]:
        """The workers, as of the last call of :meth:`note`."""
        return frozenset(self._until)

    def note(self, offers: Mapping[tuple[int, int], str], now: float) -> tuple[tuple[int, str], ...]:
        """Takes in what is not prepared yet: the worker by partition and token. Returns what has made one passed over.

        A worker that has an offer all the same, since no other is left, is told of once for each time.
        """
        self._until = {name: until for name, until in self._until.items() if now < until}
        self._offers.keep(offers.keys())
        before, late, self._dues = self.names, [], []
        for (number, token), name in offers.items():
            due = self._offers.since((number, token), now) + self._prepare_s
            if now < due:
                self._dues.append(due)
            elif name not in before:
                self._until[name] = now + self._passed_over_s
                late.append((number, name))
        return tuple(late)

    def wakes(self) -> Iterable[float]:
        """When the answer may be another one."""
        return (*self._dues, *self._until.values())
