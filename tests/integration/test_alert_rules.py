"""Every alert has a runbook, and promtool sees it fire in a history that causes it, and not in one that comes close."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.needed_tools import needed_tool

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "infra/prometheus"
RUNBOOKS = ROOT / "docs/runbooks.md"
RULE_FILES = ("alerts.yml", "objectives.yml")


def alerts(name: str) -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / name).read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def expectations(name: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """Of each question of the file of tests the alert that it is about, and the samples that are expected."""
    found = []
    for group in yaml.safe_load((PROMETHEUS / name.replace(".yml", ".test.yml")).read_text())["tests"]:
        for question in group["promql_expr_test"]:
            alert = re.match(r'ALERTS\{alertname="(\w+)", alertstate="firing"', question["expr"])
            assert alert is not None, question["expr"]
            found.append((alert[1], question["exp_samples"]))
    return found


@pytest.fixture(scope="module")
def promtool() -> str:
    """The tests need it in CI; elsewhere they are skipped without it."""
    return needed_tool("PROMTOOL", "promtool", install="build-support/bin/install-prometheus puts it there")


def test_prometheus_loads_all_rules() -> None:
    scrapes = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    assert scrapes["rule_files"] == list(RULE_FILES)
    assert sum(len(alerts(name)) for name in RULE_FILES) >= 50


@pytest.mark.parametrize("name", RULE_FILES)
def test_every_rule_has_a_test_in_which_it_fires_and_one_in_which_it_does_not(name: str) -> None:
    found = expectations(name)
    assert {alert for alert, samples in found if samples} == alerts(name).keys()
    assert {alert for alert, samples in found if not samples} == alerts(name).keys()


@pytest.mark.parametrize("name", RULE_FILES)
def test_an_alert_has_the_labels_that_its_sentences_name(name: str) -> None:
    rules = alerts(name)
    for alert, samples in expectations(name):
        for sample in samples:
            labels = set(re.findall(r"(\w+)=", sample["labels"]))
            text = " ".join(rules[alert]["annotations"].values())
            assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels, alert
            assert f'severity="{rules[alert]["labels"]["severity"]}"' in sample["labels"]


@pytest.mark.parametrize("name", RULE_FILES)
def test_every_rule_has_a_runbook(name: str) -> None:
    """A section that says what it means, how to look, and what to do."""
    sections = dict(re.findall(r"^### (Ringcast\w+)\n(.*?)(?=^##|\Z)", RUNBOOKS.read_text(), re.MULTILINE | re.DOTALL))
    assert sections.keys() == {alert for each in RULE_FILES for alert in alerts(each)}
    for alert, rule in alerts(name).items():
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert (RUNBOOKS.parent / page, anchor) == (RUNBOOKS, alert.lower())
        for part in ("**Means.**", "**Look.**", "**Do.**"):
            assert sections[alert].count(part) == 1, f"{alert}: {part}"


@pytest.mark.parametrize("name", RULE_FILES)
def test_no_rule_needs_a_job_of_a_certain_name(name: str) -> None:
    for alert, rule in alerts(name).items():
        assert not re.search(r"\bjob\s*(=|!)", rule["expr"]), alert


@pytest.mark.parametrize("name", RULE_FILES)
def test_promtool_accepts_the_rules_and_its_tests_pass(promtool: str, name: str) -> None:
    for command in (("check", "rules", name), ("test", "rules", name.replace(".yml", ".test.yml"))):
        done = subprocess.run(
            [promtool, *command], cwd=PROMETHEUS, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_sees_a_test_that_is_wrong(promtool: str, tmp_path: Path) -> None:
    """So that a test which passes says something."""
    shutil.copy(PROMETHEUS / "alerts.yml", tmp_path)
    group = {
        "interval": "15s",
        "input_series": [{"series": 'config_staleness_seconds{store="s", worker_id="w"}', "values": "11x10"}],
        "promql_expr_test": [{"expr": 'ALERTS{alertname="RingcastWorkerStale"}', "eval_time": "1m", "exp_samples": []}],
    }
    tests = {"rule_files": ["alerts.yml"], "evaluation_interval": "15s", "tests": [group]}
    (tmp_path / "wrong.yml").write_text(yaml.safe_dump(tests))
    done = subprocess.run(
        [promtool, "test", "rules", "wrong.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode != 0
    assert "RingcastWorkerStale" in done.stdout + done.stderr
