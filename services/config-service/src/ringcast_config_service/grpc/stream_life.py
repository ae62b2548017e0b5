"""How long the streams of clients live: each ends in time, and its client opens another."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from ringcast_config_service.caller import Caller

GOODBYE_S: Final = 5.0
"""How long a client may go on sending after the answer that nothing more is read."""


class Ending(Protocol):
    """A stream that can be ended."""

    def end(self) -> None:
        """What was read is answered, and nothing that comes after it is written."""


class StreamLives:
    """The open streams of one kind. Each is ended after ``life_s`` at the latest: by then a client finds another
    instance, and one that only keeps its place has lost it. One that began with a token is ended when that expires."""

    def __init__(self, life_s: float) -> None:
        self._life_s = life_s
        self._open: set[Ending] = set()
        self._stopping = False

    @contextmanager
    def of(self, stream: Ending, caller: Caller) -> Iterator[None]:
        """The life of a caller's stream, for as long as it is served."""
        self._open.add(stream)
        # Not all at once: their clients come back at once.
        life_s = 0.0 if self._stopping else self._life_s * random.uniform(0.5, 1.0)  # noqa: S311
        if caller.expires_at_s is not None:
            life_s = max(0.0, min(life_s, caller.expires_at_s - time.time()))
        timer = asyncio.get_running_loop().call_later(life_s, stream.end)
        try:
            yield
        finally:
            timer.cancel()
            self._open.discard(stream)

    def stop(self) -> None:
        """Asks all streams to end, and those that begin from now on."""
        self._stopping = True
        for stream in self._open:
            stream.end()

    def resume(self) -> None:
        """Those that begin from now on may go on."""
        self._stopping = False
