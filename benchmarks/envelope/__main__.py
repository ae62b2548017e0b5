"""Walk the operating envelope: `make envelope`, or python -m benchmarks.envelope with the same options.

Writes envelope.json (everything measured), report.md and its plots into the output directory. Ctrl-C stops it cleanly:
what was measured by then is kept and reported.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ringcast_testkit import WarmProgram

from benchmarks.envelope.goals import missed_by
from benchmarks.envelope.processes import ROOT, keep_bytecode
from benchmarks.envelope.results import Results
from benchmarks.envelope.run import Run, StoppedError, perform, stoppable
from benchmarks.envelope.scenarios import SCENARIOS


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """What the command was told."""
    listed = "\n".join(
        f"  {scenario.name:<10} {scenario.about} (at most {scenario.limit_s:g} s)" for scenario in SCENARIOS
    )
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.envelope",
        description=__doc__,
        epilog=f"scenarios:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="NAME,…", help="measure only these scenarios")
    parser.add_argument("--quick", action="store_true", help="sizes that prove that it runs; the figures mean nothing")
    parser.add_argument("--goals", action="store_true", help="exit with status 1 where a goal is missed too")
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench", help="where to write (default: build/bench)")
    found = parser.parse_args(words)
    names = [scenario.name for scenario in SCENARIOS]
    found.only = found.only.split(",") if found.only else names
    if unknown := sorted(set(found.only) - set(names)):
        parser.error(f"there is no scenario {', '.join(unknown)}: there are {', '.join(names)}")
    return found


def main() -> int:
    """Exit status 1 when a case failed, or a goal was missed that counts; 130 when the run was stopped."""
    options = arguments(sys.argv[1:])
    chosen = [scenario for scenario in SCENARIOS if scenario.name in options.only]
    keep_bytecode()
    results = Results(options.out, quick=options.quick, command=sys.argv[1:])
    results.write()
    WarmProgram.forks = options.quick  # where something is measured, processes start as users start them
    run = Run(results, options.quick)
    began_s = time.monotonic()
    stopped = False
    try:
        with stoppable():
            for number, scenario in enumerate(chosen, start=1):
                run.say(f"[{number}/{len(chosen)}] {scenario.name}: {scenario.about}")
                perform(run, scenario)
            results.finish()
    except StoppedError as error:
        run.say(f"stopped by {error}: what was measured is kept")
        stopped = True
    # Only now: nothing that is drawn takes memory or time while something is measured.
    from benchmarks.envelope.report import write_report

    run.say(f"{len(results.cases)} cases in {time.monotonic() - began_s:.0f} s: {write_report(options.out)}")
    if stopped:
        return 130
    missed = list(missed_by(results.cases)) if options.goals else []
    for verdict in missed:
        run.say(f"missed: {verdict.goal.what} ({verdict.case}): {verdict.value:.3g} {verdict.unit}")
    return 1 if missed or any(case.status == "failed" for case in results.cases) else 0


if __name__ == "__main__":
    sys.exit(main())
