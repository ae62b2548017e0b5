"""What of the config keys of a worker is to be written to its cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ringcast._protocol.key import KeyMachine
from ringcast._protocol.snapshots import MAX_WRITE_ROWS, PartitionSave


class CachedKey(Protocol):
    """A config key whose partitions are kept on disk."""

    @property
    def machine(self) -> KeyMachine:
        """Has the partitions in memory, and says which have changed."""

    @property
    def staleness_s(self) -> float:
        """For how long changes of it may have been missed."""


class PendingSaves:
    """Over all keys. Nothing is queued here: each machine knows what the disk lacks."""

    def __init__(self, keys: Mapping[str, CachedKey]) -> None:
        self._keys = keys

    def __len__(self) -> int:
        """Partitions that have changed since they were written."""
        return sum(key.machine.saving.pending for key in self._keys.values() if key.machine.saving)

    def take(self) -> dict[str, list[PartitionSave]]:
        """What the next write takes, by key: whole partitions, until there are ``MAX_WRITE_ROWS`` rows."""
        saves: dict[str, list[PartitionSave]] = {}
        room = MAX_WRITE_ROWS
        for name, key in self._keys.items():
            if room > 0 and key.machine.saving is not None and key.machine.saving.pending:
                saves[name] = key.machine.saving.take(room)
                room -= sum(save.size for save in saves[name])
        return saves

    def put_back(self, saves: Mapping[str, list[PartitionSave]]) -> None:
        """These have not been written, as far as is known."""
        for name, of_key in saves.items():
            saving = self._keys[name].machine.saving
            assert saving is not None
            saving.failed(of_key)

    def currency(self, now_ms: float) -> tuple[dict[str, int], list[str]]:
        """When each key was last known to be current, in ms since the epoch; and the keys of which nothing is late, and
        nothing is left to write. A key's staleness goes over all its partitions, so it is asked for once."""
        late_s = {name: key.staleness_s for name, key in self._keys.items()}
        as_of_ms = {name: int(now_ms - late * 1000) for name, late in late_s.items()}
        return as_of_ms, [name for name, late in late_s.items() if late == 0 and not self._pending(self._keys[name])]

    def rewrite_all(self) -> None:
        """The file is empty: every partition is to be written whole."""
        for key in self._keys.values():
            if key.machine.saving is not None:
                key.machine.saving.forget()
                key.machine.saving.rewrite(key.machine.partitions.values())

    def _pending(self, key: CachedKey) -> bool:
        return key.machine.saving is not None and key.machine.saving.pending > 0
