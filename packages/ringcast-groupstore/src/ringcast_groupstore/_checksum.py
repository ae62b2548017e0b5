"""The checksum that every key has: SQLite keeps none of its pages, and would hand out what a disk has bent."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from zlib import crc32

from ringcast_groupstore._types import Value


def checksum(group: str, key: str, value: Value, expires_at_ms: int | None, revision: int) -> int:
    """CRC-32 over group, key, value and expiry, xor the revision; text and bytes of the same content differ.

    What comes from a file may be of any type: -1, which no checksum is, where it is not what its name says.
    """
    try:
        if isinstance(value, str):
            return crc32((key + value).encode(), _start(group, expires_at_ms)) ^ revision
        return crc32(value, crc32(key.encode(), ~_start(group, expires_at_ms) & 0xFFFFFFFF)) ^ revision
    except (AttributeError, TypeError):
        return -1


def checksums(group: str, values: Mapping[str, Value], expires_at_ms: int | None, first: int) -> list[int]:
    """Those of many keys that are written at once, under revisions from ``first`` on."""
    start = _start(group, expires_at_ms)
    return [
        (crc32((key + value).encode(), start) ^ revision)
        if isinstance(value, str)
        else checksum(group, key, value, expires_at_ms, revision)
        for revision, (key, value) in enumerate(values.items(), first)
    ]


@lru_cache(maxsize=1024)
def _start(group: str, expires_at_ms: int | None) -> int:
    return crc32(f"{expires_at_ms} {group}".encode())
