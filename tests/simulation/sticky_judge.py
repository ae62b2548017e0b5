"""Holds the promises of exclusive ownership against what happens in the simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ringcast._protocol.sticky.ownership import OwnedState, Ownership


class Violation(AssertionError):
    """A promise was broken."""


class Caller(Protocol):
    """A process that calls handlers. ``true_fence``: as the judge has it, whatever the process believes."""

    ownership: Ownership
    true_fence: float

    @property
    def now(self) -> float:
        """Its own clock."""


@dataclass
class Call:
    """A handler call that runs."""

    process: Caller
    partition: int
    token: int


class Judge:
    """Holds the promises against what really happens, by clocks and fences of its own."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self.calls: dict[int, list[Call]] = {}
        self.highest: dict[int, int] = {}
        self.holders: dict[tuple[int, int], object] = {}
        self.begun = 0

    def begins(self, call: Call) -> None:
        process, partition = call.process, call.partition
        others = [one for one in self.calls.get(partition, ()) if one.process is not process]
        if others:
            raise Violation(f"partition {partition}: {process} and {others[0].process} call at once")
        if process.now >= process.true_fence:
            raise Violation(f"partition {partition}: {process} starts a call after its fence")
        if call.token < self.highest.get(partition, 0):
            raise Violation(f"partition {partition}: token {call.token} comes after {self.highest[partition]}")
        holder = (process, process.ownership.session)
        if self.holders.setdefault((partition, call.token), holder) != holder:
            raise Violation(f"partition {partition}: token {call.token} has two owners")
        self.highest[partition] = call.token
        self.calls.setdefault(partition, []).append(call)
        self.begun += 1

    def ends(self, call: Call) -> None:
        self.calls[call.partition].remove(call)

    def look(self, processes: Sequence[Caller]) -> None:
        """No two owners are active at once."""
        owners: dict[int, Caller] = {}
        for process in processes:
            if process.now < process.true_fence:
                for partition in range(self._partitions):
                    if process.ownership.state_of(partition) is OwnedState.ACTIVE:
                        other = owners.setdefault(partition, process)
                        if other is not process:
                            raise Violation(f"partition {partition}: {other} and {process} are active at once")
