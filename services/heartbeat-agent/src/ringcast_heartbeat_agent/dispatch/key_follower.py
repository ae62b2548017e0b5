"""Taking part in config keys for groups: one worker for each key, as long as a group of it has consumers."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import msgspec
from ringcast import (
    Change,
    Handler,
    KeyDeletedError,
    Listener,
    StoreDeletedError,
    UnavailableError,
    ValueSealedError,
    Worker,
    WorkerConfig,
)
from ringcast.hosting import WorkerLease, leave_sealed, loaded_of, row_ids_of, take_replays
from ringcast.metrics import PrometheusMetrics
from ringcast_core import row_partition
from ringcast_wire import Mode, ReplayAnswer, ReplayOutcome, ReplayRequest, Row, names

from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.dispatch.group import Group
from ringcast_heartbeat_agent.dispatch.replays import nothing, tell
from ringcast_heartbeat_agent.errors import ListDeletedError, SealedError, StoppedError
from ringcast_heartbeat_agent.followers import Follower, Followers
from ringcast_heartbeat_agent.opening import Opener

log = logging.getLogger(__name__)


class MakeWorker(Protocol):
    """Makes a worker that is still to be started: :class:`ringcast.Worker`, or one that runs without NATS."""

    def __call__(
        self,
        config: WorkerConfig,
        *,
        handler: Handler,
        on_assigned: Listener,
        on_revoked: Listener,
        metrics: PrometheusMetrics | None,
    ) -> Worker: ...


class KeyFollower(Follower):
    """A worker of one config key, and the groups that share its changes out."""

    def __init__(
        self,
        config: Config,
        store: str,
        key: str,
        metrics: PrometheusMetrics | None,
        forgotten: Counter[str],
        opener: Opener,
        make_worker: MakeWorker = Worker,
    ) -> None:
        super().__init__(store, key)
        self.refused: ValueSealedError | None = None
        """Why the key can't be shared out: values of it are encrypted, and there is no key ring."""
        self._opener = opener
        self.groups: dict[str, Group] = {}
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once it holds what it owns, or can't."""
        self.coming = 0
        """How many wait for that."""
        self._linger_s = config.linger_s
        self._forgotten = forgotten
        self.worker_id = names.agent_worker_id(config.agent_id, store, key)
        self._revoked: set[int] = set()
        self._worker = make_worker(
            self._worker_config(config),
            handler=self._on_change,
            on_assigned=lambda _, partitions: self._on_partitions(partitions, gained=True),
            on_revoked=lambda _, partitions: self._on_partitions(partitions, gained=False),
            metrics=metrics,
        )
        leave_sealed(self._worker)
        take_replays(self._worker, self._on_replay)

    def _worker_config(self, config: Config) -> WorkerConfig:
        login = msgspec.structs.asdict(config.nats_login)
        return WorkerConfig.resolve(
            {
                "store": self.store,
                "keys": [self.key],
                "servers": config.nats,
                "worker_id": self.worker_id,
                "handler_timeout_s": 0.0,  # it waits while a group's window is full
                # An agent that stops has ended its groups by then: no consumer is served meanwhile.
                "stabilisation_s": 0.0,
                # Set here, so that no environment variable sets it otherwise: what was handed over and not settled
                # when the agent died is to come again, and so is every row.
                "cache_dir": config.cache_dir,
                "jetstream_api": config.jetstream_api,
                "agent": "",  # it dies with the agent
                "key_ring": "",
                "labels": (),
                **{name: value for name, value in login.items() if value},
            }
        )

    async def run(self) -> None:
        """Follows the key until :meth:`stop`; consumers get an error that ends it."""
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
        except (StoreDeletedError, KeyDeletedError) as error:
            self._end(str(error), ListDeletedError)
            return
        except Exception as error:  # noqa: BLE001  # whatever it is, the consumers get it
            why = str(error)
        self.end(why)

    @property
    def staleness_s(self) -> float:
        return self._worker.staleness(self.key) if self._is_ready else 0.0

    @property
    def idle(self) -> bool:
        return not self.coming and not self.groups

    def owns(self, partition: int) -> bool:
        """Whether a partition that changes came of is still this host's."""
        return partition not in self._revoked

    @property
    def history(self) -> str:
        """The history of the key's revisions; empty as long as none is known."""
        return self._worker.history(self.key) if self._is_ready else ""

    def applied(self) -> dict[int, int]:
        """The revisions up to which every change of this host's partitions was handed over."""
        applied = self._worker.applied(self.key) if self._is_ready else {}
        return {partition: revision for partition, revision in applied.items() if self.owns(partition)}

    def loaded(self) -> set[int]:
        """Those of its partitions that its worker has loaded."""
        return loaded_of(self._worker, self.key) - self._revoked if self._is_ready else set()

    def rows(self) -> Iterator[Row]:
        """The live rows held now."""
        return self._worker.rows(self.key)

    def row_ids(self, partitions: Collection[int] | None = None) -> list[str]:
        """Their ids: all of them, or those of these partitions."""
        if partitions is not None:
            return row_ids_of(self._worker, self.key, partitions)
        return [row.row_id for row in self._worker.rows(self.key)]

    @property
    def lease(self) -> WorkerLease | None:
        """The lease by which this host has its partitions; ``None`` in mode FULL."""
        is_shared = self._worker.settings.mode is Mode.PARTITIONED
        return WorkerLease(self._worker, self.worker_id) if is_shared else None

    def opened(self, change: Change) -> Change:
        """A change with its value, for a consumer.

        Raises:
            ValueSealedError: it is encrypted, and can't be opened.
        """
        return self._opener.change(change)

    def change_of(self, row_id: str) -> Change | None:
        """A live row as it is now, as if it had just changed."""
        row = self._worker.get(self.key, row_id)
        return None if row is None else self._change(row)

    def status(self) -> dict[str, Any]:
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

    def end(self, why: str) -> None:
        self._end(why, StoppedError)

    def _end(self, why: str, kind: type[StoppedError]) -> None:
        self._fail(UnavailableError(why))
        error = kind(f"updates of {self.store}/{self.key} have stopped: {why}")
        for group in self.groups.values():
            group.close(error)

    def look(self, now: float) -> None:
        """Forgets groups without consumers after a time."""
        for group in list(self.groups.values()):
            group.look(now)
            empty_since = group.sessions.empty_since
            if empty_since is not None and now - empty_since >= self._linger_s:
                group.close()
            if group.closed:
                self._forgotten.update(group.counts())
                del self.groups[group.name]

    async def stop(self) -> None:
        """Leaves the key: its partitions go to others at once."""
        await self._worker.stop()

    @property
    def _is_ready(self) -> bool:
        return self.ready.done() and self.ready.exception() is None

    def _fail(self, error: BaseException) -> None:
        """Fails the calls that wait for the start; a worker that was stopped meanwhile looks cancelled."""
        if not self.ready.done():
            failed_with = error if isinstance(error, Exception) else UnavailableError("the agent no longer follows it")
            self.ready.set_exception(failed_with)
            self.ready.exception()  # perhaps no call waits any more

    def _change(self, row: Row) -> Change:
        number = row_partition(row.row_id, self._worker.settings.partition_count)
        return Change(self.store, self.key, number, row.row_id, row.value, row.version, metadata=row.metadata)

    def _on_change(self, change: Change) -> None:
        if change.metadata and not self._opener.has_keys and self.refused is None:
            try:
                self._opener.change(change)
            except ValueSealedError as error:
                self.refused = error
                self._fail(error)  # those that wait for the start are refused for good
                self._end(str(error), SealedError)
        for group in self.groups.values():
            group.take(change)

    def _on_partitions(self, partitions: Collection[int], *, gained: bool) -> None:
        if gained:
            self._revoked.difference_update(partitions)
        else:
            self._revoked.update(partitions)
        for group in self.groups.values():
            group.partitions_changed()

    def _on_replay(
        self, request: ReplayRequest, change: Change, say: Callable[[ReplayAnswer], None]
    ) -> Callable[[], None]:
        group = self.groups.get(request.group)
        if group is None:
            why = f"the agent's worker {self.worker_id} has the partition now, and no group {request.group}"
            tell(request, say, ReplayOutcome.KEPT, 0, why)
            return nothing
        return group.replay(request, change, say)


