"""A plan: what would be written, counted by partition, held against the limits. Nothing here needs Spark."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import ClassVar, Final

import msgspec
from ringcast_wire import ErrorCode, InvalidInputError, ProtocolError, RingcastError, limits

from pyspark_ringcast._common.guards import Replacement, replacement_refusals
from pyspark_ringcast.pipeline._spec import Guards
from pyspark_ringcast.pipeline._target import Target

PLAN_FORMAT: Final = 1
MAX_PLAN_BYTES: Final = 4 * 1024 * 1024


class PlanRefusedError(RingcastError):
    """A plan goes further than it may: the message says how far, and what lets it."""

    code: ClassVar[ErrorCode] = ErrorCode.LIMIT_EXCEEDED


class StalePlanError(RingcastError):
    """The key was written to after the plan was made."""

    code: ClassVar[ErrorCode] = ErrorCode.MISMATCH


class PartitionPlan(msgspec.Struct, frozen=True, array_like=True):
    """One partition. ``rows`` and ``bytes`` (UTF-8 of ids, values and metadata) are those afterwards."""

    partition: int
    rows: int
    bytes: int
    adds: int
    changes: int
    deletes: int


class Content(msgspec.Struct, frozen=True):
    """Rows in two numbers: how many, and the exclusive or of XXH64 over id, value and metadata of each."""

    rows: int
    checksum: int


class InputReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the rows that were read."""

    read: int
    rejected: int
    """Rows with a problem at least, or in conflict with ``keep = "reject"``."""
    duplicates: int
    """Valid rows that another of the same id stands for."""
    conflicts: int
    """Ids that had several values or metadata."""
    held: int
    """Live rows that stay as they are, since the input's row of that id was rejected."""

    @property
    def rejected_share(self) -> float:
        """Of the rows that were read."""
        return self.rejected / self.read if self.read else 0.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a plan but the rows themselves."""

    target: Target
    heads: list[int]
    """The revisions that it was made against."""
    written: bool
    """Whether the key had ever been written to."""
    input: InputReport
    live_rows: int
    partitions: list[PartitionPlan]
    changes: Content
    """Of the rows to write: their fingerprint shows a damaged file."""
    after: Content
    """Of the whole key once the plan is applied."""
    guards: Guards = Guards()
    made_at: datetime.datetime
    format: int = PLAN_FORMAT

    @property
    def adds(self) -> int:
        """Rows that are new."""
        return sum(one.adds for one in self.partitions)

    @property
    def updates(self) -> int:
        """Rows with another value or other metadata than now."""
        return sum(one.changes for one in self.partitions)

    @property
    def deletes(self) -> int:
        """Rows that go."""
        return sum(one.deletes for one in self.partitions)

    @property
    def diff_rows(self) -> int:
        """Rows to write or delete."""
        return self.adds + self.updates + self.deletes

    @property
    def delete_share(self) -> float:
        """Deletes, of the rows that are live now."""
        return self.replacement.delete_share

    @property
    def replacement(self) -> Replacement:
        """What becomes of the rows that are live now."""
        return Replacement(str(self.target), self.live_rows, self.deletes, self.after.rows)

    @property
    def skew(self) -> float:
        """Rows of the fullest partition by the mean; 1.0 is perfectly even."""
        return skew(one.rows for one in self.partitions)


def skew(counts: Iterable[int]) -> float:
    """Greatest by mean; 1.0 where there is nothing."""
    found = list(counts)
    return max(found) * len(found) / sum(found) if any(found) else 1.0


def refusals(plan: Plan, guards: Guards) -> list[str]:
    """Why a plan may not be applied, one sentence a reason; empty if it may."""
    found = replacement_refusals(plan.replacement, guards.max_delete_share, allow_empty=guards.allow_empty)
    if plan.input.rejected_share > guards.max_rejected_share:
        found.append(
            f"{plan.input.rejected} of {plan.input.read} rows were rejected, {plan.input.rejected_share:.1%}: "
            f"max_rejected_share is {guards.max_rejected_share:.1%}"
        )
    for one in plan.partitions:
        if one.bytes > limits.MAX_PARTITION_BYTES:
            found.append(
                f"partition {one.partition} would have {one.bytes} bytes: the limit is {limits.MAX_PARTITION_BYTES}; "
                f"a store of more partitions than {len(plan.heads)} is needed"
            )
            break
    return found


def check_plan(plan: Plan, guards: Guards | None = None) -> None:
    """Holds a plan against the limits; ``guards`` by default those of its specification.

    Raises:
        PlanRefusedError: it goes too far.
    """
    if found := refusals(plan, guards or plan.guards):
        raise PlanRefusedError(f"the plan for {plan.target} is refused: {'; '.join(found)}")


def encode_plan(plan: Plan) -> bytes:
    """As JSON that a person can read."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n"


def decode_plan(data: bytes) -> Plan:
    """What :func:`encode_plan` gave.

    Raises:
        InvalidInputError: it is no plan, or of another version.
    """
    try:
        plan = msgspec.json.decode(data, type=Plan)
    except msgspec.MsgspecError as error:
        raise InvalidInputError(f"the plan can't be read: {error}", field="plan") from None
    if plan.format != PLAN_FORMAT:
        raise ProtocolError(f"the plan has format {plan.format}: this build reads {PLAN_FORMAT}")
    return plan


def describe_plan(plan: Plan, guards: Guards | None = None) -> str:
    """A plan for a person to review."""
    taken = plan.input
    largest = max(plan.partitions, key=lambda one: one.bytes, default=None)
    lines = [
        f"plan for {plan.target} ({plan.target.mode}), made {plan.made_at:%Y-%m-%d %H:%M:%S} UTC "
        f"against revisions that sum to {sum(plan.heads)}",
        f"  read      {taken.read:>12,}   rejected {taken.rejected:,} ({taken.rejected_share:.2%}), "
        f"repeated {taken.duplicates:,}, ids in conflict {taken.conflicts:,}",
        f"  live now  {plan.live_rows:>12,}   kept because their row was rejected: {taken.held:,}",
        f"  add       {plan.adds:>12,}",
        f"  change    {plan.updates:>12,}",
        f"  delete    {plan.deletes:>12,}   {plan.delete_share:.2%} of the live rows",
        f"  then live {plan.after.rows:>12,}   in {len(plan.heads)} partitions, fullest by mean {plan.skew:.2f}",
    ]
    if largest is not None:
        lines.append(
            f"  largest   {largest.bytes:>12,} bytes in partition {largest.partition}, "
            f"{largest.bytes / limits.MAX_PARTITION_BYTES:.1%} of the limit"
        )
    found = refusals(plan, guards or plan.guards)
    lines += [f"  REFUSED   {why}" for why in found] or ["  it may be applied"]
    return "\n".join(lines)
