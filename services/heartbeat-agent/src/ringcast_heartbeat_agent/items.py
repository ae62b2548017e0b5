"""How Dapr's words map on Ringcast's, in subscriptions. Reads go by the same rules: :class:`ringcast.aio.DaprClient`.

An entry of ``keys`` is a config key, all rows of it, or ``<key>/<row id>``, one row. A row has the name that it was
asked for by; a row of one whole key its id, and among several entries ``<key>/<row id>``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ringcast import Change, InvalidInputError
from ringcast_wire import check_row_id, limits, names

METADATA_KEY: Final = "ringcast.key"
METADATA_PARTITION: Final = "ringcast.partition"
METADATA_DELETED: Final = "ringcast.deleted"
_ITEM_OVERHEAD: Final = 64
_ENTRY_OVERHEAD: Final = 8


class Item(NamedTuple):
    """What an item of an answer or update is made from; ``size`` is about how many bytes it has."""

    value: str
    version: str
    metadata: Mapping[str, str]
    size: int

    @classmethod
    def of(cls, value: str, version: str, metadata: Mapping[str, str]) -> Item:
        """An item with its size."""
        told = sum(len(name.encode()) + len(text.encode()) + _ENTRY_OVERHEAD for name, text in metadata.items())
        return cls(value, version, metadata, len(value.encode()) + told + _ITEM_OVERHEAD)


class Wanted:
    """What a subscription follows: rows and whole keys, or all keys of a store (``entries`` is empty)."""

    def __init__(self, entries: Sequence[str]) -> None:
        """Reads the entries.

        Raises:
            InvalidInputError: there are over 1,000 of them, or one is malformed.
        """
        if len(entries) > limits.MAX_BATCH_ROWS:
            raise InvalidInputError(
                f"keys has {len(entries)} entries: at most {limits.MAX_BATCH_ROWS} are allowed", field="keys"
            )
        asked = dict.fromkeys(entries)
        self.all = not asked
        self._prefixed = len(asked) != 1
        self._whole: set[str] = set()
        self._rows: dict[str, set[str]] = {}
        for entry in asked:
            key, slash, row_id = entry.partition("/")
            names.check_name("keys", key)
            if slash:
                self._rows.setdefault(key, set()).add(check_row_id(row_id))
            else:
                self._whole.add(key)

    @property
    def keys(self) -> set[str]:
        """The config keys that are named."""
        return self._whole | self._rows.keys()

    def filters_of(self, key: str) -> list[str]:
        """The row ids of a key that are named, if not all of it is wanted."""
        return [] if self.all or key in self._whole else sorted(self._rows.get(key, ()))

    def name_of(self, key: str, row_id: str) -> str | None:
        """Under which name a row is told; ``None`` if it is not wanted."""
        if row_id in self._rows.get(key, ()):
            return f"{key}/{row_id}"
        if self.all or key in self._whole:
            return f"{key}/{row_id}" if self._prefixed else row_id
        return None


def item_of(change: Change) -> Item:
    """A change as an item: a deleted row has an empty value, and says so in its metadata."""
    told = {
        METADATA_KEY: change.key,
        METADATA_PARTITION: str(change.partition),
        METADATA_DELETED: "true" if change.deleted else "false",
    }
    value = "" if change.deleted or change.value is None else change.value
    return Item.of(value, str(change.version), {**(change.metadata or {}), **told})
