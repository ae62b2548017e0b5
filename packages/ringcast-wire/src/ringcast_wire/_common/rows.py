"""The rules for what may stand in a row, shared by everyone who lets rows in."""

from __future__ import annotations

from collections.abc import Mapping

from ringcast_wire._common.errors import InvalidInputError, RowRule, shown
from ringcast_wire._common.limits import (
    MAX_IDEMPOTENCY_KEY_BYTES,
    MAX_METADATA_BYTES,
    MAX_METADATA_ENTRIES,
    MAX_REASON_BYTES,
    MAX_ROW_BYTES,
    MAX_ROW_ID_BYTES,
)


def check_row_id(value: object) -> str:
    """Returns ``value`` if it may be a row id.

    Raises:
        InvalidInputError: it is not text, empty, longer than 512 UTF-8 bytes, or has a character that PostgreSQL
            can't store (NUL) or UTF-8 can't write (a lone surrogate).
    """
    text, size = _text("row_id", value)
    if not 1 <= size <= MAX_ROW_ID_BYTES:
        raise InvalidInputError(
            f"row_id {shown(text)} has {size} bytes: 1 to {MAX_ROW_ID_BYTES} bytes of UTF-8 are allowed",
            field="row_id",
            rule=RowRule.TOO_LARGE if size else RowRule.EMPTY,
        )
    return text


def check_idempotency_key(value: object) -> str:
    """Returns ``value`` if it may be an idempotency key.

    Raises:
        InvalidInputError: it is not text, empty, longer than 128 UTF-8 bytes, or has a character that can't be stored.
    """
    text, size = _text("idempotency_key", value)
    if not 1 <= size <= MAX_IDEMPOTENCY_KEY_BYTES:
        raise InvalidInputError(
            f"idempotency_key {shown(text)} has {size} bytes: 1 to {MAX_IDEMPOTENCY_KEY_BYTES} are allowed",
            field="idempotency_key",
        )
    return text


def check_reason(value: object) -> str:
    """Returns ``value`` if it may be the reason of a write: one line, empty for none.

    Raises:
        InvalidInputError: it is not text, longer than 512 UTF-8 bytes, or has a character that steers a terminal or
            ends a line.
    """
    text, size = _text("reason", value)
    if size > MAX_REASON_BYTES:
        raise InvalidInputError(
            f"reason {shown(text)} has {size} bytes: at most {MAX_REASON_BYTES} are allowed", field="reason"
        )
    if not text.isprintable():
        raise InvalidInputError(
            f"reason {shown(text)} has a character that is not printable: one line of text is allowed", field="reason"
        )
    return text


def check_condition(if_version: object, if_absent: bool, *, delete: bool = False) -> int | None:
    """What a row's live version has to be for a write: 0 where there is to be none, ``None`` without a condition.

    Raises:
        InvalidInputError: the version is not a number from 1, there are two conditions, or a delete asks for no row.
    """
    if if_version is None:
        if if_absent and delete:
            raise InvalidInputError("if_absent makes no sense in a delete: use if_version", field="if_absent")
        return 0 if if_absent else None
    if if_absent:
        raise InvalidInputError(
            "if_version and if_absent are both given: a write takes one of them", field="if_version"
        )
    if not isinstance(if_version, int) or isinstance(if_version, bool) or not 1 <= if_version < 2**63:
        raise InvalidInputError(
            f"if_version {shown(if_version)} is out of range: 1 to {2**63 - 1} is allowed (if_absent asks for no row)",
            field="if_version",
        )
    return if_version


def check_row(row_id: object, value: object, metadata: Mapping[str, str] | None = None) -> int:
    """Checks a whole row and returns its size: the UTF-8 bytes of id, value and metadata.

    Raises:
        InvalidInputError: a part breaks a rule, or the row is larger than 1 MiB.
    """
    size = len(check_row_id(row_id).encode()) + _text("value", value)[1]
    if metadata:
        size += _check_metadata(metadata)
    if size > MAX_ROW_BYTES:
        raise InvalidInputError(
            f"value of row {shown(row_id)} is too large: the row has {size} bytes, the limit is {MAX_ROW_BYTES}",
            field="value",
            rule=RowRule.TOO_LARGE,
        )
    return size


def _check_metadata(metadata: Mapping[str, str]) -> int:
    if len(metadata) > MAX_METADATA_ENTRIES:
        raise InvalidInputError(
            f"metadata has {len(metadata)} entries: at most {MAX_METADATA_ENTRIES} are allowed",
            field="metadata",
            rule=RowRule.TOO_MANY_ENTRIES,
        )
    size = sum(_text("metadata", name)[1] + _text("metadata", value)[1] for name, value in metadata.items())
    if size > MAX_METADATA_BYTES:
        raise InvalidInputError(
            f"metadata has {size} bytes: at most {MAX_METADATA_BYTES} are allowed",
            field="metadata",
            rule=RowRule.TOO_LARGE,
        )
    return size


def _text(field: str, value: object) -> tuple[str, int]:
    """``value`` and its length in UTF-8 bytes, if it is text that every system of record can hold."""
    if not isinstance(value, str):
        raise InvalidInputError(
            f"{field} {shown(value)} is of type {type(value).__name__}: it must be text",
            field=field,
            rule=RowRule.NOT_TEXT,
        )
    if "\0" in value:
        raise InvalidInputError(
            f"{field} {shown(value)} has a NUL character: text must not contain U+0000",
            field=field,
            rule=RowRule.NUL_CHARACTER,
        )
    try:
        return value, len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"{field} {shown(value)} is not valid Unicode: a lone surrogate stands at {error.start}",
            field=field,
            rule=RowRule.NOT_UNICODE,
        ) from None
