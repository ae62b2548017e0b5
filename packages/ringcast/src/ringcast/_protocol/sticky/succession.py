"""Which of two processes of one worker id came later, by what the states of the worker say."""

from __future__ import annotations

from collections import deque
from typing import Final

from ringcast_wire.owner_records import State

_KEPT: Final = 64
"""How many of its own first sessions a process remembers: each time its entry is gone it has another."""


class Succession:
    """Whether another process of this worker's id has had the session entry after this process first had it.

    Then this process ends, whatever it has got back since. It does not write its state over that of the other: that
    one may be cut off and not guarded, and of that the operator and the leaders know by its state alone.
    """

    def __init__(self) -> None:
        self._firsts: deque[int] = deque(maxlen=_KEPT)

    def began(self, first: int) -> None:
        """This process says in its state that ``first`` is its first session; 0: it has had none."""
        if first and first not in self._firsts:
            self._firsts.append(first)

    def is_over(self, said: State | None) -> bool:
        """Whether the worker's state in the bucket is that of a later process.

        One that this process has written so long ago that it does not remember it counts as that too, which ends it
        without need, and does no other harm.
        """
        if said is None or not self._firsts:
            return False
        return said.first > self._firsts[0] and said.first not in self._firsts
