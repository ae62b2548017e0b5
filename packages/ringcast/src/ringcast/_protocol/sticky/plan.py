"""Which worker each partition of a key is to get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from ringcast_core import assign_sticky


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What an operator wants of a key. ``loads`` are of the partitions, by number, and empty where all are the same.

    A pin to a worker that drains, or is not there, counts for nothing.
    """

    loads: tuple[int, ...] = ()
    pins: Mapping[int, str] = field(default_factory=dict)
    drains: frozenset[str] = frozenset()
    by_load: bool = False
    """Whether the workers are to have equal loads, as they report them, and not equal numbers of partitions."""

    @property
    def balance(self) -> str:
        """What the workers are to have equal: ``load`` or ``count``."""
        return "load" if self.by_load else "count"


def planned(
    present: Sequence[str | None], taking: Mapping[str, int], wishes: Wishes, fixed: Set[str] = frozenset()
) -> tuple[str, ...] | None:
    """The fewest moves to an even table, or ``None`` where no worker takes partitions.

    Args:
        present: the worker that each partition is at.
        taking: the capacity of each worker that may get partitions.
        wishes: what an operator wants.
        fixed: workers that keep what they have and get nothing else.
    """
    if not taking:
        return None
    at = [number for number, name in enumerate(present) if name not in fixed]
    found = [name or "" for name in present]
    if at:
        place = {number: index for index, number in enumerate(at)}
        chosen = assign_sticky(
            [present[number] for number in at],
            taking,
            capacities=taking.values(),
            loads=[wishes.loads[number] for number in at] if wishes.loads else None,
            pins={place[number]: name for number, name in wishes.pins.items() if number in place},
        )
        for number, name in zip(at, chosen, strict=True):
            found[number] = name
    return tuple(found)
