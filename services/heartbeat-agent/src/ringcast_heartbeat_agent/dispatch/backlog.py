"""Rows that wait until a group has room for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

from ringcast import Change

from ringcast_heartbeat_agent.dispatch.shares import Shares


class Backlog:
    """Rows that wait, each with its newest change, or with ``None``: it is delivered as it is by then.

    They stand under their owners, so that one whose owner has room is found among many whose owners have none. When
    owners change, :meth:`unsort` and then :meth:`sort`, which takes some of them at a time.
    """

    def __init__(self) -> None:
        self._rows: dict[str, Change | None] = {}
        self._queues: dict[str | None, OrderedDict[str, None]] = {}
        self._unsorted: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, row_id: str) -> bool:
        return row_id in self._rows

    @property
    def sorted(self) -> bool:
        """Whether every row stands under its owner."""
        return not self._unsorted

    def put(self, row_id: str, change: Change | None, owner: str | None) -> None:
        """Has a row wait, with a newer change than before if it waited already."""
        if row_id not in self._rows:
            queue = self._unsorted if self._unsorted else self._queues.setdefault(owner, OrderedDict())
            queue[row_id] = None
        self._rows[row_id] = change

    def discard(self, row_id: str) -> bool:
        """A row waits no longer; says whether it did."""
        if row_id not in self._rows:
            return False
        del self._rows[row_id]
        return True

    def unsort(self) -> None:
        """Owners have changed."""
        self._queues.clear()
        self._unsorted = OrderedDict.fromkeys(self._rows)

    def sort(self, shares: Shares, most: int) -> None:
        """Puts at most so many rows under their owners."""
        some = list(islice(self._unsorted, most))
        for row_id, owner in zip(some, shares.owners(some), strict=True):
            del self._unsorted[row_id]
            if row_id in self._rows:
                self._queues.setdefault(owner, OrderedDict())[row_id] = None

    def changes(self) -> Iterator[Change]:
        """The changes that wait."""
        return (change for change in self._rows.values() if change is not None)

    def row_ids(self) -> Iterator[str]:
        """The rows that wait."""
        return iter(self._rows)

    def holds(self, owner: str | None) -> bool:
        """Whether rows of an owner may wait, so that further ones come after them."""
        return bool(self._unsorted or self._queues.get(owner))

    def owners(self) -> Iterator[str | None]:
        """Whose rows wait."""
        return iter(list(self._queues))

    def next(self, owner: str | None) -> tuple[str, Change | None] | None:
        """Takes out the row of an owner that has waited longest."""
        queue = self._queues.get(owner)
        while queue:
            row_id, _ = queue.popitem(last=False)
            if row_id in self._rows:
                return row_id, self._rows.pop(row_id)
        self._queues.pop(owner, None)
        return None

    def clear(self) -> None:
        """Forgets everything."""
        self._rows.clear()
        self._queues.clear()
        self._unsorted.clear()
