"""The step of a migration of a store between a strategy of peers and exclusive ownership, as an operator takes it.

``docs/sticky.md`` says what the stages mean. It stands in the metadata of the store, and in its row of the database.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, Final, Literal

import msgspec

from ringcast_wire._common import limits, names
from ringcast_wire._common.errors import InvalidInputError, LimitExceededError, ProtocolError
from ringcast_wire._ownership.times import check_ownership_times

MIGRATING_WIRE_VERSION: Final = 2
"""The wire version in the settings of a store that migrates: older builds, which know of no step, refuse the store.
What is on the bus is of :data:`WIRE_VERSION` all the same."""
_MAX_STEP_BYTES: Final = 1024


class Stage(IntEnum):
    """How far a migration is."""

    OFF = 0  # peers alone
    SHADOW = 1  # a leader publishes the table, and nobody obeys it
    VALIDATE = 2  # each worker is guarded, and says so
    SWITCH = 3  # the table names the owners
    FINISH = 4  # for good: the store has the strategy sticky, like one that was created with it


def next_stages(stage: Stage) -> frozenset[Stage]:
    """The stages that an operator may go to: one further, or back to the shadow. From there the end is one back.

    There is no way back from ``FINISH``.
    """
    match stage:
        case Stage.OFF:
            return frozenset({Stage.SHADOW})
        case Stage.SHADOW:
            return frozenset({Stage.OFF, Stage.VALIDATE})
        case Stage.VALIDATE:
            return frozenset({Stage.SHADOW, Stage.SWITCH})
        case Stage.SWITCH:
            return frozenset({Stage.SHADOW, Stage.FINISH})
        case Stage.FINISH:
            return frozenset()


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    """A step, and the times of exclusive ownership that go with it. ``number`` rises with each step of a store.

    ``is_back``: it is the way back to ``SHADOW`` from a later stage.
    """

    stage: Stage
    number: int
    lease_ttl_ms: int
    call_bound_ms: int
    is_back: bool = False

    @property
    def is_on(self) -> bool:
        """Whether the store migrates, or has migrated for good: what its records say goes by the step then."""
        return self.stage is not Stage.OFF

    @property
    def is_finished(self) -> bool:
        """Whether the store has the strategy ``sticky`` by now, whatever it was created with."""
        return self.stage is Stage.FINISH


def check_gone(workers: Sequence[str]) -> tuple[str, ...]:
    """Returns the workers that are said to be gone if they may be named in one request.

    Raises:
        InvalidInputError: one can't be that of a worker, or is there twice.
        LimitExceededError: they are more than a key may have workers.
    """
    if len(workers) > limits.MAX_WORKERS_PER_KEY:
        raise LimitExceededError(
            f"gone has {len(workers)} workers: at most {limits.MAX_WORKERS_PER_KEY} are allowed", field="gone"
        )
    for at, name in enumerate(workers):
        if names.check_name("gone", name) in workers[:at]:
            raise InvalidInputError(f"gone names the worker {name!r} twice", field="gone")
    return tuple(workers)


def stage_name(stage: Stage) -> str:
    """A stage as people write it: ``shadow``."""
    return stage.name.lower()


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    stage: Literal["off", "shadow", "validate", "switch", "finish"]
    number: Annotated[int, msgspec.Meta(ge=1, le=2**53 - 1)]
    lease_ttl_ms: int
    call_bound_ms: int
    is_back: bool = False


def encode_migration(migration: Migration) -> bytes:
    """A step as JSON."""
    return msgspec.json.encode({**msgspec.structs.asdict(migration), "stage": stage_name(migration.stage)})


def decode_migration(data: bytes | str) -> Migration:
    """Reads a step.

    Raises:
        ProtocolError: it can't be read, or has a time that is out of range.
    """
    if len(data) > _MAX_STEP_BYTES:
        raise ProtocolError(f"the step of a migration takes {len(data)} bytes: at most {_MAX_STEP_BYTES} are allowed")
    try:
        record = msgspec.json.decode(data, type=_Record)
        check_ownership_times(record.lease_ttl_ms, record.call_bound_ms)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, InvalidInputError) as error:
        raise ProtocolError(f"the step of a migration can't be read: {error}") from error
    return Migration(**{**msgspec.structs.asdict(record), "stage": Stage[record.stage.upper()]})
