"""A worker of a store of peers, which may get exclusive ownership while it runs, and lose it again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import msgspec
from ringcast_wire import (
    EventLog,
    InUseError,
    LeaseRecord,
    Migration,
    MismatchError,
    ProtocolError,
    RingcastError,
    Stage,
    StoreSettings,
    event_within,
    field_text,
    stage_name,
)
from ringcast_wire.migrating import Step

from ringcast._bus.buckets import Buckets
from ringcast._bus.bus import TRANSIENT
from ringcast._bus.refusals import RefusedError
from ringcast._common.cancellation import is_cancelled
from ringcast._common.config import WorkerConfig
from ringcast._common.lasting import first_error, lasting
from ringcast._coordination.sticky.coordinator import StickyCoordinator
from ringcast._coordination.sticky.migration import GuardedParticipant, Migrates, StoreMigration
from ringcast._coordination.sticky.ownership import ExclusiveCoordinator, ExclusiveParticipant
from ringcast._coordination.sticky.times import StickyTimes
from ringcast._coordination.store_step import StoreStep
from ringcast._protocol.assignment import Assignment

READ_S: Final = 10.0
"""How often the step of the store is read, as long as all goes well; where it migrates each TTL, if that is less."""
FIRST_READ_S: Final = 1.0
"""The same while a key is registered and waits for it."""
RETRY_S: Final = 30.0
"""After a failure the worker takes part in the shadow again so much later."""
_PATIENCE: Final = 4
"""So many failures to read the step in a row are reported: NATS may have just lost a server."""
_LEAVE_S: Final = 2.0
"""How long a worker that stops tries to say that none of its calls runs."""
_OFF: Final = Step(Stage.OFF, 0)


class MigratingParticipant(ExclusiveParticipant, GuardedParticipant, Protocol):
    """The worker, as what follows the migration of its store sees it. None of its calls waits."""

    def follow(self, coordinator: ExclusiveCoordinator, bound_s: float, /) -> None:
        """This coordinator lets calls start from ``guarded`` on. ``bound_s``: what one may take at most."""

    def unfollow(self) -> None:
        """There is no coordinator any more. No key is guarded."""

    def may_begin(self, key: str, /) -> None:
        """A key is registered, and its step is known: unless it is guarded, calls may start that nothing lets start."""

    def revisions(self, key: str, /) -> Mapping[int, int]:
        """What each partition of a key that is owned is at."""

    def step_unknown(self, reason: str, /) -> None:
        """The step can't be read, for a reason, and keys wait for it; or it can be again."""

    def may_have_migrated(self, may: bool, /) -> None:
        """Whether the store migrates: what the worker has on its disk is then not to be handed over before the step is
        known."""


