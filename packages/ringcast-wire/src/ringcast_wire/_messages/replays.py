"""Handing the row of a dead letter over again: what a config service asks, and what a worker answers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from ringcast_wire._common.errors import InvalidInputError, ProtocolError
from ringcast_wire._common.rows import check_row_id
from ringcast_wire._common.versions import WIRE_VERSION, Reads, check_version, check_version_of

MAX_REPLAY_WAIT_MS: Final = 300_000
MAX_REPLAY_WHY_CHARS: Final = 1_024
"""Characters of what an answer says for a person."""

_Name = Annotated[str, msgspec.Meta(max_length=64)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Revision = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class ReplayOutcome(StrEnum):
    """What came of handing a row over again."""

    ACCEPTED = "accepted"
    """The worker is at it; another answer follows."""
    HANDLED = "handled"
    FAILED_AGAIN = "failed_again"
    """It was given up again, and another dead letter of it is stored."""
    KEPT = "kept"
    """It was not handled, and no other dead letter was made of it."""


class ReplayRequest(msgspec.Struct, frozen=True, array_like=True):
    """Asks for a row to be handed over again, as it is now.

    The owner of the partition does it, or only ``worker_id`` if that is not empty; for a ``group`` the agent whose
    worker it is. It is handed over once all up to ``revision`` of the partition, in ``history``, has been.
    """

    wire_version: int
    id: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
    partition: Annotated[int, msgspec.Meta(ge=0, le=4095)]
    row_id: str
    revision: _Revision
    history: _Name
    worker_id: _Name
    group: _Name
    replays: _Count
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_REPLAY_WAIT_MS)]
    """How long it may wait before it is handed over."""
    reads: Reads = WIRE_VERSION


class ReplayAnswer(msgspec.Struct, frozen=True, array_like=True):
    """What a worker says to a request with this ``id``. ``version``: that of the row as it was handed over."""

    wire_version: int
    id: str
    outcome: ReplayOutcome
    version: _Revision = 0
    why: str = ""


_request = msgspec.msgpack.Decoder(ReplayRequest)
_answer = msgspec.msgpack.Decoder(ReplayAnswer)


def encode_replay(message: ReplayRequest | ReplayAnswer) -> bytes:
    """A request or an answer as bytes."""
    return msgspec.msgpack.encode(message)


def decode_replay_request(data: bytes) -> ReplayRequest:
    """Reads a request.

    Raises:
        ProtocolError: it is not one.
    """
    try:
        request = _request.decode(data)
        check_row_id(request.row_id)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, InvalidInputError) as error:
        check_version_of(data, "request to replay")
        raise ProtocolError(f"request to replay of {len(data)} bytes can't be read: {error}") from error
    check_version(request.wire_version, "request to replay")
    return request


def decode_replay_answer(data: bytes) -> ReplayAnswer:
    """Reads an answer.

    Raises:
        ProtocolError: it is not one.
    """
    try:
        answer = _answer.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        check_version_of(data, "answer to a replay")
        raise ProtocolError(f"answer to a replay of {len(data)} bytes can't be read: {error}") from error
    check_version(answer.wire_version, "answer to a replay")
    return answer
