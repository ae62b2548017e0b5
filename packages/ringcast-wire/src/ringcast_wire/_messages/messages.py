"""The messages on the bus and what is kept in the buckets.

Events and fetch replies are MessagePack arrays with the wire version first; fields may be appended, never moved. What a
person may want to read (buckets) is JSON.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final, TypeVar

import msgspec
from ringcast_core import HASH_NAME

from ringcast_wire._common.errors import InvalidInputError, MismatchError, ProtocolError
from ringcast_wire._common.limits import MAX_BATCH_ROWS, MAX_SEAL_PENDING
from ringcast_wire._common.names import check_partition_count
from ringcast_wire._common.versions import WIRE_VERSION, Reads, check_version, check_version_of
from ringcast_wire._ownership.migration import MIGRATING_WIRE_VERSION, Migration
from ringcast_wire._ownership.times import check_ownership_times

DEFAULT_LOAD_FACTOR: Final = 1.25
_STRATEGY_SHOWN: Final = 64  # characters of an unknown strategy that an error repeats

T = TypeVar("T")

_LEASE: Final = r"\A[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64})?\Z"
_Revision = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
LeaseId = Annotated[str, msgspec.Meta(pattern=_LEASE)]
"""A worker's own lease is its id, a host's has a second token. A reader of records asks a server for the leases that
they name: so a record that names anything else can't be read."""


class Mode(StrEnum):
    """How the rows of a store reach its workers."""

    PARTITIONED = "PARTITIONED"
    FULL = "FULL"


class Strategy(StrEnum):
    """How partitions are shared out over workers."""

    JUMP = "jump"
    RING = "ring"
    STICKY = "sticky"
    """Exclusive ownership: the table of a key has its owners."""


