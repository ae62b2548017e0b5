"""Keys of NATS (nkeys): of an account that signs, of a server, and the curve keys (xkeys) that encrypt.

The format: a byte for the kind, 32 bytes, and their CRC-16 (XMODEM, little endian), all in Base32 without padding. A seed
begins with a byte for "seed" and five bits of the kind more. The package ``nkeys`` knows no curve keys.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from nacl.exceptions import CryptoError
from nacl.public import Box, PrivateKey, PublicKey
from nacl.signing import SigningKey, VerifyKey
from ringcast_wire import InvalidInputError

ACCOUNT: Final = 0
SERVER: Final = 13 << 3
CURVE: Final = 23 << 3
_SEED: Final = 18 << 3
_LETTERS: Final = {ACCOUNT: "A", SERVER: "N", CURVE: "X"}
_KEY_BYTES: Final = 32
_SEALED: Final = b"xkv1"
"""What sealed data begins with; a nonce of 24 bytes follows."""


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


class Signer:
    """The key of the account that signs what the service answers."""

    def __init__(self, seed: str) -> None:
        self._key = SigningKey(decode_seed(ACCOUNT, seed))
        self.public = encode_key(ACCOUNT, bytes(self._key.verify_key))

    def sign(self, data: bytes) -> bytes:
        """The signature: 64 bytes."""
        return self._key.sign(data).signature


class Sealer:
    """The curve key with which NATS servers encrypt what they ask, and the service what it answers."""

    def __init__(self, seed: str) -> None:
        self._key = PrivateKey(decode_seed(CURVE, seed))
        self.public = encode_key(CURVE, bytes(self._key.public_key))

    def seal(self, data: bytes, receiver: str) -> bytes:
        """Encrypts for the holder of this public key.

        Raises:
            InvalidInputError: it is no public key.
        """
        return _SEALED + bytes(self._box(receiver).encrypt(data))

    def open(self, data: bytes, sender: str) -> bytes:
        """Decrypts what the holder of this public key has sealed.

        Raises:
            InvalidInputError: it was not sealed by it for us, or the key is none.
        """
        if not data.startswith(_SEALED):
            raise InvalidInputError("the request is not encrypted as xkv1")
        try:
            return self._box(sender).decrypt(data[len(_SEALED) :])
        except (CryptoError, ValueError) as error:
            raise InvalidInputError("the request is not encrypted for this service's key") from error

    def _box(self, other: str) -> Box:
        return Box(self._key, PublicKey(decode_key(CURVE, other)))


def verified(server: str, data: bytes, signature: bytes) -> bool:
    """Whether a server with this public key has signed the data."""
    try:
        VerifyKey(decode_key(SERVER, server)).verify(data, signature)
    except (CryptoError, ValueError, InvalidInputError):
        return False
    return True


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
