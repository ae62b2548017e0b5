"""Taking part in config keys for groups: one worker for each key, as long as a group of it has consumers."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from ringcast import Change, LimitExceededError, UnavailableError, Worker
from ringcast.metrics import PrometheusMetrics
from ringcast_core import row_partition
from ringcast_wire import Row, names

from ringcast_heartbeat_agent.clients import check_share, current
from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.errors import StoppedError
from ringcast_heartbeat_agent.groups import Group

log = logging.getLogger(__name__)

_WATCH_S: Final = 0.25


class KeyFeed:
    """A worker of one config key, and the groups that share its changes out."""

    def __init__(self, config: Config, store: str, key: str, metrics: PrometheusMetrics | None) -> None:
        self.store = store
        self.key = key
        self.groups: dict[str, Group] = {}
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once it holds what it owns, or can't."""
        self.client = current.get()
        """Who was the first to want it."""
        self.coming = 0
        """How many wait for that."""
        self.idle_since: float | None = None
        self.leaving = False
        login = msgspec.structs.asdict(config.nats_login)
        given: dict[str, Any] = {name: value for name, value in login.items() if value}
        self.worker_id = names.agent_worker_id(config.agent_id, store, key)
        self._revoked: set[int] = set()
        self._worker = Worker(
            store=store,
            keys=[key],
            servers=config.nats,
            worker_id=self.worker_id,
            handler=self._on_change,
            on_assigned=lambda _, partitions: self._revoked.difference_update(partitions),
            on_revoked=lambda _, partitions: self._revoked.update(partitions),
            handler_timeout_s=0.0,  # it waits while a group's window is full
            # Said here, so that no variable of the surroundings says otherwise: what was handed over and not settled
            # when the agent died is to come again, and so is every row.
            cache_dir=config.cache_dir,
            jetstream_api=config.jetstream_api,
            agent="",  # it dies with the agent
            metrics=metrics,
            **given,
        )

    async def run(self) -> None:
        """Follows the key until :meth:`stop`; what goes wrong is told to the consumers."""
        try:
            await self._worker.start()
            await self._worker.wait_ready()
        except BaseException as error:
            await self._worker.stop()
            self._fail(error)
            if isinstance(error, Exception):
                return
            raise
        if not self.ready.done():
            self.ready.set_result(None)
        why = "the agent no longer follows it"
        try:
            await self._worker.wait_closed()
        except Exception as error:  # noqa: BLE001  # whatever it is, it is told to the consumers
            why = str(error)
        self.close_groups(why)

    @property
    def staleness_s(self) -> float:
        """For how long changes may have been missed."""
        return self._worker.staleness(self.key) if self._is_ready else 0.0

    @property
    def idle(self) -> bool:
        """Whether nobody needs it."""
        return not self.coming and not self.groups

    def owns(self, partition: int) -> bool:
        """Whether a partition that changes came of is still this host's."""
        return partition not in self._revoked

    def row_ids(self) -> list[str]:
        """The live rows held now."""
        return [row.row_id for row in self._worker.rows(self.key)]

    def change_of(self, row_id: str) -> Change | None:
        """A live row as it is now, as if it had just changed."""
        row = self._worker.get(self.key, row_id)
        return None if row is None else self._change(row)

    def status(self) -> dict[str, Any]:
        """How its worker is."""
        ready = self._is_ready
        return {
            "store": self.store,
            "key": self.key,
            "worker_id": self.worker_id,
            "ready": ready,
            "partitions": len(self._worker.owned(self.key)) if ready else 0,
            "rows": self._worker.row_count(self.key) if ready else 0,
            "staleness_s": self.staleness_s,
            "subscriptions": 0,
        }

    def close_groups(self, why: str) -> None:
        """Ends the groups with an error: why updates have stopped."""
        error = StoppedError(f"updates of {self.store}/{self.key} have stopped: {why}")
        for group in self.groups.values():
            group.close(error)

    def end_groups(self, now: float, linger_s: float) -> list[Group]:
        """Forgets groups that nobody belongs to any more; says which."""
        for group in self.groups.values():
            if group.empty_since is not None and now - group.empty_since >= linger_s:
                group.close()
        gone = [group for group in self.groups.values() if group.closed]
        for group in gone:
            del self.groups[group.name]
        return gone

    async def stop(self) -> None:
        """Leaves the key: its partitions go to others at once."""
        await self._worker.stop()

    @property
    def _is_ready(self) -> bool:
        return self.ready.done() and self.ready.exception() is None

    def _fail(self, error: BaseException) -> None:
        """Tells whoever waits for the start; a worker that was stopped meanwhile looks cancelled."""
        if not self.ready.done():
            told = error if isinstance(error, Exception) else UnavailableError("the agent no longer follows it")
            self.ready.set_exception(told)
            self.ready.exception()  # it may be that nobody waits any more

    def _change(self, row: Row) -> Change:
        number = row_partition(row.row_id, self._worker.settings.partition_count)
        return Change(self.store, self.key, number, row.row_id, row.value, row.version, metadata=row.metadata)

    def _on_change(self, change: Change) -> None:
        for group in self.groups.values():
            group.take(change)


