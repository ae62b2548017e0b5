"""Names on the bus: subjects, buckets, streams and consumers, and the rules for what may stand in them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from ringcast_wire._common.errors import InvalidInputError, ProtocolError, shown
from ringcast_wire._common.limits import MAX_NAME_LENGTH, MAX_PARTITIONS, MAX_SOCKET_PATH_BYTES

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)

LEASES_BUCKET: Final = "config_leases"
CLUSTER_BUCKET: Final = "config_cluster"
"""KV bucket where instances of the config service register: ``services.<instance>``."""
FETCH_QUEUE_GROUP: Final = "config-service"
FETCH_SUBJECTS: Final = "config.fetch.*.*.*"
"""What a config service subscribes to: the fetches of every store and key."""

SERVICE_INBOX_PREFIX: Final = "_INBOX.config-service"
"""Where a config service gets its answers; no worker has this prefix, whatever its id."""
TOOLS_INBOX_PREFIX: Final = "_INBOX.tools"
"""Where tools that look at a bus from outside get theirs."""

HEADER_MSG_ID: Final = "Nats-Msg-Id"
HEADER_ERROR: Final = "Ringcast-Error"
HEADER_CHUNK: Final = "Ringcast-Chunk"
HEADER_PATIENCE: Final = "Ringcast-Patience-Ms"
"""How long the requester of a fetch waits for its answer to begin: one that comes later is not made."""
HEADER_FETCH_ID: Final = "Ringcast-Fetch-Id"
"""Names a fetch, so that its requester can cancel it; others can't guess it."""
HEADER_CLIENT: Final = "Nats-Request-Info"
"""What a server says of a client of another account, where the import shares it."""
HEADER_TRACE: Final = "traceparent"
HEADER_MAY_CALL: Final = "Ringcast-May-Call"
"""On the marker of a registration that was deleted: calls of its worker may still run, or begin again from its disk."""
HEADER_GONE: Final = "Ringcast-Gone"
"""On the marker of a state that was deleted: an operator has said that the worker is gone, as of this revision of its
registration (0: it had none)."""
GRPC_ERROR_KEY: Final = "ringcast-error"
GRPC_FIELD_KEY: Final = "ringcast-field"
GRPC_FOUND_VERSION_KEY: Final = "ringcast-found-version"
GRPC_RETRY_AFTER_KEY: Final = "ringcast-retry-after-ms"
GRPC_ELSEWHERE_KEY: Final = "ringcast-elsewhere"
GRPC_CLOCK_KEY: Final = "ringcast-clock-ms"
GRPC_PATIENCE_KEY: Final = "ringcast-patience-ms"
"""How long the client of a bulk write waits for the answer to a batch: the service holds none back for longer."""
GRPC_REASON_KEY: Final = "ringcast-reason-bin"
"""Why a call is made, of any kind: UTF-8."""

SETTING_HISTORY: Final = "history_id"
"""The entry of a store's metadata bucket that names its history; it may change."""

FETCH_BATCH: Final = "batch"
FETCH_FULL: Final = "full"
FETCH_HEADS: Final = "heads"
FETCH_STAGED: Final = "staged"
"""Last token of a fetch of what a release has staged; the others are of what is there."""
FETCH_CANCEL: Final = "cancel"
"""Last token of where a worker says, with the id of a fetch, that it waits for it no longer. Every service hears it."""
FETCH_CANCELS: Final = f"config.fetch.*.*.{FETCH_CANCEL}"
MAX_FETCH_ID_CHARS: Final = 256
_FETCH_VERBS: Final = frozenset({FETCH_BATCH, FETCH_FULL, FETCH_HEADS, FETCH_STAGED})


def check_name(field: str, value: object) -> str:
    """Returns ``value`` if it may name a store, a config key or a worker.

    Raises:
        InvalidInputError: it is not 1 to 64 characters of ``A-Z a-z 0-9 _ -``.
    """
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise InvalidInputError(
        f"{field} {shown(value)} is not a valid name: 1 to {MAX_NAME_LENGTH} characters of A-Z a-z 0-9 _ - are allowed",
        field=field,
    )


def check_partition_count(value: object) -> int:
    """Returns ``value`` if a store may have that many partitions (1 to 4096)."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_PARTITIONS:
        return value
    raise InvalidInputError(
        f"partition_count {shown(value)} is out of range: 1 to {MAX_PARTITIONS} partitions are allowed",
        field="partition_count",
    )


def check_partition(value: object, partition_count: int) -> int:
    """Returns ``value`` if it is a partition of a store with that many."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < partition_count:
        return value
    raise InvalidInputError(
        f"partition {shown(value)} is out of range: the store has partitions 0 to {partition_count - 1}",
        field="partition",
    )


