"""Following config keys for subscribers: a worker for each that sees all of the key and takes part in nothing."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any, Final

import msgspec
from ringcast import (
    Change,
    InvalidInputError,
    KeyDeletedError,
    LimitExceededError,
    MismatchError,
    StoreDeletedError,
    UnknownStoreError,
    ValueSealedError,
    Worker,
)
from ringcast.hosting import leave_sealed
from ringcast.metrics import PrometheusMetrics
from ringcast_wire import Backoff, EventLog, event_within, names

from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.dapr.items import item_of
from ringcast_heartbeat_agent.dapr.subscription import Since, Subscription
from ringcast_heartbeat_agent.errors import SealedError, StoppedError
from ringcast_heartbeat_agent.followers import Follower
from ringcast_heartbeat_agent.opening import Opener

log = EventLog(logging.getLogger(__name__))

FINAL: Final = (
    UnknownStoreError,
    StoreDeletedError,
    KeyDeletedError,
    MismatchError,
    InvalidInputError,
    LimitExceededError,
)
"""What a worker is refused with for good; anything else is tried again, however long it takes."""
_RETRY_FIRST_S: Final = 0.5
_RETRY_MOST_S: Final = 10.0


class Position:
    """The revisions after which a subscriber of a key gets updates, one a partition.

    Without ``heads`` it begins with nothing: every row is a change.
    """

    __slots__ = ("heads", "history")

    def __init__(self, history: str = "", heads: list[int] | None = None) -> None:
        self.history = history
        self.heads = heads

    def since(self, partition: int) -> Since:
        """The revision of one partition."""
        heads = self.heads or []  # of a store that was created again there may be more partitions
        return Since(heads[partition] if partition < len(heads) else 0, self.history)


class KeyObserver(Follower):
    """The worker of one config key, and the subscriptions that hear of its changes.

    A subscription is taken at once. As long as the worker holds the key it is offered every change as it comes. What
    was committed before that, and after the subscription began, it reads. A worker that ends is replaced.
    """

    def __init__(self, config: Config, store: str, key: str, metrics: PrometheusMetrics | None, opener: Opener) -> None:
        super().__init__(store, key)
        self._opener = opener
        self.worker_id = names.agent_observer_id(config.agent_id, store, key)
        self.subscribers: dict[Subscription, Position | None] = {}
        """The revisions after which subscribers that have not been offered anything get updates."""
        self._config = config
        self._metrics = metrics
        self._worker: Worker | None = None
        self._loop = asyncio.get_running_loop()  # other threads ask how stale it is
        self._handed: dict[int, int] = {}
        """The highest version of each partition that was handed over while it was not live."""
        self._live = False
        self._not_live_since = self._loop.time()
        self._stopping = asyncio.Event()
        self._reported_stale = False

    @property
    def live(self) -> bool:
        """Whether it holds the key, so that changes are offered as they come."""
        return self._live

    @property
    def idle(self) -> bool:
        return not self.subscribers

    @property
    def history(self) -> str:
        """The history of the revisions that it has."""
        return self._worker.history(self.key) if self._live and self._worker is not None else ""

    @property
    def partition_count(self) -> int:
        """Of the store; 0 as long as it is not known."""
        return self._worker.settings.partition_count if self._live and self._worker is not None else 0

    @property
    def staleness_s(self) -> float:
        """For how long changes may have been missed. A worker that has only begun to load does not count yet."""
        worker = self._worker
        if self._live and worker is not None:
            return worker.staleness(self.key)
        away_s = self._loop.time() - self._not_live_since
        return away_s if away_s > self._config.subscribe_timeout_s else 0.0

    def add(self, subscription: Subscription, position: Position | None) -> None:
        """Lets a subscription hear of every change after ``position``; ``None``: from now on, if it is live."""
        self.subscribers[subscription] = position
        subscription.followed.add(self.key)
        if self._live and position is not None:
            self._begin(subscription, position)

    def discard(self, subscription: Subscription) -> None:
        """The subscription hears of nothing more."""
        self.subscribers.pop(subscription, None)

    async def run(self) -> None:
        """Follows the key until :meth:`stop`, through every outage; what it is refused with for good ends it."""
        backoff = Backoff(random.random, first_s=_RETRY_FIRST_S, most_s=_RETRY_MOST_S)
        while not self._stopping.is_set():
            worker = self._worker = self._make()
            try:
                await worker.start()
                await worker.wait_ready()
                backoff.reset()
                self._go_live(worker)
                await worker.wait_closed()
                why: object = "its worker has ended"
            except FINAL as error:
                self.leaving = True
                self.end(str(error))
                return
            except Exception as error:  # noqa: BLE001  # whatever it is, the streams live and another worker begins
                why = error
            finally:
                self._leave(worker)
                await worker.stop()
            if self._stopping.is_set():
                return
            pause_s = backoff.next_s()
            log.warning("observer.worker_ended", store=self.store, key=self.key, error=why, retry_in_s=pause_s)
            await event_within(self._stopping, pause_s)

    async def stop(self) -> None:
        self._stopping.set()
        if self._worker is not None:
            await self._worker.stop()

    def end(self, why: str) -> None:
        error = StoppedError(f"updates of {self.store}/{self.key} have stopped: {why}")
        for subscription in list(self.subscribers):
            subscription.end(error)

    def look(self, now: float) -> None:
        """Logs the begin of an outage that is longer than ``stale_after``, and its end."""
        stale_s = self.staleness_s
        if stale_s > self._config.stale_after_s and not self._reported_stale:
            self._reported_stale = True
            log.warning(
                "observer.stale",
                store=self.store,
                key=self.key,
                staleness_s=stale_s,
                subscriptions=len(self.subscribers),
            )
        elif not stale_s and self._reported_stale:
            self._reported_stale = False
            log.info("observer.current", store=self.store, key=self.key)

    def status(self) -> dict[str, Any]:
        worker = self._worker if self._live else None
        return {
            "store": self.store,
            "key": self.key,
            "worker_id": self.worker_id,
            "observes": True,
            "ready": self._live,
            "partitions": len(worker.owned(self.key)) if worker is not None else 0,
            "rows": worker.row_count(self.key) if worker is not None else 0,
            "staleness_s": self.staleness_s,
            "subscriptions": len(self.subscribers),
        }

    def _make(self) -> Worker:
        config = self._config
        login = msgspec.structs.asdict(config.nats_login)
        given: dict[str, Any] = {name: value for name, value in login.items() if value}
        worker = Worker(
            store=self.store,
            keys=[self.key],
            servers=config.nats,
            worker_id=self.worker_id,
            observe=True,
            handler=self._on_change,
            # Set here, so that no environment variable sets it otherwise.
            cache_dir=config.cache_dir,
            jetstream_api=config.jetstream_api,
            agent="",
            key_ring="",
            labels=(),
            metrics=self._metrics,
            **given,
        )
        leave_sealed(worker)
        return worker

    def _go_live(self, worker: Worker) -> None:
        """From here on changes are offered as they come; nothing is waited for, so none falls in between."""
        self._live = True
        for subscription, position in list(self.subscribers.items()):
            if position is not None:
                self._begin(subscription, position)

    def _begin(self, subscription: Subscription, position: Position) -> None:
        """Has a subscription read what has changed since its position, where anything has."""
        assert self._worker is not None
        self.subscribers[subscription] = None
        for partition, applied in self._worker.applied(self.key).items():
            since, reached = position.since(partition), max(applied, self._handed.get(partition, 0))
            if reached > since.revision or (reached and since.history != self.history):
                subscription.fall_behind((self.key, partition), since)

    def _leave(self, worker: Worker) -> None:
        """The worker has ended: subscribers go on from where it was once there is another."""
        if not self._live:
            return
        applied = worker.applied(self.key)
        self._handed = {}
        position = Position(self.history, [applied.get(number, 0) for number in range(worker.settings.partition_count)])
        for subscription, own in self.subscribers.items():
            if own is None:
                self.subscribers[subscription] = position
        self._live = False
        self._not_live_since = self._loop.time()

    def _on_change(self, change: Change) -> None:
        if not self._live:
            self._handed[change.partition] = max(change.version, self._handed.get(change.partition, 0))
            return
        if not self.subscribers:
            return
        try:
            item = item_of(self._opener.change(change))
        except ValueSealedError as error:
            self._refuse(change, error)
            return
        place = (change.key, change.partition)
        for subscription in self.subscribers:
            subscription.offer(change.key, change.row_id, item, place=place, history=self.history)

    def _refuse(self, change: Change, error: ValueSealedError) -> None:
        """Ends the subscriptions that a value which can't be opened is for: they would miss it otherwise."""
        ended = SealedError(f"updates of {self.store}/{self.key} have stopped: {error}")
        for subscription in list(self.subscribers):
            if subscription.wanted.name_of(change.key, change.row_id) is not None:
                subscription.end(ended)
