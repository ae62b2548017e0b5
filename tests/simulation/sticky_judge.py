"""Holds the promises of exclusive ownership against what happens in the simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from ringcast._protocol.sticky.ownership import OwnedState, Ownership
from ringcast_wire.owner_records import Phase, Rule, Table


class Violation(AssertionError):
    """A promise was broken."""


class Caller(Protocol):
    """A process that calls handlers. ``true_fence``: as the judge has it, whatever the process believes."""

    worker_id: str
    ownership: Ownership
    true_fence: float
    is_guarded: bool

    @property
    def now(self) -> float:
        """Its own clock."""

    def __hash__(self) -> int: ...


@dataclass
class Call:
    """A handler call that runs."""

    process: Caller
    partition: int
    token: int
    is_last: bool = False
    """It is ``on_revoked``, which may run once its session has ended in good order."""
    is_peers: bool = False
    """It is by the peer rule, which promises nothing while the members change."""
    is_guarded: bool = True


class Judge:
    """Holds the promises against what really happens, by clocks and fences of its own."""

    def __init__(self, partitions: int) -> None:
        self._partitions = range(partitions)
        self.active: dict[Caller, set[int]] = {}
        """The partitions that each process was active for after its last turn."""
        self.calls: dict[int, list[Call]] = {}
        self.highest: dict[int, int] = {}
        self.holders: dict[tuple[int, int], object] = {}
        self.begun = self.last = self.of_peers = 0

    def begins(self, call: Call) -> None:
        process, partition = call.process, call.partition
        others = [one for one in self.calls.get(partition, ()) if one.process is not process]
        if any(not (call.is_peers and one.is_peers) for one in others):
            raise Violation(f"partition {partition}: {process} and {others[0].process} call at once")
        self.begun += 1
        self.of_peers += call.is_peers
        self.calls.setdefault(partition, []).append(call)
        if not call.is_guarded:
            return
        if process.now >= process.true_fence:
            raise Violation(f"partition {partition}: {process} starts a call after its fence")
        if call.token < self.highest.get(partition, 0):
            raise Violation(f"partition {partition}: token {call.token} comes after {self.highest[partition]}")
        holder = (process, process.ownership.session)
        if not (call.is_last or call.is_peers) and self.holders.setdefault((partition, call.token), holder) != holder:
            raise Violation(f"partition {partition}: token {call.token} has two owners")
        self.last += call.is_last
        self.highest[partition] = call.token

    def ends(self, call: Call) -> None:
        self.calls[call.partition].remove(call)

    def look(self, process: Caller, processes: Sequence[Caller]) -> None:
        """No two owners are active at once. To be called after each turn of a process: its states change in no other.

        The states of the others are those after their own last turns; their fences only pass meanwhile.
        """
        state_of = process.ownership.state_of
        mine = {number for number in self._partitions if state_of(number) is OwnedState.ACTIVE}
        self.active[process] = mine
        if not mine or not _may_call(process):
            return
        for other in processes:
            if other is process or mine.isdisjoint(self.active.get(other, ())) or not _may_call(other):
                continue
            if {other.ownership.rule, process.ownership.rule} != {Rule.PEERS}:
                partition = min(mine & self.active[other])
                raise Violation(f"partition {partition}: {other} and {process} are active at once")

    def settled(self, table: Table | None, processes: Sequence[Caller], drains: Set[str]) -> None:
        """Once faults have ended, every partition has its owner, and no worker more than its share."""
        running = {one.ownership.session: one for one in processes if one.ownership.session is not None}
        taking = [one for one in running.values() if one.worker_id not in drains and not one.ownership.record.leaving]
        if not taking:
            return  # a drained worker gets nothing, and so there need not be a table
        if table is None:
            raise Violation("there is no table")
        loads = dict.fromkeys(running.values(), 0)
        for number, entry in enumerate(table.entries):
            owner = running.get(entry.owner) if entry.owner is not None else None
            if entry.phase is not Phase.HELD or owner is None:
                raise Violation(f"partition {number} is not settled: {entry}; running: {list(running)}")
            if owner.ownership.state_of(number) is not OwnedState.ACTIVE:
                raise Violation(f"partition {number} is {owner.ownership.state_of(number).name} at its owner {owner}")
            loads[owner] += 1
        most = math.ceil(len(self._partitions) / len(taking))
        if any(load > (most if one in taking else 0) for one, load in loads.items()):
            raise Violation(f"loads are {loads}: at most {most} are allowed, and only at {taking}")


def _may_call(process: Caller) -> bool:
    """Whether calls that exclusive ownership answers for can start in a process."""
    return process.is_guarded and process.now < process.true_fence
