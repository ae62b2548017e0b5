"""How many bytes of answers may be on their way to this process at once, and which fetch is next."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import IntEnum
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from ringcast_wire import limits, names


class Size(IntEnum):
    """The estimated size of an answer. Each size has a part of the budget that larger ones never use."""

    SMALL = 0
    LARGE = 1
    WHOLE = 2  # a whole key


BUDGET_BYTES: Final = {
    Size.SMALL: 4 * limits.MIB,
    Size.LARGE: 12 * limits.MIB,
    Size.WHOLE: limits.MAX_FULL_BYTES,
}
"""64 MiB together: NATS ends the connection of a client for which more wait."""
MOST_SMALL_BYTES: Final = BUDGET_BYTES[Size.SMALL] // 2
_LEAST_BYTES: Final = 64 * limits.KIB
_MOST_KEYS: Final = 10_000


class _Lane(NamedTuple):
    """Fetches of one kind of one key: all have the same estimate."""

    head: str
    kind: str


class _Grant(NamedTuple):
    part: Size
    weight: int


_budgets: WeakKeyDictionary[asyncio.AbstractEventLoop, FetchBudget] = WeakKeyDictionary()


class FetchBudget:
    """Keys take turns, and later fetches of the same size wait behind one that does not fit yet.

    A fetch uses the part of its size, or that of a larger one for which none waits.

    The size of an answer is not known before. Partitions and batches are estimated at twice the largest answer
    that their key has had, at first with the most that a partition and 1 MiB that a batch may have; whole keys always
    with the most.
    """

    def __init__(self) -> None:
        self._free = dict(BUDGET_BYTES)
        self._waiting: OrderedDict[_Lane, deque[asyncio.Future[_Grant]]] = OrderedDict()
        self._largest: OrderedDict[_Lane, int] = OrderedDict()

    @classmethod
    def of_process(cls) -> FetchBudget:
        """The one that all workers of this event loop share."""
        return _budgets.setdefault(asyncio.get_running_loop(), cls())

    @asynccontextmanager
    async def reserved(self, subject: str) -> AsyncIterator[None]:
        """Waits until the answer to a fetch fits; in the body it is on its way. Head revisions do not wait."""
        lane = _lane_of(subject)
        if lane.kind == names.FETCH_HEADS:
            yield
            return
        grant = await self._reserve(lane)
        try:
            yield
        finally:
            self._give_back(grant)

    def record_size(self, subject: str, size: int) -> None:
        """An answer to this subject had so many bytes."""
        lane = _lane_of(subject)
        size = max(size, self._largest.pop(lane, 0))
        self._largest[lane] = size
        if len(self._largest) > _MOST_KEYS:
            self._largest.popitem(last=False)

    def _reckon(self, lane: _Lane) -> tuple[Size, int]:
        if lane.kind == names.FETCH_FULL:
            return Size.WHOLE, BUDGET_BYTES[Size.WHOLE]
        weight = limits.MIB if lane.kind == names.FETCH_BATCH else limits.MAX_PARTITION_BYTES
        seen = self._largest.get(lane)
        if seen is not None:
            weight = min(2 * seen + _LEAST_BYTES, limits.MAX_PARTITION_BYTES)
        return (Size.SMALL if weight <= MOST_SMALL_BYTES else Size.LARGE), weight

    async def _reserve(self, lane: _Lane) -> _Grant:
        turn: asyncio.Future[_Grant] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(lane, deque()).append(turn)
        self._admit()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(turn.result())  # it had just been given
            elif turn in (turns := self._waiting.get(lane, deque())):  # else it was passed over meanwhile
                turns.remove(turn)
                if not turns:
                    del self._waiting[lane]
                self._admit()
            raise

    def _give_back(self, grant: _Grant) -> None:
        self._free[grant.part] += grant.weight
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._admit_next():
            pass

    def _admit_next(self) -> bool:
        """Gives its bytes to the fetch whose turn it is, if there is one for which there is room."""
        wanted = {self._reckon(lane)[0] for lane in self._waiting}
        blocked: set[Size] = set()
        for lane, turns in self._waiting.items():
            size, weight = self._reckon(lane)
            part = None if size in blocked else self._part_for(size, weight, wanted)
            if part is None:
                blocked.add(size)
                continue
            turn = turns.popleft()
            if turns:
                self._waiting.move_to_end(lane)
            else:
                del self._waiting[lane]
            if not turn.cancelled():
                self._free[part] -= weight
                turn.set_result(_Grant(part, weight))
            return True
        return False

    def _part_for(self, size: Size, weight: int, wanted: set[Size]) -> Size | None:
        """Which part of the budget has room for a fetch; that of a larger size only while none of those waits."""
        for part in Size:
            if part < size:
                continue
            if part > size and part in wanted:
                return None
            if weight <= self._free[part]:
                return part
        return None


def _lane_of(subject: str) -> _Lane:
    head, _, what = subject.rpartition(".")
    return _Lane(head, "" if what.isdecimal() else what)
