"""Long answers: pages of rows from snapshots, cut into messages that any gRPC client takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Final, TypeVar

from ringcast_service import Context
from ringcast_wire import UnavailableError, limits
from ringcast_wire.grpc import pb

from ringcast_config_service.caller import Caller
from ringcast_config_service.grpc.callers import caller_of
from ringcast_config_service.grpc.input import send
from ringcast_config_service.turns import Turns

T = TypeVar("T")
P = TypeVar("P")
M = TypeVar("M", pb.Row, pb.Revision, pb.RowDifference)

_MESSAGE_BYTES: Final = 1 * limits.MIB
"""What a message has at most, unless one row alone is larger; clients take 4 MiB by default."""
_FIELD_BYTES: Final = 8
"""What a message of its own adds to the one that it is in."""
_SLOW_S: Final = 2.0
"""A snapshot is not kept for a client that has not taken a page for so long."""
_SNAPSHOTS: Final = 8
"""As many as the repositories have."""
_SNAPSHOTS_OF_PRINCIPAL: Final = 6
_SNAPSHOTS_OF_CONNECTION: Final = 3
_TURN_TIMEOUT_S: Final = 30.0


class Lists:
    """Reads and sends lists, each from a snapshot that is kept for ``snapshot_s`` at most.

    A list that takes longer, or whose client is slow, goes on behind its last row in another snapshot. So a row that is
    there all the time is listed once, whatever happens; what was listed before shows what was there then. Callers take
    turns for the snapshots, so that one with many lists holds up no other.

    ``check_login`` raises for a call whose token was withdrawn meanwhile. It is asked before each further snapshot.
    """

    def __init__(self, snapshot_s: float, check_login: Callable[[Context], None]) -> None:
        self._snapshot_s = snapshot_s
        self._check_login = check_login
        self._all = asyncio.Semaphore(_SNAPSHOTS)
        self._of_principal = Turns(_SNAPSHOTS_OF_PRINCIPAL)
        self._of_connection = Turns(_SNAPSHOTS_OF_CONNECTION)

    async def send(
        self,
        context: Context,
        open_pages: Callable[[P | None, int], Awaitable[AsyncGenerator[list[T], None]]],
        limit: int,
        *,
        position: Callable[[T], P],
        to_message: Callable[[T], M],
        pack: Callable[[list[M]], object],
    ) -> None:
        """Sends a list to its end. ``open_pages`` opens a snapshot behind a position; 0 is no limit.

        Raises:
            RingcastError: it can't be read, or the client does not read it.
        """
        after: P | None = None
        left = limit
        sending: asyncio.Task[None] | None = None
        try:
            while True:
                if after is not None:
                    self._check_login(context)
                async with self._turn(caller_of(context)):
                    ends_s = asyncio.get_running_loop().time() + self._snapshot_s
                    async with aclosing(await open_pages(after, left)) as pages:
                        async for page in pages:
                            after, left = position(page[-1]), max(0, left - len(page))
                            messages = [pack(part) for part in parts(map(to_message, page))]
                            sending = asyncio.create_task(_send_all(context, messages))
                            if not await _sent(sending, ends_s):
                                break
                        else:
                            return
                assert sending is not None  # there is no way out of the loop before
                await sending  # with the snapshot given back
                if limit and not left:
                    return
        finally:
            if sending is not None:
                sending.cancel()
                # The call of a client that has gone fails: no error of the service, and asyncio would log it as one.
                await asyncio.gather(sending, return_exceptions=True)

    @asynccontextmanager
    async def _turn(self, caller: Caller) -> AsyncIterator[None]:
        """A turn for a snapshot."""
        turns = self._of_connection.of(caller.connection), self._of_principal.of(caller.principal), self._all
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(_TURN_TIMEOUT_S):
                    for turn in turns:
                        await stack.enter_async_context(turn)
            except TimeoutError as error:
                raise UnavailableError("too many lists are being read: try again later") from error
            yield


async def _send_all(context: Context, messages: Iterable[object]) -> None:
    for message in messages:
        await send(context, message)


async def _sent(sending: asyncio.Task[None], ends_s: float) -> bool:
    """Whether a page was taken so soon that the next may come from the same snapshot."""
    now_s = asyncio.get_running_loop().time()
    await asyncio.wait({sending}, timeout=max(0.0, min(_SLOW_S, ends_s - now_s)))
    if sending.done():
        sending.result()
    return sending.done() and asyncio.get_running_loop().time() < ends_s


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