class Role(StrEnum):
    """What a principal may do with a store."""

    READER = "reader"
    WRITER = "writer"
    APPROVER = "approver"
    ADMIN = "admin"
    BREAK_GLASS = "break-glass"
    """For emergencies: everything, and each call needs a reason."""


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is locked when a store is created and must be the same for every worker of it."""

    partition_count: int
    mode: Mode = Mode.PARTITIONED
    strategy: Strategy = Strategy.JUMP
    hash: str = HASH_NAME
    load_factor: float = DEFAULT_LOAD_FACTOR
    wire_version: int = WIRE_VERSION
    lease_ttl_ms: int | None = None
    """Of a store with exclusive ownership: how long a lease lasts after its refresh was asked for. Others have none."""
    call_bound_ms: int | None = None
    """Of a store with exclusive ownership: the bound on one handler call. Others have none."""

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"lease_ttl_ms", "call_bound_ms"})
    """What the metadata of a store may lack: the entry is not written where the setting is ``None``."""

    @property
    def is_exclusive(self) -> bool:
        """Whether a table has the owners of partitions, each of which has one at every moment."""
        return self.strategy is Strategy.STICKY and self.mode is Mode.PARTITIONED

    def to_kv(self) -> dict[str, bytes]:
        """The settings as entries of the metadata bucket: setting name → JSON, without those that are ``None``.

        In the order in which to write them: what may be lacking is there before what every store has is complete.
        """
        names = sorted(self.__struct_fields__, key=lambda name: name not in self.OPTIONAL)
        values = {name: getattr(self, name) for name in names}
        return {name: msgspec.json.encode(value) for name, value in values.items() if value is not None}

    @classmethod
    def from_kv(cls, entries: dict[str, bytes]) -> StoreSettings:
        """Reads the metadata bucket of a store.

        Raises:
            ProtocolError: a setting is missing or can't be read, or a time of exclusive ownership is out of range.
            MismatchError: the store was written with a wire version or hash that this build does not speak, or has a
                strategy that it does not know.
        """
        missing = [name for name in cls.__struct_fields__ if name not in entries and name not in cls.OPTIONAL]
        if missing:
            raise ProtocolError(f"the store's metadata lacks {', '.join(missing)}")
        try:
            raw = {name: msgspec.json.decode(entries[name]) for name in cls.__struct_fields__ if name in entries}
            _require_known(raw["strategy"])  # before the rest: a newer strategy may have settings of another kind
            settings = msgspec.convert(raw, cls)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise ProtocolError(f"the store's metadata can't be read: {error}") from error
        check_partition_count(settings.partition_count)
        if settings.strategy is Strategy.STICKY:
            _require_times(settings)
        if settings.wire_version == MIGRATING_WIRE_VERSION:  # that of a step, which does not change the settings
            settings = msgspec.structs.replace(settings, wire_version=WIRE_VERSION)
        settings.require(wire_version=WIRE_VERSION, hash=HASH_NAME)
        return settings

    def after(self, step: Migration | None) -> StoreSettings:
        """The settings that count once a store that was created with these is at a step of a migration."""
        if step is None or not step.is_finished:
            return self
        times = {"lease_ttl_ms": step.lease_ttl_ms, "call_bound_ms": step.call_bound_ms}
        return msgspec.structs.replace(self, strategy=Strategy.STICKY, **times)

    def require(self, **wanted: object) -> None:
        """Refuses settings other than the wanted ones (``None``: any will do).

        Raises:
            MismatchError: names the setting, the store's value and the requested one.
        """
        for name, value in wanted.items():
            if value is not None and getattr(self, name) != value:
                raise MismatchError(
                    f"{name} mismatch: the store has {_plain(getattr(self, name))}, {_plain(value)} was requested",
                    field=name,
                )


def _require_known(strategy: object) -> None:
    known = [each.value for each in Strategy]
    if isinstance(strategy, str) and strategy not in known:
        raise MismatchError(
            f"the store has the strategy {strategy[:_STRATEGY_SHOWN]!r}, which this build does not know: "
            f"it knows {', '.join(known)}",
            field="strategy",
        )


def _require_times(settings: StoreSettings) -> None:
    """No default stands in for a time that is missing: workers that count by different ones could own at once."""
    missing = [name for name in sorted(StoreSettings.OPTIONAL) if getattr(settings, name) is None]
    if missing:
        raise ProtocolError(f"the store's metadata lacks {', '.join(missing)}, as its strategy is sticky")
    try:
        check_ownership_times(settings.lease_ttl_ms, settings.call_bound_ms)
    except InvalidInputError as error:
        raise ProtocolError(f"the store's metadata can't be used: {error}") from error


def _plain(value: object) -> object:
    return value.value if isinstance(value, StrEnum) else value


class NodePhase(StrEnum):
    """Where a worker is between coming and going."""

    JOINING = "joining"
    """It waits, so that others that come at about the same time have partitions moved once. It owns nothing yet."""
    ACTIVE = "active"
    LEAVING = "leaving"
    """It is about to go, and waits in the same way. It owns its partitions until its record is deleted."""


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a config key, kept under ``<config_key>.<worker_id>``."""

    slot: int
    lease: LeaseId
    incarnation: str
    capabilities: tuple[str, ...] = ()
    phase: NodePhase = NodePhase.ACTIVE
    wire: Reads = WIRE_VERSION
    """The newest version of messages that the worker reads."""


