"""The calls of JetStream that a bucket needs, and their errors."""

from __future__ import annotations

import secrets
from collections.abc import Container, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from ringcast_wire import (
    InvalidInputError,
    LimitExceededError,
    OutcomeUnknownError,
    ProtocolError,
    RingcastError,
    UnavailableError,
    shown,
)
from ringcast_wire.buckets import DELETED, EXPECTED, WRONG_SEQUENCE, fixed, is_marker, stream_of, subject_of

from ringcast_meta._nats.refusals import Refusals
from ringcast_meta._types import Entry

_TTL: Final = "Nats-TTL"
_LEASE: Final = "Ringcast-Lease"
_REVISION: Final = "Ringcast-Revision"
_NO_TTL: Final = 10166
_NO_MESSAGE: Final = 10037
_FULL: Final = frozenset({10023, 10047, 10054, 10077})
_MARKER_TTL_S: Final = 3600
"""How long a bucket keeps the message that says that a key was deleted: watches have heard of it long before."""
_NS: Final = 1_000_000_000
_MAX_DIGITS: Final = 20
"""Of a sequence of a stream."""
MAX_BUCKET_BYTES: Final = 128 * 1024 * 1024
"""Of a bucket that is made here: twice what a watch takes. Servers may require a limit of each stream."""


class WrongSequenceError(Exception):
    """The key is not at the sequence that a write expected."""


class Stored(NamedTuple):
    """The last message of a key."""

    sequence: int
    """The stream's number of it."""
    entry: Entry | None
    """``None``: the key was deleted."""
    lease_id: str | None
    ttl_s: float | None
    """The server removes the record after so long."""
    at_s: float
    """When the server stored it, by its clock (Unix time)."""


class StreamState(NamedTuple):
    """Of the stream behind a bucket."""

    created: str
    first_sequence: int
    last_sequence: int
    now_s: float
    """The server's clock (Unix time)."""


