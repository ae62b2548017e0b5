"""How far the groups of a store have come, in the bucket that their hosts share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from ringcast_wire import (
    EventLog,
    GroupSeal,
    LeaseRecord,
    ProtocolError,
    SealHolder,
    decode_record,
    encode_record,
    names,
)

from ringcast._bus.buckets import Bucket, Buckets, Found

_KEYS_AT_ONCE: Final = 256
_MOST_UNREADABLE: Final = 10_000
"""So many keys whose seals can't be read are remembered; then all are told of once more."""


class SealEntry(NamedTuple):
    """What stands under a key: the revision that a compare-and-set names (0: nothing ever did), and the seal.

    ``damaged``: the record can't be read. Then the seal has every row delivered, and names the holder if that can be
    read alone: a later version of the record may have one.
    """

    revision: int
    seal: GroupSeal | None
    damaged: bool = False


class GroupSeals:
    """The seals of one store's groups, and the leases of the processes that hold them.

    Every call raises ``UnavailableError`` or ``BusError`` when NATS does not answer, and ``RefusedError`` when the
    permissions do not allow it.
    """

    def __init__(self, buckets: Buckets, store: str, log: EventLog) -> None:
        self._bucket = buckets.bucket(names.groups_bucket(store))
        self._leases = buckets.bucket(names.LEASES_BUCKET)
        self._log = log.bind(store=store)
        self._unreadable: set[str] = set()
        """The keys whose seals could not be read last: each is told of once."""

    async def exists(self) -> bool:
        """Whether the store has the bucket: services before this version do not make it."""
        return await self._bucket.exists()

    async def read(self, keys: Sequence[str]) -> dict[str, SealEntry]:
        """What stands under each of these keys."""
        entries: dict[str, SealEntry] = {key: SealEntry(0, None) for key in keys}
        for key, found in (await _read(self._bucket, keys, "seals")).items():
            entries[key] = self._entry(key, found.sequence, found.data)
        return entries

    async def write(self, key: str, seal: GroupSeal, *, last: int) -> int:
        """Writes a seal if its key is at revision ``last``, and returns the new revision.

        Raises:
            ConflictError: it is at another.
            RejectedError: the bucket does not take it.
        """
        return await self._bucket.put(key, encode_record(seal), last=last)

    async def living(self, leases: Iterable[str]) -> dict[str, str]:
        """Which of these leases live, and the incarnation of the process that has each."""
        living: dict[str, str] = {}
        for lease, found in (await _read(self._leases, sorted(set(leases)), "leases")).items():
            with suppress(ProtocolError):  # as good as none
                if found.data is not None:
                    living[lease] = decode_record(found.data, LeaseRecord).incarnation
        return living

    def _entry(self, key: str, revision: int, data: bytes | None) -> SealEntry:
        try:
            seal = decode_record(data, GroupSeal) if data is not None else None
        except ProtocolError as error:
            self._tell(key, error)
        else:
            self._unreadable.discard(key)
            return SealEntry(revision, seal)
        assert data is not None, "nothing can always be read"
        held = SealHolder()
        with suppress(ProtocolError):
            held = decode_record(data, SealHolder)
        return SealEntry(revision, GroupSeal(history="", revision=0, holder=held.holder, lease=held.lease), True)

    def _tell(self, key: str, error: ProtocolError) -> None:
        if key in self._unreadable:
            return
        if len(self._unreadable) >= _MOST_UNREADABLE:
            self._unreadable.clear()
        self._unreadable.add(key)
        self._log.warning("group.seal_unreadable", seal=key, error=error)


async def _read(bucket: Bucket, keys: Sequence[str], what: str) -> dict[str, Found]:
    """What stands under any number of keys."""
    entries: dict[str, Found] = {}
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        entries |= await bucket.read(keys[start : start + _KEYS_AT_ONCE], what)
    return entries
