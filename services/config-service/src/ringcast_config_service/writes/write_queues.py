"""Writes that wait for their transaction, in fair queues.

Turns go round the principals, round the connections of each principal, and round the lanes of each connection. A lane
is what has to be committed in order: the batches of one bulk stream, or the other writes of one connection to one key
(a write of several keys has one of its own).
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from ringcast_config_service.caller import Caller
from ringcast_config_service.repository import Bundle, Chain, WriteOutcome, WriteRequest

if TYPE_CHECKING:
    from opentelemetry.trace import Span

K = TypeVar("K")
V = TypeVar("V")
LaneName = Bundle | Chain | tuple[str, str]

_BYTES_A_ROW: Final = 4_096
"""Bytes that cost a caller as much of its turn as a row does."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A request, or those of a bundle, and the future of the outcome of all.

    ``rows`` and ``bytes``: of all. ``cost``: how much of a turn it takes. ``alone``: it is to have a transaction of its
    own.
    """

    requests: Sequence[WriteRequest]
    caller: Caller
    span: Span | None = None
    since_s: float = field(default_factory=time.perf_counter)
    outcome: asyncio.Future[WriteOutcome] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    alone: bool = False

    rows: int = field(init=False)
    bytes: int = field(init=False)

    def __post_init__(self) -> None:
        first = self.requests[0]
        self.rows, self.bytes = len(first.rows), first.bytes
        for other in self.requests[1:]:
            self.rows += len(other.rows)
            self.bytes += other.bytes

    @property
    def cost(self) -> int:
        return max(self.rows, self.bytes // _BYTES_A_ROW)


class Lane:
    """Requests of one connection that are committed in the order of their arrival."""

    __slots__ = ("connection", "name", "waiting")

    def __init__(self, name: LaneName, connection: _Connection) -> None:
        self.name = name
        self.connection = connection
        self.waiting: deque[Waiting] = deque()


class _Connection:
    __slots__ = ("bytes", "lanes", "name", "principal", "turns", "writes")

    def __init__(self, name: str, principal: _Principal) -> None:
        self.name = name
        self.principal = principal
        self.lanes: dict[LaneName, Lane] = {}
        self.turns: OrderedDict[LaneName, Lane] = OrderedDict()
        self.writes = self.bytes = 0


class _Principal:
    __slots__ = ("bytes", "connections", "name", "turns", "writes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.connections: dict[str, _Connection] = {}
        self.turns: OrderedDict[str, _Connection] = OrderedDict()
        self.writes = self.bytes = 0


class WriteQueues:
    """All that waits, ``max_writes`` requests and ``max_bytes`` bytes of rows at most.

    A principal that has something waiting may add to it while that is less than what is free, an eighth of it all left
    aside, and one of its connections while it holds less than its principal may still add. So one connection alone
    fills less than a third, a principal with many of them less than a half, and the eighth is left for principals
    that had nothing waiting, whatever shares the others have filled.
    """

    def __init__(self, max_writes: int, max_bytes: int) -> None:
        self._max_writes = max_writes
        self._max_bytes = max_bytes
        self._principals: dict[str, _Principal] = {}
        self._turns: OrderedDict[str, _Principal] = OrderedDict()
        self.writes = 0
        self.bytes = 0

    @property
    def has_turns(self) -> bool:
        """Whether there is a lane that gets turns."""
        return bool(self._turns)

    def refusal(self, size: int, caller: Caller) -> str | None:
        """Why a request of ``size`` bytes has to wait outside, or ``None`` where there is room for it."""
        free_writes, free_bytes = self._max_writes - self.writes, self._max_bytes - self.bytes
        if free_writes < 1 or free_bytes < size:
            return f"{self.writes} writes of {self.bytes} bytes wait for the database: try again later"
        principal = self._principals.get(caller.principal)
        if principal is None:
            return None
        free_writes, free_bytes = free_writes - self._max_writes // 8, free_bytes - self._max_bytes // 8
        connection = principal.connections.get(caller.connection)
        if connection is not None:
            what, writes, size_now = "connection", connection.writes, connection.bytes
            free_writes, free_bytes = free_writes - principal.writes, free_bytes - principal.bytes
        else:
            what, writes, size_now = "principal", principal.writes, principal.bytes
        if writes < free_writes and size_now + size <= free_bytes:
            return None
        return (
            f"{writes} writes of {size_now} bytes of this {what} wait for the database, of {self.writes} in all: "
            "try again later"
        )

    def add(self, waiting: Waiting) -> None:
        """Puts a request at the end of its lane; the caller has checked :meth:`refusal`."""
        self._lane(waiting).waiting.append(waiting)

    def put_back(self, group: Sequence[Waiting]) -> None:
        """Puts requests at the beginnings of their lanes, in the order in which they were taken from them."""
        for waiting in reversed(group):
            self._lane(waiting).waiting.appendleft(waiting)

    def _lane(self, waiting: Waiting) -> Lane:
        """The lane of a request that is being added to it."""
        caller = waiting.caller
        principal = self._principals.get(caller.principal)
        if principal is None:
            principal = self._principals[caller.principal] = _Principal(caller.principal)
        connection = principal.connections.get(caller.connection)
        if connection is None:
            connection = principal.connections[caller.connection] = _Connection(caller.connection, principal)
        request = waiting.requests[0]
        name: LaneName = request.bundle or request.chain or (request.store.name, request.key)
        lane = connection.lanes.get(name)
        if lane is None:
            lane = connection.lanes[name] = Lane(name, connection)
            self.resume(lane)
        self._count(connection, 1, waiting.bytes)
        return lane

    def next_lane(self) -> Lane | None:
        """The lane whose turn it is; it has something waiting. ``None`` when none has, or all are suspended."""
        if not self._turns:
            return None
        principal = _turn(self._turns)
        return _turn(_turn(principal.turns).turns)

    def take(self, lane: Lane) -> Waiting:
        """Removes the first request of a lane."""
        waiting = lane.waiting.popleft()
        connection = lane.connection
        self._count(connection, -1, -waiting.bytes)
        if not lane.waiting:
            self.suspend(lane)
            del connection.lanes[lane.name]
            if not connection.lanes:
                principal = connection.principal
                del principal.connections[connection.name]
                if not principal.connections:
                    del self._principals[principal.name]
        return waiting

    def suspend(self, lane: Lane) -> None:
        """Gives a lane no more turns until :meth:`resume`."""
        connection = lane.connection
        connection.turns.pop(lane.name, None)
        if not connection.turns:
            principal = connection.principal
            principal.turns.pop(connection.name, None)
            if not principal.turns:
                self._turns.pop(principal.name, None)

    def resume(self, lane: Lane) -> None:
        """Gives a lane its turns."""
        connection = lane.connection
        connection.turns[lane.name] = lane
        connection.principal.turns[connection.name] = connection
        self._turns[connection.principal.name] = connection.principal

    def _count(self, connection: _Connection, writes: int, size: int) -> None:
        principal = connection.principal
        connection.writes += writes
        principal.writes += writes
        self.writes += writes
        connection.bytes += size
        principal.bytes += size
        self.bytes += size


def _turn(turns: OrderedDict[K, V]) -> V:
    """The first of a ring, which goes to its end."""
    name, found = next(iter(turns.items()))
    turns.move_to_end(name)
    return found