class _Error(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _State(msgspec.Struct):
    first_seq: int = 0
    last_seq: int = 0
    subjects: dict[str, int] | None = None


class _Config(msgspec.Struct):
    allow_msg_ttl: bool = False


class _StreamInfo(msgspec.Struct):
    error: _Error | None = None
    created: str = ""
    ts: datetime | None = None
    state: _State = msgspec.field(default_factory=_State)
    config: _Config = msgspec.field(default_factory=_Config)


class _Delivered(msgspec.Struct):
    consumer_seq: int = 0


class _ConsumerInfo(msgspec.Struct):
    error: _Error | None = None
    num_pending: int = 0
    delivered: _Delivered = msgspec.field(default_factory=_Delivered)


class _Message(msgspec.Struct):
    seq: int
    subject: str
    time: datetime
    data: bytes = b""
    hdrs: bytes = b""


class _MessageAnswer(msgspec.Struct):
    error: _Error | None = None
    message: _Message | None = None


class _Acknowledgement(msgspec.Struct):
    error: _Error | None = None
    seq: int = 0


T = TypeVar("T", _StreamInfo, _ConsumerInfo, _MessageAnswer, _Acknowledgement)


class Bucket:
    """One bucket, over a connection that the caller owns."""

    def __init__(self, connection: Client, name: str, timeout_s: float, api: str = "$JS.API") -> None:
        self.name = name
        self.stream = stream_of(name)
        self.connection = connection
        self._prefix = subject_of(name, "")
        self.refusals = Refusals(connection, name)
        self._timeout_s = timeout_s
        self._jetstream_api = api
        self._has_ttl: bool | None = None

    def pattern(self, prefix: str) -> str:
        """The subjects of the keys below a prefix."""
        return f"{self._prefix}{prefix}>"

    def key_of(self, subject: str) -> str:
        """The key whose messages have this subject."""
        return subject.removeprefix(self._prefix)

    # ---- reads

    async def last(self, key: str) -> Stored | None:
        """The last message of a key, from the leader of the stream; ``None`` if there is none."""
        return await self._message({"last_by_subj": self._prefix + key})

    async def keys(self, prefix: str) -> list[str]:
        """The keys below a prefix that have a message, from the leader of the stream; some of them may be deleted."""
        request = msgspec.json.encode({"subjects_filter": self.pattern(prefix)})
        info = await self._api(f"STREAM.INFO.{self.stream}", request, _StreamInfo)
        return [self.key_of(subject) for subject in info.state.subjects or ()]

    async def next_after(self, sequence: int, prefix: str) -> Stored | None:
        """The first message below a prefix that was stored after a sequence; ``None`` if there is none."""
        return await self._message({"seq": sequence + 1, "next_by_subj": self.pattern(prefix)})

    async def state(self) -> StreamState:
        """The state of the stream, from its leader."""
        info = await self._api(f"STREAM.INFO.{self.stream}", b"", _StreamInfo)
        self._has_ttl = info.config.allow_msg_ttl
        return StreamState(
            info.created, info.state.first_seq, info.state.last_seq, info.ts.timestamp() if info.ts else 0.0
        )

    async def make(self, replicas: int) -> None:
        """Makes the bucket where there is none. One that is there stays as it is.

        Raises:
            InvalidInputError: it is there and can't end leases.
        """
        config = {
            "name": self.stream,
            "subjects": [f"{self._prefix}>"],
            "max_msgs_per_subject": 1,
            "max_bytes": MAX_BUCKET_BYTES,
            "discard": "new",
            # What was removed so, no watch would hear of.
            "deny_delete": True,
            "deny_purge": True,
            "allow_direct": True,
            "allow_msg_ttl": True,
            "num_replicas": replicas,
        }
        try:
            await self.state()
        except UnavailableError:
            await self._api(f"STREAM.CREATE.{self.stream}", msgspec.json.encode(config), _StreamInfo)
            await self.state()
        if not self._has_ttl:
            raise InvalidInputError(
                f"bucket {self.name!r} exists without allow_msg_ttl, so that no lease would end in it", field="bucket"
            )

    async def _message(self, request: dict[str, Any]) -> Stored | None:
        answer = await self._api(
            f"STREAM.MSG.GET.{self.stream}", msgspec.json.encode(request), _MessageAnswer, {_NO_MESSAGE}
        )
        if (message := answer.message) is None:
            return None
        headers = _headers(message.hdrs)
        return stored(self.key_of(message.subject), message.data, headers, message.seq, message.time.timestamp())

    # ---- watches

    async def add_consumer(self, inbox: str, prefix: str) -> tuple[str, int, bool]:
        """A consumer that delivers the last message of each key below a prefix to an inbox, and then every new one.

        Returns its name, how many it has still to deliver, and whether it has begun to.
        """
        name = f"meta-{secrets.token_hex(8)}"
        config = {
            "name": name,
            "deliver_subject": inbox,
            "deliver_policy": "last_per_subject",
            "filter_subject": self.pattern(prefix),
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": 30 * _NS,
        }
        request = msgspec.json.encode({"stream_name": self.stream, "config": config, "action": "create"})
        info = await self._api(f"CONSUMER.CREATE.{self.stream}.{name}.{self.pattern(prefix)}", request, _ConsumerInfo)
        return name, info.num_pending, info.delivered.consumer_seq > 0

    async def delete_consumer(self, name: str) -> None:
        """Deletes a consumer."""
        await self._api(f"CONSUMER.DELETE.{self.stream}.{name}", b"", _ConsumerInfo)

    # ---- writes

    async def publish(
        self, key: str, value: bytes, *, expected: int, lease: tuple[str, int] | None = None, revision: int = 0
    ) -> int:
        """Writes if the last message of a key has the sequence ``expected`` (0: there is none); returns the new one.

        ``lease``: id and seconds to live. ``revision``: what the entry keeps though it is written again.

        Raises:
            WrongSequenceError: it has another.
        """
        headers: dict[str, str] = {}
        if lease is not None:
            # A revision of 0 is none. It stands there for the size: a full bucket takes no refresh that is larger.
            headers = {_LEASE: lease[0], _TTL: f"{lease[1]}s", _REVISION: fixed(revision)}
        return await self._publish(key, value, expected, headers)

    async def publish_deletion(self, key: str, *, expected: int) -> int:
        """Deletes likewise. The message that says so goes after an hour, where the bucket can do that."""
        if self._has_ttl is None:
            await self.state()
        headers = {**DELETED}
        if self._has_ttl:
            headers[_TTL] = f"{_MARKER_TTL_S}s"
        return await self._publish(key, b"", expected, headers)

    async def _publish(self, key: str, value: bytes, last: int, headers: dict[str, str]) -> int:
        # Checked by the client too, but there the connection has said nothing of it yet where it is being made again.
        limit = self.connection.max_payload - 1024
        if len(value) > limit:
            raise LimitExceededError(
                f"value has {len(value)} bytes: the NATS server takes {limit} in one message", field="value"
            )
        headers[EXPECTED] = fixed(last)
        with _translated(f"writing {key!r} to bucket {self.name!r}", OutcomeUnknownError):
            reply = await self._request(self._prefix + key, value, headers)
        answer = _decoded(reply, _Acknowledgement)
        if answer.error is None:
            return answer.seq
        if answer.error.err_code in WRONG_SEQUENCE:
            raise WrongSequenceError(key)
        raise self._refused(answer.error)

    # ---- requests

    async def _api(self, call: str, payload: bytes, kind: type[T], allowed: Container[int] = ()) -> T:
        """A call of JetStream's API; errors with a number in ``allowed`` are the caller's."""
        with _translated(f"bucket {self.name!r}", UnavailableError):
            reply = await self._request(f"{self._jetstream_api}.{call}", payload)
        answer = _decoded(reply, kind)
        if answer.error is not None and answer.error.err_code not in allowed:
            raise self._refused(answer.error)
        return answer

    async def _request(self, subject: str, payload: bytes, headers: dict[str, str] | None = None) -> Msg:
        if not self.connection.is_connected:
            raise UnavailableError(f"bucket {self.name!r} can't be reached: there is no connection to NATS")
        async with self.refusals.ending(subject):
            return await self.connection.request(subject, payload, timeout=self._timeout_s, headers=headers)

    def _refused(self, error: _Error) -> RingcastError:
        what = f"bucket {self.name!r}: NATS answers {error.description!r} ({error.err_code})"
        if error.err_code == _NO_TTL:
            return InvalidInputError(
                f"{what}: it was made without allow_msg_ttl, so that it has no leases", field="lease"
            )
        if error.err_code in _FULL:
            return LimitExceededError(what)
        return UnavailableError(what)


def stored(key: str, data: bytes, headers: dict[str, str], sequence: int, at_s: float) -> Stored:
    """A message of a bucket as it is meant."""
    lease_id = headers.get(_LEASE)
    ttl = headers.get(_TTL, "").removesuffix("s")
    ttl_s = float(ttl) if ttl.isascii() and ttl.isdecimal() else None
    kept = headers.get(_REVISION, "")
    # A client that may write a record writes its headers too: a malformed one must not keep others from reading it.
    named = int(kept) if kept.isascii() and kept.isdecimal() and len(kept) <= _MAX_DIGITS else 0
    revision = named if 0 < named <= sequence else sequence
    entry = None if is_marker(headers) else Entry(key, data, revision, lease_id is not None or ttl_s is not None)
    return Stored(sequence, entry, lease_id, ttl_s, at_s)


def _headers(block: bytes) -> dict[str, str]:
    """The headers of a stored message, which begin with the line of the protocol's version."""
    lines = block.decode(errors="replace").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name: value.strip() for name, _, value in pairs}


def _decoded(reply: Msg, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(reply.data, type=kind)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"NATS answered {shown(reply.data)}: {error}") from error


@contextmanager
def _translated(what: str, error_type: type[UnavailableError]) -> Iterator[None]:
    """Turns errors of the client of NATS into ours. ``error_type``: where it is not known whether the server acted."""
    try:
        yield
    except RingcastError:
        raise  # PermissionDeniedError is one of the operating system's too
    except nats.errors.NoRespondersError as error:
        raise UnavailableError(f"{what}: it is not there, or no NATS server has JetStream") from error
    except nats.errors.MaxPayloadError as error:
        raise LimitExceededError(f"{what}: the NATS server takes no message of that size", field="value") from error
    except (nats.errors.Error, TimeoutError, OSError) as error:
        raise error_type(f"{what}: no answer from NATS ({type(error).__name__})") from error
