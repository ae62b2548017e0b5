"""On what terms a client writes: an idempotency key, a time by which it has to begin, several keys at once."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from ringcast_core import row_partitions
from ringcast_wire import InvalidInputError, check_idempotency_key, check_row, limits, names, shown

from ringcast_config_service.permits import Permit
from ringcast_config_service.repository import (
    NOBODY,
    Authorship,
    Bundle,
    IdempotencyMark,
    RowWrite,
    StoreRecord,
    WriteRequest,
)
from ringcast_config_service.writes.batches import RowCheck, RowInput, check_row_policy


class Terms(NamedTuple):
    """Of one request. ``idempotency_key`` is empty where there is none; ``expires_s`` as in ``Permit``; ``by``: who
    writes, and why."""

    traceparent: str | None = None
    idempotency_key: str = ""
    expires_s: float = math.inf
    by: Authorship = NOBODY


NO_TERMS: Final = Terms()
NO_CHECKS: Final[Mapping[str, RowCheck]] = {}


class KeyedRow(NamedTuple):
    key: str
    row: RowInput


def make_mark(idempotency_key: str, writes: Iterable[tuple[str, Sequence[RowWrite]]]) -> IdempotencyMark | None:
    """The key and what it stands for, or ``None`` without a key.

    The digest ends in the names of the config keys, so that those of a config key that is purged can be found.

    Raises:
        InvalidInputError: it can't be a key.
    """
    if not idempotency_key:
        return None
    content = [
        (key, [(row.row_id, row.value, sorted((row.metadata or {}).items()), row.condition) for row in rows])
        for key, rows in writes
    ]
    digest = hashlib.blake2b(msgspec.msgpack.encode(content), digest_size=16).hexdigest()
    return IdempotencyMark(check_idempotency_key(idempotency_key), "/".join([digest, *(key for key, _ in content), ""]))


def bundle(
    store: StoreRecord,
    writes: Sequence[KeyedRow],
    terms: Terms,
    generation: int = 0,
    checks: Mapping[str, RowCheck] = NO_CHECKS,
) -> tuple[list[WriteRequest], dict[tuple[str, str], int]]:
    """Checks the rows of a commit; a request for each key, and the partition of each row in the order of their rows.

    Raises:
        InvalidInputError: there are none or too many, or they are too large, one is invalid, or one comes twice.
    """
    if not 1 <= len(writes) <= limits.MAX_BATCH_ROWS:
        raise InvalidInputError(
            f"writes has {len(writes)} entries: 1 to {limits.MAX_BATCH_ROWS} are allowed in a commit", field="writes"
        )
    by_key: dict[str, dict[str, tuple[RowInput, int]]] = {}
    total = 0
    for index, (key, row) in enumerate(writes):
        try:
            rows = by_key.setdefault(names.check_name("key", key), {})
            size = check_row(row.row_id, row.value or "", row.metadata)
            if row.value is not None:
                check_row_policy(row.row_id, size, store.policy.max_row_bytes)
                if key in checks:
                    checks[key].check(row.row_id, row.value, row.metadata)
        except InvalidInputError as error:
            raise InvalidInputError(f"write {index} of the commit: {error}", field=error.field) from error
        if row.row_id in rows:
            raise InvalidInputError(
                f"write {index} of the commit: row {shown(row.row_id)} of key {key!r} comes twice", field="row_id"
            )
        rows[row.row_id] = row, size
        total += size
    if total > limits.MAX_BATCH_BYTES:
        raise InvalidInputError(
            f"writes has {total} bytes: at most {limits.MAX_BATCH_BYTES} are allowed in a commit", field="writes"
        )
    made = [(key, _writes(rows, store.partition_count)) for key, rows in sorted(by_key.items())]
    mark, permit, link = make_mark(terms.idempotency_key, made), Permit(terms.expires_s), Bundle()
    requests = [
        WriteRequest(
            store,
            key,
            rows,
            traceparent=terms.traceparent,
            mark=mark if number == 0 else None,
            bundle=link,
            generation=generation,
            permit=permit,
            by=terms.by,
            schema_id=checks[key].schema_id if key in checks else 0,
        )
        for number, (key, rows) in enumerate(made)
    ]
    return requests, {(key, row.row_id): row.partition for key, rows in made for row in rows}


def _writes(rows: dict[str, tuple[RowInput, int]], partition_count: int) -> list[RowWrite]:
    return [
        RowWrite(partition, row_id, row.value, dict(row.metadata) if row.metadata else None, size, row.condition)
        for partition, (row_id, (row, size)) in zip(row_partitions(rows, partition_count), rows.items(), strict=True)
    ]
