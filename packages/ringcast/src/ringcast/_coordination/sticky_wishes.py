"""The record of what an operator wants of a key of exclusive ownership: tools write it, the leader reads it."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from ringcast_wire import InvalidInputError, LimitExceededError, ProtocolError, limits, names

from ringcast._bus.kv import Bucket, ConflictError
from ringcast._protocol.sticky.plan import Wishes

MAX_WISHES_BYTES: Final = 64 * limits.KIB
"""Pins of 4096 partitions to 200 workers, all of which drain, take less."""

_Worker = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pins: Annotated[dict[_Worker, tuple[int, ...]], msgspec.Meta(max_length=limits.MAX_WORKERS_PER_KEY)] = {}
    drains: Annotated[tuple[_Worker, ...], msgspec.Meta(max_length=limits.MAX_WORKERS_PER_KEY)] = ()


def encode_wishes(wishes: Wishes, partitions: int) -> bytes:
    """Pins and drains as JSON. Loads are measured, not wished for: they have no place in the record.

    Raises:
        InvalidInputError: a pin or a drain names what can't be a partition or a worker, or workers are too many.
        LimitExceededError: the record would be too large.
    """
    pins: dict[str, list[int]] = {}
    for partition, worker in sorted(wishes.pins.items()):
        pins.setdefault(worker, []).append(partition)
    data = msgspec.json.encode({"pins": pins, "drains": sorted(wishes.drains)})
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
    return Wishes(pins=pins, drains=frozenset(record.drains))


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
