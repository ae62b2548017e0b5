"""Log lines that can be grepped: the name of an event, then its fields.

They are as those of ``ringcast_wire.EventLog``, which this package can't import: it knows nothing of Ringcast.
"""

from __future__ import annotations

import json
import logging
import re

_PLAIN = re.compile(r"[^\s\"=]+")
_MAX_VALUE_CHARS = 1000
_LOGGER = logging.getLogger("ringcast_groupstore")


class EventLog:
    """``warning("group_store.quarantined", kept=3)`` writes ``event=group_store.quarantined kept=3``.

    The record has ``event`` and the fields as attributes too, so that a formatter needs no parser.
    """

    __slots__ = ()

    def debug(self, event: str, /, **fields: object) -> None:
        """A step that matters only to a developer."""
        self._emit(logging.DEBUG, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        """A failure after which the store goes on by itself."""
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, /, *, exc_info: bool = False, **fields: object) -> None:
        """A failure that needs a look. ``exc_info`` adds the traceback of the exception that is being handled."""
        self._emit(logging.ERROR, event, fields, exc_info)

    def _emit(self, level: int, event: str, fields: dict[str, object], exc_info: bool = False) -> None:
        if _LOGGER.isEnabledFor(level):
            values = {name: _text_of_error(value) for name, value in fields.items()}
            line = " ".join((f"event={event}", *(f"{name}={_token(value)}" for name, value in values.items())))
            # As the one argument: a % in a value must not be taken for a place of another one.
            _LOGGER.log(level, "%s", line, extra={"event": event, **values}, exc_info=exc_info, stacklevel=3)


logger = EventLog()


def _text_of_error(value: object) -> object:
    """What an exception says, or its kind where it says nothing; any other value stays as it is."""
    return (str(value) or type(value).__name__) if isinstance(value, BaseException) else value


def _token(value: object) -> str:
    """One token: spaces, quotes and control characters are quoted as in JSON, so that a line stays one line."""
    text = str(value)
    if len(text) > _MAX_VALUE_CHARS:
        text = f"{text[:_MAX_VALUE_CHARS]}… (+{len(text) - _MAX_VALUE_CHARS} characters)"
    if text.isprintable():
        return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
    return json.dumps(text).replace("\x7f", r"\u007f")
