"""The ends of processes, as the kernel tells of them: a closed socket proves nothing, and a number is used again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

_NAMESPACES: Final = re.compile(r"^NSpid:\s+([\d\s]+)$", re.MULTILINE)
_MAX_STATUS_BYTES: Final = 64 * 1024


class ProcessEnd(Protocol):
    """A process whose end will be known."""

    def on_end(self, callback: Callable[[], None]) -> None:
        """Calls back once, when the process has ended; to be called once."""

    def close(self) -> None:
        """Looks after it no longer."""


class PidFd:
    """One process, by a descriptor that stays its own when its number is given to another (``pidfd_open``)."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        self._loop = asyncio.get_running_loop()

    @classmethod
    def open(cls, pid: int, claimed: int) -> PidFd | None:
        """The process at the other end of a connection, if its end can be known.

        ``pid``: the one that connected, as the kernel says; ``claimed``: what the process itself takes for its number,
        in a container of its own maybe. They differ where the connection was handed down to a child, which may live on.
        ``None`` for that, for a process that is not to be seen from here (another PID namespace), and where the kernel
        has no such descriptors (before Linux 5.3).
        """
        if pid <= 0 or not hasattr(os, "pidfd_open"):
            return None
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return None
        # Read after the descriptor was opened. If the number is another process's by now, the one that connected has
        # ended: what is then said is true, only late.
        if _own_number(pid) != claimed:
            os.close(descriptor)
            return None
        return cls(descriptor)

    def on_end(self, callback: Callable[[], None]) -> None:
        """Calls back once, when all threads of the process have ended."""

        def ended() -> None:
            self.close()
            callback()

        assert self._descriptor is not None
        self._loop.add_reader(self._descriptor, ended)

    def close(self) -> None:
        """Looks after it no longer; a second time does nothing."""
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


def _own_number(pid: int) -> int | None:
    """The number of a process as it sees it itself: the last of those that it has in nested namespaces."""
    with contextlib.suppress(OSError, ValueError):
        with Path(f"/proc/{pid}/status").open(encoding="ascii", errors="replace") as file:
            found = _NAMESPACES.search(file.read(_MAX_STATUS_BYTES))
        return int(found[1].split()[-1]) if found is not None else None
    return None
