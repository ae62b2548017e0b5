"""The config key of a store in which its writers keep notes: batches that are done, and what is taken of a rate."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec
from ringcast_wire import InvalidInputError, LimitExceededError, UnknownKeyError, limits
from ringcast_wire.grpc import pb

from pyspark_ringcast._options import Options
from pyspark_ringcast._service import retried, shared_stub

N = TypeVar("N", bound=msgspec.Struct)

LEDGER_KEY: Final = "spark-sinks"
"""A row for each query and key that it writes, ``<key>/<query>``, and for each throttled key ``throttle/<key>``."""


def check_room(options: Options, keys: frozenset[str]) -> None:
    """Looks whether there is room for notes, before anything is done. ``keys``: those that the store has.

    Raises:
        InvalidInputError: the notes' own key is to be written to.
        LimitExceededError: the store has too many.
    """
    if options.key == LEDGER_KEY:
        raise InvalidInputError(f"option key is {LEDGER_KEY}: there the sinks note which batches are done", field="key")
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