class SlotClaim(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a slot of a config key, kept under ``<config_key>.slot.<n>``."""

    worker_id: str
    lease: LeaseId


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A live process, kept under its lease id; ``incarnation`` tells a restart from the process before it."""

    incarnation: str
    host: str
    pid: int
    started_at_ms: int


class EndedLeases(msgspec.Struct, frozen=True, kw_only=True):
    """Leases that a worker found ended, kept under its :func:`~ringcast_wire.names.ended_key`, for others to read."""

    leases: tuple[str, ...]


class GroupSeal(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group has come in one partition, kept under its :func:`~ringcast_wire.names.seal_key`.

    Every change up to ``revision`` of ``history`` is settled, but for the versions of ``pending``. ``holder`` is the
    incarnation of the process that delivers the partition for the group now, and ``lease`` the lease by which it
    counts as alive; without a holder the next host may go on. An empty ``history``: the group begins with every row.
    """

    history: str
    revision: _Revision
    pending: Annotated[tuple[_Revision, ...], msgspec.Meta(max_length=MAX_SEAL_PENDING)] = ()
    holder: str = ""
    lease: LeaseId | None = None
    sealed_at_ms: int = 0


class SealHolder(msgspec.Struct, frozen=True, kw_only=True):
    """As much of a :class:`GroupSeal` as says which process delivers the partition, whatever else its record has."""

    holder: str = ""
    lease: LeaseId | None = None


class Row(msgspec.Struct, frozen=True, array_like=True):
    """A row of a list. ``version`` is the revision of its last write; a deleted row is a tombstone without a value."""

    row_id: str
    value: str
    version: int
    deleted: bool = False
    metadata: dict[str, str] | None = None


class Change(msgspec.Struct, frozen=True, array_like=True):
    """One changed row in an event. ``value`` is ``None`` when it has to be fetched (or the row was deleted)."""

    row_id: str
    version: int
    deleted: bool = False
    value: str | None = None
    metadata: dict[str, str] | None = None


class Event(msgspec.Struct, frozen=True, array_like=True):
    """A write to one partition took it from revision ``prev`` to ``rev``.

    ``changes`` lists its rows with versions ``prev`` < v ≤ ``rev``, or is ``None`` when they are too many: fetch
    ``since`` then. ``committed_at_ms`` is the wall clock of the service at the write. ``history``: the history id that
    the revisions belong to. ``release``: the number of the release that all of it came by, 0 for none.
    """

    wire_version: int
    prev: int
    rev: int
    committed_at_ms: int
    changes: list[Change] | None
    history: str = ""
    release: _Revision = 0


class PartitionRequest(msgspec.Struct, frozen=True, array_like=True):
    """Asks for a partition: whole, or (``since``) the rows changed after that revision of that ``history``.

    Where the history is another now, the answer is the whole partition. ``as_of``: as it was at this revision of
    ``history``, which the answer then has as its own; refused with ``REVISION_GONE`` where that is not known any more.
    """

    wire_version: int = WIRE_VERSION
    since: int | None = None
    history: str = ""
    as_of: int | None = None
    reads: Reads = WIRE_VERSION
    """The newest version that the asker reads, as in each request: the answer is of no newer one."""


class HeadsRequest(msgspec.Struct, frozen=True, array_like=True):
    """Asks for the revision of each partition: as they are, or (``at_ms``, Unix time) as they were.

    At that moment: nothing that was written later is below them. Refused with ``REVISION_GONE`` where that is not known
    any more.
    """

    wire_version: int = WIRE_VERSION
    at_ms: int | None = None
    reads: Reads = WIRE_VERSION


class BatchRequest(msgspec.Struct, frozen=True, array_like=True):
    """Asks for named rows of a key, 1 to 1,000."""

    wire_version: int
    row_ids: list[str]
    reads: Reads = WIRE_VERSION


class FullRequest(msgspec.Struct, frozen=True, array_like=True):
    """Asks for every partition of a key, whole."""

    wire_version: int = WIRE_VERSION
    reads: Reads = WIRE_VERSION


class PartitionRows(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one partition, all as of ``revision``.

    ``whole``: these are all live rows (tombstones are left out), so what is not among them does not exist. Otherwise
    they are the rows asked for: changed since a revision, or named; tombstones included.
    """

    partition: int
    revision: int
    whole: bool
    rows: list[Row]


class FetchReply(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a fetch of a partition (one entry), a batch (an entry a partition touched) or a whole key.

    ``history``: the history id that all its revisions belong to.
    """

    wire_version: int
    partitions: list[PartitionRows]
    history: str = ""


class HeadsReply(msgspec.Struct, frozen=True, array_like=True):
    """The revision of each partition of a key, and how many live rows it has, by partition number.

    ``history``: the history id that the revisions belong to.
    """

    wire_version: int
    heads: list[int]
    history: str = ""
    rows: list[int] = []


_pack = msgspec.msgpack.Encoder()
_json = msgspec.json.Encoder()
_event = msgspec.msgpack.Decoder(Event)
_partition_request = msgspec.msgpack.Decoder(PartitionRequest)
_heads_request = msgspec.msgpack.Decoder(HeadsRequest)
_batch_request = msgspec.msgpack.Decoder(BatchRequest)
_full_request = msgspec.msgpack.Decoder(FullRequest)
_fetch_reply = msgspec.msgpack.Decoder(FetchReply)
_heads_reply = msgspec.msgpack.Decoder(HeadsReply)

Message = Event | PartitionRequest | HeadsRequest | BatchRequest | FullRequest | FetchReply | HeadsReply


def encode(message: Message) -> bytes:
    """A bus message as bytes."""
    return _pack.encode(message)


def decode_event(data: bytes) -> Event:
    """Reads an event.

    Raises:
        ProtocolError: it is damaged, of another wire version, or its revisions contradict each other.
    """
    event = _decode(_event, data, "event")
    prev, rev = event.prev, event.rev
    if not 0 <= prev < rev:
        raise ProtocolError(f"event says prev {prev} and rev {rev}: prev must be below rev")
    if event.changes:
        versions = [change.version for change in event.changes]
        if min(versions) <= prev or max(versions) > rev:
            raise ProtocolError(f"event of revisions {prev} to {rev} lists a version outside them")
    return event


def decode_partition_request(data: bytes) -> PartitionRequest:
    """Reads a partition request; an empty payload asks for the whole partition."""
    if not data:
        return PartitionRequest()
    request = _decode(_partition_request, data, "partition request")
    if request.since is not None and request.since < 0:
        raise ProtocolError(f"since {request.since} is below 0")
    if request.as_of is not None and request.as_of < (request.since or 0):
        raise ProtocolError(f"as_of {request.as_of} is below {'since' if request.since else '0'}")
    return request


def decode_heads_request(data: bytes) -> HeadsRequest:
    """Reads a request for heads; an empty payload asks for those that there are."""
    return _decode(_heads_request, data, "heads request") if data else HeadsRequest()


def decode_batch_request(data: bytes) -> BatchRequest:
    """Reads a batch request and checks its length."""
    request = _decode(_batch_request, data, "batch request")
    if not 1 <= len(request.row_ids) <= MAX_BATCH_ROWS:
        raise ProtocolError(f"row_ids has {len(request.row_ids)} entries: 1 to {MAX_BATCH_ROWS} are allowed")
    return request


def decode_full_request(data: bytes) -> FullRequest:
    """Reads a request for a whole key; an empty payload asks for it too."""
    return _decode(_full_request, data, "request for a whole key") if data else FullRequest()


def decode_fetch_reply(data: bytes | bytearray) -> FetchReply:
    """Reads the answer to a partition, batch or full fetch."""
    return _decode(_fetch_reply, data, "fetch reply")


def decode_heads_reply(data: bytes) -> HeadsReply:
    """Reads the answer to a heads fetch."""
    return _decode(_heads_reply, data, "heads reply")


def _decode(decoder: msgspec.msgpack.Decoder[T], data: bytes | bytearray, what: str) -> T:
    """Decodes and checks the wire version."""
    try:
        message = decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        check_version_of(data, what)
        raise ProtocolError(f"{what} of {len(data)} bytes can't be read: {error}") from error
    check_version(message.wire_version, what)  # type: ignore[attr-defined]  # every message struct has it; T can't say
    return message


def encode_record(record: NodeRecord | SlotClaim | LeaseRecord | EndedLeases | GroupSeal) -> bytes:
    """A bucket record as JSON."""
    return _json.encode(record)


def decode_record(data: bytes, kind: type[T]) -> T:
    """Reads a bucket record of the given kind.

    Raises:
        ProtocolError: it is not one.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f"{kind.__name__} of {len(data)} bytes can't be read: {error}") from error
