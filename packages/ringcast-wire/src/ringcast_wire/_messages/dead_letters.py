"""Changes that were given up, as they are kept on NATS."""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec
from ringcast_core import row_partition

from ringcast_wire._common.errors import InvalidInputError, ProtocolError, shown
from ringcast_wire._common.rows import check_row_id

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Revision = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A change that no handler could take, as JSON on ``config.dead.<store>.<key>.<partition>``."""

    store: str
    key: str
    partition: int
    row_id: str
    version: _Revision
    value: str | None
    deleted: bool
    metadata: dict[str, str] | None
    error: str
    worker_id: str
    tries: _Count
    at_ms: int
    left_out: bool = False
    """Value and metadata are too large for one message: the row is to be read from the service."""
    group: str = ""
    """The group of a heartbeat agent whose consumers failed; empty: the handler of the worker itself did."""
    replays: _Count = 0
    """How often the row was handed over again because of a dead letter, and failed again."""
    observer: bool = False
    """The worker observes, and shares the partition with nobody: no other can take its place."""


_decoder = msgspec.json.Decoder(DeadLetter)


def dead_letter_id(letter: DeadLetter, nonce: str, replay_id: str = "") -> str:
    """The message id of a dead letter: the stream drops the second message of an id, also of another sender.

    ``nonce``: what nobody but the sender can know. ``replay_id``: of the request to hand the row over again, if any.
    """
    row = hashlib.blake2b(letter.row_id.encode(), digest_size=12).hexdigest()
    place = f"{letter.store}.{letter.key}.{letter.partition}.{letter.version}.{row}"
    # Each of several groups may have given the change up.
    return ".".join(word for word in ("dead", place, letter.group, nonce, replay_id) if word)


def encode_dead_letter(letter: DeadLetter, max_bytes: int) -> bytes:
    """A dead letter as a message of at most ``max_bytes``: value and metadata are left out of one that is larger."""
    body = msgspec.json.encode(letter)
    if len(body) > max_bytes:
        body = msgspec.json.encode(msgspec.structs.replace(letter, value=None, metadata=None, left_out=True))
    return body


def decode_dead_letter(data: bytes, key: str, partition: int, partition_count: int) -> DeadLetter:
    """Reads a dead letter that came on the subject of a key and partition.

    A process that may write one can write anything: what is not of that key and partition is not believed.

    Raises:
        ProtocolError: it is not one, or belongs elsewhere.
    """
    try:
        letter = _decoder.decode(data)
        check_row_id(letter.row_id)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, InvalidInputError) as error:
        raise ProtocolError(f"{len(data)} bytes are not a dead letter: {error}") from error
    if letter.key != key or row_partition(letter.row_id, partition_count) != partition:
        raise ProtocolError(
            f"it is about row {shown(letter.row_id)} of key {shown(letter.key)},"
            f" which is not in partition {partition} of {key}"
        )
    return letter
