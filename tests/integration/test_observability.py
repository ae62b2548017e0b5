"""What docs/observability.md and infra/ say of metrics and spans is what the code has; of logs: test_log_events.py."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ringcast
import ringcast_client
import ringcast_config_service
import yaml
from ringcast_heartbeat_agent.telemetry import AGENT
from ringcast_testkit import run_readme_examples
from ringcast_wire.metrics import METRICS, SERVICE, WORKER

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs/observability.md"
RULES = (ROOT / "infra/prometheus/alerts.yml", ROOT / "infra/prometheus/objectives.yml")
SCRAPES = ROOT / "infra/prometheus/prometheus.yml"
GRAFANA = ROOT / "infra/grafana"
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
RUNBOOKS = ROOT / "docs/runbooks.md"

EXPOSED = {metric.name: metric for metric in (*METRICS, *AGENT)}
"""Of workers, services and agents."""
OF_PROMETHEUS = frozenset({"le", "instance", "job"})
SERIES = ("_bucket", "_sum", "_count")
SERIES_NAME = re.compile(r"\b(?:config|ringcast_agent)_\w+")


def rows(text: str, first: str) -> list[list[str]]:
    """The cells of each table row whose first cell is a name in code that begins with ``first``."""
    lines = [line for line in text.splitlines() if line.startswith(f"| `{first}")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def in_code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# --- The document -----------------------------------------------------------------------------------------------------


def test_the_tables_of_metrics_are_those_of_the_code() -> None:
    """Every one, in both directions, with kind, labels, unit, meaning and its name in the reference."""
    text = DOCUMENT.read_text()
    of_worker, of_service = text.split("### Metrics of the config service")
    documented = {
        (in_code(name)[0], kind, tuple(in_code(labels)), unit, what, *in_code("".join(reference)))
        for part in (of_worker.split("### Metrics of a worker")[1], of_service)
        for name, kind, labels, unit, what, *reference in (row for row in rows(part, "config_"))
        if kind in ("counter", "gauge", "histogram")
    }
    assert documented == {
        (
            metric.name,
            metric.kind,
            metric.labels,
            metric.unit,
            metric.help,
            *([metric.reference] * bool(metric.reference)),
        )
        for metric in METRICS
    }
    assert of_worker.count("| `config_") >= len(WORKER)
    assert of_service.count("| `config_") == len(SERVICE)


def emitted_spans() -> set[str]:
    """The names of spans in the sources."""
    sources = [Path(module.__file__ or "").parent for module in (ringcast, ringcast_client, ringcast_config_service)]
    text = "\n".join(path.read_text() for source in sources for path in source.rglob("*.py"))
    found = set(re.findall(r'"(config\.[a-z]+(?:\.[a-z]+)*)"', text))
    assert len(found) > 10
    return found


def test_every_span_is_documented_and_none_besides() -> None:
    text = DOCUMENT.read_text()
    documented = {name for row in rows(text, "config.") for name in in_code(row[0])}
    assert documented == emitted_spans()
    drawn = set(re.findall(r"^ *(config\.[a-z.]+) +\d", text, re.MULTILINE))
    assert len(drawn) == 10
    assert drawn <= documented


def test_the_example_runs() -> None:
    assert run_readme_examples(DOCUMENT) == 1


# --- PromQL -----------------------------------------------------------------------------------------------------------


def rules() -> list[dict[str, Any]]:
    """Alerts, and what is recorded for them."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def panels() -> list[dict[str, Any]]:
    """Those of all dashboards."""
    found = [panel for path in DASHBOARDS for panel in json.loads(path.read_text())["panels"]]
    return [panel for panel in found if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression, and where it stands."""
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def metric_of(series: str) -> str:
    """The metric that a series belongs to: those of a histogram have a suffix."""
    for suffix in SERIES:
        name = series.removesuffix(suffix)
        if name != series and name in EXPOSED and EXPOSED[name].kind == "histogram":
            return name
    return series


def test_alerts_and_dashboard_name_only_what_is_exposed() -> None:
    seen = 0
    for where, text in expressions():
        for series in SERIES_NAME.findall(text):
            seen += 1
            name = metric_of(series)
            assert name in EXPOSED, f"{where}: {series}"
            is_histogram = EXPOSED[name].kind == "histogram"
            assert is_histogram == (name != series), f"{where}: {series} is no series of its own"
    assert seen > 60


def test_alerts_and_dashboard_use_only_labels_that_the_metrics_have() -> None:
    seen = 0
    for where, text in expressions():
        metrics = [EXPOSED[metric_of(series)] for series in SERIES_NAME.findall(text)]
        for group in re.findall(r"\bby \(([^)]*)\)", text):
            for label in (part.strip() for part in group.split(",")):
                seen += 1
                assert label in OF_PROMETHEUS or all(label in metric.labels for metric in metrics), f"{where}: {label}"
        for series, matchers in re.findall(r"\b((?:config|ringcast_agent)_\w+)\{([^}]*)\}", text):
            for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers):
                seen += 1
                known = (*EXPOSED[metric_of(series)].labels, "instance", *("le",) * series.endswith("_bucket"))
                assert label in known, f"{where}: {series}{{{label}}}"
    assert seen > 60


def test_counters_are_rates_and_brackets_are_closed() -> None:
    """What a parser of PromQL would say first; there is none here."""
    for where, text in expressions():
        for opening, closing in ("()", "[]", "{}"):
            assert text.count(opening) == text.count(closing), where
        for series in re.findall(r"\b(?:config|ringcast_agent)_\w+(?:_total|_bucket|_sum|_count)\b", text):
            if metric_of(series) != series or EXPOSED[series].kind == "counter":
                assert re.search(rf"(rate|increase)\({series}", text), f"{where}: {series} only ever rises"


def test_every_metric_is_drawn() -> None:
    drawn = {metric_of(series) for panel in panels() for series in SERIES_NAME.findall(json.dumps(panel))}
    assert drawn == set(EXPOSED)


def test_every_candidate_alert_of_the_reference_is_there() -> None:
    """Redelivery ratio, filters near the cap, failing updates, sustained backlog."""
    text = {rule["alert"]: rule["expr"] for rule in alerts()}
    assert "> 0.03" in text["RingcastRedeliveries"]
    assert text["RingcastFiltersNearLimit"].endswith("> 0.9 * config_consumer_subject_limit")
    assert "> 0.05" in text["RingcastConsumerUpdatesFail"]
    assert "config_consumer_inflight" in text["RingcastBacklog"]


def test_agents_that_are_stale_and_groups_that_are_behind_raise_an_alert() -> None:
    text = {rule["alert"]: rule["expr"] for rule in alerts()}
    for metric in ("ringcast_agent_staleness_seconds", "ringcast_agent_group_behind"):
        assert any(expression.startswith(f"{metric} > ") for expression in text.values()), metric


def test_alerts_say_how_bad_it_is_and_what_is_wrong() -> None:
    found = alerts()
    assert len(found) > 15
    assert len({rule["alert"] for rule in found}) == len(found)
    for rule in found:
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"]


# --- Dashboards -------------------------------------------------------------------------------------------------------


def test_the_dashboards_are_those_of_panels_yaml() -> None:
    done = subprocess.run(
        [sys.executable, str(GRAFANA / "make_dashboards.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.stem for path in DASHBOARDS] == ["agent", "broker", "fleet", "overview", "service"]
    titles = [json.loads(path.read_text())["uid"] for path in DASHBOARDS]
    assert titles == [f"ringcast-{path.stem}" for path in DASHBOARDS]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_the_panels_do_not_overlap(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    found = json.loads(path.read_text())["panels"]
    assert len({panel["id"] for panel in found}) == len(found)
    for panel in found:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells), panel["title"]
        taken |= cells


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_begins_with_what_is_so_now_and_what_was_lately(path: Path) -> None:
    document = json.loads(path.read_text())
    kinds = [panel["type"] for panel in document["panels"]]
    assert kinds[:2] == ["row", "stat"]
    assert kinds.count("stat") == 8
    assert kinds.count("state-timeline") == 2
    chosen = {variable["name"] for variable in document["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", path.read_text())) - {"__rate_interval"} <= chosen


def test_a_panel_links_to_the_runbooks_of_the_alerts_that_watch_the_same() -> None:
    rules_by_name = {rule["alert"]: rule["expr"] for rule in alerts()}
    anchors = {heading.lower() for heading in re.findall(r"^### (\w+)$", RUNBOOKS.read_text(), re.MULTILINE)}
    linked = 0
    for panel in panels():
        names = set(SERIES_NAME.findall(" ".join(target["expr"] for target in panel["targets"])))
        for link in panel["links"]:
            linked += 1
            alert = link["title"].removeprefix("Runbook of ")
            assert link["url"] == f"${{runbooks:raw}}#{alert.lower()}"
            assert alert.lower() in anchors
            watched = set(SERIES_NAME.findall(rules_by_name[alert]))
            assert names & watched, f"{panel['title']} shows nothing of what {alert} watches"
    assert linked > 40


def test_a_number_changes_its_colour_where_its_alert_fires() -> None:
    """Its worst threshold, or the limit in its own query, is the limit of an alert that it links to."""
    rules_by_name = {rule["alert"]: rule["expr"] for rule in alerts()}
    number = re.compile(r"[<>=] ([\d.]+)")
    seen = 0
    for panel in panels():
        if panel["type"] != "stat" or not panel["links"]:
            continue
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        (query,) = [target["expr"] for target in panel["targets"]]
        limits = {float(steps[-1]["value"]), *map(float, number.findall(query))}
        expressions = [rules_by_name[link["title"].removeprefix("Runbook of ")] for link in panel["links"]]
        of_alerts = {float(limit) for expression in expressions for limit in number.findall(expression)}
        if not of_alerts or 0.0 in of_alerts:
            of_alerts.add(1.0)  # what is counted is 1 where it is not none
        assert limits & of_alerts, panel["title"]
        seen += 1
    assert seen > 25


@pytest.mark.parametrize("job", ["ringcast-config-service", "ringcast-worker"])
def test_what_is_scraped_has_a_job(job: str) -> None:
    scrapes = yaml.safe_load(SCRAPES.read_text())
    assert job in {scrape["job_name"] for scrape in scrapes["scrape_configs"]}
    assert scrapes["rule_files"] == [path.name for path in RULES]
