"""What docs/outages.md names is there: log records, metrics, alerts, fields of the health."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/outages.md").read_text()


def source() -> str:
    """All code that ships."""
    folders = ("packages", "services")
    return "\n".join(path.read_text() for name in folders for path in sorted((ROOT / name).glob("*/src/**/*.py")))


def test_the_log_records_are_those_that_are_written() -> None:
    named = set(re.findall(r"(?:INFO|WARNING|ERROR|CRITICAL) `([^`]+)`", PAGE))
    code = source()
    assert {words for words in named if words.removeprefix("event=") not in code} == set()
    assert len(named) >= 15


def test_every_row_says_where_it_shows() -> None:
    """A row of a table whose last column is that."""
    tables = re.findall(r"^\| after \| what happens \| where it shows \|\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    rows = [line.strip("|\n").split(" | ") for table in tables for line in table.splitlines()]
    assert [row for row in rows if len(row) != 3 or not all(cell.strip() for cell in row)] == []
    assert len(tables) >= 6


def test_the_metrics_alerts_and_fields_are_there() -> None:
    metrics = set(re.findall(r"`((?:config|ringcast)_[a-z_]+)", PAGE))
    fields = set(re.findall(r"`Health\.(\w+)`", PAGE))
    alerts = set(re.findall(r"`(Ringcast[A-Z]\w+)`", PAGE))
    pages = ("docs/observability.md", "services/heartbeat-agent/README.md")
    documented = "".join((ROOT / name).read_text() for name in pages)
    assert {name for name in metrics if f"`{name}`" not in documented} == set()
    health = (ROOT / "packages/ringcast/src/ringcast/_worker/health.py").read_text()
    assert {name for name in fields if f"    {name}: " not in health} == set()
    rules = "".join((ROOT / f"infra/prometheus/{name}.yml").read_text() for name in ("alerts", "objectives"))
    assert {name for name in alerts if f"alert: {name}\n" not in rules} == set()
    assert min(len(metrics), len(alerts)) >= 5
    assert fields
