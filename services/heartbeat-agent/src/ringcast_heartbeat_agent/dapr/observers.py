"""What subscribers hear of keys: the changes as they come, and reads of those that they are behind with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from ringcast import UnavailableError, ValueSealedError
from ringcast.hosting import KeyReader, make_item
from ringcast.metrics import PrometheusMetrics
from ringcast_wire import PartitionRows, UnknownKeyError

from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.dapr.observer import KeyObserver, Position
from ringcast_heartbeat_agent.dapr.subscription import Changed, Place, Since, Subscription, Update
from ringcast_heartbeat_agent.errors import SealedError
from ringcast_heartbeat_agent.followers import Followers
from ringcast_heartbeat_agent.opening import Opener

_READS_AT_ONCE: Final = 8
"""Reads of what subscribers are behind with: each has a partition in memory, 8 MiB at most."""


class Observers:
    """Attaches subscriptions to the observers of keys, and reads what they are behind with."""

    def __init__(
        self, config: Config, followers: Followers, reader: KeyReader, metrics: PrometheusMetrics | None, opener: Opener
    ) -> None:
        self._opener = opener
        self._config = config
        self._followers = followers
        self._reader = reader
        self._metrics = metrics
        self._turns = asyncio.Semaphore(_READS_AT_ONCE)

    def __iter__(self) -> Iterator[KeyObserver]:
        return iter(self._followers.of(KeyObserver))

    def get(self, store: str, key: str) -> KeyObserver | None:
        """The observer of a key, if there is one; it may be leaving."""
        return self._followers.get(KeyObserver, store, key)

    def follow(self, store: str, key: str) -> KeyObserver:
        """The observer of a key, which begins if there is none.

        Raises:
            LimitExceededError: so many keys are followed already.
        """
        return self._followers.follow(
            KeyObserver, store, key, lambda: KeyObserver(self._config, store, key, self._metrics, self._opener)
        )

    async def attach(self, subscription: Subscription, key: str, *, with_rows: bool = False) -> None:
        """Lets a subscription hear of every change of a key that is committed from now on.

        ``with_rows``: first of every row that is there. It does not wait until the key is held.

        Raises:
            UnavailableError: the revisions to start from are not known, since the key is not loaded yet.
            LimitExceededError: so many keys are followed already.
            RingcastError: what the config service refused with.
        """
        observer = self.get(subscription.store, key)
        position: Position | None = None
        if observer is None or not observer.live or observer.leaving:
            position = await self._position(subscription.store, key)
        if with_rows:
            position = Position()
        if not subscription.ended:
            self.follow(subscription.store, key).add(subscription, position)

    def detach(self, subscription: Subscription) -> None:
        """The subscription hears of nothing more."""
        for key in subscription.followed:
            if (observer := self.get(subscription.store, key)) is not None:
                observer.discard(subscription)

    async def since(self, store: str, place: Place, since: Since) -> Changed:
        """What has changed in a partition after a revision; see :class:`Changes`.

        Raises:
            SealedError: a value is encrypted, and can't be opened.
        """
        key, partition = place
        async with self._turns:
            try:
                found, history = await self._reader.partition(
                    store, key, partition, since=since.revision, history=since.history
                )
            except UnknownKeyError:
                return Changed([], 0, False, 0)
        after = since.revision if history == since.history else 0
        updates = self._updates(store, key, partition, found, after)
        observer = self.get(store, key)
        live = frozenset(row.row_id for row in found.rows) if found.whole else frozenset[str]()
        return Changed(updates, found.revision, found.whole, observer.partition_count if observer else 0, live, history)

    def _updates(self, store: str, key: str, partition: int, found: PartitionRows, after: int) -> list[Update]:
        updates = []
        for row in found.rows:
            if row.version <= after:
                continue
            try:
                opened = self._opener.row(store, key, row)
            except ValueSealedError as error:
                raise SealedError(f"updates of {store}/{key} have stopped: {error}") from None
            item = make_item(key, partition, opened.value, row.version, row.deleted, opened.metadata)
            updates.append(Update(row.row_id, item))
        return updates

    async def _position(self, store: str, key: str) -> Position:
        try:
            async with asyncio.timeout(self._config.subscribe_timeout_s):
                heads = await self._reader.heads(store, key)
        except UnknownKeyError:
            return Position()
        except TimeoutError:
            raise UnavailableError(
                f"{store}/{key} has not begun within {self._config.subscribe_timeout_s:g} s: "
                "NATS or the config service does not answer"
            ) from None
        return Position(heads.history, heads.heads)