class MigratingStore:
    """Follows the steps of the store. From ``SHADOW`` on it has a session, says its state, and may become the leader.

    As long as no key is guarded what fails here is logged, and does not concern the worker. ``can_be_guarded``: not of
    a worker that serves a group of an agent, which takes no part, and can't start from ``VALIDATE`` on.
    """

    def __init__(
        self,
        buckets: Buckets,
        config: WorkerConfig,
        settings: StoreSettings,
        *,
        record: LeaseRecord,
        participant: MigratingParticipant,
        log: EventLog,
        can_be_guarded: bool = True,
        report_sessions: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.coordinator: StickyCoordinator | None = None
        """What the worker takes part in, from the shadow on."""
        self._buckets = buckets
        self._config = config
        self._settings = settings
        self._record = record
        self._participant = participant
        self._log = log
        self._can_be_guarded = can_be_guarded
        self._report_sessions = report_sessions
        self._step = StoreStep(buckets, config.store, log)
        self._given_up: set[str] = set()
        self._withdrawn: set[str] = set()
        self._left: StickyCoordinator | None = None
        """What the worker took part in before the store was off."""
        self._agent: str | None = None
        self._assignments: dict[str, Assignment] = {}
        self._reassigned = asyncio.Event()
        self._enrolled: set[str] = set()
        """Keys whose registration was written since the step was read."""
        self._known: set[str] = set()
        """Keys that were registered when a step was read."""
        self._has_begun = False
        """Whether calls may run, or have run, that were not let start."""
        self._failures = 0
        """Of readings in a row that keys wait for."""
        self._wake = asyncio.Event()

    @property
    def migration(self) -> StoreMigration | None:
        """What is to be told of steps and shares, as long as the worker takes part."""
        return self.coordinator.migration if self.coordinator is not None else None

    @property
    def guards_any(self) -> bool:
        """Whether calls of any key need to be let start."""
        return self.migration is not None and self.migration.guards_any

    def guards(self, key: str) -> bool:
        """Whether calls of a key need to be let start."""
        return self.migration is not None and self.migration.is_guarded(key)

    def enrolled(self, key: str) -> None:
        """The registration of a key was written: the step is to be read after that."""
        self._enrolled.add(key)
        self._wake.set()

    def assigned(self, assignment: Assignment) -> None:
        """The peer rule assigns the partitions of a key in another way."""
        self._assignments[assignment.key] = assignment
        self._reassigned.set()

    def give_up(self, key: str) -> None:
        """Takes no part in a key any more, also in what begins later."""
        self._given_up.add(key)
        if self.coordinator is not None:
            self.coordinator.give_up(key)

    def withdraw(self, key: str) -> None:
        """Has no share of a key until :meth:`come_back`, also in what begins later: a leader must not plan with it."""
        self._withdrawn.add(key)
        if self.coordinator is not None:
            self.coordinator.give_up(key)

    def come_back(self, key: str) -> None:
        """Takes part in a key again, with nothing at first."""
        self._withdrawn.discard(key)
        if self.coordinator is not None:
            self.coordinator.come_back(key)

    def witnessed_by(self, agent: str) -> None:
        """This agent sees the process end; without an id it does not."""
        self._agent = agent
        if self.coordinator is not None:
            self.coordinator.witnessed_by(agent)

    async def run(self) -> None:
        """Follows the steps until cancelled.

        Raises:
            MismatchError: the store is past the shadow, and this worker serves a group of an agent; or it migrates with
                other times than those that the worker is guarded with.
            InUseError: another process takes part under the id of this worker, or has done so after it.
        """
        retry_at = 0.0
        while True:
            step = await self._look()
            if self._step.is_read:  # else what the worker remembers of its last life counts
                self._participant.may_have_migrated(step is not None and step.is_on)
            takes_part = step is not None and step.is_on and self._can_be_guarded
            if step is not None and takes_part and asyncio.get_running_loop().time() >= retry_at:
                try:
                    await self._take_part(step)
                    continue
                except Exception as error:  # a mistake in here must not end a worker that is not guarded
                    if is_cancelled():
                        raise asyncio.CancelledError from error  # a task group that fails meanwhile hides that
                    if self.guards_any or isinstance(first_error(error), InUseError):
                        raise
                    self._end()
                    self._failed(error)
                    retry_at = asyncio.get_running_loop().time() + RETRY_S
            await self._pause(retry_at)

    async def leave(self) -> None:
        """Says that none of the worker's calls runs: to be called once that is so. Deletes the session entry.

        Also where the store does not migrate any more: what the worker has said stays for a day, and would keep the
        store from the switch if it migrates again.
        """
        if (coordinator := self.coordinator or self._left) is not None:
            async with asyncio.timeout(_LEAVE_S):
                await coordinator.leave()

    async def _take_part(self, step: Migration) -> None:
        """Takes part until the store does not migrate any more, or with other times.

        Raises:
            MismatchError: it migrates with other times, and a key is guarded.
        """
        times = msgspec.structs.replace(
            self._settings, lease_ttl_ms=step.lease_ttl_ms, call_bound_ms=step.call_bound_ms
        )
        sticky_times = StickyTimes.of(times)
        coordinator = self.coordinator = StickyCoordinator(
            self._buckets,
            self._config,
            self._settings.partition_count,
            record=self._record,
            participant=self._participant,
            log=self._log,
            times=sticky_times,
            # Where calls run already, they do so without having been let start.
            migrates=Migrates(
                _OFF if self._has_begun else Step.of(step),
                self._participant,
                has_called=bool(self._config.cache_dir),
                let_go=self._wake.set,
            ),
            report_sessions=self._report_sessions,
            revisions=self._participant.revisions,
        )
        migration = coordinator.migration
        assert migration is not None
        if self._agent is not None:
            coordinator.witnessed_by(self._agent)
        self._participant.follow(coordinator, sticky_times.fence.call_s)
        for key in self._given_up | self._withdrawn:
            coordinator.give_up(key)
        self._log.info("migration.joined", step=step.number)
        self._hears(migration, step)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(lasting("takes part in the migration", coordinator.run)),
                tasks.create_task(lasting("passes assignments on", lambda: self._pass_on(migration))),
            ]
            while await self._goes_on(migration, step):
                await self._pause(0.0)
            for task in running:
                task.cancel()
        coordinator.close()  # as long as it is followed: the worker obeys nothing of it later
        self._left = coordinator
        await coordinator.drop_session()
        self._end()
        self._log.info("migration.left", step=step.number)

    async def _goes_on(self, migration: StoreMigration, joined: Migration) -> bool:
        """Reads the step, and passes it on; returns whether the worker takes part any longer: the store migrates, with
        the times that it had, or the worker has not been let go yet."""
        step = await self._look()
        if step is None:
            return migration.guards_any  # the database has gone back, or a server lags behind: nothing changes
        if step.is_on and _times(step) != _times(joined):  # it was off meanwhile, which this worker has not heard of
            if migration.guards_any:
                raise MismatchError(
                    f"store {self._config.store!r} migrates with the lease TTL and call bound {_times(step)} ms, and "
                    f"this worker is guarded with {_times(joined)} ms: start it again",
                    field="lease_ttl_ms",
                )
            return False
        self._hears(migration, step)
        return step.is_on or migration.waits_to_be_let_go

    def _hears(self, migration: StoreMigration, step: Migration) -> None:
        self._participant.may_have_migrated(step.is_on)
        migration.heard(Step.of(step))
        self._begin()

    def _begin(self) -> None:
        """Keys begin whose step is known. Those that are guarded by now do so once they are let go."""
        for key in sorted(self._known):
            self._has_begun = True
            self._participant.may_begin(key)

    def _end(self) -> None:
        self.coordinator = None
        self._participant.unfollow()

    async def _pass_on(self, migration: StoreMigration) -> None:
        """In a task of the migration: what fails here must not reach the coordinator of the peers."""
        while True:
            self._reassigned.clear()
            for assignment in self._assignments.values():
                migration.share(assignment.key, assignment.owners)
            await self._reassigned.wait()

    async def _look(self) -> Migration | None:
        """Reads the step: after a registration as it is now, since the proof relies on that."""
        self._wake.clear()
        enrolled = frozenset(self._enrolled)
        if not enrolled:
            return await self._step.read()
        try:
            step = await self._step.read_newest()
        except (ProtocolError, *TRANSIENT) as error:
            self._log.debug("migration.read_failed", error=error)
            self._failures += 1
            if isinstance(error, RefusedError) or self._failures >= _PATIENCE:
                self._participant.step_unknown(field_text(error))
            return self._step.known
        self._failures = 0
        self._participant.step_unknown("")
        if step is not None and Step.of(step).guards and not self._can_be_guarded and not enrolled <= self._known:
            raise MismatchError(
                f"store {self._config.store!r} migrates to exclusive ownership and is at the stage "
                f"{stage_name(step.stage)}, where no groups of an agent are served",
                field="stage",
            )
        self._enrolled -= enrolled
        self._known |= enrolled
        if step is None or not Step.of(step).guards:
            self._begin()
        return step

    async def _pause(self, retry_at: float, draw: Callable[[], float] = random.random) -> None:
        """Until the step is to be read again; not by all workers at once."""
        if self._enrolled:
            await asyncio.sleep(FIRST_READ_S * draw())
            return
        known = self._step.known
        read_s = min(READ_S, known.lease_ttl_ms / 1000) if known is not None and known.is_on else READ_S
        wait_s = read_s * (0.75 + draw() / 2)
        if retry_at:
            wait_s = min(wait_s, max(0.0, retry_at - asyncio.get_running_loop().time()))
        await event_within(self._wake, wait_s)

    def _failed(self, error: Exception) -> None:
        cause = first_error(error)
        if isinstance(cause, (RingcastError, *TRANSIENT)):
            self._log.warning("shadow.failed", error=cause, retry_in_s=RETRY_S)
        else:
            self._log.error("shadow.failed", error=cause, retry_in_s=RETRY_S, exc_info=error)


def _times(migration: Migration) -> tuple[int, int]:
    return migration.lease_ttl_ms, migration.call_bound_ms
