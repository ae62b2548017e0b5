"""The changes that come into a group, and when they become messages: pure bookkeeping, without a clock or a task."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from typing import Final, Protocol

from ringcast import Change

from ringcast_heartbeat_agent.dispatch.backlog import Backlog
from ringcast_heartbeat_agent.dispatch.lines import Lines
from ringcast_heartbeat_agent.dispatch.routing import ROW, ROWS, Routing
from ringcast_heartbeat_agent.dispatch.shares import Shares
from ringcast_heartbeat_agent.dispatch.window import Window

AT_ONCE: Final = 1_024
MOST_LOOKED_AT: Final = 50_000
"""With more rows that wait it is not looked how far the group has come: what was known holds."""
"""Rows that one batch looks at beside those that have just come: other tasks run in between."""


class Rows(Protocol):
    """The live rows of a config key."""

    def change_of(self, row_id: str) -> Change | None:
        """A live row as it is now, as a change."""


class Intake:
    """Makes messages of changes: one unsettled message a row; a newer change replaces one that waits.

    A message that was not delivered yet takes a newer change of its row up. Once it was delivered, the newest change
    waits behind it until it is settled. Changes that the window has no room for wait under their owner, one for each
    row, and later changes of this owner wait behind them. Nothing that calls this ever waits: a group that stands still
    costs as much memory as it has rows.
    """

    def __init__(self, rows: Rows, *, window: int, window_bytes: int, routing: Routing = ROWS) -> None:
        self.window = Window(window, window_bytes)
        self.messages = self.window.messages
        """The unsettled messages, by offset."""
        self.coalesced = 0
        """Changes that a newer one of their row has replaced."""
        self.goes_on = False
        """Whether the next :meth:`batch` has something to do although nothing happens."""
        self._rows = rows
        self._routing = routing
        self._offsets = self.window.offsets
        self._next: dict[str, Change | None] = {}
        self._arrived: dict[str, Change] = {}
        self._lines = Lines() if routing.setting != ROW else None
        self._behind = Backlog()
        self._present = Backlog()
        self._given_up: OrderedDict[str, int] = OrderedDict()

    @property
    def arrived(self) -> int:
        """Changes that :meth:`batch` has not seen yet."""
        return len(self._arrived)

    @property
    def waiting(self) -> int:
        """Rows that are still to become messages."""
        lines = len(self._lines) if self._lines is not None else 0
        return len(self._arrived) + len(self._next) + len(self._behind) + len(self._present) + lines

    @property
    def behind(self) -> int:
        """Rows with changes that the window has no room for, or that wait for another of their routing key."""
        return len(self._behind) + (self._lines.changes if self._lines is not None else 0)

    def changes(self) -> Iterator[Change]:
        """Everything that has come and is not settled."""
        yield from (message.change for message in self.messages.values())
        yield from self.later()

    def later(self) -> Iterator[Change]:
        """The changes that are no messages yet."""
        yield from (change for change in self._next.values() if change is not None)
        yield from self._arrived.values()
        yield from self._behind.changes()
        if self._lines is not None:
            yield from self._lines.waiting()

    def present(self) -> Iterator[str]:
        """The rows that are still to be delivered as they are."""
        yield from self._present.row_ids()
        yield from (row_id for row_id, change in self._next.items() if change is None)
        if self._lines is not None:
            yield from self._lines.present()

    def forget(self, partitions: Collection[int]) -> None:
        """These partitions are another host's: their changes become no messages any more, and messages are dropped.

        If one of them is back before that, what comes of a row waits behind its message.
        """
        for message in self.messages.values():
            message.gone = message.gone or message.change.partition in partitions
        for row_id in [change.row_id for change in self.later() if change.partition in partitions]:
            self._arrived.pop(row_id, None)
            self._behind.discard(row_id)
            if self._next.get(row_id) is not None:
                del self._next[row_id]
            if self._lines is not None:
                self._lines.discard(row_id)

    def __contains__(self, row_id: str) -> bool:
        """Whether something of a row is not settled, or still to come."""
        lines = self._lines if self._lines is not None else ()
        return any(row_id in rows for rows in (self._offsets, self._arrived, self._behind, self._present, lines))

    def take(self, change: Change) -> None:
        """A row has changed."""
        row_id, key = change.row_id, self._routing.note(change)
        offset = self._offsets.get(row_id)
        if offset is not None:
            message = self.messages[offset]
            if message.delivered or message.gone or message.key != key:
                self.coalesced += self._next.get(row_id) is not None
                self._next[row_id] = change
            else:
                self.coalesced += 1 + (self._next.pop(row_id, None) is not None)
                self.window.replace(message, change)
            return
        if self._lines is not None and row_id in self._lines:
            if self._lines.key_of(row_id) == key:
                self.coalesced += self._lines.put(key, row_id, change)
                return
            self.coalesced += self._lines.discard(row_id)
        self.coalesced += row_id in self._arrived or self._behind.discard(row_id)
        self._present.discard(row_id)
        self._arrived[row_id] = change

    def deliver_present(self, row_ids: Iterable[str], owner: str) -> None:
        """Has rows delivered as they are, although they have not changed: their ``owner`` has joined."""
        for row_id in row_ids:
            offset = self._offsets.get(row_id)
            if offset is not None:
                if self.messages[offset].delivered or self.messages[offset].gone:
                    self._next.setdefault(row_id, None)
            elif row_id not in self:
                self._present.put(row_id, None, owner)

    def share(self, shares: Shares) -> None:
        """Other consumers take part now."""
        self.window.share(shares)
        self._behind.unsort()
        self._present.unsort()

    def batch(self) -> list[str]:
        """Makes messages of what there is room for; returns their keys. Their offsets are the last ones, in order."""
        first, has_room = self.window.last, self.window.has_room
        arrived, self._arrived = self._arrived, {}
        passed_over = self._lines is not None and self._take_turns(self._lines)
        row_ids = list(arrived)
        for (row_id, change), owner in zip(arrived.items(), self.window.shares.owners(row_ids), strict=True):
            if not self._behind.holds(owner) and has_room(owner):
                self._add_or_line_up(row_id, change, owner)
            else:
                self._behind.put(row_id, change, owner)
        left = self._from(self._behind, AT_ONCE, self.window.size)
        # Half of the window is left to changes.
        left = self._from(self._present, left, self.window.size // 2 + 1)
        self.goes_on = passed_over or left <= 0 or not (self._behind.sorted and self._present.sorted)
        return [self.messages[offset].key for offset in range(first + 1, self.window.last + 1)]

    def settle(self, offset: int) -> Change | None:
        """A message is done with; what waits behind it comes next. Returns its change."""
        message = self.window.remove(offset)
        if message is None:
            return None
        row_id = message.change.row_id
        if self._lines is not None:
            self._lines.end(message.key)
        if row_id in self._next:
            newer = self._next.pop(row_id)
            if newer is not None:
                self._arrived[row_id] = newer
            else:
                (owner,) = self.window.shares.owners([row_id])
                self._present.put(row_id, None, owner)
        return message.change

    def give_up(self, offset: int) -> Change | None:
        """As :meth:`settle`, of poison: consumers that join later do not get this change either.

        Otherwise a row that kills its consumer would be delivered again to each process that replaces a dead one.
        """
        change = self.settle(offset)
        if change is not None:
            self._given_up[change.row_id] = change.version
            self._given_up.move_to_end(change.row_id)
            if len(self._given_up) > self.window.size:
                self._given_up.popitem(last=False)
        return change

    def forgive(self, row_id: str) -> None:
        """Has a row that was given up delivered again: from now on it is like any other."""
        self._given_up.pop(row_id, None)

    def clear(self) -> None:
        """Forgets everything."""
        self._given_up.clear()
        self.window.clear()
        self._next.clear()
        self._arrived.clear()
        self._behind.clear()
        self._present.clear()
        if self._lines is not None:
            self._lines.clear()

    def _take_turns(self, lines: Lines) -> bool:
        """Makes messages of rows whose turn it is in their routing key; says whether a row was passed over."""
        turns, passed_over = lines.turns(), False
        owners = self.window.shares.owners([row_id for row_id, _ in turns])
        for (row_id, change), owner in zip(turns, owners, strict=True):
            if self.window.has_room(owner):
                key = lines.take_turn(row_id)
                change = change if change is not None else self._current(row_id)
                if change is not None:
                    self._add(change, owner)
                else:
                    lines.end(key)
                    passed_over = True
        return passed_over

    def _add_or_line_up(self, row_id: str, change: Change | None, owner: str | None) -> None:
        if self._lines is not None and self._lines.is_busy(key := self._routing.key(row_id)):
            self._lines.put(key, row_id, change)
            return
        change = change if change is not None else self._current(row_id)
        if change is not None:
            self._add(change, owner)

    def _from(self, backlog: Backlog, most: int, most_messages: int) -> int:
        """Makes messages of rows that have waited; returns how many of ``most`` steps are left."""
        if most <= 0:
            return most
        backlog.sort(self.window.shares, most)
        for owner in backlog.owners():
            for row_id, change in self._some(backlog, owner, most_messages):
                self._add_or_line_up(row_id, change, owner)
                most -= 1
                if most <= 0:
                    return most
        return most

    def _current(self, row_id: str) -> Change | None:
        """The row as it is now, as a change; ``None`` if it is gone, or if this version was given up."""
        change = self._rows.change_of(row_id)
        return None if change is None or change.version <= self._given_up.get(row_id, 0) else change

    def _some(self, backlog: Backlog, owner: str | None, most_messages: int) -> Iterator[tuple[str, Change | None]]:
        window = self.window
        while len(window.messages) < most_messages and window.has_room(owner):
            if (found := backlog.next(owner)) is None:
                return
            yield found

    def _add(self, change: Change, owner: str | None) -> None:
        key = self._routing.key(change.row_id)
        self.window.add(change, key, owner)
        if self._lines is not None:
            self._lines.begin(key)
