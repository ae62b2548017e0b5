"""The log of a process, on standard error: lines of text for eyes, or lines of JSON for a collector."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from ringcast_wire import field_text

from ringcast_service._settings import setting

LOG_FORMATS: Final = ("text", "json")

MINUTE_S: Final = 60.0
LINES_A_MINUTE: Final = 60
"""Of one event of one logger. More are counted."""
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
_OF_EVERY_RECORD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "event"}
_OF_THE_LINE: Final = ("time", "level", "logger", "event", "message", "traceback", "stack")


def log_format_setting() -> Any:
    """The field ``log_format`` of a settings class; :func:`run_process` takes what it says."""
    return setting("text", "How a log line is written: text, or json with an object a line.", choices=LOG_FORMATS)


def start_logging(level: str, form: str) -> None:
    """Sends the records of all loggers, from ``level`` on, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(_TEXT))
    handler.addFilter(RepeatedEvents())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("nats").setLevel(logging.CRITICAL)  # our own callback logs its errors


class RepeatedEvents(logging.Filter):
    """Lets so many lines of one event a minute through, from WARNING on, and counts the others.

    The next line that gets through has the count as ``unlogged``. So an outage that fails thousands of operations fills
    no disk. What is no event, or is below WARNING, is not limited; the number of events is that of the program's. A
    line that has counted lines itself, those of one host say, adds them.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock_s = clock_s
        self._counts: dict[tuple[str, str], tuple[float, int, int]] = {}
        """By logger and event: when the minute ends, the lines in it, and those that were left out since the last."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        event = getattr(record, "event", None)
        if event is None or record.levelno < logging.WARNING:
            return True
        place, now_s, own = (record.name, event), self._clock_s(), getattr(record, "unlogged", 0)
        until_s, lines, unlogged = self._counts.get(place, (now_s + MINUTE_S, 0, 0))
        if now_s >= until_s:
            until_s, lines = now_s + MINUTE_S, 0
        if lines >= LINES_A_MINUTE:
            self._counts[place] = until_s, lines, unlogged + own + 1
            return False
        self._counts[place] = until_s, lines + 1, 0
        if unlogged:
            text = record.getMessage().removesuffix(f" unlogged={own}")
            record.unlogged = unlogged + own
            record.msg, record.args = f"{text} unlogged={unlogged + own}", None
        return True


class JsonFormatter(logging.Formatter):
    """A record as one line of ASCII: a JSON object with ``time`` (UTC), ``level``, ``logger`` and ``event``.

    The fields of the event follow under their names; one that has the name of a part of the line gets a ``_`` at its
    end. A record of a library, which has no event, has a ``message`` in its place. ``traceback`` and ``stack`` are
    texts of several lines. A value that is no JSON is written as its text. What is long is cut off, as in a line
    of text.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
        }
        event = getattr(record, "event", None)
        line.update({"message": record.getMessage()} if event is None else {"event": str(event)})
        for name, value in vars(record).items():
            if name not in _OF_EVERY_RECORD:
                line[f"{name}_" if name in _OF_THE_LINE else name] = _json_value(value)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line)


def _json_value(value: object) -> object:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, (float, list, tuple, dict)):
        with suppress(TypeError, ValueError):  # something in it is no JSON
            text = json.dumps(value, allow_nan=False)
            if field_text(text) == text:
                return value
    return field_text(value)
