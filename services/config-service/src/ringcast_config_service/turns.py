"""A bound for each owner on what runs at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """So many at once of each owner; what comes later waits. An owner is forgotten with its last turn."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._owners: dict[str, tuple[asyncio.Semaphore, list[None]]] = {}

    @asynccontextmanager
    async def of(self, owner: str) -> AsyncIterator[None]:
        """A turn of an owner."""
        turns, users = self._owners.setdefault(owner, (asyncio.Semaphore(self._at_once), []))
        users.append(None)
        try:
            async with turns:
                yield
        finally:
            users.pop()
            if not users:
                del self._owners[owner]
