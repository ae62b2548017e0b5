"""The shadow of a migration to exclusive ownership, in a worker of a store of peers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

import msgspec
from ringcast_wire import (
    EventLog,
    LeaseRecord,
    Migration,
    ProtocolError,
    RingcastError,
    Stage,
    StoreSettings,
    decode_migration,
    names,
    stage_name,
)
from ringcast_wire.migrating import Step

from ringcast._bus.bus import TRANSIENT, Bus
from ringcast._bus.kv import Bucket
from ringcast._common.cancellation import is_cancelled
from ringcast._common.config import WorkerConfig
from ringcast._common.lasting import first_error, lasting
from ringcast._coordination.sticky import StickyCoordinator
from ringcast._coordination.sticky_migration import Migrates, StoreMigration
from ringcast._coordination.sticky_times import StickyTimes
from ringcast._protocol.assignment import Assignment

READ_S: Final = 10.0
"""How often the step of the store is read, as long as all goes well."""
RETRY_S: Final = 30.0
"""After a failure the worker takes part again so much later."""


class _Onlooker:
    """A participant that does nothing: whatever the table says, the partitions are those of the peer rule.

    So it never says that it has prepared one.
    """

    def prepare(self, key: str, partition: int, token: int) -> None:
        """Nothing is held that the worker does not own."""

    def activate(self, key: str, partition: int, token: int) -> None:
        """Nothing: only what has been prepared is activated."""

    def stop(self, key: str, partition: int, token: int) -> None:
        """Nothing: only what is active is stopped."""

    def forget(self, key: str, partition: int, token: int) -> None:
        """Nothing was held."""

    def acted(self, key: str) -> None:
        """Nothing was gathered."""

    def session_changed(self, key: str, runs: bool) -> None:
        """The worker is as well without a session."""

    def settled(self, key: str, partitions: frozenset[int]) -> None:
        """The share is that of the peer rule."""

    def guarded(self, key: str, tokens: dict[int, int]) -> None:
        """Nothing: at the stages that are served no worker says that it is guarded."""

    def let_go(self, key: str) -> None:
        """Nothing, as above."""


class Shadow:
    """Follows the steps of the store. From ``SHADOW`` on it has a session, says its state, and may become the leader.

    It owns nothing, and calls nothing of the worker: what fails here is logged, and does not concern the worker.
    """

    def __init__(
        self, bus: Bus, config: WorkerConfig, settings: StoreSettings, *, record: LeaseRecord, log: EventLog
    ) -> None:
        self._bus = bus
        self._config = config
        self._settings = settings
        self._record = record
        self._log = log
        self._meta = Bucket(bus, names.meta_bucket(config.store))
        self._assignments: dict[str, Assignment] = {}
        self._reassigned = asyncio.Event()
        self._coordinator: StickyCoordinator | None = None
        self._last: tuple[bytes, Migration | None] = (b"", None)
        """The entry that was read last, and the highest step of those that could be read."""

    @property
    def takes_part(self) -> bool:
        """Whether the worker takes part in the shadow."""
        return self._coordinator is not None

    def assigned(self, assignment: Assignment) -> None:
        """The peer rule assigns the partitions of a key in another way."""
        self._assignments[assignment.key] = assignment
        self._reassigned.set()

    async def run(self) -> None:
        """Follows the steps until cancelled."""
        while True:
            step = await self._read()
            if step is None or step.stage is not Stage.SHADOW:
                await _pause()
                continue
            try:
                await self._take_part(step)
            except Exception as error:  # a mistake in here must not end the worker
                if is_cancelled():
                    raise asyncio.CancelledError from error  # a task group that fails meanwhile hides that
                self._coordinator = None
                self._failed(error)
                await asyncio.sleep(RETRY_S)

    async def leave(self) -> None:
        """Deletes the session entry. Its state stays as it is: it says nothing of the calls of the worker."""
        if self._coordinator is not None:
            await self._coordinator.drop_session()

    async def _take_part(self, step: Migration) -> None:
        """Takes part in the shadow until the step of the store is another."""
        times = msgspec.structs.replace(
            self._settings, lease_ttl_ms=step.lease_ttl_ms, call_bound_ms=step.call_bound_ms
        )
        participant = _Onlooker()
        coordinator = self._coordinator = StickyCoordinator(
            self._bus,
            self._config,
            self._settings.partition_count,
            record=self._record,
            participant=participant,
            log=self._log,
            times=StickyTimes.of(times),
            # As of a worker that runs already: it is not guarded.
            migrates=Migrates(Step(Stage.OFF, 0), participant),
        )
        migration = coordinator.migration
        assert migration is not None
        migration.heard(Step(step.stage, step.number))
        self._log.info("shadow.began", step=step.number)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(lasting("takes part in the shadow", coordinator.run)),
                tasks.create_task(lasting("passes assignments on", lambda: self._pass_on(migration))),
            ]
            while await self._read() == step:
                await _pause()
            for task in running:
                task.cancel()
        await coordinator.drop_session()
        self._coordinator = None
        self._log.info("shadow.ended", step=step.number)

    async def _pass_on(self, migration: StoreMigration) -> None:
        """In a task of the shadow: what fails here must not reach the coordinator of the peers."""
        while True:
            self._reassigned.clear()
            for assignment in self._assignments.values():
                migration.share(assignment.key, assignment.owners)
            await self._reassigned.wait()

    def _failed(self, error: Exception) -> None:
        cause = first_error(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(cause, (RingcastError, *TRANSIENT)):
            self._log.warning("shadow.failed", error=cause, retry_in_s=RETRY_S)
        else:
            self._log.error("shadow.failed", error=cause, retry_in_s=RETRY_S, exc_info=error)

    async def _read(self) -> Migration | None:
        """The step of the store; the one that is known as long as another can't be read.

        Numbers of steps tell a later one: revisions begin again in a bucket that NATS has lost. Where no entry is there
        the store was created again, or its database has gone back as well: it does not migrate.
        """
        try:
            entry = await self._meta.get(names.META_MIGRATION)
        except TRANSIENT as error:
            self._log.debug("migration.read_failed", error=error)
            return self._last[1]
        if entry is None or entry.value is None:
            self._last = (b"", None)
            return None
        data, step = self._last
        if entry.value == data:
            return step
        try:
            found = decode_migration(entry.value)
        except ProtocolError as error:
            self._log.warning("migration.unreadable", error=error)
        else:
            if step is None or found.number > step.number:  # else a server has answered that lags behind
                step = found
                self._log.info("migration.step", stage=stage_name(step.stage), step=step.number)
        self._last = entry.value, step
        return step


async def _pause(draw: Callable[[], float] = random.random) -> None:
    await asyncio.sleep(READ_S * (0.75 + draw() / 2))  # not all workers at once
