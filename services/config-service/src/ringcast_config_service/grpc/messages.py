"""Protobuf to and from what the handlers take and give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from ringcast_wire import InvalidInputError, Migration, Mode, Strategy
from ringcast_wire.grpc import MODES as MODE_NUMBERS
from ringcast_wire.grpc import STAGES as STAGE_NUMBERS
from ringcast_wire.grpc import STRATEGIES as STRATEGY_NUMBERS
from ringcast_wire.grpc import pb

from ringcast_config_service.repository import (
    Deletion,
    Difference,
    KeyStats,
    ListedRow,
    Revision,
    StoreInfo,
    StoreRecord,
)

T = TypeVar("T")

MODES: Final = {pb.MODE_UNSPECIFIED: Mode.PARTITIONED} | {number: mode for mode, number in MODE_NUMBERS.items()}
STRATEGIES: Final = {pb.STRATEGY_UNSPECIFIED: Strategy.JUMP} | {
    number: strategy for strategy, number in STRATEGY_NUMBERS.items()
}
STAGES: Final = {number: stage for stage, number in STAGE_NUMBERS.items()}
SKIP_INVALID: Final = {
    pb.ON_INVALID_UNSPECIFIED: False,
    pb.ON_INVALID_REJECT_BATCH: False,
    pb.ON_INVALID_SKIP_ROW: True,
}


def choice(field: str, choices: Mapping[Any, T], value: int) -> T:
    if value not in choices:
        raise InvalidInputError(f"{field} {value} is unknown: {len(choices)} values are defined", field=field)
    return choices[value]


def store_message(record: StoreRecord, keys: tuple[KeyStats, ...] = ()) -> pb.Store:
    settings = record.settings_now
    return pb.Store(
        name=record.name,
        partition_count=settings.partition_count,
        mode=MODE_NUMBERS[settings.mode],
        strategy=STRATEGY_NUMBERS[settings.strategy],
        hash=settings.hash,
        inline_max_bytes=record.inline_max_bytes,
        created_at_ms=record.created_at_ms,
        history_id=record.history_id,
        keys=map(key_message, keys),
        deletion=_deletion_message(record.deletion),
        lease_ttl_ms=settings.lease_ttl_ms,
        call_bound_ms=settings.call_bound_ms,
        migration=_migration_message(record.migration),
        wire_pin=record.wire_pin,
    )


def key_message(key: KeyStats) -> pb.KeyInfo:
    return pb.KeyInfo(name=key.name, rows=key.rows, bytes=key.bytes, deletion=_deletion_message(key.deletion))


def _deletion_message(deletion: Deletion | None) -> pb.Deletion | None:
    if deletion is None:
        return None
    return pb.Deletion(deleted_at_ms=deletion.deleted_at_ms, restorable_until_ms=deletion.expires_at_ms)


def _migration_message(step: Migration | None) -> pb.Migration | None:
    if step is None:
        return None
    return pb.Migration(
        stage=STAGE_NUMBERS[step.stage],
        number=step.number,
        lease_ttl_ms=step.lease_ttl_ms,
        call_bound_ms=step.call_bound_ms,
    )


def info_message(info: StoreInfo) -> pb.Store:
    return store_message(info.record, info.keys)


def row_message(listed: ListedRow) -> pb.Row:
    row = listed.row
    return pb.Row(
        row_id=row.row_id,
        value=row.value,
        version=row.version,
        partition=listed.partition,
        deleted=row.deleted,
        metadata=row.metadata,
    )


def difference_message(found: Difference) -> pb.RowDifference:
    before, after = (
        None if row is None else row_message(ListedRow(found.partition, row)) for row in (found.before, found.after)
    )
    return pb.RowDifference(before=before, after=after)


def revision_message(revision: Revision) -> pb.Revision:
    previous = revision.previous
    return pb.Revision(
        row=row_message(ListedRow(revision.partition, revision.row)),
        written_at_ms=revision.written_at_ms,
        prev=revision.prev,
        author=revision.by.author,
        reason=revision.by.reason,
        previous=None if previous is None else row_message(ListedRow(revision.partition, previous)),
    )
