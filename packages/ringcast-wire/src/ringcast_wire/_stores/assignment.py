"""How each strategy shares the partitions of a key out: one table of functions, for every process that must agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ringcast_core import assign_jump, assign_ring

from ringcast_wire._common.errors import InvalidInputError
from ringcast_wire._messages.messages import StoreSettings, Strategy


def _jump(settings: StoreSettings, workers: Mapping[str, int]) -> tuple[str, ...]:
    by_slot = {slot: worker for worker, slot in workers.items()}
    slots = assign_jump(settings.partition_count, sorted(by_slot), settings.load_factor)
    return tuple(by_slot[slot] for slot in slots)


def _ring(settings: StoreSettings, workers: Mapping[str, int]) -> tuple[str, ...]:
    ids = sorted(workers)
    return tuple(ids[index] for index in assign_ring(settings.partition_count, ids))


ASSIGNMENTS: Final[Mapping[Strategy, Callable[[StoreSettings, Mapping[str, int]], tuple[str, ...]]]] = {
    Strategy.JUMP: _jump,
    Strategy.RING: _ring,
}
"""Every strategy whose owners are computed has its function here; a test holds the table to the enum."""


def assign(settings: StoreSettings, workers: Mapping[str, int]) -> tuple[str, ...]:
    """The worker that owns each partition: the same for every process that names the same workers.

    Args:
        settings: those of the store.
        workers: worker id → slot, at least one.

    Raises:
        ValueError: there are no workers, or a slot is out of range.
        InvalidInputError: the strategy has no computed owners.
    """
    if settings.strategy not in ASSIGNMENTS:
        raise InvalidInputError(
            f"the strategy {settings.strategy.value} has no computed owners: the table of each key has them",
            field="strategy",
        )
    return ASSIGNMENTS[settings.strategy](settings, workers)
