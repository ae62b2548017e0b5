"""The settings of a worker, resolved once: arguments over environment over file over defaults."""

from __future__ import annotations

import itertools
import os
import re
import socket
import tomllib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypedDict

import msgspec
from ringcast_wire import (
    InvalidInputError,
    LimitExceededError,
    Mode,
    NatsLogin,
    check_labels,
    limits,
    names,
    shown,
    shown_path,
)

from ringcast._common.change import PoisonPolicy

DEFAULT_SERVER: Final = "nats://127.0.0.1:4222"
_ENV: Final = "RINGCAST_"
_FILE: Final = "RINGCAST_CONFIG_FILE"
_SUBJECT: Final = re.compile(r"\$?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){0,15}", re.ASCII)
_numbers: Final = itertools.count(1)


class NatsParser(StrEnum):
    """What reads the messages of NATS."""

    BATCH = "batch"
    """A parser of our own hands deliveries over many at once, for a third of the CPU time."""
    LIBRARY = "library"
    """The library's own. It is used too where the library is of a version that the other does not know."""


class WorkerSettings(TypedDict, total=False):
    """The settings as arguments of a worker: the fields of :class:`WorkerConfig`, where they say what each is for.

    ``None`` is the same as not given.
    """

    store: str | None
    keys: str | Sequence[str] | None
    servers: str | Sequence[str] | None
    worker_id: str | None
    name: str | None
    mode: Mode | str | None
    partition_count: int | None
    observe: bool | None
    labels: str | Sequence[str] | None
    capacity: int | None
    consumer_prefix: str | None
    jetstream_api: str | None
    window_s: float | None
    settle_s: float | None
    stabilisation_s: float | None
    grace_s: float | None
    heads_s: float | None
    lease_refresh_s: float | None
    agent: str | os.PathLike[str] | None
    max_parallel_handlers: int | None
    handler_tries: int | None
    handler_timeout_s: float | None
    poison_policy: PoisonPolicy | None
    handler_stall_s: float | None
    connect_timeout_s: float | None
    start_timeout_s: float | None
    fetch_timeout_s: float | None
    drain_timeout_s: float | None
    update_interval_s: float | None
    update_tries: int | None
    inactive_threshold_s: float | None
    ack_wait_s: float | None
    max_ack_pending: int | None
    max_delete_share: float | None
    cache_dir: str | os.PathLike[str] | None
    key_ring: str | os.PathLike[str] | None
    nats_parser: NatsParser | str | None
    metrics_listen: str | None
    user: str | None
    password: str | None
    password_file: str | None
    credentials_file: str | None
    nkey_seed_file: str | None
    tls_ca_file: str | None
    tls_cert_file: str | None
    tls_key_file: str | None


