"""Every shipped alert has a drill; the copy of the rules differs in times alone; and a few of the drills are held."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.drills.__main__ import FACTOR, hold
from tests.integration.drills.drill import DRILLS
from tests.integration.drills.drills import drills_of
from tests.integration.drills.rules import (
    SHIPPED,
    duration_ms,
    faster,
    faster_expression,
    faster_rules,
    rule_files,
    shipped_alerts,
    write_faster,
)
from tests.integration.drills.run import LONG, table
from tests.integration.drills.site import Shape
from tests.integration.needed_tools import needed_tool

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/drills.md"


def test_every_shipped_alert_has_one_drill() -> None:
    assert sorted(alert for drill in DRILLS.values() for alert in drill.alerts) == sorted(shipped_alerts())


def test_companions_are_shipped_alerts_and_so_is_what_looks_back_far() -> None:
    for drill in DRILLS.values():
        assert set(drill.companions) <= shipped_alerts().keys() - set(drill.alerts), drill.name
        assert drill.cause, drill.name
        assert drill.end, drill.name
    assert LONG.keys() <= shipped_alerts().keys()


def test_the_page_has_a_row_for_each_alert() -> None:
    rows = dict(re.findall(r"^\| (Ringcast\w+) \| ([\w-]+) \|", PAGE.read_text(), re.MULTILINE))
    assert rows == {alert: drill.name for drill in DRILLS.values() for alert in drill.alerts}


def test_the_page_describes_each_drill() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (.*?) \| (.*?) \|$", PAGE.read_text(), re.MULTILINE)
    wanted = [(drill.name, drill.cause, drill.end) for drill in DRILLS.values()]
    assert rows == wanted, "\n".join(f"| `{name}` | {cause} | {end} |" for name, cause, end in wanted)


def _timeless(value: Any) -> Any:
    """A file of rules without its times."""
    if isinstance(value, dict):
        return {key: _timeless(each) for key, each in value.items() if key not in ("for", "interval")}
    if isinstance(value, list):
        return [_timeless(each) for each in value]
    if isinstance(value, str):
        return re.sub(r"\[\w+\]|offset \w+", "", re.sub(r"(_seconds\)? > )\d+$", r"\1", value))
    return value


@pytest.mark.parametrize("name", rule_files())
def test_the_copy_of_the_rules_differs_in_times_alone(name: str) -> None:
    shipped = yaml.safe_load((SHIPPED / name).read_text())
    copy = faster_rules(name, FACTOR)
    assert copy != shipped
    assert _timeless(copy) == _timeless(shipped)
    for group, as_shipped in zip(copy["groups"], shipped["groups"], strict=True):
        for rule, original in zip(group["rules"], as_shipped["rules"], strict=True):
            if "for" in original:
                assert duration_ms(rule["for"]) * FACTOR == duration_ms(original["for"])
            windows, originals = (re.findall(r"(?:\[|offset )(\w+)", each["expr"]) for each in (rule, original))
            assert [duration_ms(window) * FACTOR for window in windows] == [duration_ms(each) for each in originals]


def test_the_copy_with_the_factor_1_means_what_is_shipped() -> None:
    for name in rule_files():
        copy, shipped = faster_rules(name, 1), yaml.safe_load((SHIPPED / name).read_text())
        text = yaml.safe_dump(copy)
        assert [rule.get("for") and duration_ms(rule["for"]) for rule in _rules(copy)] == [
            rule.get("for") and duration_ms(rule["for"]) for rule in _rules(shipped)
        ]
        assert _timeless(copy) == _timeless(shipped), text


def _rules(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [rule for group in content["groups"] for rule in group["rules"]]


@pytest.mark.parametrize(
    ("expression", "divided"),
    [
        ('increase(a_total{b="[5m]"}[1h30m]) > 60', 'increase(a_total{b="[5m]"}[270000ms]) > 60'),
        ("a unless last_over_time(a[1d] offset 15m) > 0", "a unless last_over_time(a[4320000ms] offset 45000ms) > 0"),
        ("max(a_age_seconds) > 1800", "max(a_age_seconds) > 90"),
        ("a_age_seconds > 180", "a_age_seconds > 9"),
        ("a_running_seconds > 30", "a_running_seconds > 30"),
        ("rate(a_seconds_bucket[5m]) > 100", "rate(a_seconds_bucket[15000ms]) > 100"),
    ],
)
def test_an_expression_keeps_all_but_its_times(expression: str, divided: str) -> None:
    assert faster_expression(expression, 20) == divided


@pytest.mark.parametrize("expression", ["rate(a[5m:1m])", "a offset -5m > 1", "a @ 17 > 1", "rate(a[5 m])", "a[]"])
def test_an_expression_that_can_not_be_divided_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"at a fixed time|is no duration"):
        faster_expression(expression, 20)


@pytest.mark.parametrize(("text", "factor", "why"), [("5", 1, "no duration"), ("1s", 3, "whole"), ("1ms", 2, "whole")])
def test_a_duration_that_can_not_be_divided_is_refused(text: str, factor: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        faster(text, factor)


def test_promtool_accepts_the_copy(tmp_path: Path) -> None:
    promtool = needed_tool("PROMTOOL", "promtool", install="build-support/bin/install-prometheus puts it there")
    paths = write_faster(tmp_path / "rules", FACTOR)
    done = subprocess.run(
        [promtool, "check", "rules", *map(str, paths)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_unknown_drill_is_refused() -> None:
    with pytest.raises(ValueError, match="no drill or alert RingcastNothing: --list"):
        drills_of(["RingcastNothing"])


async def test_some_drills_are_held() -> None:
    """So that ``make drills`` does not rot: a worker that dies, a handler that fails."""
    needed_tool("PROMETHEUS", "prometheus", install="build-support/bin/install-prometheus puts it there")
    held = drills_of(["worker-killed", "handler-raises"])
    run = await hold(Shape.SMALL, held, factor=FACTOR, quiet_s=0)
    assert not run.findings, "\n".join([*run.findings, table(run.results)])
    assert [each.alert for each in run.results] == [alert for drill in held for alert in drill.alerts]
