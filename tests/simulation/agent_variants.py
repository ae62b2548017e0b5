"""Broken agents, and workers under one: what of :mod:`tests.simulation.variants` concerns hosts and dispatch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

from ringcast import Change
from ringcast._protocol.lease_choice import LeaseChoice
from ringcast._protocol.membership import Membership
from ringcast.hosting import HostRecords

from tests.simulation.agent import Registration, WorkerRegistry
from tests.simulation.dispatch import ConsumerSession, GroupDeadLetters, Intake, KeySharedGroup

_membership_alive = Membership.alive
_group_detach = KeySharedGroup.detach
_group_answer = KeySharedGroup.answer
_intake_take = Intake.take
_intake_batch = Intake.batch
_intake_settle = Intake.settle
_registry_restore = WorkerRegistry.restore


@dataclass(frozen=True, slots=True)
class Variant:
    """What is broken, and within how many seeds that has to be noticed: several times what it took when measured."""

    what: str
    within: int
    patches: tuple[tuple[object, str, Any], ...]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Breaks it, in this process, until the end of the block."""
        with ExitStack() as stack:
            for owner, name, replacement in self.patches:
                stack.enter_context(patch.object(owner, name, replacement))
            yield


async def _nothing_to_do(*_: Any, **_words: Any) -> None:
    pass


def _never(*_: Any) -> bool:
    return False


def _restore_no_worker(self: WorkerRegistry, registrations: list[Registration], *users: Any) -> None:
    _registry_restore(self, [], *users)
    self._grace_ticks = 0


def _alive_unread(self: Membership, lease: str) -> bool:
    return "." in lease or _membership_alive(self, lease)


def _settle_what_it_had(self: KeySharedGroup, consumer: ConsumerSession) -> None:
    flight = list(consumer._flight.values())
    self.answer(consumer, [one.offset for one in flight], [one.attempt for one in flight])
    _group_detach(self, consumer)


def _take_any_attempt(
    self: KeySharedGroup, consumer: ConsumerSession, offsets: Sequence[int], attempts: Sequence[int], *words: Any
) -> None:
    flight = consumer._flight
    newest = [
        flight[offset].attempt if offset in flight else old for offset, old in zip(offsets, attempts, strict=True)
    ]
    _group_answer(self, consumer, offsets, newest, *words)


def _take_beside(self: Intake, change: Change) -> None:
    offset = self.window.offsets.get(change.row_id)
    if offset is not None and self.messages[offset].delivered:
        self._arrived[change.row_id] = change
    else:
        _intake_take(self, change)


def _settle_all(self: Intake, offset: int) -> Change | None:
    change = _intake_settle(self, offset)
    if change is not None:
        self._arrived.pop(change.row_id, None)
    return change


def _batch_of_distinct_keys(self: Intake) -> list[str]:
    keys = _intake_batch(self)
    return [f"{key}-{number}" for number, key in enumerate(keys, self.window.last)]


VARIANTS: Final = {
    # Hosts with an agent.
    "agent_keeps_the_dead": Variant(
        "keeps the records of workers that died on its host", 100, ((HostRecords, "_delete_orphans", _nothing_to_do),)
    ),
    "waits_for_its_agent": Variant(
        "gets no lease of its own when its agent is gone", 100, ((LeaseChoice, "wants_own", _never),)
    ),
    "waits_for_no_worker": Variant(
        "declares workers dead that have not registered again when it starts",
        500,
        ((WorkerRegistry, "restore", _restore_no_worker),),
    ),
    "unread_lease": Variant(
        "trusts the lease of a host that it has not read", 300, ((Membership, "alive", _alive_unread),)
    ),
    # Key-shared dispatch.
    "loss_settles": Variant(
        "counts a consumer's deliveries as acknowledged when its connection is lost",
        100,
        ((KeySharedGroup, "detach", _settle_what_it_had),),
    ),
    "old_attempt": Variant(
        "accepts the answer to an attempt that has timed out as one to the newest attempt",
        500,
        ((KeySharedGroup, "answer", _take_any_attempt),),
    ),
    "two_at_once": Variant(
        "delivers a newer version of a row while a consumer still has the one before",
        100,
        ((Intake, "take", _take_beside), (Intake, "batch", _batch_of_distinct_keys)),
    ),
    "lapsed_row": Variant(
        "gives up a row that changed while a consumer had it",
        300,
        ((Intake, "settle", _settle_all),),
    ),
    "no_dead_letter": Variant(
        "gives up a message though the stream has not stored its dead letter",
        300,
        ((GroupDeadLetters, "publish", _nothing_to_do),),
    ),
}
