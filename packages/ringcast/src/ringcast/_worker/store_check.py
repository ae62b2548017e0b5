"""Whether the store is still the one that the worker has joined."""

from __future__ import annotations

import asyncio
import random

from ringcast_wire import (
    Backoff,
    EventLog,
    MismatchError,
    RingcastError,
    StoreDeletedError,
    StoreSettings,
    UnavailableError,
)

from ringcast._bus.buckets import Buckets
from ringcast._coordination.store_settings import StoreMetadata, load_settings


class StoreCheck:
    """Reads the settings of the store again when a config key has another history, or answers that make no sense.

    Now and then also while a config key was never written: it has no history to tell by.

    A store can be deleted and created again under its workers. With another strategy, for one, they would go on sharing
    the partitions out by the old one, and some of the partitions would have no owner. Such a worker ends: the next one
    joins what there is now. One that shares nothing out (``observes``) goes on as long as the partitions are the same.
    """

    def __init__(self, buckets: Buckets, store: str, settings: StoreSettings, log: EventLog, *, observes: bool) -> None:
        self._buckets = buckets
        self._store = store
        self._settings = settings
        self._names = ("mode", "partition_count") if observes else settings.__struct_fields__
        self._log = log
        self._wanted = asyncio.Event()

    def look_soon(self) -> None:
        """Something hints at another store of this name."""
        self._wanted.set()

    async def run(self) -> None:
        """Looks whenever it is wanted, until cancelled.

        Raises:
            UnavailableError: the store has other settings than those that the worker has joined with.
            MismatchError: it needs another version of this package.
        """
        backoff = Backoff(random.random)
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                found = await load_settings(self._buckets, self._store)
            except MismatchError:
                raise
            except StoreDeletedError:
                pass  # answers to fetches say so, too
            except RingcastError:  # it is being made, for instance
                self._wanted.set()
                await asyncio.sleep(backoff.next_s())
            else:
                backoff.reset()
                self._compare(found)

    def _compare(self, found: StoreMetadata) -> None:
        """A worker that runs while its store finishes migrating has joined with the settings of before."""
        others = self._others(found.settings)
        if others and self._others(found.created):
            why = f"store {self._store!r} was created again with other settings: {', '.join(others)}"
            self._log.error("worker.store_recreated", error=why)
            raise UnavailableError(why)

    def _others(self, found: StoreSettings) -> list[str]:
        pairs = ((name, getattr(found, name), getattr(self._settings, name)) for name in self._names)
        return [f"{name} {now} in place of {before}" for name, now, before in pairs if now != before]
