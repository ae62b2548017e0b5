"""The seals of groups in memory, and leases that end when a test says so."""

from __future__ import annotations

from collections.abc import Iterable

from ringcast.hosting import ConflictError, RejectedError, SealEntry
from ringcast_wire import GroupSeal


class SealBucket:
    """The bucket of groups, and the leases. Every host reads and writes the same one."""

    def __init__(self) -> None:
        self.entries: dict[str, SealEntry] = {}
        self.leases: dict[str, str] = {}
        self.full = False

    async def exists(self) -> bool:
        return True

    async def read(self, keys: Iterable[str]) -> dict[str, SealEntry]:
        return {key: self.entries.get(key, SealEntry(0, None)) for key in keys}

    async def write(self, key: str, seal: GroupSeal, *, last: int) -> int:
        if self.full:
            raise RejectedError("maximum bytes exceeded", 10077)
        if self.entries.get(key, SealEntry(0, None)).revision != last:
            raise ConflictError(key)
        self.entries[key] = SealEntry(last + 1, seal)
        return last + 1

    async def living(self, leases: Iterable[str]) -> dict[str, str]:
        return {lease: self.leases[lease] for lease in leases if lease in self.leases}


class HostLease:
    """The lease of one host."""

    def __init__(self, bucket: SealBucket, name: str) -> None:
        self.id = self.incarnation = name
        self.losses = 0
        self._bucket = bucket
        bucket.leases[name] = name

    @property
    def held(self) -> bool:
        return self.id in self._bucket.leases

    def end(self) -> None:
        """It has run out."""
        del self._bucket.leases[self.id]

    def regrant(self) -> None:
        """It is granted again."""
        self._bucket.leases[self.id] = self.id
        self.losses += 1
