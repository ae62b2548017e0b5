"""The key that a pipeline is about, and its state: the one place that looks at a store outside of Spark's reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
from ringcast_wire import UnavailableError, UnknownKeyError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MAX_TRIES = 5


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One config key of one store. Where it is comes from ``RINGCAST_SERVERS`` and ``RINGCAST_SERVICE`` by default."""

    store: str
    key: str
    servers: str | None = None
    """NATS servers, with commas between."""
    service: str | None = None
    """``host:port`` of the config service."""
    timeout_s: float | None = None
    mode: Literal["replace", "merge"] = "replace"
    """``replace``: rows that the input does not have are deleted; ``merge``: they stay."""

    def options(self) -> dict[str, str]:
        """What the format ``ringcast`` takes; where it is, is said in any case: tasks may have another environment.

        Raises:
            InvalidInputError: one of them breaks a rule.
        """
        from pyspark_ringcast._options import parse_options

        given = {name: getattr(self, name) for name in ("store", "key", "servers", "service", "timeout_s")}
        options = {name: str(value) for name, value in given.items() if value is not None}
        parsed = parse_options(options)
        return {**options, "servers": ",".join(parsed.servers), "service": parsed.service}

    def __str__(self) -> str:
        return f"{self.store}/{self.key}"


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What the heads of a key are; a key that was never written to has heads of 0."""

    heads: list[int]
    written: bool

    @property
    def partition_count(self) -> int:
        """How many partitions the store has."""
        return len(self.heads)


def read_state(target: Target) -> State:
    """Asks for the heads over NATS, and makes sure that the config service answers.

    Raises:
        UnknownStoreError: there is no such store.
        UnavailableError: nobody answered in time.
    """
    from pyspark_ringcast import partition_count
    from pyspark_ringcast._options import parse_options
    from pyspark_ringcast._read import take_snapshot

    options = parse_options(target.options())
    count = partition_count(target.store, service=options.service, timeout_s=options.timeout_s)
    try:
        return State(heads=list(take_snapshot(options).heads), written=True)
    except UnknownKeyError:
        return State(heads=[0] * count, written=False)


def load_live(spark: SparkSession, target: Target, **options: str) -> tuple[State, DataFrame]:
    """The rows of a key, and the heads that they are consistent with.

    Raises:
        UnknownStoreError: there is no such store.
        UnavailableError: nobody answered in time, or the key is written to without a pause.
    """
    from pyspark_ringcast._source import READ_SCHEMA

    state = read_state(target)
    for _ in range(_MAX_TRIES):
        if not state.written:
            return state, spark.createDataFrame([], READ_SCHEMA)
        frame = spark.read.format("ringcast").options(**target.options(), **options).load()
        after = read_state(target)
        if after == state:
            return state, frame
        state = after
    raise UnavailableError(f"{target} is written to all the time: no snapshot could be taken in {_MAX_TRIES} tries")
