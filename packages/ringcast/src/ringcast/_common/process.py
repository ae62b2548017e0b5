"""The identity of this process, and what a fork of it must not go on with.

A child that the application forks has a copy of every worker: with the parent's identity, its connection to NATS, and
the lock of its cache. None of it is the child's. It has an identity of its own from then on, closes its copies of the
locks (the parent keeps them), and workers refuse to be used there; one that was not started yet may be.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable

from ringcast_wire import LeaseRecord


class Process:
    """What is this process's alone."""

    def __init__(self) -> None:
        self.incarnation = ""
        """Differs from that of the process that had its worker ids before."""
        self.forks = 0
        """How many forks lie between the process that imported this package and this one."""
        self.running: set[tuple[str, ...]] = set()
        """Its workers: the lease tells processes apart, not workers of one."""
        self._locks: set[int] = set()
        self._forgets: list[Callable[[], None]] = []
        self._renew()

    def _renew(self) -> None:
        self.incarnation = secrets.token_hex(8)
        self.running.clear()

    def record(self) -> LeaseRecord:
        """What a lease that is taken now says of this process."""
        started_at_ms = int(time.time() * 1000)
        return LeaseRecord(
            incarnation=self.incarnation, host=socket.gethostname(), pid=os.getpid(), started_at_ms=started_at_ms
        )

    def after_fork(self) -> None:
        """Called in a child that was forked off."""
        self.forks += 1
        self._renew()
        for file in self._locks:
            os.close(file)  # does not unlock: the parent has the same lock open
        self._locks.clear()
        for forget in self._forgets:
            forget()

    def forgets(self, forget: Callable[[], None]) -> None:
        """Calls this in every child that is forked off."""
        self._forgets.append(forget)

    def open_lock(self, file: int) -> None:
        """This open file holds a lock, or is to."""
        self._locks.add(file)

    def close_lock(self, file: int) -> None:
        """Closes a file that may hold a lock; in a child that was forked off meanwhile it is closed already."""
        if file in self._locks:
            self._locks.remove(file)
            os.close(file)

    def check(self, forks: int, what: str) -> None:
        """Refuses ``what`` if the process that it was started in is not this one, but one that this was forked from.

        Raises:
            RuntimeError: the process had another number of ``forks`` then than now.
        """
        if forks != self.forks:
            raise RuntimeError(
                f"{what} runs in the process that this one was forked from (its parent goes on with it): "
                "make and start another one in this process"
            )


this_process = Process()
os.register_at_fork(after_in_child=this_process.after_fork)
