"""The keys that subscribers follow now: from the first subscription to one until some time after the last."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from ringcast import LimitExceededError, UnavailableError
from ringcast.hosting import KeyReader
from ringcast.metrics import PrometheusMetrics
from ringcast_wire import UnknownKeyError

from ringcast_heartbeat_agent.clients import check_share
from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.items import row_item
from ringcast_heartbeat_agent.observer import KeyObserver, Position
from ringcast_heartbeat_agent.subscription import Changed, Place, Since, Subscription, Update

_WATCH_S: Final = 0.25
_READS_AT_ONCE: Final = 8
"""Reads of what subscribers are behind with: each has a partition in memory, 8 MiB at most."""


class Observers:
    """Begins and ends the observers of keys, and reads what their subscribers are behind with."""

    def __init__(
        self, config: Config, tasks: asyncio.TaskGroup, reader: KeyReader, metrics: PrometheusMetrics | None
    ) -> None:
        self._config = config
        self._tasks = tasks
        self._reader = reader
        self._metrics = metrics
        self._observers: dict[tuple[str, str], KeyObserver] = {}
        self._running: dict[KeyObserver, asyncio.Task[None]] = {}
        self._stops: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(_READS_AT_ONCE)

    def __iter__(self) -> Iterator[KeyObserver]:
        return iter(list(self._observers.values()))

    def __len__(self) -> int:
        return len(self._observers)

    @property
    def staleness_s(self) -> float:
        """The highest of all keys."""
        return max((observer.staleness_s for observer in self), default=0.0)

    async def attach(self, subscription: Subscription, key: str, *, with_rows: bool = False) -> None:
        """Lets a subscription hear of every change of a key that is committed from now on.

        ``with_rows``: first of every row that is there. It does not wait until the key is held.

        Raises:
            UnavailableError: nobody says from which revisions on, since the key is not held yet.
            LimitExceededError: so many keys are followed already.
            RingcastError: what the config service refused with.
        """
        observer = self._observers.get((subscription.store, key))
        position: Position | None = None
        if observer is None or not observer.live or observer.leaving:
            position = await self._position(subscription.store, key)
        if with_rows:
            position = Position()
        if not subscription.ended:
            self._observer(subscription.store, key).add(subscription, position)

    def detach(self, subscription: Subscription) -> None:
        """The subscription hears of nothing more."""
        for key in subscription.followed:
            if (observer := self._observers.get((subscription.store, key))) is not None:
                observer.discard(subscription)

    async def since(self, store: str, place: Place, since: Since) -> Changed:
        """What has changed in a partition after a revision; see :class:`Changes`."""
        key, partition = place
        async with self._turns:
            try:
                found, history = await self._reader.partition(
                    store, key, partition, since=since.revision, history=since.history
                )
            except UnknownKeyError:
                return Changed([], 0, False, 0)
        after = since.revision if history == since.history else 0
        updates = [
            Update(row.row_id, row_item(key, partition, row.value, row.version, row.deleted, row.metadata))
            for row in found.rows
            if row.version > after
        ]
        observer = self._observers.get((store, key))
        live = frozenset(row.row_id for row in found.rows) if found.whole else frozenset[str]()
        return Changed(updates, found.revision, found.whole, observer.partition_count if observer else 0, live, history)

    async def run(self) -> None:
        """Looks after the observers until cancelled: logs outages, and ends what nobody needs."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_WATCH_S)
            for observer in self:
                observer.tell_stale()
                self._look_at(observer, loop.time())

    async def stop(self) -> None:
        """Leaves every key."""
        for observer in self:
            self._leave(observer)
        tasks = {*self._running.values(), *self._stops}
        try:
            if tasks:
                await asyncio.wait(tasks)
        finally:
            for task in tasks:  # whoever waits has waited long enough
                task.cancel()

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

    def _observer(self, store: str, key: str) -> KeyObserver:
        place = store, key
        before = self._observers.get(place)
        if before is not None and not before.leaving:
            return before
        if before is None and len(self._observers) >= self._config.max_keys:
            raise LimitExceededError(
                f"the agent follows {len(self._observers)} config keys: at most {self._config.max_keys} are allowed"
            )
        clients = (observer.client for observer in self._observers.values())
        check_share("config keys", clients, self._config.max_keys, self._config.client_share)
        observer = self._observers[place] = KeyObserver(self._config, store, key, self._metrics)
        leaving = self._running.get(before) if before is not None else None
        task = self._tasks.create_task(self._run(observer, leaving), name=f"observer-{store}-{key}")
        self._running[observer] = task
        return observer

    async def _run(self, observer: KeyObserver, leaving: asyncio.Task[None] | None) -> None:
        try:
            if leaving is not None:  # its worker has the name until it is gone
                await asyncio.wait({leaving})
            await observer.run()
        finally:
            observer.end("the agent no longer follows it")  # whoever is left, whatever it ended with
            self._running.pop(observer, None)
            if self._observers.get((observer.store, observer.key)) is observer:
                del self._observers[observer.store, observer.key]

    def _look_at(self, observer: KeyObserver, now: float) -> None:
        if observer.subscribers:
            observer.idle_since = None
        elif observer.idle_since is None:
            observer.idle_since = now
        elif now - observer.idle_since >= self._config.linger_s:
            self._leave(observer)

    def _leave(self, observer: KeyObserver) -> None:
        if observer.leaving:
            return
        observer.leaving = True
        task = self._tasks.create_task(observer.stop(), name=f"observer-{observer.store}-{observer.key}-stop")
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)
