"""Values that the service and the bus can't read: sealed by those who write, opened by those who read.

A :class:`KeyRing` has keys by id, one of which is active, and says which lists are encrypted. A sealed row has a value
of base64, and two entries of metadata more: ``enc-alg`` and ``enc-kid``, the algorithm and the id of the key. Row ids
and other metadata stay as they are, and can't be changed without the key. The algorithm is in
:mod:`ringcast_wire._encryption.sealing`.

``cryptography`` (extra ``encryption``) is imported when the first value is sealed or opened.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ringcast_wire._common.errors import InvalidInputError, RowRule, ValueSealedError, shown, shown_path
from ringcast_wire._common.limits import MAX_METADATA_BYTES, MAX_METADATA_ENTRIES, MAX_ROW_BYTES
from ringcast_wire._common.rows import check_row
from ringcast_wire._encryption.key_ring_file import KeyRingDocument, make_key, read_key_ring, stamp, write_key_ring

if TYPE_CHECKING:
    from ringcast_wire._encryption.sealing import Cipher

__all__ = [
    "ALGORITHM",
    "ALGORITHM_FIELD",
    "KEY_ID_FIELD",
    "KEY_RING_VARIABLE",
    "KeyRing",
    "KeyRingDocument",
    "ListKeys",
    "SealedRow",
    "check_not_sealed",
    "make_key",
    "read_key_ring",
    "write_key_ring",
]

ALGORITHM: Final = "A256GCM-HS256"
"""AES-256-GCM with a nonce of HMAC-SHA256, the only one there is so far."""
ALGORITHM_FIELD: Final = "enc-alg"
KEY_ID_FIELD: Final = "enc-kid"
KEY_RING_VARIABLE: Final = "RINGCAST_KEY_RING"
"""The environment variable that names the file."""

_REREAD_S: Final = 1.0
_MAX_LISTS: Final = 5_000
"""Lists whose derived keys are kept: 50 stores of 100 keys."""


class SealedRow(NamedTuple):
    """Value and metadata of a row, sealed or opened. Metadata is ``None`` where there is none."""

    value: str
    metadata: Mapping[str, str] | None


class _State(NamedTuple):
    document: KeyRingDocument
    secrets: dict[str, bytes]
    mark: tuple[int, ...] | None


class KeyRing:
    """Keys by id, one of them active, and the lists that they encrypt. Any thread may use it.

    One that was read from a file looks at it again before it seals and opens, a second after the last look at the
    earliest, and at once when a value names a key id that it does not know. So a key that was removed from the file
    opens nothing more, and a list in which clear text is no longer accepted has none. A file that has become unreadable
    leaves it as it was; :attr:`problem` says why.
    """

    def __init__(self, document: KeyRingDocument, path: str | None = None) -> None:
        self._path = path
        self._state = _State(document, document.secrets(), None)
        self._looked_at = time.monotonic()
        self._lists: dict[tuple[str, str], ListKeys] = {}
        self.problem = ""
        """Why the file as it is now can't be used; empty: it can, or there is none."""

    @classmethod
    def from_file(cls, path: str) -> KeyRing:
        """Reads a file.

        Raises:
            InvalidInputError: as :func:`read_key_ring` says.
        """
        document, mark = read_key_ring(path)
        ring = cls(document, path)
        ring._state = _State(document, document.secrets(), mark)
        return ring

    @classmethod
    def from_environment(cls) -> KeyRing | None:
        """The one of the file that RINGCAST_KEY_RING names; ``None`` without it."""
        path = os.environ.get(KEY_RING_VARIABLE)
        return cls.from_file(path) if path else None

    def __repr__(self) -> str:
        return f"KeyRing({self.document!r})"

    @property
    def document(self) -> KeyRingDocument:
        """What it has now."""
        return self._state.document

    def of(self, store: str, key: str) -> ListKeys:
        """The keys of one list."""
        found = self._lists.get((store, key))
        if found is None:
            if len(self._lists) >= _MAX_LISTS:
                self._lists.clear()
            found = self._lists[store, key] = ListKeys(self, store, key)
        return found

    def state(self) -> _State:
        """Keys and patterns of one version of the file."""
        return self._state

    def look_again(self, *, now: bool = False) -> None:
        """Reads the file again if it is another one."""
        if self._path is None or (not now and time.monotonic() - self._looked_at < _REREAD_S):
            return
        self._looked_at = time.monotonic()
        try:
            if stamp(Path(self._path).stat()) != self._state.mark:
                document, mark = read_key_ring(self._path)
                self._state = _State(document, document.secrets(), mark)
        except OSError as error:
            self.problem = f"key_ring {shown_path(self._path)} can't be read: {error.strerror}"
        except InvalidInputError as error:
            self.problem = str(error)
        else:
            self.problem = ""


