"""The keys of the auth callout: one signs what it answers, the other is what servers encrypt their requests for."""

from __future__ import annotations

from typing import Final

from nacl.exceptions import CryptoError
from nacl.public import Box, PrivateKey, PublicKey
from nacl.signing import SigningKey, VerifyKey
from ringcast_wire import InvalidInputError
from ringcast_wire.nats_keys import ACCOUNT, CURVE, SERVER, decode_key, decode_seed, encode_key

_SEALED: Final = b"xkv1"
"""What sealed data begins with; a nonce of 24 bytes follows."""


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
