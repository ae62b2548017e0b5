"""Which partitions are in which wave of a release."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from ringcast_wire import DEFAULT_GATE, ReleaseGate, Rollout


class Canary(NamedTuple):
    """The first wave of a release: those of its partitions that workers with a label own.

    ``provisional``: they own all, and lay the rows over; no partition is in this wave.
    """

    label: str = ""
    partitions: frozenset[int] = frozenset()
    provisional: bool = False


NO_CANARY: Final = Canary()


def draw(
    number: int,
    partitions: Sequence[int],
    percents: Sequence[int],
    gate: ReleaseGate = DEFAULT_GATE,
    canary: Canary = NO_CANARY,
) -> tuple[Rollout, dict[int, int]]:
    """The waves of a release, and the wave of each partition that it writes to.

    The partitions of the canary come first, then the others in the order of a hash of release and partition. Each wave
    has the next ones, up to its percents of all, rounded up. A wave that would have none is left out.
    """

    def place(partition: int) -> tuple[bool, bytes]:
        return partition not in canary.partitions, hashlib.sha256(f"{number}/{partition}".encode()).digest()

    drawn = sorted(partitions, key=place)
    ends = wave_ends(len(drawn), percents, len(canary.partitions))
    waves: dict[int, int] = {}
    for wave, end in enumerate(ends, 1):
        waves.update(dict.fromkeys(drawn[len(waves) : end], wave))
    return Rollout(tuple(ends.values()), tuple(ends), gate=gate, canary=canary.label), waves


def wave_ends(count: int, percents: Sequence[int], canary: int) -> dict[int, int]:
    """How many of ``count`` partitions are in after each wave that adds any, and which of ``percents`` that is.

    ``canary``: how many are in its wave, to which 0 belongs.
    """
    ends = {canary: 0} if 0 in percents else {}
    later = {-(-percent * count // 100): percent for percent in percents if percent}  # of equal ones the last stays
    return ends | {end: percent for end, percent in later.items() if end > canary}
