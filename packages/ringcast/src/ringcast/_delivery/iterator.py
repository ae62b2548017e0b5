"""Changes as an asynchronous iterator."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Self

from ringcast._common.change import Change
from ringcast._delivery.gate import Admission, NotAdmittedError


class ChangeStream:
    """Passes changes from the handlers' side to an iterator. A change is done when the next one is requested.

    Bounded by the handlers: each of them puts one change and waits until it is done. ``begin`` lets the body of the
    loop start with a change: what it returns is ended when the body has ended, and a change that it refuses with a
    ``NotAdmittedError`` is passed over, and fails where it was put.
    """

    def __init__(self, first: Iterable[Change], *, begin: Callable[[Change], Admission | None]) -> None:
        self._waiting: deque[tuple[Change, asyncio.Future[None] | None]] = deque((change, None) for change in first)
        self._begin = begin
        self._current: asyncio.Future[None] | None = None
        self._admission: Admission | None = None
        self._more = asyncio.Event()
        self._closed = False
        self._error: BaseException | None = None

    async def put(self, change: Change) -> None:
        """Passes a change on and waits until it is done.

        Raises:
            NotAdmittedError: it may not be handed over any more.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((change, done))
        self._more.set()
        await done

    def close(self, error: BaseException | None) -> None:
        """There will be no more changes: the iterator ends, with an error if there is one."""
        self._closed, self._error = True, error
        self._more.set()

    def release(self) -> None:
        """The iterator is not read any more: what waits is done."""
        self._end_body()
        for _, done in self._waiting:
            if done is not None and not done.done():
                done.set_result(None)
        self._waiting.clear()

    def _end_body(self) -> None:
        """The body of the loop is done with its change."""
        if self._admission is not None:
            self._admission.end()
        if self._current is not None and not self._current.done():
            self._current.set_result(None)
        self._current = self._admission = None

    def _start_body(self, change: Change, done: asyncio.Future[None] | None) -> bool:
        try:
            self._admission = self._begin(change)
        except NotAdmittedError as error:
            if done is not None and not done.done():
                done.set_exception(error)
            return False
        self._current = done
        return True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        self._end_body()
        while True:
            while not self._waiting and not self._closed:
                self._more.clear()
                await self._more.wait()
            if self._closed:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            change, done = self._waiting.popleft()
            if self._start_body(change, done):
                return change
