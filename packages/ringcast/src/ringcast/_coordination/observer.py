"""The lease of a worker that only observes: it owns no partitions, so no other worker has to know that it lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class NoLease:
    """Stands in the place of a lease, and is always held."""

    id_in_use = False
    failed_writes = 0
    id = ""
    ids: frozenset[str] = frozenset()
    held = True
    by_agent = False
    sees_end = False

    def on_change(self, callback: Callable[[], None]) -> None:
        """It never changes."""

    def recorded(self, lease: str) -> None:
        """There are no records."""

    def check(self) -> None:
        """There is nothing to look after."""

    async def grant(self) -> None:
        """Returns at once: there is nothing to wait for."""

    async def keep_alive(self) -> None:
        """Waits until it is cancelled: there is nothing to refresh."""
        await asyncio.get_running_loop().create_future()

    async def revoke(self) -> None:
        """There is nothing to revoke."""

    def detach(self) -> bool:
        """No other worker has it."""
        return True
