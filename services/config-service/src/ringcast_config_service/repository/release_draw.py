"""Which partitions are in which wave of a release."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ringcast_wire import DEFAULT_GATE, ReleaseGate, Rollout


def draw(
    number: int, partitions: Sequence[int], percents: Sequence[int], gate: ReleaseGate = DEFAULT_GATE
) -> tuple[Rollout, dict[int, int]]:
    """The waves of a release, and the wave of each partition that it writes to.

    The partitions come in the order of a hash of release and partition, and each wave has the next ones, up to its
    percents of all, rounded up. A wave that would have none is left out.
    """
    drawn = sorted(partitions, key=lambda partition: hashlib.sha256(f"{number}/{partition}".encode()).digest())
    ends = {-(-percent * len(drawn) // 100): percent for percent in percents}  # of equal ones the last stays
    waves: dict[int, int] = {}
    for wave, end in enumerate(ends, 1):
        waves.update(dict.fromkeys(drawn[len(waves) : end], wave))
    return Rollout(tuple(ends.values()), tuple(ends), gate=gate), waves
