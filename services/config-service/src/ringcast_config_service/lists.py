"""Long answers: pages of rows, cut into messages that any gRPC client takes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Final, TypeVar

from ringcast_wire import limits
from ringcast_wire.grpc import pb

from ringcast_config_service.transport_input import Context, send

T = TypeVar("T")
M = TypeVar("M", pb.Row, pb.Revision)

_MESSAGE_BYTES: Final = 1 * limits.MIB
"""What a message has at most, unless one row alone is larger; clients take 4 MiB by default."""
_FIELD_BYTES: Final = 8
"""What a message of its own adds to the one that it is in."""


async def send_pages(
    context: Context,
    pages: AsyncGenerator[list[T], None],
    to_message: Callable[[T], M],
    pack: Callable[[list[M]], object],
) -> None:
    """Sends pages to their end; the snapshot behind them ends with it, or when nobody reads."""
    async with aclosing(pages):
        async for page in pages:
            for part in parts(map(to_message, page)):
                await send(context, pack(part))


def parts(messages: Iterable[M], most_bytes: int = _MESSAGE_BYTES) -> Iterator[list[M]]:
    """Cuts where the encoded messages together would get larger than this."""
    part: list[M] = []
    total = 0
    for message in messages:
        size = message.ByteSize() + _FIELD_BYTES
        if part and total + size > most_bytes:
            yield part
            part, total = [], 0
        part.append(message)
        total += size
    if part:
        yield part