def check_socket_path(field: str, value: str) -> str:
    """Returns ``value`` if it can be the path of a Unix socket: absolute, and no longer than the system takes."""
    size = len(value.encode(errors="surrogateescape"))
    if value.startswith("/") and "\0" not in value and size <= MAX_SOCKET_PATH_BYTES:
        return value
    raise InvalidInputError(
        f"{field} {shown(value)} of {size} bytes is not the path of a socket: it must be absolute, of at most"
        f" {MAX_SOCKET_PATH_BYTES} bytes",
        field=field,
    )


def meta_bucket(store: str) -> str:
    """KV bucket of a store's immutable settings."""
    return f"config_meta_{store}"


def nodes_bucket(store: str) -> str:
    """KV bucket of a store's members: ``<config_key>.<worker_id>`` and ``<config_key>.slot.<n>``."""
    return f"config_nodes_{store}"


def node_key(config_key: str, worker_id: str) -> str:
    """Key of a member in the nodes bucket."""
    return f"{config_key}.{worker_id}"


def slot_key(config_key: str, slot: int) -> str:
    """Key of the claim on a slot in the nodes bucket; three tokens, so that a watch of the members does not see it."""
    return f"{config_key}.slot.{slot}"


ENDED_PATTERN: Final = "~ended.*"
"""Keys of the nodes bucket where workers say which leases they found ended; no config key has a ``~``."""


def ended_key(worker_id: str) -> str:
    """Key of the leases that a worker found ended, in the nodes bucket."""
    return f"~ended.{worker_id}"


def is_ended_key(name: str) -> bool:
    """Whether a key of the nodes bucket is an :func:`ended_key`, and so of no config key."""
    return name.startswith("~ended.")


def groups_bucket(store: str) -> str:
    """KV bucket of how far the groups of a store have come: ``<config_key>.<group>.<partition>``."""
    return f"config_groups_{store}"


def seal_key(config_key: str, group: str, partition: int | str) -> str:
    """Key of a group's seal of one partition in the groups bucket."""
    return f"{config_key}.{group}.{partition}"


def parse_seal_key(name: str) -> tuple[str, str, int]:
    """Config key, group and partition of a seal's key.

    Raises:
        ProtocolError: it is not one.
    """
    config_key, group, last = _tokens(name, "")
    if (partition := _partition(last)) is None:
        raise ProtocolError(f"key {shown(name)} is not of the form <key>.<group>.<partition>")
    return config_key, group, partition


def owners_bucket(store: str) -> str:
    """KV bucket of exclusive ownership: :func:`term_key`, :func:`table_key`, :func:`state_key`, :func:`session_key`,
    :func:`load_key`, :func:`gone_key`."""
    return f"config_owners_{store}"


def term_key(config_key: str) -> str:
    """Key of the leader of a config key, in the owners bucket."""
    return f"{config_key}.lead.term"


def table_key(config_key: str) -> str:
    """Key of the table of owners of a config key, in the owners bucket."""
    return f"{config_key}.lead.table"


def lead_keys(config_key: str) -> str:
    """Both of them as a pattern: a writer of one can name the newest of the two."""
    return f"{config_key}.lead.*"


def wishes_bucket(store: str) -> str:
    """KV bucket of what operators want of a store of exclusive ownership: :func:`wishes_key`. Nothing in it ages."""
    return f"config_wishes_{store}"


def wishes_key(config_key: str) -> str:
    """Key of what an operator wants of a config key, in the wishes bucket."""
    return f"{config_key}.wishes"


def state_key(config_key: str, worker_id: str) -> str:
    """Key of how far a worker of a config key is, in the owners bucket."""
    return f"{config_key}.state.{worker_id}"


def gone_key(config_key: str, agent_id: str) -> str:
    """Key of the sessions whose processes an agent has seen end, in the owners bucket."""
    return f"{config_key}.gone.{agent_id}"


def session_key(worker_id: str) -> str:
    """Key of what a worker refreshes, in the owners bucket; no config key has a ``~``: a watch of one sees none."""
    return f"~session.{worker_id}"


