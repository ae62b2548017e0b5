"""How the value of a row is encrypted under one key: AES-256-GCM with a nonce that is computed, not drawn.

From the key of the ring two keys are derived for each list (HKDF-SHA256 over the names of store and config key): one
encrypts, one makes nonces. The nonce is the first 12 bytes of HMAC-SHA256(nonce key, row id, metadata and value). So
the same row gives the same bytes: hashes, ``skip_unchanged`` and ``sync`` compare sealed values as they compare clear
ones.

GCM must not see one nonce with two values under one key: a reader of both could compute the XOR of the values, and
forge others. Here a nonce repeats where row id, metadata and value are the same, and then so are all bytes: that tells
that a row is as it was before, and nothing else. Two different rows share a nonce only if 96 bits of HMAC-SHA256
collide: for 2^32 values that were ever sealed under one key in one list, the chance is below 2^-32, which is what
NIST SP 800-38D allows for nonces that are drawn at random.

Store, config key, row id and metadata are the associated data of GCM: a sealed value opens in its own row only, and
with the metadata that it was written with. After opening the nonce is computed again and compared, so that forging a
value takes the nonce key too.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

_NONCE_BYTES: Final = 12
_LABEL: Final = b"ringcast-sealed-value-1"


class NotOpenedError(ValueError):
    """A sealed value is none, was changed, belongs to another row, or was sealed with another key."""


class Cipher:
    """Seals and opens the values of one list under one key of 32 bytes."""

    def __init__(self, secret: bytes, store: str, key: str) -> None:
        # Names have no NUL, so that no two lists give the same bytes.
        self._list = b"\0".join((_LABEL, store.encode(), key.encode(), b""))
        material = HKDFExpand(SHA256(), 64, self._list).derive(secret)
        self._gcm = AESGCM(material[:32])
        self._nonce_key = material[32:]

    def seal(self, row_id: str, value: str, metadata: Mapping[str, str] | None) -> str:
        """Nonce, encrypted value and tag, as base64. ``metadata``: without the entries of encryption."""
        row, clear = _row(row_id, metadata), value.encode()
        nonce = self._nonce(row, clear)
        return b64encode(nonce + self._gcm.encrypt(nonce, clear, self._list + row)).decode()

    def open(self, row_id: str, sealed: str, metadata: Mapping[str, str] | None) -> str:
        """The value.

        Raises:
            NotOpenedError: it does not open.
        """
        try:
            row = _row(row_id, metadata)
            data = b64decode(sealed, validate=True)
            nonce = data[:_NONCE_BYTES]
            clear = self._gcm.decrypt(nonce, data[_NONCE_BYTES:], self._list + row)
        except (binascii.Error, InvalidTag, ValueError):  # ValueError: too short, or not ASCII
            raise NotOpenedError from None
        if not hmac.compare_digest(nonce, self._nonce(row, clear)):
            raise NotOpenedError
        return clear.decode()

    def _nonce(self, row: bytes, clear: bytes) -> bytes:
        # The length in front: no two pairs of row and value give the same bytes.
        return hmac.digest(self._nonce_key, len(row).to_bytes(4) + row + clear, "sha256")[:_NONCE_BYTES]


def _row(row_id: str, metadata: Mapping[str, str] | None) -> bytes:
    """Row id and metadata, so that no two rows give the same bytes."""
    row = row_id.encode()
    if b"\0" in row:
        raise NotOpenedError  # no row has such an id: it could pass for one with metadata
    if not metadata:
        return row
    texts = (text.encode() for entry in sorted(metadata.items()) for text in entry)
    return row + b"\0" + b"".join(len(text).to_bytes(4) + text for text in texts)