class Feeds:
    """The keys that groups share now: from the first consumer of one until some time after the last."""

    def __init__(self, config: Config, tasks: asyncio.TaskGroup, metrics: PrometheusMetrics | None) -> None:
        self._config = config
        self._tasks = tasks
        self._metrics = metrics
        self._feeds: dict[tuple[str, str], KeyFeed] = {}
        self._running: dict[KeyFeed, asyncio.Task[None]] = {}
        self._stops: set[asyncio.Task[None]] = set()
        self.forgotten: Counter[str] = Counter()
        """What happened in groups that are gone, by event."""

    def __iter__(self) -> Iterator[KeyFeed]:
        return iter(list(self._feeds.values()))

    def __len__(self) -> int:
        return len(self._feeds)

    @property
    def staleness_s(self) -> float:
        """The highest of all feeds."""
        return max((feed.staleness_s for feed in self._feeds.values()), default=0.0)

    @asynccontextmanager
    async def ready(self, store: str, key: str) -> AsyncIterator[KeyFeed]:
        """A key that is followed, and whose rows are held; it stays so in the body.

        Raises:
            UnavailableError: what the worker owns was not loaded in time, or NATS has been out of reach for too long.
            LimitExceededError: so many keys are followed already.
            RingcastError: what the worker was refused with.
        """
        feed = await self._feed(store, key)
        feed.coming += 1
        try:
            try:
                async with asyncio.timeout(self._config.subscribe_timeout_s):
                    await asyncio.shield(feed.ready)
            except TimeoutError:
                raise UnavailableError(
                    f"{feed.store}/{key} could not be loaded within {self._config.subscribe_timeout_s:g} s: "
                    "NATS or the config service does not answer, or a worker of the same name has just died"
                ) from None
            if (stale_s := feed.staleness_s) > self._config.stale_after_s:
                raise UnavailableError(f"{feed.store}/{key} gets no updates: no word of it for {stale_s:.0f} s")
            yield feed
        finally:
            feed.coming -= 1

    async def run(self) -> None:
        """Looks after the feeds until cancelled: ends what nobody needs."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_WATCH_S)
            for feed in list(self._feeds.values()):
                self._look_at(feed, loop.time())

    async def stop(self) -> None:
        """Leaves every key; cancelled, it leaves them without giving their partitions up."""
        for feed in self._feeds.values():
            if not feed.leaving:
                self._leave(feed)
        tasks = {*self._running.values(), *self._stops}
        try:
            if tasks:
                await asyncio.wait(tasks)
        finally:
            for task in tasks:  # whoever waits has waited long enough
                task.cancel()

    async def _feed(self, store: str, key: str) -> KeyFeed:
        while (feed := self._feeds.get((store, key))) is not None and feed.leaving:
            await asyncio.wait({self._running[feed]})  # its worker has the name until it is gone
        if feed is None:
            if len(self._feeds) >= self._config.max_keys:
                raise LimitExceededError(
                    f"the agent follows {len(self._feeds)} config keys: at most {self._config.max_keys} are allowed"
                )
            clients = (feed.client for feed in self._feeds.values())
            check_share("config keys", clients, self._config.max_keys, self._config.client_share)
            feed = self._feeds[store, key] = KeyFeed(self._config, store, key, self._metrics)
            self._running[feed] = self._tasks.create_task(self._run(feed), name=f"feed-{store}-{key}")
        return feed

    async def _run(self, feed: KeyFeed) -> None:
        try:
            await feed.run()
        finally:
            self._running.pop(feed, None)
            if self._feeds.get((feed.store, feed.key)) is feed:
                del self._feeds[feed.store, feed.key]

    def _look_at(self, feed: KeyFeed, now: float) -> None:
        for group in feed.end_groups(now, self._config.linger_s):
            self.forgotten.update(group.counts())
        if not feed.idle:
            feed.idle_since = None
        elif feed.idle_since is None:
            feed.idle_since = now
        elif now - feed.idle_since >= self._config.linger_s and not feed.leaving:
            self._leave(feed)

    def _leave(self, feed: KeyFeed) -> None:
        feed.leaving = True
        task = self._tasks.create_task(feed.stop(), name=f"feed-{feed.store}-{feed.key}-stop")
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)
