"""What one message of the answer to a fetch says, for every client and transport."""

from __future__ import annotations

from collections.abc import Mapping

from ringcast_wire._common import names
from ringcast_wire._common.errors import UnavailableError, error_from_code
from ringcast_wire._messages.chunks import ChunkAssembler


def take_answer(parts: ChunkAssembler, headers: Mapping[str, str] | None, data: bytes) -> bytes | None:
    """Takes a message in; returns the whole answer with the last of its chunks.

    Raises:
        UnavailableError: no service has received the request.
        RingcastError: what the service refused with, or a damaged answer.
    """
    told = headers or {}
    if told.get("Status") == "503":
        raise UnavailableError("no config service answers: none is running on this NATS")
    if (code := told.get(names.HEADER_ERROR)) is not None:
        raise error_from_code(code, data.decode(errors="replace"))
    return parts.add(told.get(names.HEADER_CHUNK), data)
