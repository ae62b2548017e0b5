"""The owners of the rows of a group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ringcast_core import KeyFilter, Ring

from ringcast_heartbeat_agent.dispatch.consumer_session import ConsumerSession
from ringcast_heartbeat_agent.dispatch.routing import ROWS, Routing


class Filters:
    """Patterns over routing keys, of which one has to match; none: every row."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._filters = [KeyFilter(pattern) for pattern in patterns]

    def __bool__(self) -> bool:
        return bool(self._filters)

    def accept(self, key: str) -> bool:
        """Whether rows of this routing key are wanted."""
        return not self._filters or any(one.accepts(key) for one in self._filters)


class Shares:
    """The owners of rows among the consumers of one moment: as the dispatcher of the core sees them."""

    def __init__(self, sessions: Iterable[ConsumerSession] = (), routing: Routing = ROWS) -> None:
        self._routing = routing
        self._filters = {consumer.name: Filters(consumer.filters) for consumer in sessions}
        self._ring = Ring(sorted(self._filters)) if self._filters else None
        self._all = not any(self._filters.values())

    def __len__(self) -> int:
        return len(self._filters)

    def owners(self, row_ids: Sequence[str]) -> Sequence[str | None]:
        """The owner of each row; ``None`` where no filter accepts it, or there is no consumer."""
        if self._ring is None:
            return [None] * len(row_ids)
        if self._all and len(self._filters) == 1:
            return [*self._filters] * len(row_ids)
        keys = self._routing.keys(row_ids)
        if self._all:
            return self._ring.owners(keys)
        return [self._ring.owner(key, self._eligible(key)) for key in keys]

    def _eligible(self, key: str) -> list[str]:
        return [name for name, filters in self._filters.items() if filters.accept(key)]
