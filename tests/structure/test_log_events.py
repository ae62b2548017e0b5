"""Every log line is an event, and docs/log-events.md has each event with its level and what it means."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/log-events.md"
LEVELS = ("debug", "info", "warning", "error", "critical")
EVENT = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
NAMED = re.compile(r"event=([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+)")
# The section of the page that has the events of a distribution.
SECTIONS = {
    "packages/ringcast": "Worker",
    "packages/ringcast-service": "Config service",
    "services/config-service": "Config service",
    "services/heartbeat-agent": "Heartbeat agent",
    "packages/ringcast-meta": "Metadata stores",
    "packages/ringcast-spark": "Clients and Spark",
    "packages/ringcast-groupstore": "Group stores",
}


def calls(distribution: str) -> Iterator[tuple[str, ast.Call]]:
    """Every call that writes a log line, and where it stands."""
    found = 0
    for path in sorted((ROOT / distribution / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name), attr=method)):
                    if name.lstrip("_") in ("log", "logger") and method in (*LEVELS, "exception", "log"):
                        found += 1
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", node
    assert found


def written(distribution: str) -> dict[str, set[str]]:
    """The levels that each event is written with."""
    events: dict[str, set[str]] = defaultdict(set)
    for place, call in calls(distribution):
        assert isinstance(call.func, ast.Attribute)
        at = 1 if call.func.attr == "log" else 0
        event = call.args[at] if len(call.args) > at else None
        assert isinstance(event, ast.Constant), f"{place}: the name of an event is a constant"
        assert EVENT.fullmatch(str(event.value)), (
            f"{place}: {event.value!r} is no name of an event: subject.what_happened"
        )
        assert len(call.args) == at + 1, f"{place}: all but the name are fields, given by keyword"
        events[str(event.value)] |= set(LEVELS) if at else {call.func.attr}
    return events


def documented(section: str) -> dict[str, str]:
    """The levels that the page gives for each event of a section."""
    page = PAGE.read_text()
    assert f"\n## {section}\n" in page
    text = page.split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| ([A-Z, ]+) \| (.+) \|$", text, re.MULTILINE)
    assert rows
    assert [event for event, _, _ in rows] == sorted({event for event, _, _ in rows}), "sorted, each event once"
    return {event: levels for event, levels, _ in rows}


@pytest.mark.parametrize("section", sorted(set(SECTIONS.values())))
def test_the_page_has_every_event_and_its_level(section: str) -> None:
    events: dict[str, set[str]] = defaultdict(set)
    for distribution in [name for name, of in SECTIONS.items() if of == section]:
        for event, levels in written(distribution).items():
            events[event] |= levels
    page = documented(section)

    assert set(page) == set(events)
    # Where the level depends on what happened, the page says which there are.
    unlike = {event for event in page if not set(page[event].lower().split(", ")) <= events[event]}
    assert unlike == set()
    missing = {
        event
        for event, levels in events.items()
        if levels != set(LEVELS) and levels != set(page[event].lower().split(", "))
    }
    assert missing == set()


def test_a_package_that_logs_has_a_section() -> None:
    """Lines of a package that nobody looks at would be prose before long."""
    quiet = {"packages/ringcast-testkit", *SECTIONS}
    found = {
        path.relative_to(ROOT).parts[:2]
        for folder in ("packages", "services")
        for path in (ROOT / folder).glob("*/src/**/*.py")
        if re.search(r"^\w*log\w* = .*\bgetLogger\(", path.read_text(), re.MULTILINE | re.IGNORECASE)
    }
    assert {"/".join(parts) for parts in found} - quiet == set()


def test_a_page_or_a_rule_names_only_events_that_there_are() -> None:
    known = {event for section in set(SECTIONS.values()) for event in documented(section)}
    pages = (*ROOT.glob("docs/*.md"), *ROOT.glob("*/*/README.md"), *ROOT.glob("infra/prometheus/*.yml"))
    named = {(page.name, event) for page in pages for event in NAMED.findall(page.read_text())}
    assert {(page, event) for page, event in named if event not in known} == set()
    assert len(named) >= 50


def test_an_event_means_one_thing() -> None:
    """A process may contain another, as an agent contains workers: to search for an event must not find two."""
    found: dict[str, set[str]] = defaultdict(set)
    for section in set(SECTIONS.values()):
        for event in documented(section):
            found[event].add(section)
    assert {event: sections for event, sections in found.items() if len(sections) > 1} == {}
