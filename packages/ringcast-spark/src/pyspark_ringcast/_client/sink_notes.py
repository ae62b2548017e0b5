"""The config key of a store in which its writers keep notes: batches that are done, and what is taken of a rate."""

from __future__ import annotations

import logging
import math
import time
from typing import Any, Final, TypeVar

import msgspec
from ringcast_client.blocking import retried
from ringcast_wire import ConditionFailedError, EventLog, InvalidInputError, LimitExceededError, UnknownKeyError, limits
from ringcast_wire.grpc import pb

from pyspark_ringcast._client.service import shared_stub
from pyspark_ringcast._common.options import Options

log = EventLog(logging.getLogger(__name__))

N = TypeVar("N", bound=msgspec.Struct)

LEDGER_KEY: Final = "spark-sinks"
"""A row for each query and key that it writes, ``<key>/<query>``, and for each throttled key ``throttle/<key>``."""
KEPT_S: Final = 30 * 24 * 3600
"""For how long the note of a query that writes nothing any more is kept."""


class _Dated(msgspec.Struct):
    """What every note has of: until when it has counted (Unix time)."""

    until_s: float = math.inf


def check_room(options: Options, keys: frozenset[str]) -> None:
    """Looks whether there is room for notes, before anything is done. ``keys``: those that the store has.

    Raises:
        InvalidInputError: the notes' own key is to be written to.
        LimitExceededError: the store has too many.
    """
    if options.key == LEDGER_KEY:
        raise InvalidInputError(
            f"option key is {LEDGER_KEY}: that key is reserved for the records of sinks", field="key"
        )
    wanted = keys | {options.key, LEDGER_KEY}
    if LEDGER_KEY not in keys and len(wanted) > limits.MAX_KEYS_PER_STORE:
        raise LimitExceededError(
            f"store {options.store!r} has {len(keys)} config keys, the limit is {limits.MAX_KEYS_PER_STORE}: there is "
            f"no room for {LEDGER_KEY!r}, where a stream notes which batches it has written, and a throttle its rate",
            field="store",
        )


def read_note(options: Options, row_id: str, kind: type[N]) -> tuple[N, int] | None:
    """A note and the version of its row, or nothing where there is none.

    Raises:
        RingcastError: the service refused, or stayed away.
    """
    request = pb.GetRequest(store=options.store, key=LEDGER_KEY, row_ids=[row_id])
    stub = shared_stub(options.service)
    try:
        rows = retried(lambda left_s: stub.Get(request, timeout=left_s), options.timeout_s).rows
    except UnknownKeyError:
        return None
    return (msgspec.json.decode(rows[0].value, type=kind), rows[0].version) if rows else None


def write_note(options: Options, row_id: str, note: msgspec.Struct, **condition: Any) -> int:
    """Writes a note; returns the version of its row. ``condition``: that of the put.

    Raises:
        ConditionFailedError: the row is another by now.
        RingcastError: the service refused, or stayed away.
    """
    value = msgspec.json.encode(note).decode()
    request = pb.PutRequest(store=options.store, key=LEDGER_KEY, row_id=row_id, value=value, **condition)
    stub = shared_stub(options.service)
    return int(retried(lambda left_s: stub.Put(request, timeout=left_s), options.timeout_s).version)


def remove_old_notes(options: Options) -> int:
    """Removes the notes that were last written over 30 days ago; returns how many.

    A note that is written meanwhile stays.

    Raises:
        RingcastError: the service refused, or stayed away.
    """
    stub, listing = shared_stub(options.service), pb.ListRequest(store=options.store, key=LEDGER_KEY)

    def read(left_s: float) -> list[pb.Row]:
        return [row for page in stub.List(listing, timeout=left_s) for row in page.rows]

    try:
        rows = retried(read, options.timeout_s)
    except UnknownKeyError:
        return 0
    before_s = time.time() - KEPT_S
    removed = sum(_remove(options, row) for row in rows if _until_s(row) < before_s)
    if removed:
        log.info("sink.old_notes_removed", store=options.store, key=LEDGER_KEY, notes=removed)
    return removed


def _remove(options: Options, row: pb.Row) -> bool:
    """Whether the note was still that one, and is gone."""
    stub = shared_stub(options.service)
    request = pb.DeleteRequest(store=options.store, key=LEDGER_KEY, row_id=row.row_id, if_version=row.version)
    try:
        return bool(retried(lambda left_s: stub.Delete(request, timeout=left_s), options.timeout_s).existed)
    except ConditionFailedError:
        return False


def _until_s(row: pb.Row) -> float:
    """What can't be read is of a later release, or of another writer: it is left alone."""
    try:
        return msgspec.json.decode(row.value, type=_Dated).until_s
    except msgspec.MsgspecError:
        return math.inf