class _View:
    """A list under one version of the file. It never changes, but for the keys that are derived when first needed."""

    def __init__(self, state: _State, store: str, key: str) -> None:
        self.state = state
        self.encrypted = _matches(f"{store}/{key}", state.document.encrypt)
        self.accepts_clear = _matches(f"{store}/{key}", state.document.accept_clear)
        self._store = store
        self._key = key
        self._ciphers: dict[str, Cipher] = {}

    def cipher(self, key_id: str) -> Cipher | None:
        """``None``: the key ring has no such key."""
        found = self._ciphers.get(key_id)
        if found is None and (secret := self.state.secrets.get(key_id)) is not None:
            try:
                from ringcast_wire._encryption.sealing import Cipher
            except ImportError:
                raise InvalidInputError(
                    "key_ring needs the package cryptography: install the extra encryption", field="key_ring"
                ) from None
            found = self._ciphers[key_id] = Cipher(secret, self._store, self._key)
        return found


class ListKeys:
    """Seals and opens rows of one list; made by :meth:`KeyRing.of`."""

    def __init__(self, ring: KeyRing, store: str, key: str) -> None:
        self._ring = ring
        self._store = store
        self._key = key
        self._last = _View(ring.state(), store, key)

    def _view(self) -> _View:
        state = self._ring.state()
        view = self._last
        if view.state is not state:
            view = self._last = _View(state, self._store, self._key)
        return view

    @property
    def encrypted(self) -> bool:
        """Whether values of this list are sealed when they are written."""
        return self._view().encrypted

    def is_current(self, metadata: Mapping[str, str] | None) -> bool:
        """Whether a row with this metadata is as it would be written: sealed with the active key, or not at all."""
        view = self._view()
        key_id = (metadata or {}).get(KEY_ID_FIELD)
        return key_id == view.state.document.active if view.encrypted else key_id is None

    def seal(self, row_id: str, value: str, metadata: Mapping[str, str] | None = None) -> SealedRow:
        """The row as it is to be written. Where the list is not encrypted it stays as it is.

        Raises:
            InvalidInputError: the row breaks a rule, or would be larger than 1 MiB once it is sealed; or its metadata
                has an entry of a sealed row.
        """
        size = check_row(row_id, value, metadata)
        if metadata and (ALGORITHM_FIELD in metadata or KEY_ID_FIELD in metadata):
            raise InvalidInputError(
                f"metadata of row {shown(row_id)} has {ALGORITHM_FIELD} or {KEY_ID_FIELD}, which only encryption sets",
                field="metadata",
            )
        self._ring.look_again()
        view = self._view()
        if not view.encrypted:
            return SealedRow(value, metadata)
        key_id = view.state.document.active
        cipher = view.cipher(key_id)
        assert cipher is not None, "the active key is in the key ring"
        sealed = {**(metadata or {}), ALGORITHM_FIELD: ALGORITHM, KEY_ID_FIELD: key_id}
        _check_sealed_size(row_id, value, size, sealed)
        return SealedRow(cipher.seal(row_id, value, metadata), sealed)

    def open(self, row_id: str, value: str, metadata: Mapping[str, str] | None = None) -> SealedRow:
        """The row as it was given to :meth:`seal`. A deleted row has no value, and is not to be opened.

        Raises:
            ValueSealedError: its key is not in the key ring, it does not open, or it is clear text in a list that is
                encrypted.
        """
        self._ring.look_again()
        view = self._view()
        if not metadata or (KEY_ID_FIELD not in metadata and ALGORITHM_FIELD not in metadata):
            if view.encrypted and not view.accepts_clear:
                raise self._error(row_id, "is clear text, and the key ring says that this list is encrypted")
            return SealedRow(value, metadata)
        algorithm, key_id = metadata.get(ALGORITHM_FIELD), metadata.get(KEY_ID_FIELD)
        if key_id is None or algorithm != ALGORITHM:
            raise self._error(
                row_id,
                f"names the algorithm {shown(algorithm)} and the key {shown(key_id)}: "
                f"{ALGORITHM} and the id of a key are expected",
            )
        rest = _without(metadata)
        return SealedRow(self._opened(view, row_id, value, rest, key_id), rest)

    def _opened(self, view: _View, row_id: str, value: str, metadata: Mapping[str, str] | None, key_id: str) -> str:
        cipher = view.cipher(key_id)
        if cipher is None:
            self._ring.look_again(now=True)
            cipher = self._view().cipher(key_id)
        if cipher is None:
            known = ", ".join(sorted(self._view().state.secrets))
            raise self._error(row_id, f"is sealed with key {shown(key_id)}, and the key ring has only {known}")
        try:
            return cipher.open(row_id, value, metadata)
        except ValueError:  # NotOpenedError: its class is not imported here, for it needs cryptography
            raise self._error(
                row_id,
                f"does not open with key {shown(key_id)}: value or metadata was changed or comes from another row, or "
                "the key ring has another key of that id than its writer",
            ) from None

    def _error(self, row_id: str, said: str) -> ValueSealedError:
        if self._ring.problem:
            said = f"{said}; the file as it is now is not used: {self._ring.problem}"
        return ValueSealedError(f"row {shown(row_id)} of {self._store}/{self._key} {said}", field="value")


