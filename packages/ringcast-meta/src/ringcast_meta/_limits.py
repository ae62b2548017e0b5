"""What may be stored, and the sentence of each refusal."""

from __future__ import annotations

import re
from typing import Final

from ringcast_wire import InvalidInputError, LimitExceededError, shown

MAX_KEY_CHARS: Final = 256
MAX_VALUE_BYTES: Final = 512 * 1024
"""Below what servers take by default in one message (NATS 1 MiB, etcd 1.5 MiB), whichever it is."""
MAX_ENTRIES: Final = 65_536
"""Below one prefix that is watched."""
MAX_SNAPSHOT_BYTES: Final = 64 * 1024 * 1024
"""Keys and values below one prefix that is watched."""
MAX_WATCHES: Final = 64
"""Open at once, of one store object."""
MAX_LEASES: Final = 64
"""Open at once, of one store object."""
MAX_LEASED_ENTRIES: Final = 64
"""Of one lease."""
MIN_LEASE_TTL_S: Final = 2
MAX_LEASE_TTL_S: Final = 600

_WORD: Final = r"[A-Za-z0-9_~-]+"
_KEY: Final = re.compile(rf"{_WORD}(\.{_WORD})*", re.ASCII)
_PREFIX: Final = re.compile(rf"({_WORD}\.)*", re.ASCII)


class OpenCount:
    """How many watches, or leases, of one store are open: entered by each of them."""

    def __init__(self, one: str, many: str, most: int) -> None:
        self._one = one
        self._many = many
        self._most = most
        self._count = 0

    def __enter__(self) -> None:
        if self._count >= self._most:
            raise LimitExceededError(f"{self._count + 1} {self._many}: {self._most} are allowed", field=self._one)
        self._count += 1

    def __exit__(self, *_: object) -> None:
        self._count -= 1


def no_watches() -> OpenCount:
    """The count of a store that has no watch yet: it may have 64."""
    return OpenCount("watch", "watches", MAX_WATCHES)


def no_leases() -> OpenCount:
    """The count of a store that has no lease yet: it may have 64."""
    return OpenCount("lease", "leases", MAX_LEASES)


def check_key(key: object) -> str:
    """Returns ``key`` if it may be one.

    Raises:
        InvalidInputError: it is not 1 to 256 characters, words of ``A-Z a-z 0-9 _ ~ -`` with dots between.
    """
    if isinstance(key, str) and len(key) <= MAX_KEY_CHARS and _KEY.fullmatch(key):
        return key
    raise InvalidInputError(
        f"key {shown(key)} is not valid: 1 to {MAX_KEY_CHARS} characters are allowed, words of A-Z a-z 0-9 _ ~ - with"
        " dots between",
        field="key",
    )


def check_prefix(prefix: object) -> str:
    """Returns ``prefix`` if it may be one.

    Raises:
        InvalidInputError: it is neither empty nor whole words of a key with a dot behind each.
    """
    if isinstance(prefix, str) and len(prefix) < MAX_KEY_CHARS and _PREFIX.fullmatch(prefix):
        return prefix
    raise InvalidInputError(
        f"prefix {shown(prefix)} is not valid: it must be empty, or whole words of a key with a dot behind each, of"
        f" fewer than {MAX_KEY_CHARS} characters",
        field="prefix",
    )


def check_value(value: object) -> bytes:
    """Returns ``value`` if it may be stored.

    Raises:
        InvalidInputError: it is not ``bytes``.
        LimitExceededError: it is larger than 512 KiB.
    """
    if not isinstance(value, bytes):
        raise InvalidInputError(f"value {shown(value)} is not bytes", field="value")
    if len(value) > MAX_VALUE_BYTES:
        raise LimitExceededError(f"value has {len(value)} bytes: {MAX_VALUE_BYTES} are allowed", field="value")
    return value


def check_last(last: object) -> int:
    """Returns ``last`` if it can be the revision of an entry.

    Raises:
        InvalidInputError: it is not a number of at least 1.
    """
    if isinstance(last, int) and not isinstance(last, bool) and last >= 1:
        return last
    raise InvalidInputError(f"last {shown(last)} is not the revision of an entry: at least 1 is allowed", field="last")


def check_ttl(ttl_s: object) -> int:
    """Returns ``ttl_s`` if a lease may live so long without a refresh.

    Raises:
        InvalidInputError: it is not a whole number of 2 to 600 seconds.
    """
    if isinstance(ttl_s, int) and not isinstance(ttl_s, bool) and MIN_LEASE_TTL_S <= ttl_s <= MAX_LEASE_TTL_S:
        return ttl_s
    raise InvalidInputError(
        f"ttl_s {shown(ttl_s)} is out of range: whole seconds from {MIN_LEASE_TTL_S} to {MAX_LEASE_TTL_S} are allowed",
        field="ttl_s",
    )


def check_snapshot(prefix: str, entries: int, size: int = 0) -> None:
    """Looks whether a watch may hold so much.

    Raises:
        LimitExceededError: there are more entries, or more bytes, below the prefix than a watch takes.
    """
    if entries > MAX_ENTRIES:
        raise LimitExceededError(
            f"prefix {prefix!r} has {entries} entries: a watch takes {MAX_ENTRIES}", field="prefix"
        )
    if size > MAX_SNAPSHOT_BYTES:
        raise LimitExceededError(
            f"prefix {prefix!r} has {size} bytes or more: a watch takes {MAX_SNAPSHOT_BYTES}", field="prefix"
        )
