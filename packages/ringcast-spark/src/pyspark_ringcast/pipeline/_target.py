"""The key that a pipeline is about, and its state: the one place that looks at a store outside of Spark's reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec
from ringcast_wire import UnknownKeyError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


LOGIN_FILES: Final = (
    "password_file",
    "credentials_file",
    "nkey_seed_file",
    "tls_ca_file",
    "tls_cert_file",
    "tls_key_file",
    "service_tls_ca_file",
    "service_tls_cert_file",
    "service_tls_key_file",
    "service_token_file",
    "key_ring",
)
"""Fields of a target that are paths of files, which each node must have."""


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One config key of one store. Where it is comes from ``RINGCAST_SERVERS`` and ``RINGCAST_SERVICE`` by default.

    How to log in, there as well: by files, or by ``user`` and the environment's ``RINGCAST_PASSWORD``. A target is
    written down, in plans and exports, and so holds no secret itself.
    """

    store: str
    key: str
    servers: str | None = None
    """NATS servers, with commas between."""
    service: str | None = None
    """``host:port`` of the config service."""
    timeout_s: float | None = None
    user: str | None = None
    """At NATS; its password is in a ``password_file``, or in ``RINGCAST_PASSWORD``."""
    password_file: str | None = None
    credentials_file: str | None = None
    nkey_seed_file: str | None = None
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    service_tls_ca_file: str | None = None
    service_tls_cert_file: str | None = None
    service_tls_key_file: str | None = None
    service_token_file: str | None = None
    key_ring: str | None = None
    """File of the key ring that opens and encrypts the values of the key."""
    mode: Literal["replace", "merge"] = "replace"
    """``replace``: rows that the input does not have are deleted; ``merge``: they stay."""

    def options(self) -> dict[str, str]:
        """What the format ``ringcast`` takes. Where it is, and how to log in, is said in any case: the processes that
        Spark starts may have another environment. Spark hides the option ``password`` wherever it shows options.

        Raises:
            InvalidInputError: one of them breaks a rule.
        """
        from pyspark_ringcast._common.options import parse_options

        given = {name: getattr(self, name) for name in self.__struct_fields__ if name != "mode"}
        options = {name: str(value) for name, value in given.items() if value is not None}
        parsed = parse_options(options)
        login = {name: text for name, text in msgspec.structs.asdict(parsed.login).items() if text}
        if parsed.key_ring:
            login["key_ring"] = parsed.key_ring
        return {**options, "servers": ",".join(parsed.servers), "service": parsed.service.address, **login}

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
        UnavailableError: there was no reply in time.
    """
    from pyspark_ringcast._batch.read import take_snapshot
    from pyspark_ringcast._client.service import find_store
    from pyspark_ringcast._common.options import parse_options

    options = parse_options(target.options())
    count = find_store(options.service, options.store, options.timeout_s).partition_count
    try:
        return State(heads=list(take_snapshot(options).heads), written=True)
    except UnknownKeyError:
        return State(heads=[0] * count, written=False)


def load_live(spark: SparkSession, target: Target, **options: str) -> tuple[State, DataFrame]:
    """The rows of a key, and the heads that they are consistent with.

    Raises:
        UnknownStoreError: there is no such store.
        UnavailableError: there was no reply in time.
    """
    from pyspark_ringcast._common.column_options import read_schema
    from pyspark_ringcast._common.options import parse_options
    from pyspark_ringcast._common.since import vector_text

    state = read_state(target)
    if not state.written:
        return state, spark.createDataFrame([], read_schema(parse_options({**target.options(), **options})))
    version = vector_text(state.heads)
    return state, spark.read.format("ringcast").options(**target.options(), version_as_of=version, **options).load()
