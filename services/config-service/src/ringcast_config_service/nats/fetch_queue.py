"""Which fetch is answered next: fairly between requesters, small ones apart from whole keys, within a budget.

No I/O: the transport reports what arrived and what has ended.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import msgspec
from ringcast_wire import limits, names

from ringcast_config_service.repository.base import SMALL_ANSWER_BYTES

T = TypeVar("T")

_MOST_REQUESTER_CHARS: Final = 128
_WEIGHTS: Final = {
    names.FETCH_HEADS: 64 * limits.KIB,
    names.FETCH_BATCH: SMALL_ANSWER_BYTES,
    names.FETCH_STAGED: SMALL_ANSWER_BYTES,
}
"""What an answer is taken to need in memory until it is sent. For a partition it is a bound: what its rows have in an
answer beside their text is within a small answer, and text has the limit of a partition."""


class _ClientInfo(msgspec.Struct):
    user: str = ""


_read_info = msgspec.json.Decoder(_ClientInfo).decode


def requester_of(reply: str, headers: dict[str, str] | None) -> str:
    """The requester, as far as the bus shows it.

    A worker has its answers sent below ``_INBOX_<worker id>``, others below ``_INBOX.<a name of the connection>``. An
    answer to another account goes to a subject that the server makes up; the server then names the account in a header.
    """
    if reply.startswith("_R_."):
        try:
            user = _read_info((headers or {}).get(names.HEADER_CLIENT, "{}")).user
        except msgspec.DecodeError:
            user = ""
        return f"user {user}"[:_MOST_REQUESTER_CHARS]
    tokens = reply.split(".", 2)
    return ".".join(tokens[: 2 if tokens[0] == "_INBOX" else 1])[:_MOST_REQUESTER_CHARS]


def weight_of(what: str) -> int:
    """The bytes to reckon with for the answer to a fetch; ``what``: the last token of its subject."""
    if what == names.FETCH_FULL:
        return limits.MAX_REPLY_BYTES
    return _WEIGHTS.get(what, limits.MAX_PARTITION_BYTES + SMALL_ANSWER_BYTES)


@dataclass(eq=False, slots=True)
class Request(Generic[T]):
    """One fetch: ``message`` is the transport's own. Times are of the loop's clock."""

    message: T
    requester: str
    weight: int
    arrived_at: float
    patience_s: float
    cancelled: bool = False
    """Whether the requester has cancelled it."""

    def is_abandoned(self, now: float) -> bool:
        """Whether the requester has stopped waiting."""
        return self.cancelled or now - self.arrived_at >= self.patience_s


@dataclass(slots=True)
class LaneLimits:
    """``hands`` and ``bytes`` at once, of which one requester has at most so many hands; ``waiting`` requests, and of
    one requester."""

    hands: int
    hands_each: int
    bytes: int
    waiting: int
    waiting_each: int


@dataclass(eq=False, slots=True)
class FetchLane(Generic[T]):
    """Requests of one kind. Requesters take turns; those of one go in their order."""

    limits: LaneLimits
    waiting: int = 0
    _queues: OrderedDict[str, deque[Request[T]]] = field(default_factory=OrderedDict)
    _under_way: Counter[str] = field(default_factory=Counter)
    _hands: int = 0
    _bytes: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or is under way."""
        return not self.waiting and not self._hands

    def add(self, request: Request[T]) -> bool:
        """Takes a request; false when too many wait already, of all or of its requester."""
        queue = self._queues.get(request.requester)
        if self.waiting >= self.limits.waiting or (queue is not None and len(queue) >= self.limits.waiting_each):
            return False
        if queue is None:
            queue = self._queues[request.requester] = deque()
        queue.append(request)
        self.waiting += 1
        return True

    def take(self) -> Request[T] | None:
        """The next request that may begin, which then is under way until :meth:`done`; it goes on with the next
        requester. A large answer for which there is no room lets small ones pass."""
        if self._hands >= self.limits.hands:
            return None
        for requester in list(self._queues):
            queue = self._queues[requester]
            request = queue[0]
            if self._under_way[requester] >= self.limits.hands_each:
                continue
            if self._hands and self._bytes + request.weight > self.limits.bytes:
                continue
            queue.popleft()
            if queue:
                self._queues.move_to_end(requester)
            else:
                del self._queues[requester]
            self.waiting -= 1
            self._hands += 1
            self._bytes += request.weight
            self._under_way[requester] += 1
            return request
        return None

    def weigh(self, request: Request[T], weight: int) -> None:
        """What the answer really needs is known."""
        self._bytes += weight - request.weight
        request.weight = weight

    def done(self, request: Request[T]) -> None:
        """A request that had begun has ended."""
        self._hands -= 1
        self._bytes -= request.weight
        self._under_way[request.requester] -= 1
        if not self._under_way[request.requester]:
            del self._under_way[request.requester]
