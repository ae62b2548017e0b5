"""Keys of NATS (nkeys) as text: of an account that signs, of a server, and the curve keys (xkeys) that encrypt.

The format: a byte for the kind, 32 bytes, and their CRC-16 (XMODEM, little endian), all in Base32 without padding. In
front of a seed are two bytes: that it is one, and its kind. The package ``nkeys`` knows no curve keys.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from ringcast_wire._common.errors import InvalidInputError

ACCOUNT: Final = 0
SERVER: Final = 13 << 3
CURVE: Final = 23 << 3
_SEED: Final = 18 << 3
_LETTERS: Final = {ACCOUNT: "A", SERVER: "N", CURVE: "X"}
_KEY_BYTES: Final = 32


def encode_key(kind: int, key: bytes) -> str:
    """A public key as text."""
    return _encoded(bytes([kind]) + key)


def encode_seed(kind: int, seed: bytes) -> str:
    """A seed as text."""
    return _encoded(bytes([_SEED | kind >> 5, (kind & 31) << 3]) + seed)


def decode_key(kind: int, text: str) -> bytes:
    """The 32 bytes of a public key.

    Raises:
        InvalidInputError: the text is none of this kind.
    """
    data = _decoded(text)
    if data is None or len(data) != 1 + _KEY_BYTES or data[0] != kind:
        raise InvalidInputError(f"this is no public key of NATS that begins with {_LETTERS[kind]}")
    return data[1:]


def decode_seed(kind: int, text: str) -> bytes:
    """The 32 bytes of a seed; no message shows them.

    Raises:
        InvalidInputError: the text is none of this kind.
    """
    data = _decoded(text)
    if data is None or len(data) != 2 + _KEY_BYTES or data[:2] != bytes([_SEED | kind >> 5, (kind & 31) << 3]):
        raise InvalidInputError(f"it holds no seed of NATS that begins with S{_LETTERS[kind]}")
    return data[2:]


def _encoded(data: bytes) -> str:
    checksum = binascii.crc_hqx(data, 0).to_bytes(2, "little")
    return base64.b32encode(data + checksum).rstrip(b"=").decode()


def _decoded(text: str) -> bytes | None:
    """What is encoded, without its checksum; ``None``: it is no key."""
    try:
        data = base64.b32decode(text + "=" * (-len(text) % 8))
    except (binascii.Error, ValueError):
        return None
    data, checksum = data[:-2], data[-2:]
    return data if checksum == binascii.crc_hqx(data, 0).to_bytes(2, "little") else None
