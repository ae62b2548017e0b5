"""The shipped rules, and a copy of them in which time passes faster.

A rule that waits five minutes and looks back for an hour makes a drill of an hour. The copy divides every duration of
a rule by one factor: how long it waits (``for``), how far it looks back (``[5m]``, ``offset 5m``), and how often its
group is evaluated. Prometheus then scrapes as much more often. What is compared with what, and every label, stays.
Limits in seconds of real time (a handler that has been running for 30 s) stay as well; only ages of a minute or more
are divided too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[3]
SHIPPED: Final = ROOT / "infra/prometheus"
CONFIGURATION: Final = "prometheus.yml"
LONG_AGE_S: Final = 60
"""Limits on ages from here on are divided too."""

_UNITS_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
    "y": 31_536_000_000,
}
_PART: Final = re.compile(r"(\d+)(ms|[smhdwy])")
_DURATION: Final = re.compile(r"(?:\d+(?:ms|[smhdwy]))+")
_STRING: Final = re.compile(r'("(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|`[^`]*`)')
_WINDOW: Final = re.compile(r"\[([^\]]*)\]")
_AGE: Final = re.compile(r"(?<=_seconds)(\)? > )(\d+)(?![\d.])")
_OFFSET: Final = re.compile(r"\boffset\s+(\S*?)(?=[\s)]|$)")


def rule_files() -> tuple[str, ...]:
    """The files of rules that the shipped configuration loads."""
    return tuple(yaml.safe_load((SHIPPED / CONFIGURATION).read_text())["rule_files"])


def shipped_alerts() -> dict[str, dict[str, Any]]:
    """Every rule that is shipped and alerts, by name."""
    return {rule["alert"]: rule for name in rule_files() for rule in _rules(_load(name)) if "alert" in rule}


def duration_ms(text: str) -> int:
    """Milliseconds of a duration as Prometheus writes it: ``1h30m``.

    Raises:
        ValueError: it is none.
    """
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is no duration such as 1h30m")
    return sum(int(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text))


def faster(text: str, factor: int) -> str:
    """The duration divided by ``factor``.

    Raises:
        ValueError: it is no duration, or not a whole number of milliseconds then.
    """
    whole, rest = divmod(duration_ms(text), factor)
    if rest or not whole:
        raise ValueError(f"{text} can't be divided by {factor}: durations are whole milliseconds")
    return f"{whole}ms"


def faster_expression(expression: str, factor: int) -> str:
    """The expression with every window and offset divided by ``factor``, and every limit on an age of a minute or more.

    Raises:
        ValueError: it has a subquery, or looks at a fixed time, for which there is no rule here.
    """
    parts = _STRING.split(expression)
    for place in range(0, len(parts), 2):  # between them are strings
        if "@" in parts[place]:
            raise ValueError(f"{expression!r} looks at a fixed time: there is no way to divide that")
        windows = _WINDOW.sub(lambda window: f"[{faster(window[1], factor)}]", parts[place])
        windows = _OFFSET.sub(lambda offset: f"offset {faster(offset[1], factor)}", windows)
        parts[place] = _AGE.sub(lambda found: found[1] + _faster_age(found[2], factor), windows)
    return "".join(parts)


def faster_rules(name: str, factor: int) -> dict[str, Any]:
    """The rules of a shipped file with time ``factor`` times as fast."""
    content = _load(name)
    for group in content["groups"]:
        if "interval" in group:
            group["interval"] = faster(group["interval"], factor)
        for rule in group["rules"]:
            rule["expr"] = faster_expression(rule["expr"], factor)
            for duration in {"for", "keep_firing_for"} & rule.keys():
                rule[duration] = faster(rule[duration], factor)
    return content


def write_faster(directory: Path, factor: int) -> list[Path]:
    """Writes that copy of every shipped file; with the factor 1 it says what the shipped file says."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / name for name in rule_files()]
    for path in paths:
        path.write_text(yaml.safe_dump(faster_rules(path.name, factor), sort_keys=False, width=200))
    return paths


def _faster_age(number: str, factor: int) -> str:
    return f"{int(number) / factor:g}" if int(number) >= LONG_AGE_S else number


def _load(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((SHIPPED / name).read_text())
    return content


def _rules(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for group in content["groups"]:
        yield from group["rules"]
