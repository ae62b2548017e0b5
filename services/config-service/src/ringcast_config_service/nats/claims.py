"""The stores whose outbox this instance sweeps, and no other."""

from __future__ import annotations

import asyncio
from typing import Final

from ringcast_config_service.repository import OutboxRepository

_LEASE_MS: Final = 5_000
_RENEW_AFTER_S: Final = 2.5


class Claims:
    """Claims in the database, each for 5 s. ``name`` is that of the instance, and of this life of it alone."""

    def __init__(self, repository: OutboxRepository, name: str) -> None:
        self._repository = repository
        self._name = name
        self._since: dict[str, float] = {}

    async def claim(self, store: str) -> bool:
        """Whether this instance publishes what is left of a store; a claim of its own is renewed in time.

        Raises:
            RingcastError: the database can't be used.
        """
        since = self._since.get(store)
        if since is not None and _now() - since < _RENEW_AFTER_S:
            return True
        asked_at = _now()
        if await self._repository.claim_outbox(store, self._name, _LEASE_MS):
            self._since[store] = asked_at
            return True
        self._since.pop(store, None)
        return False

    def forget(self, store: str) -> None:
        """Renews a claim no more."""
        self._since.pop(store, None)

    async def release(self) -> None:
        """Lets another instance publish what is left, without waiting for the claims of this one to end."""
        self._since.clear()
        await self._repository.release_outbox(self._name)


def _now() -> float:
    return asyncio.get_running_loop().time()
