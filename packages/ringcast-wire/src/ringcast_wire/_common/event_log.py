"""Log lines that can be grepped: the name of an event, and its facts as fields."""

from __future__ import annotations

import json
import logging
import re
from typing import Any, cast

MAX_VALUE_CHARS = 1000
"""Characters of one value that a line shows; what is cut off is counted behind it."""

_PLAIN = re.compile(r"[^\s\"=]+")
_OF_A_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class EventLog:
    """A logger of events, with fields bound to it.

    ``log.warning("lease.lost", key="blocklist", retries=3)`` writes ``event=lease.lost key=blocklist retries=3``. The
    name of an event is constant: its subject, a dot, and what happened to it. docs/log-events.md lists all of them.

    The record carries ``event`` and the fields as attributes too, so that a JSON formatter needs no parser. A field
    whose value is None is an attribute of the record and is left out of the line. An exception is its text there too:
    the object could be neither JSON nor always unpickled, and would keep the frames of its traceback alive.
    """

    __slots__ = ("_fields", "_logger")

    def __init__(self, logger: logging.Logger, **fields: object) -> None:
        self._logger = logger
        self._fields = _checked(fields)

    def bind(self, **fields: object) -> EventLog:
        """The same logger with more fields."""
        return EventLog(self._logger, **{**self._fields, **fields})

    def debug(self, event: str, /, **fields: object) -> None:
        """A step that matters only to a developer."""
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        """A normal and rare event."""
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        """A failure that the process repairs by itself, by trying again for instance."""
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, /, *, exc_info: object = None, **fields: object) -> None:
        """A failure that needs an operator. ``exc_info=True`` adds the traceback of the exception being handled."""
        self._emit(logging.ERROR, event, fields, exc_info)

    def critical(self, event: str, /, **fields: object) -> None:
        """A failure because of which other processes may do harm."""
        self._emit(logging.CRITICAL, event, fields)

    def log(self, level: int, event: str, /, **fields: object) -> None:
        """For an event whose level depends on what happened."""
        self._emit(level, event, fields)

    def _emit(self, level: int, event: str, fields: dict[str, object], exc_info: object = None) -> None:
        if self._logger.isEnabledFor(level):
            values = {**self._fields, **_checked(fields)}
            line = _Line(event, {name: _text_of_error(value) for name, value in values.items()})
            extra = {"event": event, **line.fields}
            self._logger.log(level, line, extra=extra, exc_info=cast(Any, exc_info), stacklevel=3)


class _Line:
    """Becomes text where a handler wants it, and not before."""

    __slots__ = ("_event", "fields")

    def __init__(self, event: str, fields: dict[str, object]) -> None:
        self._event = event
        self.fields = fields

    def __str__(self) -> str:
        said = (f"{name}={_token(value)}" for name, value in self.fields.items() if value is not None)
        return " ".join((f"event={self._event}", *said))


def field_text(value: object) -> str:
    """The text of a value, of an error without one the name of its type; what is too long is cut off and counted."""
    text = str(_text_of_error(value))
    if len(text) > MAX_VALUE_CHARS:
        text = f"{text[:MAX_VALUE_CHARS]}… (+{len(text) - MAX_VALUE_CHARS} characters)"
    return text


def _token(value: object) -> str:
    """One token: spaces, quotes and control characters are quoted as in JSON, so that a line stays one line."""
    text = field_text(value)
    if text.isprintable():
        return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
    return json.dumps(text).replace("\x7f", r"\u007f")


def _text_of_error(value: object) -> object:
    """What an exception says, or its kind where it says nothing; any other value stays as it is."""
    return (str(value) or type(value).__name__) if isinstance(value, BaseException) else value


def _checked(fields: dict[str, object]) -> dict[str, object]:
    """``logging`` would refuse these names only where a record is written, which a test may never see."""
    if taken := _OF_A_RECORD.intersection(fields):
        raise ValueError(f"a log field can't be named {min(taken)}: every log record has an attribute of that name")
    return fields