def load_key(worker_id: str) -> str:
    """Key of the loads that a worker reports of all its config keys, in the owners bucket."""
    return f"~load.{worker_id}"


def notify_stream(store: str) -> str:
    """JetStream stream of a store's events."""
    return f"config_notify_{store}"


META_DELETED: Final = "deleted"
"""Entry of the metadata bucket of a store that is deleted: a sentence that says when, and until when."""
META_MIGRATION: Final = "migration"
"""Entry of the metadata bucket of a store that migrates, or once did: the operator's step. It may change."""


def notify_stream_subjects(store: str) -> str:
    """The subjects that a store's stream captures."""
    return f"config.notify.{store}.*.*"


def notify_subject(store: str, config_key: str, partition: int | str) -> str:
    """Subject of the events of one partition."""
    return f"config.notify.{store}.{config_key}.{partition}"


def notify_key_subjects(store: str, config_key: str) -> str:
    """Filter that matches the events of every partition of a key (mode FULL)."""
    return f"config.notify.{store}.{config_key}.*"


def dead_stream(store: str) -> str:
    """JetStream stream of the changes of a store that no handler could take."""
    return f"config_dead_{store}"


def dead_stream_subjects(store: str) -> str:
    """The subjects that this stream captures."""
    return f"config.dead.{store}.*.*"


def dead_key_subjects(store: str, config_key: str) -> str:
    """The dead letters of every partition of a key."""
    return f"config.dead.{store}.{config_key}.*"


def dead_subject(store: str, config_key: str, partition: int) -> str:
    """Subject of the dead letters of one partition."""
    return f"config.dead.{store}.{config_key}.{partition}"


def parse_dead_subject(subject: str) -> tuple[str, int]:
    """Key and partition of a dead letter's subject.

    Raises:
        ProtocolError: it is not one.
    """
    _, config_key, last = _tokens(subject, "config.dead.")
    if (partition := _partition(last)) is None:
        raise ProtocolError(f"subject {shown(subject)} does not end with a partition number")
    return config_key, partition


REPLAYED_SUBJECTS: Final = "config.replayed.*.*.*"
"""Where config services hear what came of replays."""


def replay_subject(store: str, config_key: str) -> str:
    """Where workers of a key are asked to hand a row over again."""
    return f"config.replay.{store}.{config_key}"


def replayed_subject(store: str, config_key: str, worker_id: str) -> str:
    """Where a worker says what came of that; by permission it says so for itself alone."""
    return f"config.replayed.{store}.{config_key}.{worker_id}"


def parse_replayed_subject(subject: str) -> tuple[str, str, str]:
    """Store, key and worker of such a subject.

    Raises:
        ProtocolError: it is not one.
    """
    store, config_key, worker_id = _tokens(subject, "config.replayed.")
    return store, config_key, worker_id


def report_subject(store: str, config_key: str) -> str:
    """Where workers of a key are asked how far they are."""
    return f"config.report.{store}.{config_key}"


def reported_subject(store: str, config_key: str, worker_id: str, round_id: str) -> str:
    """Where a worker says how far it is, in one round; by permission it says so for itself alone."""
    return f"config.reported.{store}.{config_key}.{worker_id}.{round_id}"


def parse_reported_subject(subject: str) -> str:
    """The worker that a report is from.

    Raises:
        ProtocolError: the subject is not that of a report.
    """
    parts = subject.split(".")
    if len(parts) != 6 or parts[:2] != ["config", "reported"] or not _NAME.fullmatch(parts[4]):
        raise ProtocolError(f"subject {shown(subject)} is not of the form {reported_subject('*', '*', '*', '*')}")
    return parts[4]


def fetch_subject(store: str, config_key: str, what: int | str) -> str:
    """Subject of a fetch: of a partition by its number, or of ``batch``, ``full``, ``heads`` or ``staged``."""
    return f"config.fetch.{store}.{config_key}.{what}"


def event_msg_id(store: str, config_key: str, partition: int, rev: int, history: str) -> str:
    """``Nats-Msg-Id`` of an event: published twice it has the same id, and in another history another one."""
    return f"{store}.{config_key}.{partition}.{rev}.{history}"


def parse_event_msg_id(msg_id: str) -> tuple[int, str]:
    """The revision and the history id in the ``Nats-Msg-Id`` of an event.

    Raises:
        ProtocolError: it is not one.
    """
    parts = msg_id.split(".")
    if len(parts) != 5 or not (parts[3].isascii() and parts[3].isdigit() and len(parts[3]) <= 19):
        raise ProtocolError(f"message id {shown(msg_id)} is not of the form <store>.<key>.<partition>.<rev>.<history>")
    return int(parts[3]), parts[4]


