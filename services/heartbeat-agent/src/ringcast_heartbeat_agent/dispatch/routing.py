"""Routing keys: which rows of a group stay in order behind one another, and go to the same consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from ringcast import Change, InvalidInputError
from ringcast_wire import limits, shown

ROW: Final = "row"
_PREFIX: Final = "prefix:"
_METADATA: Final = "metadata:"
_SLACK: Final = 1_024


class RowMetadata(Protocol):
    """A live row, as far as it is looked at here."""

    @property
    def row_id(self) -> str:
        """Its id."""

    @property
    def metadata(self) -> Mapping[str, str] | None:
        """The fields beside its value."""


class Routing:
    """Rows by themselves: the routing key is the row id."""

    setting = ROW
    """As consumers ask for it."""

    def key(self, row_id: str) -> str:
        """The routing key of a row, as of its newest change."""
        return row_id

    def keys(self, row_ids: Sequence[str]) -> Sequence[str]:
        """Those of several."""
        return row_ids

    def note(self, change: Change) -> str:
        """A row has changed; returns the routing key of the change."""
        return self.key(change.row_id)

    def begin(self, rows: Iterable[RowMetadata]) -> None:
        """These rows are there."""

    @property
    def crowded(self) -> bool:
        """Whether :meth:`keep` is to be called."""
        return False

    def keep(self, needed: Callable[[str], bool]) -> None:
        """Forgets the rows that are not needed any more."""


ROWS: Final = Routing()


class ByPrefix(Routing):
    """The routing key is what stands before the first separator of the row id; without that, all of it."""

    def __init__(self, separator: str) -> None:
        self.setting = f"{_PREFIX}{separator}"
        self._separator = separator

    def key(self, row_id: str) -> str:
        return row_id.partition(self._separator)[0] or row_id

    def keys(self, row_ids: Sequence[str]) -> Sequence[str]:
        return [self.key(row_id) for row_id in row_ids]


class ByMetadata(Routing):
    """The routing key is a field of the row's metadata; of a row without it, or where it is empty, the row id.

    A deletion carries no metadata, so the keys of rows are remembered: it goes the way of the change before it.
    """

    def __init__(self, field: str) -> None:
        self.setting = f"{_METADATA}{field}"
        self._field = field
        self._keys: dict[str, str] = {}
        self._most = _SLACK

    def key(self, row_id: str) -> str:
        return self._keys.get(row_id, row_id)

    def keys(self, row_ids: Sequence[str]) -> Sequence[str]:
        return [self._keys.get(row_id, row_id) for row_id in row_ids]

    def note(self, change: Change) -> str:
        if not change.deleted:
            self._learn(change)
        return self.key(change.row_id)

    def begin(self, rows: Iterable[RowMetadata]) -> None:
        for row in rows:
            self._learn(row)
        self._most = 2 * len(self._keys) + _SLACK

    @property
    def crowded(self) -> bool:
        return len(self._keys) > self._most

    def keep(self, needed: Callable[[str], bool]) -> None:
        self._keys = {row_id: key for row_id, key in self._keys.items() if needed(row_id)}
        self._most = 2 * len(self._keys) + _SLACK

    def _learn(self, row: RowMetadata) -> None:
        key = row.metadata.get(self._field) if row.metadata else None
        if key:
            self._keys[row.row_id] = key
        else:
            self._keys.pop(row.row_id, None)


def routing_of(setting: str) -> Routing:
    """What a consumer asks for: ``row`` (or nothing), ``prefix:<separator>`` or ``metadata:<field>``.

    Raises:
        InvalidInputError: it is something else, or too long.
    """
    for begin, make, most in (
        (_PREFIX, ByPrefix, limits.MAX_ROW_ID_BYTES),
        (_METADATA, ByMetadata, limits.MAX_METADATA_BYTES),
    ):
        text = setting.removeprefix(begin)
        if setting.startswith(begin) and 1 <= len(text.encode()) <= most:
            return make(text)
    if setting in ("", ROW):
        return ROWS
    raise InvalidInputError(
        f"routing_key is {shown(setting)}: it must be row, prefix:<separator> or metadata:<field>", field="routing_key"
    )
