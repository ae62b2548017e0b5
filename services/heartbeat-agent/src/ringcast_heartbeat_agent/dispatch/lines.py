"""Rows that wait for the one before them of their routing key."""

from __future__ import annotations

from collections.abc import Iterator

from ringcast import Change


class Lines:
    """One line for each routing key that is busy: with a message of one of its rows, or with a row whose turn it is.

    So a routing key has one place in the window, however many of its rows have changed: one that is blocked, or busy,
    leaves the others of its consumer theirs. A row waits with its newest change, or with ``None``: it is
    delivered as it is by then.
    """

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, Change | None]] = {}
        self._keys: dict[str, str] = {}
        """Under which key a row waits, or has its turn."""
        self._turns: dict[str, tuple[str, Change | None]] = {}
        """The row of a key whose turn it is, until it is a message."""
        self._busy: set[str] = set()
        """The keys with a message."""
        self.changes = 0
        """How many rows wait with a change."""

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, row_id: str) -> bool:
        return row_id in self._keys

    def is_busy(self, key: str) -> bool:
        """Whether a further row of this key has to wait."""
        return key in self._busy or key in self._turns

    def begin(self, key: str) -> None:
        """There is a message of this key now."""
        self._busy.add(key)

    def end(self, key: str) -> None:
        """It is settled: the next row of the key has its turn."""
        self._busy.discard(key)
        self._advance(key)

    def put(self, key: str, row_id: str, change: Change | None) -> bool:
        """A row waits, or has its newest change; says whether it takes the place of an older one."""
        if self._keys.get(row_id) not in (None, key):
            older = self.discard(row_id)
        elif row_id not in self._keys:
            older = False
        elif change is None:  # what waits tells as much
            return False
        else:
            waiting = self._turns[key][1] if self._has_turn(key, row_id) else self._lines[key][row_id]
            older = waiting is not None
            self.changes -= older
        self._keys[row_id] = key
        self.changes += change is not None
        if self._has_turn(key, row_id):
            self._turns[key] = row_id, change
        else:
            self._lines.setdefault(key, {})[row_id] = change
        return older

    def discard(self, row_id: str) -> bool:
        """A row waits no longer; says whether it waited with a change."""
        key = self._keys.pop(row_id, None)
        if key is None:
            return False
        if self._has_turn(key, row_id):
            _, change = self._turns.pop(key)
            self._advance(key)
        else:
            change = self._lines[key].pop(row_id)
            if not self._lines[key]:
                del self._lines[key]
        self.changes -= change is not None
        return change is not None

    def key_of(self, row_id: str) -> str | None:
        """Under which key a row waits."""
        return self._keys.get(row_id)

    def take_turn(self, row_id: str) -> str:
        """The row whose turn it is becomes a message; returns its key. :meth:`begin` or :meth:`end` follows."""
        key = self._keys.pop(row_id)
        _, change = self._turns.pop(key)
        self.changes -= change is not None
        return key

    def turns(self) -> list[tuple[str, Change | None]]:
        """The rows whose turn it is."""
        return list(self._turns.values())

    def waiting(self) -> Iterator[Change]:
        """The changes that wait."""
        yield from (change for _, change in self._turns.values() if change is not None)
        for line in self._lines.values():
            yield from (change for change in line.values() if change is not None)

    def present(self) -> Iterator[str]:
        """The rows that wait without a change."""
        yield from (row_id for row_id, change in self._turns.values() if change is None)
        for line in self._lines.values():
            yield from (row_id for row_id, change in line.items() if change is None)

    def clear(self) -> None:
        """Forgets everything."""
        for held in (self._lines, self._keys, self._turns, self._busy):
            held.clear()
        self.changes = 0

    def _has_turn(self, key: str, row_id: str) -> bool:
        turn = self._turns.get(key)
        return turn is not None and turn[0] == row_id

    def _advance(self, key: str) -> None:
        line = self._lines.get(key)
        if line is None or self.is_busy(key):
            return
        row_id = next(iter(line))
        self._turns[key] = row_id, line.pop(row_id)
        if not line:
            del self._lines[key]
