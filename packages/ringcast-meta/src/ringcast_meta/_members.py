"""What a process says of itself in the cluster, and what an operator wants of it: two small records, in JSON."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import msgspec
from ringcast_wire import WIRE_VERSION, InvalidInputError, ProtocolError, Reads, shown
from ringcast_wire.addresses import is_service_address

FORMAT: Final = 1
MAX_RECORD_BYTES: Final = 4096
WISHES: Final = "wishes."
"""Below this are the wishes, each by the key of the member that it is for."""
TTL_S: Final = 10
"""How long a process that was killed still seems to be there."""
REPORT_S: Final = 3.0
"""From one report of a process to the next."""
STALE_S: Final = 3 * REPORT_S
"""A report that is older is no word of how things are now."""

_MAX_ADDRESS_CHARS: Final = 256

_Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=256)]
_Amount: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class MemberKind(StrEnum):
    """What a process is."""

    SERVICE = "service"
    AGENT = "agent"


class MemberState(StrEnum):
    """What a process does at the moment."""

    ACTIVE = "active"
    DRAINING = "draining"
    """It takes nothing new, and finishes what it has."""
    DRAINED = "drained"
    """It has nothing left, and may be stopped."""


class ServiceLoad(msgspec.Struct, frozen=True, kw_only=True, tag="service", tag_field="of"):
    """Of a config service; rates since the report before."""

    writes_per_s: _Amount
    """Requests that were written or refused, each with one row or many."""
    outbox_events: _Count
    outbox_age_s: _Amount
    """Since when the oldest event waits to be published, of all instances."""
    waiting_fetches: _Count
    open_calls: _Count
    cpu: _Amount
    """Share of one core."""


class AgentLoad(msgspec.Struct, frozen=True, kw_only=True, tag="agent", tag_field="of"):
    """Of a heartbeat agent."""

    groups: _Count
    consumers: _Count
    lag: _Count
    """Changes that wait in its groups."""
    cpu: _Amount
    subscriptions: _Count = 0
    """Of Dapr's API."""
    workers: _Count = 0
    """Whose leases it keeps."""


class MemberRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One process, as it said last. ``…_ms``: Unix time in milliseconds, by the clock of its host."""

    kind: MemberKind
    id: _Text
    address: _Text
    """Where it takes gRPC calls."""
    host: _Text
    pid: _Count
    version: _Text
    state: MemberState
    started_at_ms: _Count
    reported_at_ms: _Count
    load: ServiceLoad | AgentLoad
    metrics: _Text = ""
    """Where its metrics are; empty: nowhere."""
    leads: bool = False
    """Of config services: whether it is the one that does maintenance."""
    wire: Reads = WIRE_VERSION
    """The newest version of messages on the bus that it reads."""
    format: Annotated[int, msgspec.Meta(ge=1)] = FORMAT


class DrainWish(msgspec.Struct, frozen=True, kw_only=True):
    """An operator wants a process to drain. It counts for as long as it stands there."""

    at_ms: _Count
    reason: Annotated[str, msgspec.Meta(max_length=512)] = ""
    format: Annotated[int, msgspec.Meta(ge=1)] = FORMAT


class _Head(msgspec.Struct):
    format: int


_head: Final = msgspec.json.Decoder(_Head)
_member: Final = msgspec.json.Decoder(MemberRecord)


def is_member_address(address: str) -> bool:
    """Whether a client can call a process there: HOST:PORT of up to 256 characters, ``tls://`` before it or not."""
    return len(address) <= _MAX_ADDRESS_CHARS and is_service_address(address)


def prefix_of(kind: MemberKind) -> str:
    """Where the records of a kind are."""
    return f"{kind}s."


def member_key(kind: MemberKind, member_id: str) -> str:
    """Where the record of a process is."""
    return f"{prefix_of(kind)}{member_id}"


def wish_key(kind: MemberKind, member_id: str) -> str:
    """Where the wish for a process is."""
    return f"{WISHES}{member_key(kind, member_id)}"


def encode_member(record: MemberRecord) -> bytes:
    """As it is stored.

    Raises:
        InvalidInputError: it is larger than 4 KiB.
    """
    data = msgspec.json.encode(record)
    if len(data) > MAX_RECORD_BYTES:
        raise InvalidInputError(
            f"the record of {shown(record.id)} has {len(data)} bytes: at most {MAX_RECORD_BYTES} are allowed",
            field="record",
        )
    return data


def decode_member(key: str, value: bytes) -> MemberRecord:
    """What stands under the key of a process.

    Raises:
        ProtocolError: it is no record, or one of a build that is newer than this.
    """
    if len(value) > MAX_RECORD_BYTES:
        raise ProtocolError(f"the record has {len(value)} bytes: at most {MAX_RECORD_BYTES} are allowed")
    try:
        if (found := _head.decode(value).format) > FORMAT:
            raise ProtocolError(f"the record has format {found}: this build reads up to {FORMAT}")
        record = _member.decode(value)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"the record can't be read: {error}") from error
    if member_key(record.kind, record.id) != key:
        raise ProtocolError(f"the record is of {record.kind} {shown(record.id)}, which belongs elsewhere")
    if not is_member_address(record.address):
        # Not shown: it may hold a password. A client refuses to go on with an address that is none.
        raise ProtocolError("the record has no address that can be called: HOST:PORT is expected")
    return record
