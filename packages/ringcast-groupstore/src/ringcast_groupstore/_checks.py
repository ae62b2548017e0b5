"""What may go into a store: names, values and times are held against their limits before anything is written."""

from __future__ import annotations

import re
from collections.abc import Collection

from ringcast_groupstore._errors import InputError
from ringcast_groupstore._types import Limits, Value

MAX_TTL_MS = 100 * 366 * 24 * 3600 * 1000
"""A hundred years: a larger one is a mistake in the unit."""

_NAMESPACE = re.compile(r"[A-Za-z0-9-]{1,64}")
_VALUE_TYPES = {str, bytes}


def check_name(field: str, name: str, max_bytes: int) -> None:
    """A group or a key: text of 1 to ``max_bytes`` bytes of UTF-8.

    Raises:
        TypeError: it is no ``str``.
        InputError: it is empty or too long, or is no Unicode text.
    """
    if type(name) is not str:
        raise TypeError(f"{field} must be a str, not {type(name).__name__}")
    if not name:
        raise InputError(f"{field} is empty: 1 to {max_bytes} bytes are allowed")
    if len(name) * 4 > max_bytes and (size := len(_utf8(field, name))) > max_bytes:
        raise InputError(f"{field} {name[:40]!r}… has {size} bytes: 1 to {max_bytes} are allowed")


def check_there(field: str, name: str) -> None:
    """A group or a key to read or remove, however long: it may have been written under other limits.

    Raises:
        TypeError: it is no ``str``.
        InputError: it is empty.
    """
    if type(name) is not str:
        raise TypeError(f"{field} must be a str, not {type(name).__name__}")
    if not name:
        raise InputError(f"{field} is empty: 1 byte or more is needed")


def check_value(value: Value, limits: Limits) -> None:
    """Text or bytes of at most ``max_value_bytes``.

    Raises:
        TypeError: it is neither ``str`` nor ``bytes``.
        InputError: it is too large, or is no Unicode text.
    """
    if type(value) not in _VALUE_TYPES:
        raise TypeError(f"value must be str or bytes, not {type(value).__name__}")
    if len(value) * 4 > limits.max_value_bytes and (size := _size(value)) > limits.max_value_bytes:
        raise InputError(f"value has {size} bytes: at most {limits.max_value_bytes} are allowed")


def check_keys(keys: Collection[str], limits: Limits) -> None:
    """Every one of many keys; one pass in C when all are short, as they nearly always are."""
    if keys and not (
        set(map(type, keys)) == {str} and "" not in keys and max(map(len, keys)) * 4 <= limits.max_key_bytes
    ):
        for key in keys:
            check_name("key", key, limits.max_key_bytes)


def check_values(values: Collection[Value], limits: Limits) -> None:
    """Every one of many values."""
    if values and not (set(map(type, values)) <= _VALUE_TYPES and max(map(len, values)) * 4 <= limits.max_value_bytes):
        for value in values:
            check_value(value, limits)


def check_ttl(ttl_ms: int) -> None:
    """A time to live: 1 ms to 100 years.

    Raises:
        TypeError: it is no ``int``.
        InputError: it is out of range.
    """
    if type(ttl_ms) is not int:
        raise TypeError(f"ttl_ms must be an int, not {type(ttl_ms).__name__}")
    if not 1 <= ttl_ms <= MAX_TTL_MS:
        raise InputError(f"ttl_ms {ttl_ms} is out of range: 1 to {MAX_TTL_MS}")


def check_namespace(name: str) -> None:
    """A namespace: 1 to 64 of ``A-Z a-z 0-9 -``."""
    if type(name) is not str or not _NAMESPACE.fullmatch(name):
        raise InputError(f"namespace {name!r} is not a valid name: 1 to 64 characters of A-Z a-z 0-9 - are allowed")


def prefix_end(prefix: str) -> str | None:
    """The smallest text above everything that starts with ``prefix``, in the order of code points (and so of UTF-8).

    ``None`` when there is none: the prefix is empty, or all of it the last code point.
    """
    for length in range(len(prefix), 0, -1):
        code = ord(prefix[length - 1])
        if code < 0x10FFFF:
            above = 0xE000 if code == 0xD7FF else code + 1  # surrogates are no text
            return prefix[: length - 1] + chr(above)
    return None


def _size(value: Value) -> int:
    return len(value) if isinstance(value, bytes) else len(_utf8("value", value))


def _utf8(field: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{field} {text[:40]!a} is no Unicode text: it has half of a surrogate pair") from None
