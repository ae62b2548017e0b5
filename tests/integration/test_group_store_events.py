"""The log lines of a group store are as those of every other package: its own may not import their class."""

from __future__ import annotations

import logging

import pytest
from ringcast_groupstore import StoreFullError
from ringcast_groupstore._events import logger
from ringcast_wire import EventLog

FIELDS = {
    "number": 3,
    "plain": "a/b.db",
    "spaces": "no room left",
    "quoted": 'a "b"=c',
    "lines": "a\nb\x7f",
    "percent": "100 %s",
    "letters": "größer",
    "empty": "",
    "long": "x" * 1200,
    "error": StoreFullError("no room"),
    "wordless": ValueError(),
}


@pytest.mark.parametrize("level", ["debug", "warning", "error"])
def test_a_line_is_as_that_of_every_other_package(level: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        getattr(logger, level)("group_store.tried", **FIELDS)
        getattr(EventLog(logging.getLogger("ringcast")), level)("group_store.tried", **FIELDS)

    ours, other = caplog.records
    assert ours.getMessage() == other.getMessage()
    assert (ours.levelname, ours.filename, ours.funcName) == (level.upper(), other.filename, other.funcName)
    fields = {name: getattr(ours, name) for name in ("event", *FIELDS)}
    assert fields == {name: getattr(other, name) for name in ("event", *FIELDS)}


def test_the_traceback_is_there_where_it_was_wanted(caplog: pytest.LogCaptureFixture) -> None:
    try:
        int("why")
    except ValueError as error:
        logger.error("group_store.tried", error=error, exc_info=True)
        logger.error("group_store.tried", error=error)
    first, second = caplog.records
    assert first.exc_info is not None
    assert first.exc_info[0] is ValueError
    assert not second.exc_info
