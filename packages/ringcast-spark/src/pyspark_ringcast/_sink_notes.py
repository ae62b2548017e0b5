"""The config key of a store in which its writers keep notes: batches that are done, and what is taken of a rate."""

from __future__ import annotations

from typing import Final

from ringcast_wire import InvalidInputError, LimitExceededError, limits

from pyspark_ringcast._options import Options

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
