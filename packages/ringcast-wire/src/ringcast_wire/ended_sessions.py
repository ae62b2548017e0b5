"""The record in which an agent says which processes it has seen end, and what others believe of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple

import msgspec

from ringcast_wire._common.errors import LimitExceededError, ProtocolError
from ringcast_wire.owner_records import MAX_NUMBER, State

MAX_GONE: Final = 256
"""Workers of a key that an agent names: those that ended last."""
MAX_GONE_BYTES: Final = 32 * 1024

_Number = Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)]
_Name = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]


class Span(NamedTuple):
    """Sessions of one process of a worker for one key, from the first to the last; all between are of it, too."""

    first: int
    last: int

    def has(self, number: int) -> bool:
        """Whether a session is one of them."""
        return self.first <= number <= self.last


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    gone: Annotated[tuple[tuple[_Name, _Number, _Number], ...], msgspec.Meta(max_length=MAX_GONE)]


def encode_gone(gone: Mapping[str, Span]) -> bytes:
    """Workers and the sessions that are over, as JSON.

    Raises:
        LimitExceededError: they are more than ``MAX_GONE``.
    """
    if len(gone) > MAX_GONE:
        raise LimitExceededError(f"gone has {len(gone)} workers: at most {MAX_GONE} are allowed")
    return msgspec.json.encode({"gone": [(worker_id, *span) for worker_id, span in gone.items()]})


def decode_gone(data: bytes, revision: int) -> dict[str, Span]:
    """Reads the record that stands at ``revision``.

    Raises:
        ProtocolError: it is not one.
    """
    if len(data) > MAX_GONE_BYTES:
        raise ProtocolError(f"gone takes {len(data)} bytes: at most {MAX_GONE_BYTES} are allowed")
    try:
        record = msgspec.json.decode(data, type=_Record)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f"gone of {len(data)} bytes can't be read: {error}") from error
    found = {worker_id: Span(first, last) for worker_id, first, last in record.gone}
    if len(found) != len(record.gone):
        raise ProtocolError("gone names a worker twice")
    # A process may have lied to its agent: no session had begun when this was written that has a higher number.
    return {worker_id: span for worker_id, span in found.items() if span.first <= span.last <= revision}


def believed(gone: Mapping[str, Mapping[str, Span]], states: Mapping[str, State]) -> dict[str, Span]:
    """The sessions that are over, of what agents say (by agent, then by worker).

    An agent is believed of the workers that name it in their own states, and of no others: so it can do no harm to
    workers of other hosts.
    """
    found = {}
    for worker_id, state in states.items():
        span = gone.get(state.agent, {}).get(worker_id) if state.agent else None
        if span is not None:
            found[worker_id] = span
    return found
