"""The log of a process, for eyes and for collectors."""

from __future__ import annotations

import io
import json
import logging
import math
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from ringcast_service import LOG_FORMATS
from ringcast_service._logs import LINES_A_MINUTE, MINUTE_S, JsonFormatter, RepeatedEvents
from ringcast_wire import EventLog, Mode

LOGGER = logging.getLogger("ringcast_service.tests.logs")

PROGRAM = """
import logging, sys
from ringcast_service import Lifetime, run_process
from ringcast_wire import EventLog

log = EventLog(logging.getLogger("clock"), store="gateway", key=None)

class Clock(Lifetime):
    async def _run(self) -> None:
        log.info("clock.started", ticks=3, hands=["hour", "minute"])
        log.debug("clock.unseen")
        try:
            raise ValueError("no such hour")
        except ValueError as error:
            log.error("clock.failed", exc_info=True, error=error, text="two\\nlines")
        logging.getLogger("library").warning("%s of %s", 1, 2)

run_process("clock", Clock, log_level="info", log_format=sys.argv[1])
"""


def run(form: str) -> list[str]:
    """The lines that a process of its own writes."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, form], capture_output=True, text=True, timeout=60, check=True
    )
    assert not ended.stdout
    return ended.stderr.splitlines()


def test_a_process_writes_lines_of_json() -> None:
    started, failed, foreign = (json.loads(line) for line in run("json"))
    assert abs(datetime.now(UTC) - datetime.fromisoformat(started.pop("time"))).total_seconds() < 60
    assert list(started.items()) == [
        ("level", "INFO"),
        ("logger", "clock"),
        ("event", "clock.started"),
        ("store", "gateway"),
        ("key", None),
        ("ticks", 3),
        ("hands", ["hour", "minute"]),
    ]
    assert (failed["error"], failed["text"]) == ("no such hour", "two\nlines")
    assert failed["traceback"].startswith("Traceback (most recent call last):\n")
    assert failed["traceback"].endswith("\nValueError: no such hour")
    del foreign["time"]
    assert foreign == {"level": "WARNING", "logger": "library", "message": "1 of 2"}


def test_a_process_writes_lines_of_text() -> None:
    started, failed, traceback, *_ = run("text")
    assert started.endswith(" INFO clock event=clock.started store=gateway ticks=3 hands=\"['hour', 'minute']\"")
    assert " ERROR clock event=clock.failed store=gateway error=" in failed
    assert traceback == "Traceback (most recent call last):"
    assert LOG_FORMATS == ("text", "json")


def line_of(caplog: pytest.LogCaptureFixture, **fields: object) -> Any:
    """The line of an event with these fields, read as strictly as JSON is meant."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    EventLog(LOGGER).warning("value.shown", **fields)
    text = JsonFormatter().format(caplog.records[-1])
    assert text.isascii()
    assert text.isprintable()
    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (-1.5, -1.5),
        ("a \u2028 \x1b \udc80", "a \u2028 \x1b \udc80"),
        ({"a": [1, None]}, {"a": [1, None]}),
        ((1, 2), [1, 2]),
        (Mode.FULL, "FULL"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        ([math.nan], "[nan]"),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        ([b"x"], "[b'x']"),
        ({"b"}, "{'b'}"),
        (b"x", "b'x'"),
        (PurePosixPath("/a"), "/a"),
        (TimeoutError(), "TimeoutError"),
        ("x" * 1_003, "x" * 1_000 + "… (+3 characters)"),
        ([0] * 400, str([0] * 400)[:1_000] + "… (+200 characters)"),
    ],
)
def test_a_value_is_json_or_becomes_text(caplog: pytest.LogCaptureFixture, value: object, shown: object) -> None:
    assert line_of(caplog, value=value)["value"] == shown


def test_a_value_that_holds_itself_becomes_text(caplog: pytest.LogCaptureFixture) -> None:
    value: list[object] = []
    value.append(value)
    assert line_of(caplog, value=value)["value"] == "[[...]]"