class KeyFollowers:
    """The keys that groups share now."""

    def __init__(self, config: Config, followers: Followers, metrics: PrometheusMetrics | None, opener: Opener) -> None:
        self._opener = opener
        self._config = config
        self._followers = followers
        self._metrics = metrics
        self.forgotten: Counter[str] = Counter()
        """What happened in groups that are gone, by event."""

    def __iter__(self) -> Iterator[KeyFollower]:
        return iter(self._followers.of(KeyFollower))

    @asynccontextmanager
    async def ready(self, store: str, key: str) -> AsyncIterator[KeyFollower]:
        """A key that is followed, and whose rows are held; it stays so in the body.

        Raises:
            UnavailableError: what the worker owns was not loaded in time, or NATS has been out of reach for too long.
            LimitExceededError: so many keys are followed already.
            ValueSealedError: values of the key are encrypted, and the agent has no key ring.
            RingcastError: what the worker was refused with.
        """
        follower = self._followers.follow(
            KeyFollower,
            store,
            key,
            lambda: KeyFollower(self._config, store, key, self._metrics, self.forgotten, self._opener),
        )
        follower.coming += 1
        try:
            try:
                async with asyncio.timeout(self._config.subscribe_timeout_s):
                    await asyncio.shield(follower.ready)
            except TimeoutError:
                raise UnavailableError(
                    f"{follower.store}/{key} could not be loaded within {self._config.subscribe_timeout_s:g} s: "
                    "NATS or the config service does not answer, or a worker of the same name has just died"
                ) from None
            if follower.refused is not None:
                raise follower.refused
            if (stale_s := follower.staleness_s) > self._config.stale_after_s:
                raise UnavailableError(f"{follower.store}/{key} gets no updates: no word of it for {stale_s:.0f} s")
            yield follower
        finally:
            follower.coming -= 1
