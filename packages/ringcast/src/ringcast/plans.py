"""What becomes of the partitions of a config key once some of its workers are gone, without a change to anything."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ringcast_wire import InvalidInputError, Mode, NodePhase, assign

from ringcast._protocol.sticky.plan import Wishes, planned
from ringcast.topology import Topology


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of the owners of a key once the workers ``removed`` are gone; both are by partition number."""

    store: str
    key: str
    removed: tuple[str, ...]
    now: tuple[str | None, ...]
    then: tuple[str, ...]

    @property
    def moves(self) -> int:
        """How many partitions get another owner."""
        return sum(now != then for now, then in zip(self.now, self.then, strict=True))


def plan_without(topology: Topology, workers: Collection[str]) -> Plan:
    """Who would own what without some of the workers, by the rule that the workers of the store go by.

    In a store of exclusive ownership with the pins, drains and capacities of now, and by numbers of partitions: where
    an operator wants equal loads, more may move later.

    Raises:
        InvalidInputError: one of them is no worker of the key, or no other is left; or every worker has everything.
    """
    place = f"{topology.store}/{topology.key}"
    if topology.settings.mode is Mode.FULL:
        raise InvalidInputError(f"every worker of {place} holds every partition: none moves", field="remove")
    known = {member.worker_id for member in topology.members}
    if strangers := sorted(set(workers) - known):
        raise InvalidInputError(f"{place} has no worker {strangers[0]!r}", field="remove")
    stay = [
        member
        for member in topology.members
        if member.alive and member.phase is not NodePhase.LEAVING and member.worker_id not in workers
    ]
    then: tuple[str, ...] | None
    if (exclusive := topology.exclusive) is not None:
        taking = {each.worker_id: each.capacity for each in stay if each.worker_id not in exclusive.drains}
        to_be = [each.next_owner or each.owner for each in exclusive.partitions]
        then = planned(to_be, taking, Wishes(pins=exclusive.pins))
    else:
        slots = {each.worker_id: each.slot for each in stay if each.slot is not None and each.phase is NodePhase.ACTIVE}
        then = assign(topology.settings, slots) if slots else None
    if then is None:
        raise InvalidInputError(f"no worker of {place} is left to take partitions", field="remove")
    return Plan(topology.store, topology.key, tuple(sorted(set(workers))), topology.owners, then)


__all__ = ["Plan", "plan_without"]
