"""What comes into a group, and when it becomes a message: pure bookkeeping, without a clock or a task."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from ringcast import Change

from ringcast_heartbeat_agent.dispatch.backlog import Backlog
from ringcast_heartbeat_agent.dispatch.consumer_session import size_of
from ringcast_heartbeat_agent.dispatch.lines import Lines
from ringcast_heartbeat_agent.dispatch.routing import ROW, ROWS, Routing
from ringcast_heartbeat_agent.dispatch.shares import Shares

AT_ONCE: Final = 1_024
"""Rows that one batch looks at beside those that have just come: other tasks run in between."""


class Rows(Protocol):
    """Where rows are held."""

    def change_of(self, row_id: str) -> Change | None:
        """A live row as it is now, as a change."""


class Message:
    """A change that is not settled. ``key``: its routing key. ``owner``: whose share of the window it takes."""

    __slots__ = ("change", "delivered", "key", "owner", "size")

    def __init__(self, change: Change, key: str, owner: str | None) -> None:
        self.change = change
        self.key = key
        self.owner = owner
        self.size = size_of(change)
        self.delivered = False


class Intake:
    """Makes messages of changes: one unsettled message a row, and what comes meanwhile replaces what waits.

    A message that nobody was given yet takes a newer change of its row up. Once it was given, the newest change waits
    behind it until it is settled. What the window has no room for waits under its owner, one change a row, and what
    comes later of this owner waits behind it. Nothing is ever held up: a group that stands still costs as much memory
    as it has rows.

    Each consumer has its part of the window. Half of it is for whoever comes; of the other half each may have an equal
    share, so that consumers that take nothing can't have it all.
    """

    def __init__(self, rows: Rows, *, window: int, window_bytes: int, routing: Routing = ROWS) -> None:
        self.messages: dict[int, Message] = {}
        """The unsettled messages, by offset."""
        self.last = 0
        """The highest offset."""
        self.coalesced = 0
        """Changes that a newer one of their row has replaced."""
        self._rows = rows
        self._routing = routing
        self._window = window
        self._window_bytes = window_bytes
        self._shares = Shares()
        self._bytes = 0
        self._held: Counter[str | None] = Counter()
        self._held_bytes: Counter[str | None] = Counter()
        self._open: dict[str, int] = {}
        self._next: dict[str, Change | None] = {}
        self._arrived: dict[str, Change] = {}
        self._lines = Lines() if routing.setting != ROW else None
        self._behind = Backlog()
        self._present = Backlog()
        self._given_up: OrderedDict[str, int] = OrderedDict()
        self._goes_on = False

    @property
    def bytes(self) -> int:
        """About the size of the unsettled messages."""
        return self._bytes

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

    @property
    def goes_on(self) -> bool:
        """Whether the next :meth:`batch` has something to do although nothing happens."""
        return self._goes_on

    def changes(self) -> Iterator[Change]:
        """Everything that has come and is not settled."""
        yield from (message.change for message in self.messages.values())
        yield from (change for change in self._next.values() if change is not None)
        yield from self._arrived.values()
        yield from self._behind.changes()
        if self._lines is not None:
            yield from self._lines.waiting()

    def __contains__(self, row_id: str) -> bool:
        """Whether something of a row is not settled, or still to come."""
        lines = self._lines if self._lines is not None else ()
        return any(row_id in rows for rows in (self._open, self._arrived, self._behind, self._present, lines))

    def take(self, change: Change) -> None:
        """A row has changed."""
        row_id, key = change.row_id, self._routing.note(change)
        offset = self._open.get(row_id)
        if offset is not None:
            message = self.messages[offset]
            if message.delivered or message.key != key:
                self.coalesced += self._next.get(row_id) is not None
                self._next[row_id] = change
            else:
                self.coalesced += 1 + (self._next.pop(row_id, None) is not None)
                self._replace(message, change)
            return
        if self._lines is not None and row_id in self._lines:
            if self._lines.key_of(row_id) == key:
                self.coalesced += self._lines.put(key, row_id, change)
                return
            self.coalesced += self._lines.discard(row_id)
        self.coalesced += row_id in self._arrived or self._behind.discard(row_id)
        self._present.discard(row_id)
        self._arrived[row_id] = change

    def tell(self, row_ids: Iterable[str], owner: str) -> None:
        """Rows are to be told of although they have not changed: ``owner`` has come."""
        for row_id in row_ids:
            offset = self._open.get(row_id)
            if offset is not None:
                if self.messages[offset].delivered:
                    self._next.setdefault(row_id, None)
            elif row_id not in self:
                self._present.put(row_id, None, owner)

    def share(self, shares: Shares) -> None:
        """Other consumers take part now."""
        self._shares = shares
        self._held.clear()
        self._held_bytes.clear()
        messages = list(self.messages.values())
        for message, owner in zip(messages, shares.owners([one.change.row_id for one in messages]), strict=True):
            message.owner = owner
            self._held[owner] += 1
            self._held_bytes[owner] += message.size
        self._behind.unsort()
        self._present.unsort()

    def batch(self) -> list[str]:
        """Makes messages of what there is room for; returns their keys. Their offsets are the last ones, in order."""
        first = self.last
        arrived, self._arrived = self._arrived, {}
        passed_over = self._lines is not None and self._take_turns(self._lines)
        row_ids = list(arrived)
        for (row_id, change), owner in zip(arrived.items(), self._shares.owners(row_ids), strict=True):
            if not self._behind.holds(owner) and self._fits(owner):
                self._add_or_line_up(row_id, change, owner)
            else:
                self._behind.put(row_id, change, owner)
        left = self._from(self._behind, AT_ONCE, self._window)
        # Half of the window is left to changes.
        left = self._from(self._present, left, self._window // 2 + 1)
        self._goes_on = passed_over or left <= 0 or not (self._behind.sorted and self._present.sorted)
        return [self.messages[offset].key for offset in range(first + 1, self.last + 1)]

    def settle(self, offset: int) -> Change | None:
        """A message is done with; what waits behind it comes next. Returns its change."""
        message = self.messages.pop(offset, None)
        if message is None:
            return None
        row_id = message.change.row_id
        del self._open[row_id]
        self._count(message, -1, -message.size)
        if self._lines is not None:
            self._lines.end(message.key)
        if row_id in self._next:
            newer = self._next.pop(row_id)
            if newer is not None:
                self._arrived[row_id] = newer
            else:
                (owner,) = self._shares.owners([row_id])
                self._present.put(row_id, None, owner)
        return message.change

    def give_up(self, offset: int) -> Change | None:
        """As :meth:`settle`, of poison: who comes later is not told of this change either.

        Otherwise a row that kills its consumer would be told anew to each process that takes the place of a dead one.
        """
        change = self.settle(offset)
        if change is not None:
            self._given_up[change.row_id] = change.version
            self._given_up.move_to_end(change.row_id)
            if len(self._given_up) > self._window:
                self._given_up.popitem(last=False)
        return change

    def forgive(self, row_id: str) -> None:
        """What was given up of a row is to be handed over again: from now on it is like any other."""
        self._given_up.pop(row_id, None)

    def clear(self) -> None:
        """Forgets everything."""
        self._given_up.clear()
        for held in (self.messages, self._open, self._next, self._arrived, self._held, self._held_bytes):
            held.clear()
        self._behind.clear()
        self._present.clear()
        self._bytes = 0
        if self._lines is not None:
            self._lines.clear()

    def _take_turns(self, lines: Lines) -> bool:
        """Makes messages of rows whose turn it is in their routing key; says whether a row was passed over."""
        turns, passed_over = lines.turns(), False
        for (row_id, change), owner in zip(turns, self._shares.owners([row_id for row_id, _ in turns]), strict=True):
            if self._fits(owner):
                key = lines.take_turn(row_id)
                change = change if change is not None else self._as_it_is(row_id)
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
        change = change if change is not None else self._as_it_is(row_id)
        if change is not None:
            self._add(change, owner)

    def _from(self, backlog: Backlog, most: int, window: int) -> int:
        """Makes messages of rows that have waited; returns how many of ``most`` steps are left."""
        if most <= 0:
            return most
        backlog.sort(self._shares, most)
        for owner in backlog.owners():
            for row_id, change in self._some(backlog, owner, window):
                self._add_or_line_up(row_id, change, owner)
                most -= 1
                if most <= 0:
                    return most
        return most

    def _as_it_is(self, row_id: str) -> Change | None:
        """A row that is there, unless what it is now has been given up. That one is gone comes as a change."""
        change = self._rows.change_of(row_id)
        return None if change is None or change.version <= self._given_up.get(row_id, 0) else change

    def _some(self, backlog: Backlog, owner: str | None, window: int) -> Iterator[tuple[str, Change | None]]:
        while len(self.messages) < window and self._fits(owner) and (found := backlog.next(owner)) is not None:
            yield found

    def _fits(self, owner: str | None) -> bool:
        count = len(self.messages)
        if count >= self._window or (count and self._bytes >= self._window_bytes):
            return False
        consumers = len(self._shares)
        if consumers < 2 or (2 * count < self._window and 2 * self._bytes < self._window_bytes):
            return True
        part = 2 * consumers
        return (
            self._held[owner] < max(1, self._window // part) and self._held_bytes[owner] <= self._window_bytes // part
        )

    def _add(self, change: Change, owner: str | None) -> None:
        self.last += 1
        message = self.messages[self.last] = Message(change, self._routing.key(change.row_id), owner)
        self._open[change.row_id] = self.last
        if self._lines is not None:
            self._lines.begin(message.key)
        self._count(message, 1, message.size)

    def _replace(self, message: Message, change: Change) -> None:
        before = message.size
        message.change, message.size = change, size_of(change)
        self._count(message, 0, message.size - before)

    def _count(self, message: Message, messages: int, size: int) -> None:
        self._bytes += size
        self._held[message.owner] += messages
        self._held_bytes[message.owner] += size
