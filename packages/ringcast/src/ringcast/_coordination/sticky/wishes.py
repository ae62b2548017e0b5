"""The record of what an operator wants of a key of exclusive ownership: tools write it, the leader reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Final, Literal

import msgspec
from ringcast_wire import EventLog, InvalidInputError, LimitExceededError, ProtocolError, limits, names

from ringcast._bus.buckets import Bucket, Buckets, ConflictError
from ringcast._protocol.kv_mirror import KvMirror
from ringcast._protocol.sticky.plan import Wishes

MAX_WISHES_BYTES: Final = limits.MAX_WISHES_BYTES
PATIENCE_S: Final = 10.0
"""So long a leader that begins waits for the wishes: a plan without them moves partitions that they want elsewhere."""

_Worker = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pins: Annotated[dict[_Worker, tuple[int, ...]], msgspec.Meta(max_length=limits.MAX_WORKERS_PER_KEY)] = {}
    drains: Annotated[tuple[_Worker, ...], msgspec.Meta(max_length=limits.MAX_WORKERS_PER_KEY)] = ()
    balance: Literal["count", "load"] = "count"


def encode_wishes(wishes: Wishes, partitions: int) -> bytes:
    """Pins, drains and the balance as JSON. Loads are measured, not wished for: they have no place in the record.

    Raises:
        InvalidInputError: a pin or a drain names what can't be a partition or a worker, or workers are too many.
        LimitExceededError: the record would be too large.
    """
    pins: dict[str, list[int]] = {}
    for partition, worker in sorted(wishes.pins.items()):
        pins.setdefault(worker, []).append(partition)
    # Builds that know of no balance refuse a record that has one: only a record that needs it does.
    balance = {"balance": wishes.balance} if wishes.by_load else {}
    data = msgspec.json.encode({"pins": pins, "drains": sorted(wishes.drains), **balance})
    if len(data) > MAX_WISHES_BYTES:
        raise LimitExceededError(f"wishes take {len(data)} bytes: at most {MAX_WISHES_BYTES} are allowed")
    try:
        decode_wishes(data, partitions)
    except ProtocolError as error:
        raise InvalidInputError(str(error), field="wishes") from error
    return data


def decode_wishes(data: bytes, partitions: int) -> Wishes:
    """Reads the record of a key that has so many partitions.

    Raises:
        ProtocolError: it is not one, or names a partition that the key does not have, or one twice.
    """
    if len(data) > MAX_WISHES_BYTES:
        raise ProtocolError(f"wishes take {len(data)} bytes: at most {MAX_WISHES_BYTES} are allowed")
    try:
        record = msgspec.json.decode(data, type=_Record)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f"wishes of {len(data)} bytes can't be read: {error}") from error
    pins: dict[int, str] = {}
    for worker, numbers in record.pins.items():
        for number in numbers:
            if not 0 <= number < partitions:
                raise ProtocolError(f"wishes pin partition {number}: 0 to {partitions - 1} are allowed")
            if number in pins:
                raise ProtocolError(f"wishes pin partition {number} twice")
            pins[number] = worker
    return Wishes(pins=pins, drains=frozenset(record.drains), by_load=record.balance == "load")


async def write_wishes(bucket: Bucket, key: str, wishes: Wishes, partitions: int, *, last: int) -> int | None:
    """Writes the record if it is at revision ``last`` (0: it never was); the new revision, or ``None`` if it is not.

    Raises:
        InvalidInputError, LimitExceededError: as :func:`encode_wishes`.
        BusError, UnavailableError, TimeoutError, OSError: the write may have come about, or not.
    """
    try:
        return await bucket.put(names.wishes_key(key), encode_wishes(wishes, partitions), last=last)
    except ConflictError:
        return None


class WishRecords:
    """A mirror of the bucket of wishes, for the keys of a worker.

    A record that can't be read counts as the last one of its key that could be: an operator drains a worker before it
    is stopped, and what is wanted is not to end with a mistake in the next write. ``changed`` is called with each key
    whose record is another.
    """

    def __init__(
        self,
        buckets: Buckets,
        store: str,
        keys: tuple[str, ...],
        partitions: int,
        changed: Callable[[str], None],
        log: EventLog,
    ) -> None:
        self._bucket = buckets.bucket(names.wishes_bucket(store))
        self._store = store
        self._keys = keys
        self._partitions = partitions
        self._changed = changed
        self._log = log
        self._mirror = KvMirror()
        self._mirror.on_entry = lambda name: changed(name.partition(".")[0])
        self._mirror.on_snapshot = self._snapshot
        self._read: dict[str, tuple[int, Wishes]] = {}
        self._unreadable: dict[str, int] = {}
        self._waits_until: float | None = None
        self._has_told = False
        self.unreadable = 0
        """Records that could not be read, each revision counted once."""

    async def watch(self, worker_id: str) -> None:
        """Keeps the mirror until cancelled."""
        name = names.watch_name(self._store, worker_id)
        patterns = [names.wishes_key(key) for key in self._keys]
        await self._bucket.watch(name, patterns, self._mirror, lambda: None, self._log).run()

    @property
    def settled(self) -> bool:
        """Whether the wishes are known, or have been waited for long enough since this was first asked.

        A bucket that is missing, or can't be read, must not keep partitions without owners for ever.
        """
        if self._mirror.complete:
            return True
        now = asyncio.get_running_loop().time()
        if self._waits_until is None:
            self._waits_until = now + PATIENCE_S
        is_over = now >= self._waits_until
        if is_over and not self._has_told:
            self._has_told = True
            self._log.error("owners.wishes_unknown", bucket=self._bucket.name, waited_s=PATIENCE_S)
        return is_over

    def wishes(self, key: str) -> Wishes:
        """What an operator wants of a key; nothing where there is no record."""
        entry = self._mirror.entries.get(names.wishes_key(key))
        if entry is None or entry.value is None:
            self._read.pop(key, None)
            self._unreadable.pop(key, None)
            return Wishes()
        revision, found = self._read.get(key, (0, Wishes()))
        if entry.revision in (revision, self._unreadable.get(key)):
            return found
        try:
            found = decode_wishes(entry.value, self._partitions)
        except ProtocolError as error:
            self._unreadable[key] = entry.revision
            self.unreadable += 1
            self._log.error("owners.wishes_unreadable", key=key, in_force=revision, error=error)
        else:
            self._unreadable.pop(key, None)
            self._read[key] = entry.revision, found
        return found

    def _snapshot(self) -> None:
        for key in self._keys:
            self._changed(key)
