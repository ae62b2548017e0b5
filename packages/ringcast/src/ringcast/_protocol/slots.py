"""The slots of the workers of a key: each worker claims one, and the assignment goes by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ringcast_wire import LimitExceededError, SlotClaim, limits, names

from ringcast._protocol.membership import Membership


@dataclass(frozen=True, slots=True)
class SlotChoice:
    """The slot to claim: the revision to name, whether it is ours already, and further claims of ours to drop."""

    slot: int
    revision: int
    is_ours: bool
    surplus: tuple[int, ...] = ()


class Slots:
    """Which slots are claimed, and which one a worker should have."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    def choose(self, key: str, worker_id: str, inherited: int | None = None) -> SlotChoice:
        """The slot that a worker should have: that of its record, else the lowest that it or no worker claims.

        ``inherited``: the slot of a worker that has left, which is better, unless another worker was faster.

        Any worker of a key can write any claim, and only its own record. So a claim keeps a slot from another worker
        while there is room, but it takes none away that a record has, and where all slots are claimed those count that
        a record stands behind.

        Raises:
            LimitExceededError: as many workers as a key may have are there already.
        """
        claims, nodes = self._membership.records_of(key)
        mine = _slots_in(claims, worker_id)
        own = nodes.get(worker_id)
        if inherited is not None and inherited not in mine and self._is_free(key, inherited, worker_id):
            return SlotChoice(inherited, self._claim_revision(key, inherited), False, tuple(mine))
        if own is not None and own.slot not in mine and not self._is_shared(key, own.slot, worker_id):
            return SlotChoice(own.slot, self._claim_revision(key, own.slot), False, tuple(mine))
        if mine:
            slot = own.slot if own is not None and own.slot in mine else mine[0]
            return SlotChoice(slot, self._claim_revision(key, slot), True, tuple(set(mine) - {slot}))
        slot = self._free_slot(key, claims)
        return SlotChoice(slot, self._claim_revision(key, slot), False)

    def _is_shared(self, key: str, slot: int, worker_id: str) -> bool:
        """Whether the record of another live worker has the slot."""
        return any(
            other != worker_id and node.slot == slot and self._membership.lives(names.node_key(key, other), node)
            for other, node in self._membership.records_of(key).nodes.items()
        )

    def _is_free(self, key: str, slot: int, worker_id: str) -> bool:
        claim = self._membership.records_of(key).claims.get(slot)
        is_claimed = claim is not None and not self._membership.ended(claim.lease)
        return not is_claimed and not self._is_shared(key, slot, worker_id)

    def _free_slot(self, key: str, claims: Mapping[int, SlotClaim]) -> int:
        # A lease that was not read yet may live: many workers that start at once would take each other's slots.
        taken = {
            slot
            for slot, claim in claims.items()
            if claim.lease not in self._membership.leases.entries
            or self._membership.lives(names.slot_key(key, slot), claim)
        }
        if len(taken) >= limits.MAX_WORKERS_PER_KEY:
            taken = {
                node.slot
                for worker_id, node in self._membership.records_of(key).nodes.items()
                if self._membership.lives(names.node_key(key, worker_id), node)
            }
        if len(taken) >= limits.MAX_WORKERS_PER_KEY:
            raise LimitExceededError(
                f"key {key!r} has {len(taken)} workers: at most {limits.MAX_WORKERS_PER_KEY} are allowed"
            )
        return next(slot for slot in range(limits.MAX_WORKERS_PER_KEY) if slot not in taken)

    def of(self, key: str, worker_id: str) -> list[int]:
        """The slots of a key that a worker claims, lowest first."""
        return _slots_in(self._membership.records_of(key).claims, worker_id)

    def _claim_revision(self, key: str, slot: int) -> int:
        return self._membership.nodes.revision(names.slot_key(key, slot))


def _slots_in(claims: Mapping[int, SlotClaim], worker_id: str) -> list[int]:
    return sorted(slot for slot, claim in claims.items() if claim.worker_id == worker_id)