def test_a_field_does_not_hide_a_part_of_the_line(caplog: pytest.LogCaptureFixture) -> None:
    line = line_of(caplog, level=7, time=8, traceback=9)
    assert (line["level"], line["level_"], line["time_"], line["traceback_"]) == ("WARNING", 7, 8, 9)
    assert "traceback" not in line
    assert datetime.fromisoformat(line["time"]).tzinfo is UTC


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_event_that_repeats_is_counted(form: str) -> None:
    """53,000 lines in 140 s were written while the disk of a broker was full."""
    now_s, stream = [0.0], io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter("%(message)s"))
    handler.addFilter(RepeatedEvents(lambda: now_s[0]))
    logger = logging.getLogger(f"ringcast_service.tests.repeated.{form}")
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.INFO)
    log = EventLog(logger, store="s")
    for number in range(LINES_A_MINUTE + 812):
        log.warning("relay.failing", number=number)
    log.info("relay.resumed")
    log.warning("other.event")
    logger.warning("of a library")
    assert len(stream.getvalue().splitlines()) == LINES_A_MINUTE + 3
    now_s[0] = MINUTE_S
    stream.truncate(0)
    for _ in range(2):
        log.warning("relay.failing", number=1)
    first, second = stream.getvalue().strip("\0").splitlines()
    if form == "json":
        assert json.loads(first)["unlogged"] == 812
        assert "unlogged" not in json.loads(second)
    else:
        assert first == "event=relay.failing store=s number=1 unlogged=812"
        assert second == "event=relay.failing store=s number=1"
    stream.truncate(0)
    for _ in range(LINES_A_MINUTE + 2):
        log.warning("call.refused", unlogged=3)
    now_s[0] += MINUTE_S
    log.warning("call.refused", unlogged=5)
    *_, last = stream.getvalue().strip("\0").splitlines()
    if form == "json":
        assert json.loads(last)["unlogged"] == 2 * (1 + 3) + 5
    else:
        assert last == "event=call.refused store=s unlogged=13"


CLOSED = """
import os, sys
for number in (0, 1, 2):
    os.close(number)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
STREAMS = """
import os, pathlib, sys
from ringcast_service import open_standard_streams
open_standard_streams()
next_one = os.open(os.devnull, os.O_RDONLY)
print("to nobody"), print("to nobody", file=sys.stderr)
found = [os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2)]
pathlib.Path(sys.argv[1]).write_text(" ".join([str(next_one > 2), sys.stdin.read(), *found]))
"""


def test_streams_that_a_process_was_started_without_lead_to_nowhere(tmp_path: Path) -> None:
    found = tmp_path / "found"
    words = [sys.executable, "-c", CLOSED, "-c", STREAMS, str(found)]
    assert subprocess.run(words, timeout=60, check=False).returncode == 0
    assert found.read_text().split() == ["True", *[os.devnull] * 3]


def test_streams_that_are_there_stay(tmp_path: Path) -> None:
    words = [sys.executable, "-c", STREAMS, str(tmp_path / "found")]
    ended = subprocess.run(words, input="in", capture_output=True, text=True, timeout=60, check=True)
    assert (ended.stdout, ended.stderr) == ("to nobody\n",) * 2
    assert (tmp_path / "found").read_text().split()[:2] == ["True", "in"]


FALLING = """
import os
from ringcast_service import Lifetime, run_process

class Falling(Lifetime):
    async def _run(self) -> None:
        os.abort()

run_process("falling", Falling, log_level="info", log_format="text")
"""


def test_a_process_that_native_code_ends_says_where_it_was() -> None:
    words = [sys.executable, "-c", FALLING]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == -6
    assert ended.stderr.startswith("Fatal Python error: Aborted\n")
    assert "in _run" in ended.stderr