def check_not_sealed(store: str, key: str, row_id: str, metadata: Mapping[str, str] | None) -> None:
    """For a reader without a key ring.

    Raises:
        ValueSealedError: the row is sealed.
    """
    if metadata and (KEY_ID_FIELD in metadata or ALGORITHM_FIELD in metadata):
        raise ValueSealedError(
            f"row {shown(row_id)} of {store}/{key} is sealed with key {shown(metadata.get(KEY_ID_FIELD))}, "
            "and there is no key ring to open it",
            field="value",
        )


def _check_sealed_size(row_id: str, value: str, size: int, sealed: Mapping[str, str]) -> None:
    if len(sealed) > MAX_METADATA_ENTRIES:
        raise InvalidInputError(
            f"metadata has {len(sealed) - 2} entries: at most {MAX_METADATA_ENTRIES - 2} are allowed where the value "
            "is encrypted",
            field="metadata",
            rule=RowRule.TOO_MANY_ENTRIES,
        )
    metadata_size = sum(len(name.encode()) + len(entry.encode()) for name, entry in sealed.items())
    if metadata_size > MAX_METADATA_BYTES:
        raise InvalidInputError(
            f"metadata has {metadata_size} bytes with the two entries of encryption: at most {MAX_METADATA_BYTES} are "
            "allowed",
            field="metadata",
            rule=RowRule.TOO_LARGE,
        )
    # Nonce and tag, then base64.
    total = len(row_id.encode()) + (len(value.encode()) + 12 + 16 + 2) // 3 * 4 + metadata_size
    if total > MAX_ROW_BYTES:
        raise InvalidInputError(
            f"value of row {shown(row_id)} is too large: the row has {size} bytes, and {total} once its value is "
            f"encrypted; the limit is {MAX_ROW_BYTES}",
            field="value",
            rule=RowRule.TOO_LARGE,
        )


def _without(metadata: Mapping[str, str]) -> dict[str, str] | None:
    return {name: entry for name, entry in metadata.items() if name not in (ALGORITHM_FIELD, KEY_ID_FIELD)} or None


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
