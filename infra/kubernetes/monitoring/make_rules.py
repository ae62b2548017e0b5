#!/usr/bin/env python3
"""Print rules.yaml: the alert rules of infra/prometheus as a PrometheusRule, for the operator of Prometheus.

Usage: make_rules.py > rules.yaml. The rules are those of ``rule_files`` in prometheus.yml, in the same order. Needs the
package pyyaml.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

PROMETHEUS = Path(__file__).resolve().parents[2] / "prometheus"


def main() -> int:
    files = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["rule_files"]
    groups = [group for file in files for group in yaml.safe_load((PROMETHEUS / file).read_text())["groups"]]
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "ringcast"},
        "spec": {"groups": groups},
    }
    sys.stdout.write("# Printed by make_rules.py from infra/prometheus: change the rules there.\n")
    yaml.safe_dump(rule, sys.stdout, sort_keys=False, width=120, allow_unicode=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
