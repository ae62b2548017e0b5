"""Log lines: an event and its fields, for eyes and for machines."""

from __future__ import annotations

import logging

import pytest
from ringcast_wire import EventLog

LOGGER = logging.getLogger("ringcast_wire.tests.event_log")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> EventLog:
    caplog.set_level(logging.DEBUG, LOGGER.name)
    return EventLog(LOGGER, store="gateway", key=None)


def test_a_line_names_the_event_and_its_fields(log: EventLog, caplog: pytest.LogCaptureFixture) -> None:
    log.bind(key="blocklist").warning("lease.lost", partition=7, error=ValueError("no answer"))

    [record] = caplog.records
    assert record.getMessage() == 'event=lease.lost store=gateway key=blocklist partition=7 error="no answer"'
    assert record.levelno == logging.WARNING
    assert record.filename == "test_event_log.py"


def test_the_fields_are_attributes_of_the_record(log: EventLog, caplog: pytest.LogCaptureFixture) -> None:
    log.info("lease.granted", slot=3)

    [record] = caplog.records
    assert (record.event, record.store, record.key, record.slot) == ("lease.granted", "gateway", None, 3)  # type: ignore[attr-defined]
    assert record.getMessage() == "event=lease.granted store=gateway slot=3"


@pytest.mark.parametrize(("error", "text"), [(ValueError("no answer"), "no answer"), (TimeoutError(), "TimeoutError")])
def test_an_exception_is_text_on_the_record_too(
    log: EventLog, caplog: pytest.LogCaptureFixture, error: Exception, text: str
) -> None:
    """Else no JSON formatter could write it, and a record that is kept would keep the frames of the traceback."""
    log.bind(cause=error).warning("lease.lost", error=error)

    [record] = caplog.records
    assert (record.error, record.cause) == (text, text)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain-text_1.5", "plain-text_1.5"),
        ("", '""'),
        ("a b", '"a b"'),
        ('a"b', r'"a\"b"'),
        ("a=b", '"a=b"'),
        ("two\nlines", r'"two\nlines"'),
        ("\x1b[31mred", r'"\u001b[31mred"'),
        ("a\u2028b\x7f", r'"a\u2028b\u007f"'),
        ("\u0414\u0430", "\u0414\u0430"),
        (TimeoutError(), "TimeoutError"),
        (0, "0"),
        (False, "False"),
    ],
)
def test_a_value_is_one_token_of_one_line(
    log: EventLog, caplog: pytest.LogCaptureFixture, value: object, shown: str
) -> None:
    log.info("value.shown", value=value)

    assert caplog.records[0].getMessage() == f"event=value.shown store=gateway value={shown}"


def test_a_long_value_is_cut(log: EventLog, caplog: pytest.LogCaptureFixture) -> None:
    log.info("value.shown", value="x" * 1500)

    assert caplog.records[0].getMessage() == f'event=value.shown store=gateway value="{"x" * 1000}… (+500 characters)"'


def test_nothing_is_formatted_that_nobody_reads(caplog: pytest.LogCaptureFixture) -> None:
    class Unread:
        def __str__(self) -> str:
            raise AssertionError

    caplog.set_level(logging.INFO, LOGGER.name)
    EventLog(LOGGER).debug("value.shown", value=Unread())

    assert caplog.records == []


def test_an_error_has_the_traceback_that_it_asks_for(log: EventLog, caplog: pytest.LogCaptureFixture) -> None:
    try:
        dict[str, int]()["row"]
    except KeyError:
        log.error("fetch.failed", exc_info=True)

    assert "KeyError: 'row'" in caplog.text
    log.log(logging.CRITICAL, "fetch.failed")
    assert caplog.records[-1].exc_info is None


@pytest.mark.parametrize("name", ["message", "name", "args", "exc_info", "process"])
def test_a_field_that_logging_has_itself_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"can't be named {name}"):
        EventLog(LOGGER, **{name: 1})
