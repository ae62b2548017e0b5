"""``make drills``: every shipped alert fires by a fault that is really done, as a real Prometheus sees it."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from ringcast_testkit import SmallDisk

from tests.integration.drills.drill import DRILLS, Drill
from tests.integration.drills.drills import drills_of
from tests.integration.drills.rules import shipped_alerts
from tests.integration.drills.run import Run, table
from tests.integration.drills.site import Shape, Site

FACTOR: Final = 20


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make drills", description=__doc__)
    parser.add_argument("--only", default="", help="alerts or drills, commas between; then no quiet time by default")
    parser.add_argument("--list", action="store_true", help="which alert has which drill, and end")
    parser.add_argument("--quiet-s", type=float, help="seconds in which nothing is done (600; with --only 0)")
    parser.add_argument(
        "--factor", type=int, default=FACTOR, help=f"how much faster time passes in the rules ({FACTOR})"
    )
    chosen = parser.parse_args()
    try:
        chosen.drills = drills_of([word for word in chosen.only.split(",") if word])
    except ValueError as error:
        parser.error(f"--only: {error}")
    if not 1 <= chosen.factor <= 60:
        parser.error(f"--factor {chosen.factor} is out of range: 1 to 60 is allowed")
    if chosen.quiet_s is None:
        chosen.quiet_s = 0.0 if chosen.only else 600.0
    if not 0 <= chosen.quiet_s <= 86_400:
        parser.error(f"--quiet-s {chosen.quiet_s:g} is out of range: 0 to 86400 is allowed")
    return chosen


def say(text: str) -> None:
    """One line to whoever watches."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def listed() -> str:
    """Every alert with its drill, and those that have none."""
    lines = []
    for drill in DRILLS.values():
        lines += [f"{drill.name}: {', '.join(drill.alerts)}", f"    {drill.cause}", f"    {drill.end}"]
    caused = {alert for drill in DRILLS.values() for alert in drill.alerts}
    lines += [f"without a drill: {alert}" for alert in shipped_alerts() if alert not in caused]
    return "\n".join(lines)


async def hold(shape: Shape, drills: list[Drill], *, factor: int, quiet_s: float) -> Run:
    """Holds the drills on one deployment, after the quiet time."""
    with tempfile.TemporaryDirectory(prefix="rc-drills-") as directory:
        say(f"starting {shape.value}, and two Prometheus servers")
        async with Site(Path(directory), shape, factor=factor) as site:
            run = Run(site, say)
            await run.quiet(quiet_s)
            for drill in drills:
                await run.hold(drill)
            await run.settle()
    return run


def not_to_be_held(drills: list[Drill]) -> list[Drill]:
    """Those that need what this machine does not allow: a small disk is a mount namespace."""
    return [] if SmallDisk.supported() else [drill for drill in drills if drill.shape is Shape.SMALL_DISK]


async def hold_all(drills: list[Drill], *, factor: int, quiet_s: float) -> list[Run]:
    """Holds the drills, each on a deployment of its shape; the quiet time is that of the whole one."""
    runs = []
    for shape in Shape:
        mine = [drill for drill in drills if drill.shape is shape]
        quiet = quiet_s if shape is Shape.WHOLE else 0.0
        if mine or quiet:
            runs.append(await hold(shape, mine, factor=factor, quiet_s=quiet))
    return runs


def main() -> int:
    """Runs the command; the exit status is 1 where something is not as it should be."""
    chosen = parse()
    if chosen.list:
        print(listed())
        return 0
    say(f"time passes {chosen.factor} times faster in the rules of the drills")
    left_out = not_to_be_held(chosen.drills)
    findings = [f"{drill.name}: not held, for lack of the right to make a mount namespace" for drill in left_out]
    held = [drill for drill in chosen.drills if drill not in left_out]
    runs = asyncio.run(hold_all(held, factor=chosen.factor, quiet_s=chosen.quiet_s))
    results = [result for run in runs for result in run.results]
    findings += [sentence for run in runs for sentence in run.findings]
    print(f"Time passed {chosen.factor} times faster in the rules; quiet for {chosen.quiet_s:g} s.\n")
    print(table(results))
    for sentence in findings:
        print(f"WRONG: {sentence}")
    fired = sum(result.fired_s is not None for result in results)
    print(f"\n{fired} of {len(results)} alerts fired; {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
