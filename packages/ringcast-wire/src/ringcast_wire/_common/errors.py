"""Error codes, and the exceptions that carry them over gRPC and NATS.

A code is data: it travels in the ``Ringcast-Error`` header of a NATS reply and in the ``ringcast-error`` trailer of a
gRPC call, and turns back into the same exception at the other end.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Any, ClassVar


class ErrorCode(StrEnum):
    """What went wrong, in a word that both ends know."""

    INVALID_INPUT = "INVALID_INPUT"
    UNKNOWN_STORE = "UNKNOWN_STORE"
    UNKNOWN_KEY = "UNKNOWN_KEY"
    STORE_DELETED = "STORE_DELETED"
    KEY_DELETED = "KEY_DELETED"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    MISMATCH = "MISMATCH"
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    IN_USE = "IN_USE"
    CONDITION_FAILED = "CONDITION_FAILED"
    REVISION_GONE = "REVISION_GONE"
    UNAVAILABLE = "UNAVAILABLE"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    PROTOCOL = "PROTOCOL"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    VALUE_SEALED = "VALUE_SEALED"
    INTERNAL = "INTERNAL"


class RingcastError(Exception):
    """The base of every error that Ringcast raises on purpose.

    ``code`` says the kind, ``field`` the input at fault (or ``None``), ``str(error)`` is one sentence for a person.
    ``retry_after_s``: after so many seconds the same may succeed, as far as the side that refused it knows.
    """

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL
    retry_after_s: float | None = None

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class RowRule(StrEnum):
    """Which rule for rows an input breaks: a word that reports of rejected rows can be grouped by."""

    NULL = "NULL"
    EMPTY = "EMPTY"
    NOT_TEXT = "NOT_TEXT"
    NUL_CHARACTER = "NUL_CHARACTER"
    NOT_UNICODE = "NOT_UNICODE"
    TOO_LARGE = "TOO_LARGE"
    TOO_MANY_ENTRIES = "TOO_MANY_ENTRIES"
    SCHEMA = "SCHEMA"
    OTHER = "OTHER"


class InvalidInputError(RingcastError, ValueError):
    """An input breaks a rule; the message names the field, the value and the limit. ``rule``: that of a row."""

    code = ErrorCode.INVALID_INPUT

    def __init__(self, message: str, *, field: str | None = None, rule: RowRule = RowRule.OTHER) -> None:
        super().__init__(message, field=field)
        self.rule = rule


class UnknownStoreError(RingcastError, LookupError):
    """There is no store of that name."""

    code = ErrorCode.UNKNOWN_STORE


class UnknownKeyError(RingcastError, LookupError):
    """The store has no config key of that name: nothing was ever written to it."""

    code = ErrorCode.UNKNOWN_KEY


class StoreDeletedError(RingcastError, LookupError):
    """The store was deleted; the message says when, and until when it can be restored."""

    code = ErrorCode.STORE_DELETED


class KeyDeletedError(RingcastError, LookupError):
    """The config key was deleted; the message says when, and until when it can be restored."""

    code = ErrorCode.KEY_DELETED


class AlreadyExistsError(RingcastError):
    """The store exists with other settings."""

    code = ErrorCode.ALREADY_EXISTS


class MismatchError(RingcastError):
    """A worker asked for a mode, partition count, hash or wire version other than the store's; both are named."""

    code = ErrorCode.MISMATCH


class LimitExceededError(RingcastError):
    """A hard limit of the operating envelope would be crossed; the message gives the limit and the value."""

    code = ErrorCode.LIMIT_EXCEEDED

    def __init__(self, message: str, *, field: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message, field=field)
        self.retry_after_s = retry_after_s


class InUseError(RingcastError):
    """Another live process holds this worker id."""

    code = ErrorCode.IN_USE


class ConditionFailedError(RingcastError):
    """A condition of a write does not hold, and nothing of it was written.

    ``found_version`` is the version of the row that it is about, 0 where there is no live one.
    """

    code = ErrorCode.CONDITION_FAILED

    def __init__(self, message: str, *, field: str | None = None, found_version: int = 0) -> None:
        super().__init__(message, field=field)
        self.found_version = found_version


class RevisionGoneError(RingcastError, LookupError):
    """A read asks for an earlier revision, of which what is needed is not kept any more, or of another history."""

    code = ErrorCode.REVISION_GONE


class UnavailableError(RingcastError, ConnectionError):
    """The other side can't be reached or can't answer now; trying again later may help.

    ``elsewhere``: it has done nothing, and says that another instance may.
    """

    code = ErrorCode.UNAVAILABLE

    def __init__(self, message: str, *, field: str | None = None, elsewhere: bool = False) -> None:
        super().__init__(message, field=field)
        self.elsewhere = elsewhere


class OutcomeUnknownError(UnavailableError):
    """A write was not answered: it may have been stored. The same again, with its idempotency key, tells."""

    code = ErrorCode.OUTCOME_UNKNOWN


class ProtocolError(RingcastError):
    """A message from the other side can't be understood: truncated, damaged, or of an unknown wire version."""

    code = ErrorCode.PROTOCOL


class UnauthenticatedError(RingcastError, PermissionError):
    """The config service asks for a token, and the call had none or a wrong one."""

    code = ErrorCode.UNAUTHENTICATED


class PermissionDeniedError(RingcastError, PermissionError):
    """The principal lacks a role for the call, or a policy of the store lets nobody make it; the message names them."""

    code = ErrorCode.PERMISSION_DENIED


class ValueSealedError(RingcastError, ValueError):
    """An encrypted value can't be opened, or a value that must be encrypted is clear text; the message names row and
    key id, and nothing of the value."""

    code = ErrorCode.VALUE_SEALED


class InternalError(RingcastError):
    """The service failed in a way that it did not foresee."""

    code = ErrorCode.INTERNAL


_BY_CODE: dict[ErrorCode, type[RingcastError]] = {
    error.code: error
    for error in (
        InvalidInputError,
        UnknownStoreError,
        UnknownKeyError,
        StoreDeletedError,
        KeyDeletedError,
        AlreadyExistsError,
        MismatchError,
        LimitExceededError,
        InUseError,
        ConditionFailedError,
        RevisionGoneError,
        UnavailableError,
        OutcomeUnknownError,
        ProtocolError,
        UnauthenticatedError,
        PermissionDeniedError,
        ValueSealedError,
        InternalError,
    )
}


def error_from_code(code: str, message: str, *, field: str | None = None, found_version: int = 0) -> RingcastError:
    """The exception for a code that came over the wire; an unknown code becomes :class:`InternalError`."""
    try:
        known = ErrorCode(code)
    except ValueError:
        return InternalError(f"{code}: {message}", field=field)
    if known is ErrorCode.CONDITION_FAILED:
        return ConditionFailedError(message, field=field, found_version=found_version)
    return _BY_CODE[known](message, field=field)


def shown(value: Any, limit: int = 80) -> str:
    """``repr`` of an input for an error message, cut so that a huge or hostile value can't flood a log."""
    text = repr(value[: limit + 1] if isinstance(value, (str, bytes)) else value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def shown_path(path: str | os.PathLike[str]) -> str:
    """The path of a file for an error message: long enough to show which file it is, whose name comes last."""
    return shown(os.fspath(path), 300)