def consumer_name(prefix: str, worker_id: str, index: int = 0) -> str:
    """Name of a worker's durable consumer; ``index`` counts those past the filter limit of the first.

    No worker id has a ``~``, so that the second consumer of ``w`` is not the first one of ``w-1``.
    """
    return f"{prefix}-{worker_id}" if index == 0 else f"{prefix}-{worker_id}~{index}"


def watch_name(store: str, worker_id: str) -> str:
    """Name of the consumer by which a worker of a store watches a bucket: permissions can be given for it alone."""
    return f"watch~{store}~{worker_id}"


def agent_worker_id(agent_id: str, store: str, config_key: str) -> str:
    """The worker id that a heartbeat agent takes part under in a config key of a store.

    Readable where that is short enough and can't be another store's: ``a-b`` with ``c`` is not ``a`` with ``b-c``.
    """
    name = f"{agent_id}-{store}-{config_key}"
    if len(name) <= MAX_NAME_LENGTH and "-" not in store:
        return name
    digest = hashlib.blake2b(f"{agent_id}/{store}/{config_key}".encode(), digest_size=8).hexdigest()
    return f"{agent_id[: MAX_NAME_LENGTH - 1 - len(digest)]}-{digest}"


def agent_observer_id(agent_id: str, store: str, config_key: str) -> str:
    """The worker id under which a heartbeat agent follows a whole config key for subscribers, beside the other one."""
    digest = hashlib.blake2b(f"{agent_id}/{store}/{config_key}/observer".encode(), digest_size=8).hexdigest()
    return f"{agent_id[: MAX_NAME_LENGTH - 1 - len(digest)]}-{digest}"


def inbox_prefix(worker_id: str) -> str:
    """Where a worker gets its answers: below a subject of its own, so that it can be kept from those of others."""
    return f"_INBOX_{worker_id}"


def is_inbox(subject: str) -> bool:
    """Whether answers may be sent there: a requester must not make the service publish anywhere else for it.

    ``_R_.`` is where a NATS server has the answers to another account sent.
    """
    return subject.startswith(("_INBOX.", "_INBOX_", "_R_."))


@dataclass(frozen=True, slots=True)
class NotifySubject:
    """A parsed notify subject."""

    store: str
    config_key: str
    partition: int


@dataclass(frozen=True, slots=True)
class FetchSubject:
    """A parsed fetch subject: ``what`` is a partition number, ``batch``, ``full``, ``heads`` or ``staged``."""

    store: str
    config_key: str
    what: int | str


def parse_notify_subject(subject: str) -> NotifySubject:
    """Takes a notify subject apart.

    Raises:
        ProtocolError: it is not one.
    """
    store, config_key, last = _tokens(subject, "config.notify.")
    if (partition := _partition(last)) is None:
        raise ProtocolError(f"subject {shown(subject)} does not end with a partition number")
    return NotifySubject(store, config_key, partition)


def parse_fetch_subject(subject: str) -> FetchSubject:
    """Takes a fetch subject apart.

    Raises:
        ProtocolError: it is not one.
    """
    store, config_key, last = _tokens(subject, "config.fetch.")
    if last in _FETCH_VERBS:
        return FetchSubject(store, config_key, last)
    if (partition := _partition(last)) is None:
        raise ProtocolError(
            f"subject {shown(subject)} does not end with a partition number, batch, full, heads or staged"
        )
    return FetchSubject(store, config_key, partition)


def _tokens(subject: str, prefix: str) -> tuple[str, str, str]:
    parts = subject.removeprefix(prefix).split(".") if subject.startswith(prefix) else []
    if len(parts) != 3 or not (_NAME.fullmatch(parts[0]) and _NAME.fullmatch(parts[1])):
        raise ProtocolError(f"subject {shown(subject)} is not of the form {prefix}<store>.<key>.<partition>")
    return parts[0], parts[1], parts[2]


def _partition(token: str) -> int | None:
    """The number that ``token`` writes in its one canonical form, or ``None``."""
    if token.isascii() and token.isdigit() and len(token) <= 4 and (token == "0" or token[0] != "0"):  # noqa: S105
        number = int(token)
        return number if number < MAX_PARTITIONS else None
    return None
