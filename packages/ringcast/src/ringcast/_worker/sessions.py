"""The sessions of all config keys of a worker, and the tasks that hand their changes to the application."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ringcast_wire import EventLog

from ringcast._common.stats import Stats
from ringcast._protocol.backlog import share_out
from ringcast._worker.session import KeySession


class KeySessions:
    """``by_key`` is empty until :meth:`begin`. Changes are handed over until :meth:`end_handlers`."""

    def __init__(self, log: EventLog) -> None:
        self.by_key: dict[str, KeySession] = {}
        self._log = log
        self._handing_over: set[asyncio.Task[None]] = set()

    def begin(self, sessions: Iterable[KeySession], handlers: asyncio.TaskGroup, max_ack_pending: int) -> None:
        """Starts to hand over the changes of these sessions, in tasks of ``handlers``."""
        self.by_key.update({session.key: session for session in sessions})
        share_out(max_ack_pending, [session.machine.backlog for session in self.by_key.values()])
        for session in self.by_key.values():
            self._handing_over.add(handlers.create_task(self._hand_over(session)))

    async def _hand_over(self, session: KeySession) -> None:
        try:
            await session.deliveries.run()
        finally:
            self.stop_handlers()  # of the other keys too: one that fails ends the worker

    async def drain(self, timeout_s: float) -> None:
        """Waits until no handler is running or about to run; for so many seconds at most."""
        try:
            async with asyncio.timeout(timeout_s):
                for session in self.by_key.values():
                    await session.wait_until(lambda session=session: not session.deliveries.busy)  # type: ignore[misc]
        except TimeoutError:
            self._log.warning("handler.still_running", timeout_s=timeout_s)

    def stop_handlers(self) -> None:
        """From now on a cancellation of a handler's task ends it."""
        for session in self.by_key.values():
            session.applier.stopping.begin()

    async def end_handlers(self) -> None:
        """Hands nothing over any more; waits until all tasks have ended."""
        self.stop_handlers()
        for task in self._handing_over:
            task.cancel()
        if self._handing_over:
            await asyncio.wait(self._handing_over)

    async def revoke_all(self) -> None:
        """Announces to the application that the worker has lost all partitions."""
        for key, session in self.by_key.items():
            if known := session.machine.announcements.known:
                await session.applier.announce(key, False, known, at_end=True)

    def filters_confirmed(self, subjects: frozenset[str]) -> None:
        """The server delivers these subjects."""
        for session in self.by_key.values():
            session.ownership.filters_confirmed(subjects)

    def verify(self) -> None:
        """Compares all keys with the service soon."""
        for session in self.by_key.values():
            session.anti_entropy.compare_now()

    def stats(self) -> Stats:
        """The counters of all keys together."""
        return sum((session.machine.stats for session in self.by_key.values()), Stats())

    def close(self, error: BaseException | None) -> None:
        """Ends all waits with the error."""
        for session in self.by_key.values():
            session.close(error)
