"""Hold the config service's SQL to CockroachDB's own grammar.

Usage: cockroach_grammar.py. Every statement for PostgreSQL is parsed by a small program in Go over CockroachDB's parser
(build-support/cockroach-grammar, a module of its own with pinned sums). Without Go it says so and passes, unless the
environment has CI=true or RINGCAST_REQUIRE_GO=1. Exit status 1 with one line a statement that CockroachDB refuses.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from ringcast_config_service.repository.sql.statements import Postgres

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = ROOT / "build-support" / "cockroach-grammar"
PROGRAM: Final = ROOT / "build" / "cockroach-grammar" / "cockroach-grammar"
COCKROACH: Final = "COCKROACH_"
"""What begins so takes the place of the statement with the rest of the name."""
# The program runs for a moment, and its hundreds of packages take minutes to optimise. The tests of Dapr's SDK for Go
# build with the same options, so that the packages of Go itself are compiled once.
BUILD_OPTIONS: Final = ("-mod=readonly", "-buildvcs=false", "-gcflags=all=-N -l", "-ldflags=-s -w")
LEAST: Final = 60
"""Statements; fewer means that they have moved, and nothing would be checked."""
_CONTROL: Final = {"name": "control", "sql": "SELECT 1 FROM stores TABLESAMPLE SYSTEM (10) FOR THE RECORD"}
"""What no grammar takes: were it parsed, the others would mean nothing."""


def statements() -> list[dict[str, str]]:
    """Every statement, by its name."""
    found = []
    for name, value in sorted(vars(Postgres).items()):
        if f"{COCKROACH}{name}" in vars(Postgres):
            continue
        parts = [value] if isinstance(value, str) else value
        found += [
            {"name": f"{name}[{number}]" if len(parts) > 1 else name, "sql": part} for number, part in enumerate(parts)
        ]
    return found


def main() -> int:
    go = shutil.which("go")
    if go is None:
        required = os.environ.get("CI") == "true" or os.environ.get("RINGCAST_REQUIRE_GO") == "1"
        what = "failed" if required else "skipped"
        sys.stdout.write(f"cockroach_grammar: {what}, for there is no Go here: install 1.25 or later\n")
        return 1 if required else 0
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    build = [go, "build", *BUILD_OPTIONS, "-o", str(PROGRAM), "."]
    subprocess.run(build, cwd=SOURCES, env={**os.environ, "CGO_ENABLED": "0"}, check=True)
    wanted = statements()
    if len(wanted) < LEAST:
        sys.stdout.write(f"cockroach_grammar: {len(wanted)} statements were found, at least {LEAST} are expected\n")
        return 1
    done = subprocess.run([PROGRAM], input=json.dumps([*wanted, _CONTROL]), capture_output=True, text=True, check=False)
    refused = done.stdout.splitlines()
    if not any(line.startswith("control: ") for line in refused):
        sys.stdout.write(f"cockroach_grammar: the parser does not parse: {done.stdout}{done.stderr}\n")
        return 1
    problems = [line for line in refused if not line.startswith("control: ")]
    for line in problems:
        sys.stdout.write(f"cockroach_grammar: {line}\n")
    sys.stdout.write(
        f"cockroach_grammar: {len(wanted) - len(problems)} of {len(wanted)} statements are CockroachDB's too\n"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
