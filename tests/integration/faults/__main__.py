"""Faults without end: `make chaos`.

The faults are shared out between a system with one NATS server on a small disk, one with a cluster of three, and one
whose only service has a file for its database and where all log in with a token; with `--systems dispatch` they are
done to one with an agent and the consumers of a group. The schedule comes from the seed; what happens in between is
real, so a seed does not replay a run to the millisecond.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from ringcast_testkit import SmallDisk

from tests.integration.faults.arena import Shape
from tests.integration.faults.dispatch_run import dispatch_chaos
from tests.integration.faults.kinds import KINDS
from tests.integration.faults.run import Outcome, chaos, possible, schedule

SYSTEMS = ("server", "cluster", "sqlite", "dispatch")
SERVICE_OPTIONS = ("--tombstone-retention", "3s", "--compaction-interval", "2s", "--log-level", "warning")


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the schedule (default: the time)")
    parser.add_argument("--faults", type=int, default=96, help="how many, on all systems together (default: 96)")
    parser.add_argument("--kinds", default="", help="only these kinds, separated by commas")
    parser.add_argument(
        "--systems",
        default="server,cluster,sqlite",
        help="server, cluster, sqlite or dispatch, or several (default: the first three)",
    )
    parser.add_argument("--overlap", type=float, default=0.2, help="how likely a fault gets another at the same time")
    parser.add_argument("--hold", type=float, default=1.0, help="what the times of faults that last are multiplied by")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--services", type=int, default=2)
    parser.add_argument("--partitions", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("build/chaos.json"))
    chosen = parser.parse_args()
    chosen.kinds = [name for name in chosen.kinds.split(",") if name] or sorted(KINDS)
    if unknown := set(chosen.kinds) - set(KINDS):
        parser.error(f"no such kinds: {', '.join(sorted(unknown))}; there are {', '.join(sorted(KINDS))}")
    chosen.systems = chosen.systems.split(",")
    if unknown := set(chosen.systems) - set(SYSTEMS):
        parser.error(f"no such systems: {', '.join(sorted(unknown))}; there are {', '.join(SYSTEMS)}")
    return chosen


def say(text: str) -> None:
    """One line to whoever watches."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def shape_of(system: str, chosen: argparse.Namespace) -> Shape:
    """The system of that name."""
    return Shape(
        workers=chosen.workers,
        services=1 if system == "sqlite" else chosen.services,
        partitions=chosen.partitions,
        keys=("routes",) if system == "dispatch" else ("routes", "rules"),
        dispatch=system == "dispatch",
        cluster=system == "cluster",
        sqlite=system == "sqlite",
        token=system == "sqlite",
        slow_workers=("worker1",),
        small_disk=system == "server" and SmallDisk.supported(),
        service_options=SERVICE_OPTIONS,
        hold=chosen.hold,
    )


async def main() -> int:
    """Runs it all, writes the figures, and returns the exit status."""
    chosen = options()
    outcome = Outcome()
    say(f"seed {chosen.seed}")
    systems = chosen.systems
    failure = ""
    for number, system in enumerate(systems):
        shape = shape_of(system, chosen)
        count = chosen.faults // len(systems) + (number < chosen.faults % len(systems))
        kinds = possible(chosen.kinds, shape)
        turns = schedule(chosen.seed + number, count, kinds, overlap=chosen.overlap, done=outcome.faults)
        say(f"{system}: {count} faults in {len(turns)} turns")
        with tempfile.TemporaryDirectory(prefix="rc-chaos-") as directory:
            try:
                do = dispatch_chaos if shape.dispatch else chaos
                await do(Path(directory), shape, outcome, seed=chosen.seed + number, turns=turns, say=say)
            except* Exception as group:  # noqa: BLE001  # whatever it was, the figures are written
                failure = "; ".join(f"{type(error).__name__}: {error}" for error in group.exceptions)
                say(f"{system}: {failure}")
    figures = {"seed": chosen.seed, **outcome.figures(), "failure": failure}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    say(json.dumps(figures, indent=2))
    return 0 if outcome.kept and not failure else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
