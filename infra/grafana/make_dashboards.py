#!/usr/bin/env python3
"""Write the dashboards of Grafana from panels.yaml, one for each role, into dashboards/.

Usage: make_dashboards.py [--check]. With ``--check`` nothing is written, and the exit status is 1 where a file differs.
Needs the package pyyaml. panels.yaml says at its top what it may have.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

HERE: Final = Path(__file__).resolve().parent
WIDTH: Final = 24
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
SIZES: Final = {"stat": (3, 4), "states": (12, 8), "graph": (8, 8)}
"""Width and height of each kind of panel."""
TYPES: Final = {"stat": "stat", "states": "state-timeline", "graph": "timeseries"}
COLOURS: Final = {"good": "green", "warn": "orange", "bad": "red", "neutral": "blue"}


def variables(names: list[str]) -> list[dict[str, Any]]:
    """What can be chosen on a dashboard: the data source, and values of labels."""
    found: list[dict[str, Any]] = [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
    queries = {
        "store": "label_values(config_partition_count, store)",
        "key": 'label_values(config_partition_count{store=~"$store"}, key)',
        "agent": "label_values(ringcast_agent_connected, instance)",
    }
    of_query = {"type": "query", "datasource": DATASOURCE, "multi": True, "includeAll": True, "refresh": 2}
    found += [{"name": name, "query": queries[name], **of_query} for name in names]
    address = {"name": "runbooks", "type": "textbox", "label": "Address of the runbooks"}
    default = "https://docs.example.org/docs/runbooks/"
    return [*found, {**address, "query": default, "current": {"text": default, "value": default}}]


def thresholds(panel: dict[str, Any]) -> dict[str, Any]:
    """Green up to ``warn``, then orange, and red from ``bad`` on; with ``below`` red below ``below``."""
    if "below" in panel:
        steps: list[dict[str, Any]] = [{"color": "red", "value": None}, {"color": "green", "value": panel["below"]}]
    else:
        steps = [{"color": "green", "value": None}]
        steps += [{"color": COLOURS[name], "value": panel[name]} for name in ("warn", "bad") if name in panel]
    return {"mode": "absolute", "steps": steps}


def mappings(panel: dict[str, Any]) -> list[dict[str, Any]]:
    """A text and a colour for each value of a state."""
    options = {
        str(value): {"text": text, "color": COLOURS[colour], "index": index}
        for index, (value, (text, colour)) in enumerate(panel.get("values", {}).items())
    }
    return [{"type": "value", "options": options}] if options else []


def defaults(kind: str, panel: dict[str, Any]) -> dict[str, Any]:
    if kind == "states":
        return {"mappings": mappings(panel), "custom": {"fillOpacity": 70, "lineWidth": 0}}
    found: dict[str, Any] = {"unit": panel["unit"], "min": 0}
    if kind == "stat":
        found |= {"thresholds": thresholds(panel), "mappings": mappings(panel)}
    return found


def options(kind: str) -> dict[str, Any]:
    if kind == "stat":
        reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        return {"reduceOptions": reduce, "colorMode": "background", "graphMode": "area", "textMode": "auto"}
    if kind == "states":
        return {"mergeValues": True, "showValue": "auto", "legend": {"showLegend": False, "displayMode": "list"}}
    return {"legend": {"showLegend": True, "displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}


def made(kind: str, panel: dict[str, Any], number: int, place: dict[str, int]) -> dict[str, Any]:
    """One panel, at its place."""
    targets = [
        {"refId": chr(ord("A") + at), "datasource": DATASOURCE, "expr": expression, "legendFormat": legend}
        for at, query in enumerate(panel["queries"])
        for legend, expression in query.items()
    ]
    links = [
        {"title": f"Runbook of {alert}", "url": f"${{runbooks:raw}}#{alert.lower()}", "targetBlank": True}
        for alert in panel.get("alerts", [])
    ]
    return {
        "id": number,
        "type": TYPES[kind],
        "title": panel[kind],
        "description": panel["about"],
        "datasource": DATASOURCE,
        "gridPos": place,
        "links": links,
        "options": options(kind),
        "fieldConfig": {"defaults": defaults(kind, panel), "overrides": []},
        "targets": targets,
    }


def laid_out(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of panels, each from left to right, and on below where a line is full."""
    number = y = 0
    for row in rows:
        number += 1
        place = {"h": 1, "w": WIDTH, "x": 0, "y": y}
        yield {"id": number, "type": "row", "title": row["title"], "gridPos": place, "collapsed": False, "panels": []}
        x, y, tallest = 0, y + 1, 0
        for panel in row["panels"]:
            (kind,) = SIZES.keys() & panel.keys()
            width, height = SIZES[kind]
            if x + width > WIDTH or (tallest and height != tallest):
                x, y, tallest = 0, y + tallest, 0
            number += 1
            yield made(kind, panel, number, {"h": height, "w": width, "x": x, "y": y})
            x, tallest = x + width, height
        y += tallest


def dashboard(name: str, role: dict[str, Any]) -> dict[str, Any]:
    return {
        "title": role["title"],
        "uid": f"ringcast-{name}",
        "description": role["about"],
        "tags": ["ringcast"],
        "schemaVersion": 39,
        "version": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "links": [
            {
                "title": "Ringcast",
                "type": "dashboards",
                "tags": ["ringcast"],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "templating": {"list": variables(role["variables"])},
        "panels": list(laid_out(role["rows"])),
    }


def files() -> dict[Path, str]:
    """Each dashboard's file, and what it has to contain."""
    roles = yaml.safe_load((HERE / "panels.yaml").read_text())
    return {
        HERE / f"dashboards/{name}.json": json.dumps(dashboard(name, role), indent=1, ensure_ascii=False) + "\n"
        for name, role in roles.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the dashboards of Grafana from panels.yaml.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where a file differs")
    check = parser.parse_args().check
    wanted = files()
    there = {path: path.read_text() for path in (HERE / "dashboards").glob("*.json")}
    differ = sorted({*wanted, *there} - {path for path, text in wanted.items() if there.get(path) == text})
    for path in differ:
        if check:
            sys.stderr.write(f"{path.name} differs from panels.yaml: run make_dashboards.py\n")
        elif path in wanted:
            path.write_text(wanted[path])
        else:
            path.unlink()
    return 1 if check and differ else 0


if __name__ == "__main__":
    raise SystemExit(main())
