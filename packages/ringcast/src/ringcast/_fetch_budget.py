"""How many bytes of answers may be on their way to this process at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakKeyDictionary

from ringcast_wire import limits, names

BUDGET_BYTES: Final = limits.MAX_REPLY_BYTES
"""One whole key of the largest size. NATS ends the connection of a client for which more than 64 MiB wait."""
_LEAST_BYTES: Final = 64 * limits.KIB
_MOST_KEYS: Final = 10_000
_FIRST_BYTES: Final = {names.FETCH_BATCH: limits.MIB, names.FETCH_FULL: limits.MAX_REPLY_BYTES}

_budgets: WeakKeyDictionary[asyncio.AbstractEventLoop, FetchBudget] = WeakKeyDictionary()


class FetchBudget:
    """Fetches take turns: one that does not fit yet is waited for by all that come after it.

    How large an answer will be nobody knows before. Partitions and batches are reckoned with twice the largest answer
    that their key has had, at first with the most that they may have; whole keys always with the most.
    """

    def __init__(self, most_bytes: int = BUDGET_BYTES) -> None:
        self._most = self._free = most_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._largest: OrderedDict[tuple[str, bool], int] = OrderedDict()

    @classmethod
    def of_process(cls) -> FetchBudget:
        """The one that all workers of this event loop share."""
        return _budgets.setdefault(asyncio.get_running_loop(), cls())

    @asynccontextmanager
    async def taken(self, subject: str) -> AsyncIterator[None]:
        """Waits until the answer to a fetch fits; in the body it is on its way. Head revisions do not wait."""
        weight = self._weight(subject)
        await self._take(weight)
        try:
            yield
        finally:
            self._free += weight
            self._admit()

    def answered(self, subject: str, size: int) -> None:
        """An answer to this subject had so many bytes."""
        key = _key_and_kind(subject)
        size = max(size, self._largest.pop(key, 0))
        self._largest[key] = size
        if len(self._largest) > _MOST_KEYS:
            self._largest.popitem(last=False)

    def _weight(self, subject: str) -> int:
        what = subject.rpartition(".")[2]
        if what == names.FETCH_HEADS:
            return 0
        most = _FIRST_BYTES.get(what, limits.MAX_PARTITION_BYTES)
        seen = self._largest.get(_key_and_kind(subject))
        if seen is not None and what != names.FETCH_FULL:
            most = min(2 * seen + _LEAST_BYTES, limits.MAX_PARTITION_BYTES)
        return min(most, self._most)

    async def _take(self, weight: int) -> None:
        if weight == 0 or (not self._waiting and weight <= self._free):
            self._free -= weight
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((weight, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._free += weight  # it had just been given
            self._waiting = deque(one for one in self._waiting if one[1] is not turn)
            self._admit()
            raise

    def _admit(self) -> None:
        while self._waiting and (self._waiting[0][0] <= self._free or self._waiting[0][1].done()):
            weight, turn = self._waiting.popleft()
            if not turn.done():
                self._free -= weight
                turn.set_result(None)


def _key_and_kind(subject: str) -> tuple[str, bool]:
    head, _, what = subject.rpartition(".")
    return head, what == names.FETCH_BATCH
