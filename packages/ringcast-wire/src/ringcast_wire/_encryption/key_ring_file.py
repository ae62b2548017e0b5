"""The file of a key ring: how it is read, checked and written."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Final

import msgspec

from ringcast_wire._common.errors import InvalidInputError, shown, shown_path
from ringcast_wire._common.names import check_name

KEY_BYTES: Final = 32
MAX_KEYS: Final = 64
MAX_PATTERNS: Final = 256
_MAX_FILE_BYTES: Final = 64 * 1024
_PATTERN: Final = re.compile(r"[A-Za-z0-9_*-]{1,64}/[A-Za-z0-9_*-]{1,64}", re.ASCII)


class KeyRingDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the file says, checked. Its text form never shows a key.

    ``encrypt`` and ``accept_clear`` are patterns of lists, ``STORE/KEY``, where ``*`` stands for any characters.
    """

    active: str
    """The id of the key that seals."""
    keys: dict[str, str]
    """Keys of 32 bytes by id, as base64."""
    encrypt: list[str]
    """The lists whose values are encrypted."""
    accept_clear: list[str] = []
    """Those of them in which values may still be clear text, while they are being encrypted for the first time."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.keys) <= MAX_KEYS:
            raise InvalidInputError(f"keys has {len(self.keys)} entries: 1 to {MAX_KEYS} are allowed", field="keys")
        for key_id, text in self.keys.items():
            try:
                check_name("key id", key_id)
            except InvalidInputError:
                # It is not shown: a key may stand there by mistake.
                raise InvalidInputError(
                    "keys has a key id that is not 1 to 64 characters of A-Z a-z 0-9 _ -", field="keys"
                ) from None
            _secret(key_id, text)
        if self.active not in self.keys:
            raise InvalidInputError("active is not the id of one of the keys", field="active")
        for field in ("encrypt", "accept_clear"):
            patterns: list[str] = getattr(self, field)
            if len(patterns) > MAX_PATTERNS:
                raise InvalidInputError(
                    f"{field} has {len(patterns)} patterns: at most {MAX_PATTERNS} are allowed", field=field
                )
            for pattern in patterns:
                if _PATTERN.fullmatch(pattern) is None:
                    raise InvalidInputError(
                        f"{field} {shown(pattern)} is not STORE/KEY, each 1 to 64 characters of A-Z a-z 0-9 _ - or *",
                        field=field,
                    )

    def __repr__(self) -> str:
        return f"KeyRingDocument(active={self.active!r}, keys={sorted(self.keys)}, encrypt={self.encrypt})"

    def secrets(self) -> dict[str, bytes]:
        """The keys, 32 bytes each, by id."""
        return {key_id: _secret(key_id, text) for key_id, text in self.keys.items()}

    def fingerprints(self) -> dict[str, str]:
        """16 hexadecimal digits by key id: equal where the keys are, and of no use to compute the key."""
        return {
            key_id: hmac.new(secret, b"ringcast-key-fingerprint", hashlib.sha256).hexdigest()[:16]
            for key_id, secret in self.secrets().items()
        }

    def with_key(self, key_id: str) -> KeyRingDocument:
        """With one more key, which is random and not active.

        Raises:
            InvalidInputError: there is a key of that id, or there are 64 keys.
        """
        if key_id in self.keys:
            raise InvalidInputError(f"key id {shown(key_id)} is in the key ring already", field="key_id")
        return msgspec.structs.replace(self, keys={**self.keys, key_id: make_key()})

    def with_active(self, key_id: str) -> KeyRingDocument:
        """With another active key.

        Raises:
            InvalidInputError: there is no key of that id.
        """
        if key_id not in self.keys:
            known = ", ".join(sorted(self.keys))
            raise InvalidInputError(f"key id {shown(key_id)} is not in the key ring, which has {known}", field="key_id")
        return msgspec.structs.replace(self, active=key_id)

    def without_key(self, key_id: str) -> KeyRingDocument:
        """Without one of its keys.

        Raises:
            InvalidInputError: there is no key of that id, or it is the active one.
        """
        self.with_active(key_id)
        if key_id == self.active:
            raise InvalidInputError(f"key id {shown(key_id)} is active: activate another one first", field="key_id")
        return msgspec.structs.replace(self, keys={k: text for k, text in self.keys.items() if k != key_id})


def make_key() -> str:
    """A new key: 32 random bytes, as base64."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


_decode: Final = msgspec.json.Decoder(KeyRingDocument).decode


def read_key_ring(path: str) -> tuple[KeyRingDocument, tuple[int, ...]]:
    """What a file says, and marks by which another version of it shows.

    Raises:
        InvalidInputError: it can't be read, may be read or written by others than its owner and its group, is larger
            than 64 KiB, or breaks a rule. The message holds nothing of a key.
    """
    where = f"key_ring {shown_path(path)}"
    try:
        with Path(path).open("rb") as file:
            found = os.fstat(file.fileno())
            data = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidInputError(f"{where} can't be read: {reason}", field="key_ring") from None
    if found.st_mode & 0o027:
        raise InvalidInputError(
            f"{where} has the mode {stat.S_IMODE(found.st_mode):04o}: others may not read it, nor the group write it "
            "(chmod 600)",
            field="key_ring",
        )
    if len(data) > _MAX_FILE_BYTES:
        raise InvalidInputError(f"{where} is larger than {_MAX_FILE_BYTES} bytes", field="key_ring")
    try:
        return _decode(data), stamp(found)
    except InvalidInputError as error:
        raise InvalidInputError(f"{where}: {error}", field=error.field) from None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        cause = error.__cause__
        said = cause if isinstance(cause, InvalidInputError) else error
        raise InvalidInputError(f"{where} is no key ring: {said}", field="key_ring") from None


def write_key_ring(path: str, document: KeyRingDocument, *, replace: bool) -> None:
    """Writes a file that only its owner may read (mode 0600), whole or not at all.

    Raises:
        InvalidInputError: it can't be written, or is there and ``replace`` is false.
    """
    target = Path(path)
    data = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    part = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with open(part, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            part.replace(target)
        else:
            os.link(part, target)
    except FileExistsError:
        raise InvalidInputError(f"key_ring {shown_path(path)} exists already", field="key_ring") from None
    except OSError as error:
        raise InvalidInputError(
            f"key_ring {shown_path(path)} can't be written: {error.strerror}", field="key_ring"
        ) from None
    finally:
        part.unlink(missing_ok=True)


def stamp(found: os.stat_result) -> tuple[int, ...]:
    """What tells two versions of a file apart without reading it."""
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _secret(key_id: str, text: str) -> bytes:
    try:
        secret = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) != KEY_BYTES:
        raise InvalidInputError(
            f"key {shown(key_id)} is not {KEY_BYTES} bytes in base64: `ringcast keyring add` makes one", field="keys"
        )
    return secret
