"""Replaces every process of a running system by one of another build, and back, under load: `make demo-upgrade`.

First everything is of the last release, which `make` has built from its commit. The config services, the agent and the
workers are replaced one after the other by this tree's, and then by the last release's again, in the opposite order.
Meanwhile clients of both builds write and read; none of their calls may fail. build/upgrade.json has the figures. Exit
status 1 unless no call has failed and every row is where it should be.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from ringcast_testkit import PostgresServer

from tests.integration.rolling.system import Build, System, Verdict

TREE = Build("tree")


def replace_all(system: System, build: Build, names: list[str]) -> dict[str, float]:
    """Replaces processes one after the other; returns the seconds that each was away."""
    away = {}
    for name in names:
        away[name] = round(system.roll(name, build), 1)
        failed = sum(len(client.failed) for client in system.clients)
        calls = sum(client.ended for client in system.clients)
        print(f"   {name}: {build.name}, {away[name]:.1f} s; {calls:,} calls so far, {failed} failed", flush=True)
    return away


def there_and_back(directory: Path, database: str, release: Build) -> tuple[Verdict, dict[str, object]]:
    """From a release to this tree and back; returns how it was and the figures."""
    with System(directory, database, release, (release, TREE)) as system:
        order = [*system.services, "agent", *system.workers]
        print(f"1. Everything is of {release.name}; clients of it and of this tree write and read", flush=True)
        print("2. Upgrade: config services, agent, workers", flush=True)
        up = replace_all(system, TREE, order)
        print("3. Downgrade: workers, agent, config services", flush=True)
        down = replace_all(system, release, order[::-1])
        print("4. Compare what the workers hold with the system of record", flush=True)
        verdict = system.judge()
    figures = {
        "release": release.name,
        "calls": verdict.calls,
        "failed_calls": len(verdict.failed),
        "lost_writes": verdict.lost,
        "wrong_rows": verdict.wrong,
        "upgrade_s": up,
        "downgrade_s": down,
    }
    return verdict, figures


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make demo-upgrade", description=__doc__.partition("\n")[0])
    parser.add_argument("release", type=Path, help="directory with the packages of the release (build-release)")
    parser.add_argument("--name", default="the release", help="what it is called")
    parser.add_argument("--output", type=Path, default=Path("build/upgrade.json"), help="figures (%(default)s)")
    options = parser.parse_args()
    release = Build(options.name, options.release)
    try:
        release.check()
    except RuntimeError as error:
        print(f"demo-upgrade: {error}", file=sys.stderr)
        return 1
    with PostgresServer() as postgres, tempfile.TemporaryDirectory(prefix="rc-up-") as directory:
        verdict, figures = there_and_back(Path(directory), postgres.create_database(), release)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(figures, indent=2) + "\n")
    for failure in verdict.failed[:20]:
        print(f"   failed: {failure}")
    print(
        f"   {verdict.calls:,} calls, {len(verdict.failed)} failed; "
        f"{verdict.lost} writes lost, {verdict.wrong} rows wrong at the workers"
    )
    return 0 if verdict.kept else 1


if __name__ == "__main__":
    sys.exit(main())
