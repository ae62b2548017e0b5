"""Opening encrypted values for subscribers and consumers: until then the agent has them sealed."""

from __future__ import annotations

from ringcast import Change, InvalidInputError, ValueSealedError
from ringcast.hosting import Openings
from ringcast_service import ConfigError
from ringcast_wire import PartitionRows, Row
from ringcast_wire.key_ring import KeyRing


class Opener:
    """Opens rows with the key ring of a file; with no file it refuses those that are sealed."""

    def __init__(self, file: str) -> None:
        """Reads the file; empty: none.

        Raises:
            ConfigError: it is no key ring.
        """
        try:
            self._openings = Openings(KeyRing.from_file(file) if file else None)
        except InvalidInputError as error:
            raise ConfigError(str(error)) from error
        self.failures = 0
        """How often a value could not be opened."""

    @property
    def has_keys(self) -> bool:
        """Whether there is a key ring."""
        return self._openings.key_ring is not None

    def change(self, change: Change) -> Change:
        """A change with its value.

        Raises:
            ValueSealedError: it can't be opened.
        """
        try:
            return self._openings.of(change.store, change.key).change(change)
        except ValueSealedError:
            self.failures += 1
            raise

    def row(self, store: str, key: str, row: Row) -> Row:
        """The same for a row; a deleted one is as it is."""
        if row.deleted:
            return row
        try:
            return self._openings.of(store, key).row(row)
        except ValueSealedError:
            self.failures += 1
            raise

    def part(self, store: str, key: str, part: PartitionRows) -> list[Row]:
        """The rows of a partition."""
        return [self.row(store, key, row) for row in part.rows]
