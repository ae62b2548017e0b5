"""Two runs beside each other: `make bench-compare A=DIRECTORY B=DIRECTORY`.

Each figure of B over the same figure of A, with the noise of the two: the spread of their parts or rounds. What changed
by more than twice its noise is called better or worse; where a figure has no parts, 25 % is taken for its noise.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.envelope.arrivals import spread
from benchmarks.envelope.results import Case, Figure, read, shown

_UNKNOWN_NOISE = 0.25
_LEAST_NOISE = 0.01
_NOISES = 2.0


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure in both runs."""

    case: str
    name: str
    before: Figure
    after: Figure

    @property
    def ratio(self) -> float:
        """After over before; infinite when it came to be infinite or was zero, 1 when both are the same."""
        if self.before.value == self.after.value:
            return 1.0
        if not self.before.value or not math.isfinite(self.after.value):
            return math.inf
        return self.after.value / self.before.value

    @property
    def noise(self) -> float:
        """Of the ratio, as a share of it."""
        spreads = [
            spread(figure.samples) if len(figure.samples) > 1 else _UNKNOWN_NOISE
            for figure in (self.before, self.after)
        ]
        return max(math.hypot(*spreads), _LEAST_NOISE)

    @property
    def verdict(self) -> str:
        """``better``, ``worse``, or nothing where the noise explains it."""
        ratio = self.ratio
        change = abs(math.log(ratio)) if 0 < ratio < math.inf else math.inf
        if ratio == 1 or change <= _NOISES * self.noise:
            return ""
        return "better" if (ratio < 1) == self.before.smaller_is_better else "worse"


def differences(before: Sequence[Case], after: Sequence[Case]) -> Iterator[Difference]:
    """Every figure that both have, in the order of the second."""
    known = {(case.scenario, case.name): case for case in before}
    for case in after:
        counterpart = known.get((case.scenario, case.name))
        for name, figure in case.figures.items():
            if counterpart is not None and name in counterpart.figures:
                yield Difference(f"{case.scenario}: {case.name}", name, counterpart.figures[name], figure)


def lines(found: Sequence[Difference], *, everything: bool) -> Iterator[str]:
    """A table in Markdown, and how many figures are not in it."""
    told = [difference for difference in found if everything or difference.verdict]
    if told:
        yield from ("| case | figure | A | B | B over A | noise | |", "|---|---|---|---|---|---|---|")
    for one in told:
        values = f"{shown(one.before.value)} | {shown(one.after.value)} {one.after.unit}"
        yield f"| {one.case} | {one.name} | {values} | {shown(one.ratio)} | ± {one.noise:.0%} | {one.verdict} |"
    yield f"{len(found)} figures in both; {sum(bool(one.verdict) for one in found)} changed by more than their noise."


def cautions(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Why the two should not be compared, if so."""
    for label, about in (("A", before), ("B", after)):
        if about["quick"]:
            yield f"{label} was a quick run: its figures mean nothing."
        if not about["complete"]:
            yield f"{label} was stopped before its end."
    for fact in ("processor", "cores", "memory_gib", "python"):
        if before["machine"][fact] != after["machine"][fact]:
            yield f"The machines differ: {fact} {before['machine'][fact]} and {after['machine'][fact]}."


def main() -> int:
    """Exit status 1 when the two have no figure in common."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.envelope.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", metavar="A", type=Path, help="directory of a run")
    parser.add_argument("after", metavar="B", type=Path, help="directory of a later run")
    parser.add_argument("--all", action="store_true", help="show what did not change as well")
    options = parser.parse_args()
    try:
        (about_before, before), (about_after, after) = read(options.before), read(options.after)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    for label, about in (("A", about_before), ("B", about_after)):
        sys.stdout.write(f"{label}: {about['started_at']}, commit {about['versions']['commit']}\n")
    for caution in cautions(about_before, about_after):
        sys.stdout.write(f"Caution: {caution}\n")
    found = list(differences(before, after))
    sys.stdout.write("\n" + "\n".join(lines(found, everything=options.all)) + "\n")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
