"""An instance that drains: it takes no new calls, lets those that run end, and ends those that take too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from ringcast_wire import UnavailableError

from ringcast_config_service.grpc.admission import CallKind

_GOES_ON: Final = frozenset({CallKind.HEALTH_CHECK, CallKind.HEALTH_WATCH})
"""Probes learn by these that the instance does not serve."""
_ENDED: Final = frozenset({CallKind.LIST, CallKind.REFLECTION})
"""Streams that last for as long as their client likes. Those of writes end by themselves (:mod:`.stream_life`)."""


class Draining:
    """Whether the instance takes calls. What it refuses had no effect, and may be made at another instance."""

    def __init__(self) -> None:
        self.on = False
        self._streams: set[asyncio.Timeout] = set()

    def check(self, kind: CallKind) -> None:
        """Looks whether a new call may begin.

        Raises:
            UnavailableError: not here.
        """
        if self.on and kind not in _GOES_ON:
            raise _elsewhere("the call was not begun")

    def end_streams(self) -> None:
        """Ends the streams of answers that still run, with the error that another instance may answer."""
        now = asyncio.get_running_loop().time()
        for stream in self._streams:
            stream.reschedule(now)

    @asynccontextmanager
    async def bounded(self, kind: CallKind) -> AsyncIterator[None]:
        """The life of a call, which :meth:`end_streams` ends if it is a stream of answers.

        Raises:
            UnavailableError: it was ended.
        """
        if kind not in _ENDED:
            yield
            return
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._streams.add(limit)
                try:
                    yield
                finally:
                    self._streams.discard(limit)
        except TimeoutError:
            if not limit.expired():
                raise
            raise _elsewhere("the rest of the answer is not sent") from None


def _elsewhere(what: str) -> UnavailableError:
    return UnavailableError(f"this config service is draining, and {what}: call another", elsewhere=True)
