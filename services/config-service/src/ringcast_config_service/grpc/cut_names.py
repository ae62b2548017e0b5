"""Certificates with a name that gRPC cuts off.

gRPC hands names on as far as the first NUL: of the common name ``deploy\\0.example`` it tells ``deploy``. An
authority that signs such a name would let its owner pass for another. So the names are
looked for in the certificate itself.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

_COMMON_NAME: Final = bytes.fromhex("0603550403")
_ALTERNATIVE_NAMES: Final = bytes.fromhex("0603551d11")
_OCTETS: Final = 0x04
_TEXTS: Final = frozenset({0x81, 0x82, 0x86})
"""Alternative names that are text: of mail, of a host, a URI. An address of IP may have zeros."""
_WIDTHS: Final = {0x1E: 2, 0x1C: 4}
"""Bytes of a character, by the type of the text; of all others one."""
_LONG: Final = 0x80


@lru_cache(256)
def has_cut_name(pem: bytes) -> bool:
    """Whether a common name or an alternative name in a certificate has a NUL; also where it can't be read."""
    try:
        der = ssl.PEM_cert_to_DER_cert(pem.decode("ascii"))
        return any(_has_nul(tag, text) for tag, text in _names(der))
    except (ValueError, IndexError):
        return True


def _names(der: bytes) -> Iterator[tuple[int, bytes]]:
    """The common names of the owner and of who signed it, and the alternative names, each with the type of its text."""
    for at in _places(der, _COMMON_NAME):
        tag, text, _ = _element(der, at)
        yield tag, text
    for at in _places(der, _ALTERNATIVE_NAMES):
        tag, value, end = _element(der, at)
        if tag != _OCTETS:  # whether it is critical comes first
            _, value, _ = _element(der, end)
        _, names, _ = _element(value, 0)
        begin = 0
        while begin < len(names):
            tag, text, begin = _element(names, begin)
            if tag in _TEXTS:
                yield tag, text


def _places(der: bytes, what: bytes) -> Iterator[int]:
    """Where something ends."""
    at = der.find(what)
    while at >= 0:
        yield at + len(what)
        at = der.find(what, at + 1)


def _element(der: bytes, at: int) -> tuple[int, bytes, int]:
    """The tag and the content of the element that begins there, and where it ends."""
    tag, size, at = der[at], der[at + 1], at + 2
    if size & _LONG:
        count = size - _LONG
        size, at = int.from_bytes(der[at : at + count], "big"), at + count
    return tag, der[at : at + size], at + size


def _has_nul(tag: int, text: bytes) -> bool:
    width = _WIDTHS.get(tag, 1)
    return any(not any(text[first : first + width]) for first in range(0, len(text), width))
