"""Configuration items of the agent: their size on the wire, and which rows a subscription selects.

How an entry of ``keys`` is read, and how a row becomes an item, is in the SDK: the clients there give the same items.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getsizeof
from typing import Final

from ringcast import Change, InvalidInputError
from ringcast.hosting import ConfigurationItem, KeySelector, make_item
from ringcast_wire import limits

_PLACE_BYTES: Final = 144
"""An entry of a dictionary of CPython 3.11 to 3.13 after it has grown (60), a tuple of two (56), and an int (28)."""


def wire_size(name: str, item: ConfigurationItem) -> int:
    """How many bytes an item takes in a message of gRPC, to the byte."""
    fields = sum(_field(_field(len(key.encode())) + _field(len(text.encode()))) for key, text in item.metadata.items())
    made = sum(_field(len(text.encode())) for text in (item.value, item.version) if text)
    return _field(_field(len(name.encode())) + _field(made + fields))


def memory_size(name: str, item: ConfigurationItem) -> int:
    """How many bytes an item and its name take at most in memory, with their place in a queue.

    CPython says how large each object is. What items share, such as the names of Ringcast's own metadata, counts in
    each. A test compares that with what the allocator gives.
    """
    metadata = sum(getsizeof(key) + getsizeof(text) for key, text in item.metadata.items())
    parts = getsizeof(item.value) + getsizeof(item.version) + getsizeof(item.metadata)
    return getsizeof(name) + getsizeof(item) + parts + metadata + _PLACE_BYTES


def _field(size: int) -> int:
    """A field of so many bytes: its tag, its length, and itself."""
    return 1 + max(1, -(-size.bit_length() // 7)) + size


class KeySelection:
    """What a subscription follows: rows and whole keys, or all keys of a store (``entries`` is empty)."""

    def __init__(self, entries: Sequence[str]) -> None:
        """Reads the entries. What can't be the name of a key or row names nothing, as any other that is not there.

        Raises:
            InvalidInputError: there are over 1,000 of them.
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
        self.impossible: list[str] = []
        """Entries that nothing can ever have the name of."""
        for entry in asked:
            try:
                selector = KeySelector.parse(entry)
            except InvalidInputError:
                self.impossible.append(entry)
                continue
            if selector.row_id is not None:
                self._rows.setdefault(selector.key, set()).add(selector.row_id)
            else:
                self._whole.add(selector.key)

    @property
    def keys(self) -> set[str]:
        """The config keys that are named."""
        return self._whole | self._rows.keys()

    def filters_of(self, key: str) -> list[str]:
        """The row ids of a key that are named, if not all of it is wanted."""
        return [] if self.all or key in self._whole else sorted(self._rows.get(key, ()))

    def name_of(self, key: str, row_id: str) -> str | None:
        """The name under which a row is delivered; ``None`` if it is not wanted."""
        if row_id in self._rows.get(key, ()):
            return f"{key}/{row_id}"
        if self.all or key in self._whole:
            return f"{key}/{row_id}" if self._prefixed else row_id
        return None


def item_of(change: Change) -> ConfigurationItem:
    """A change as an item: a deleted row has an empty value, and says so in its metadata."""
    return make_item(change.key, change.partition, change.value, change.version, change.deleted, change.metadata)


def deleted_item(key: str, partition: int, version: int) -> ConfigurationItem:
    """A row that is gone."""
    return make_item(key, partition, None, version, True, None)
