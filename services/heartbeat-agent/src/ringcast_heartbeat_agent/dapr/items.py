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


def wire_size(name: str, item: Item) -> int:
    """How many bytes an item takes in a message of gRPC, to the byte."""
    told = sum(_field(_field(len(key.encode())) + _field(len(text.encode()))) for key, text in item.metadata.items())
    made = sum(_field(len(text.encode())) for text in (item.value, item.version) if text)
    return _field(_field(len(name.encode())) + _field(made + told))


def _field(size: int) -> int:
    """A field of so many bytes: its tag, its length, and itself."""
    return 1 + max(1, -(-size.bit_length() // 7)) + size


class KeySelector:
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
            key, slash, row_id = entry.partition("/")
            try:
                names.check_name("keys", key)
                if slash:
                    self._rows.setdefault(key, set()).add(check_row_id(row_id))
                else:
                    self._whole.add(key)
            except InvalidInputError:
                self.impossible.append(entry)

    @property
    def keys(self) -> set[str]:
        """The config keys that are named."""
        return self._whole | {key for key, rows in self._rows.items() if rows}

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
    return row_item(change.key, change.partition, change.value, change.version, change.deleted, change.metadata)


def row_item(
    key: str, partition: int, value: str | None, version: int, deleted: bool, metadata: Mapping[str, str] | None
) -> Item:
    """An item from the parts of a row."""
    told = {
        METADATA_KEY: key,
        METADATA_PARTITION: str(partition),
        METADATA_DELETED: "true" if deleted else "false",
    }
    return Item.of("" if deleted or value is None else value, str(version), {**(metadata or {}), **told})


def deleted_item(key: str, partition: int, version: int) -> Item:
    """A row that is gone."""
    return row_item(key, partition, None, version, True, None)