class WorkerConfig(NatsLogin, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a worker; seconds end in ``_s``. Any field can come from ``RINGCAST_<FIELD>`` or the TOML file."""

    store: str
    """The store that it is a worker of."""
    keys: tuple[str, ...]
    """The config keys that it works for; as text, with commas between them."""
    servers: tuple[str, ...] = (DEFAULT_SERVER,)
    """The NATS servers, any of which will do; as text, with commas between them."""
    worker_id: str = ""
    """Stable over restarts, so that a restarted worker gets its partitions back. Empty: made from host and process."""
    name: str = ""
    """Name of the connection, as NATS monitoring shows it; empty: made from the worker id."""
    mode: Mode | None = None
    """Refuse to start unless the store has this mode."""
    partition_count: int | None = None
    """Refuse to start unless the store has this number of partitions."""
    observe: bool = False
    """Receive every partition of the keys without owning any: the other workers share the partitions as before. The
    worker has no lease and no records, so no two processes may observe under one ``worker_id`` at a time."""
    labels: tuple[str, ...] = ()
    """What it is told apart by, as ``name=value``, such as ``site=test``: up to 8. A release may come to the workers
    with a label first. As text, with commas between them."""
    capacity: int = 1
    """In a store of the strategy ``sticky``: how much the worker takes, as a multiple of what a worker with 1 takes. It
    gets so many times the partitions, or the load. With other strategies all workers take the same."""
    consumer_prefix: str = "ringcast"
    """Prefix of the names of its consumers: it shows in NATS which fleet a consumer belongs to."""
    jetstream_api: str = "$JS.API"
    """Subject prefix of the JetStream API, where the streams belong to another NATS account than the worker."""
    window_s: float = 0.1
    """How long changes may gather while a fetch or a handler is under way."""
    settle_s: float = 0.05
    """How long changes of the membership gather before partitions are assigned again."""
    stabilisation_s: float = 1.0
    """A worker that joins or stops waits until no other has done so for this time, but at most five times as long. So
    partitions move once for all of them. Meanwhile they stay where they are, and a worker that stops continues to
    serve. Where no worker owns anything yet, it waits for half as long. Nothing waits after the death of a worker. 0:
    no wait."""
    grace_s: float = 5.0
    """How long the worker waits for a missing member after a lost connection."""
    heads_s: float = 10.0
    """How often the worker compares its revisions with the service's."""
    lease_refresh_s: float = limits.LEASE_REFRESH_S
    """How often the worker refreshes its lease. Without a refresh the others count it as dead."""
    agent: str = ""
    """Socket of the host's heartbeat agent, which then keeps the lease; empty: the worker keeps its own."""
    max_parallel_handlers: int = 16
    """Calls of the handler under way at once for each key."""
    handler_tries: int = 3
    """How often the handler is called for a change before the poison policy decides."""
    handler_timeout_s: float = 0.0
    """Time after which a call of an ``async`` handler is cancelled, which counts as a failure; 0: never. It does not
    apply to plain functions, nor to :meth:`ringcast.Worker.changes`."""
    poison_policy: PoisonPolicy = PoisonPolicy.DROP
    """What happens to a change after the handler has failed ``handler_tries`` times."""
    handler_stall_s: float = 10.0
    """A call of the handler, or of another function of the application, that takes longer counts as stalled: the key
    is stale then, and the worker not ready."""
    connect_timeout_s: float = 10.0
    """How long the first connection may take."""
    start_timeout_s: float = 60.0
    """How long the whole start may take, without the time to hand over the rows of the cache."""
    fetch_timeout_s: float = 5.0
    """How long a fetch may be silent."""
    drain_timeout_s: float = 5.0
    """How long a stopping worker waits for handlers."""
    update_interval_s: float = 0.1
    """Least time between two updates of the consumers."""
    update_tries: int = 5
    """Failed updates of a consumer in a row after which the worker leaves the keys whose events it can't get. Other
    workers take over, and it comes back when it can."""
    inactive_threshold_s: float = 300.0
    """Time after which NATS deletes the consumers of a worker that is gone."""
    ack_wait_s: float = 30.0
    """Time without an acknowledgement after which NATS delivers an event again."""
    max_ack_pending: int = 4_096
    """Events that NATS delivers to each consumer before one is acknowledged. The worker pulls fewer while its
    handlers are slow."""
    max_delete_share: float = 0.5
    """After the database was restored or replaced: the largest share of its rows of a key that the worker deletes. If
    more are missing, it keeps its rows, is not ready, and logs why."""
    cache_dir: str = ""
    """Directory of the worker's last known rows, with which it starts; empty: none. Needs a ``worker_id``."""
    key_ring: str = ""
    """File of the key ring that opens encrypted values; empty: a row with such a value fails as if its handler did.
    Needs the extra ``ringcast[encryption]``."""
    nats_parser: NatsParser = NatsParser.BATCH
    """The parser of NATS messages. ``library`` is slower, and works with every version of nats-py."""
    metrics_listen: str = "off"
    """Address that serves metrics for Prometheus, as ``host:port``; needs the extra ``ringcast[metrics]``."""

    @classmethod
    def resolve(cls, given: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> WorkerConfig:
        """Puts the settings together and checks them; ``None`` in ``given`` means not given.

        Raises:
            InvalidInputError: a setting is unknown, missing, malformed or out of range; the message names it.
        """
        return _checked_config(_from_surroundings(cls.__struct_fields__, environ), given)

    def but(self, given: Mapping[str, object]) -> WorkerConfig:
        """These settings, with others for those that are given; ``None`` means not given.

        Raises:
            InvalidInputError: as :meth:`resolve`.
        """
        raw = msgspec.structs.asdict(self)
        if self.name == _default_name(self.worker_id):
            del raw["name"]
        return _checked_config(raw, given)

    def _checked(self) -> WorkerConfig:
        names.check_name("store", self.store)
        for key in self.keys:
            names.check_name("key", key)
        if not self.keys or len(set(self.keys)) != len(self.keys):
            raise InvalidInputError(f"keys {shown(self.keys)} must name each config key once, and at least one")
        if len(self.keys) > limits.MAX_KEYS_PER_STORE:
            raise LimitExceededError(
                f"keys has {len(self.keys)} entries: at most {limits.MAX_KEYS_PER_STORE} are allowed", field="keys"
            )
        self.check_login()
        if not self.servers:
            raise InvalidInputError("servers is empty: at least one NATS server must be named", field="servers")
        if self.partition_count is not None:
            names.check_partition_count(self.partition_count)
        names.check_name("consumer_prefix", self.consumer_prefix)
        _checked_api(self.jetstream_api)
        if self.agent:
            names.check_socket_path("agent", self.agent)
        self._check_numbers()
        if self.cache_dir and not self.worker_id:
            raise InvalidInputError(
                "cache_dir needs a worker_id: the cache is found again under an id that stays the same over restarts",
                field="worker_id",
            )
        worker_id = names.check_name("worker_id", self.worker_id or _default_worker_id())
        labels = check_labels("labels", self.labels)
        name = self.name or _default_name(worker_id)
        return msgspec.structs.replace(self, worker_id=worker_id, name=name, labels=labels)

    def _check_numbers(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if not isinstance(value, int | float) or isinstance(value, bool) or field == "partition_count":
                continue
            least, most = _RANGES.get(field, (0.001, 86_400.0))
            if not least <= value <= most:
                raise InvalidInputError(f"{field} {value} is out of range: {least} to {most} is allowed", field=field)


_RANGES: Final[dict[str, tuple[float, float]]] = {
    "window_s": (0.0, 60.0),
    "settle_s": (0.0, 60.0),
    "stabilisation_s": (0.0, 60.0),
    "max_delete_share": (0.0, 1.0),
    "grace_s": (0.0, 300.0),
    "lease_refresh_s": (0.1, limits.LEASE_TTL_S / 2),
    "capacity": (1, 1_000),
    "max_parallel_handlers": (1, 1_024),
    "handler_tries": (1, 100),
    "handler_timeout_s": (0.0, 86_400.0),
    "update_tries": (1, 100),
    "inactive_threshold_s": (10.0, 86_400.0),
    "max_ack_pending": (1, 65_536),
}


def _checked_config(raw: dict[str, Any], given: Mapping[str, object]) -> WorkerConfig:
    raw.update((field, value) for field, value in given.items() if value is not None)
    for field in ("cache_dir", "agent", "key_ring"):
        if isinstance(raw.get(field), os.PathLike):
            raw[field] = os.fspath(raw[field])
    for field in ("keys", "servers", "labels"):
        if isinstance(raw.get(field), str):
            raw[field] = [part.strip() for part in raw[field].split(",") if part.strip()]
    try:
        config = msgspec.convert(raw, WorkerConfig, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"worker settings: {error}") from error
    return config._checked()


def resolve_login(environ: Mapping[str, str] = os.environ) -> NatsLogin:
    """How to log in to NATS where no worker is being made, from the same environment and file.

    Raises:
        InvalidInputError: a setting is malformed, or contradicts another.
    """
    fields = NatsLogin.__struct_fields__
    raw = _from_surroundings(fields, environ)
    try:
        login = msgspec.convert({name: value for name, value in raw.items() if name in fields}, NatsLogin)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"worker settings: {error}") from error
    login.check_login()
    return login


def resolve_jetstream_api(environ: Mapping[str, str] = os.environ) -> str:
    """Where the JetStream API is for a login without a worker, from the same environment and file.

    Raises:
        InvalidInputError: it is no subject.
    """
    return _checked_api(str(_from_surroundings(("jetstream_api",), environ).get("jetstream_api", "$JS.API")))


def _checked_api(subject: str) -> str:
    if _SUBJECT.fullmatch(subject):
        return subject
    raise InvalidInputError(f"jetstream_api {shown(subject)} is not a subject such as $JS.API", field="jetstream_api")


def _from_surroundings(fields: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """What the file says, and over it what the environment says of these fields."""
    raw = _from_file(environ.get(_FILE))
    return raw | {field: environ[_ENV + field.upper()] for field in fields if _ENV + field.upper() in environ}


def _from_file(path: str | None) -> dict[str, Any]:
    if not path:
        return {}
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{_FILE} {shown_path(path)} can't be read: {error}", field=_FILE) from error
    worker = table.get("worker", {})
    if not isinstance(worker, dict):
        raise InvalidInputError(f"{_FILE} {shown_path(path)}: worker must be a table", field=_FILE)
    return worker


def _default_worker_id() -> str:
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:40] or "worker"
    number = next(_numbers)  # several workers of one process must not share an id
    return f"{host}-{os.getpid()}" if number == 1 else f"{host}-{os.getpid()}-{number}"


def _default_name(worker_id: str) -> str:
    return f"ringcast-worker-{worker_id}"
