"""The limits of a whole store, exact without a row that every write locks.

A store with limits gives each partition *caps*: live rows and bytes up to which it may grow. They stand beside the
partition's head, which a write locks anyway, so a write that stays within them looks at nothing else. What is left is
in the store's one row of ``store_budgets``. A write for which the caps are too small locks that row, after the heads,
and takes as much as it needs and a part of what is left, so that the next writes need nothing. At any moment

    sum over the partitions of max(cap, live rows) + free <= limit

so the live rows are never more than the limit. Where the free part is too small, unused caps are taken back, and what
is free is counted again, in one snapshot and under the lock of the row: nobody else grows meanwhile, and a request is
refused only when the rows that are there leave no room for it. Near the limit there is nothing to give in advance: each
write that grows the store locks the row, one that does not grow it never does.

What to do is decided here, without a database: :func:`plan_within` yields what it has to know.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Final, NamedTuple

from ringcast_wire import StorePolicy

from ringcast_config_service.repository import writes
from ringcast_config_service.repository.base import WriteRequest
from ringcast_config_service.repository.writes import (
    NO_CAPS,
    Amount,
    Caps,
    CurrentState,
    Head,
    PartitionRef,
    Plan,
)

_MAX_AHEAD: Final = Amount(4_096, 1 << 20)
"""What a partition gets beyond its need at most."""


class Budget(NamedTuple):
    """The limits of a store, and what is free of them."""

    max_rows: int | None
    max_bytes: int | None
    free_rows: int
    free_bytes: int

    @property
    def free(self) -> Amount:
        return Amount(self.free_rows, self.free_bytes)

    @property
    def policy(self) -> StorePolicy:
        return StorePolicy(max_rows=self.max_rows, max_bytes=self.max_bytes)


class StoreUse(NamedTuple):
    """Live rows of a store and their bytes; and the same, or the caps where those are larger."""

    rows: int
    bytes: int
    taken_rows: int
    taken_bytes: int

    def budget(self, policy: StorePolicy) -> Budget:
        """What is free of the limits of a policy."""
        free_rows = 0 if policy.max_rows is None else policy.max_rows - self.taken_rows
        free_bytes = 0 if policy.max_bytes is None else policy.max_bytes - self.taken_bytes
        return Budget(policy.max_rows, policy.max_bytes, free_rows, free_bytes)

    @property
    def unused(self) -> bool:
        """Whether there are caps that are not used up."""
        return self.taken_rows > self.rows or self.taken_bytes > self.bytes


class Look(NamedTuple):
    """What :func:`plan_within` has to know of a store: its budget, locked; or its use, after caps were taken back."""

    store: str
    take_back: bool


class Settled(NamedTuple):
    """The plan; new caps of partitions; what is free of the stores whose budgets are locked. ``busy``: a request was
    refused, and would perhaps not have been without caps that other transactions have locked."""

    plan: Plan
    caps: dict[PartitionRef, Caps]
    free: dict[str, Amount]
    busy: bool


def has_limits(policy: StorePolicy) -> bool:
    """Whether a store has caps."""
    return policy.max_rows is not None or policy.max_bytes is not None


def needs_heads(policy: StorePolicy) -> bool:
    """Whether each key has to have the heads of all its partitions, since writers learn from them what holds."""
    return has_limits(policy) or bool(policy.releases_only)


def limits_differ(one: StorePolicy, other: StorePolicy) -> bool:
    """Whether two policies limit the rows of a whole store in different ways."""
    return (one.max_rows, one.max_bytes) != (other.max_rows, other.max_bytes)


def least_caps(policy: StorePolicy) -> Caps:
    """Those of a partition that may not grow without a look at the budget."""
    return Caps(None if policy.max_rows is None else 0, None if policy.max_bytes is None else 0)


def needs(plan: Plan, state: CurrentState) -> dict[str, dict[PartitionRef, Amount]]:
    """By how much the partitions of stores with limits would grow beyond their caps; those that would not are left
    out."""
    found: dict[str, dict[PartitionRef, Amount]] = {}
    if not state.caps and not any(has_limits(policy) for policy in state.policies.values()):
        return found
    for ref, head in plan.heads.items():
        caps = _caps(ref, state)
        if caps is not NO_CAPS:
            was = state.heads.get(ref) or Head()
            need = Amount(_over(head.rows, was.rows, caps.rows), _over(head.bytes, was.bytes, caps.bytes))
            if need.rows or need.bytes:
                found.setdefault(ref.key.store, {})[ref] = need
    return found


def _caps(ref: PartitionRef, state: CurrentState) -> Caps:
    if (found := state.caps.get(ref)) is not None:
        return found
    if ref not in state.heads and (policy := state.policies.get(ref.key.store)) is not None:
        return least_caps(policy) if has_limits(policy) else NO_CAPS
    return NO_CAPS


def _over(after: int, before: int, cap: int | None) -> int:
    return 0 if cap is None else max(0, after - max(before, cap))


def grant(
    wanted: Mapping[PartitionRef, Amount], budget: Budget, plan: Plan, state: CurrentState
) -> tuple[dict[PartitionRef, Caps], Amount] | None:
    """The caps of partitions that need more, and what is free then; ``None`` where that is too little."""
    rows = budget.free_rows - sum(need.rows for need in wanted.values())
    size = budget.free_bytes - sum(need.bytes for need in wanted.values())
    lacks_rows = any(need.rows for need in wanted.values()) and rows < 0
    lacks_bytes = any(need.bytes for need in wanted.values()) and size < 0
    if lacks_rows or lacks_bytes:
        return None
    shares = 2 * max(len(wanted), *(state.partition_counts[ref.key] for ref in wanted))
    ahead = Amount(min(max(0, rows) // shares, _MAX_AHEAD.rows), min(max(0, size) // shares, _MAX_AHEAD.bytes))
    made: dict[PartitionRef, Caps] = {}
    for ref, need in wanted.items():
        caps, head = _caps(ref, state), plan.heads[ref]
        cap_rows, cap_bytes = caps
        if need.rows:
            cap_rows, rows = head.rows + ahead.rows, rows - ahead.rows
        if need.bytes:
            cap_bytes, size = head.bytes + ahead.bytes, size - ahead.bytes
        made[ref] = Caps(cap_rows, cap_bytes)
    return made, Amount(rows, size)


def plan_within(
    requests: Sequence[WriteRequest], state: CurrentState, now_ms: int
) -> Generator[Look, Budget | StoreUse | None, Settled]:
    """The plan of a group within the limits of its stores. What is yielded is answered with the budget, ``None`` where
    the store has none any more, or with the use of the store."""
    plan = writes.plan_writes(requests, state, now_ms)
    budgets: dict[str, Budget] = {}
    unused: set[str] = set()
    while True:
        wanted = needs(plan, state)
        granted: dict[PartitionRef, Caps] = {}
        free: dict[str, Amount] = {}
        short = []
        for store in sorted(wanted.keys() - state.left.keys()):
            if store not in budgets:
                found = yield Look(store, take_back=False)
                if found is None:
                    continue
                assert isinstance(found, Budget)
                budgets[store] = found
            made = grant(wanted[store], budgets[store], plan, state)
            if made is None:
                short.append(store)
            else:
                granted.update(made[0])
                free[store] = made[1]
        if not short:
            break
        for store in short:
            use = yield Look(store, take_back=True)
            assert isinstance(use, StoreUse)
            policy = budgets[store].policy
            budgets[store] = use.budget(policy)
            state.left[store] = policy, budgets[store].free
            if use.unused:
                unused.add(store)
        plan = writes.plan_writes(requests, state, now_ms)
    for store, (policy, left) in state.left.items():  # no partition of the plan keeps a cap: what it frees is free
        grown = plan.grown.get(store, Amount())
        free[store] = Amount(left.rows - grown.rows, left.bytes - grown.bytes)
        least = least_caps(policy)
        granted.update((ref, least) for ref in plan.heads if ref.key.store == store and ref in state.caps)
    return Settled(plan, granted, free, bool(plan.over & unused))
