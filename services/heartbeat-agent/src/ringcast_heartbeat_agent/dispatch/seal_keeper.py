"""Keeps the seals of one group: reads, claims and writes them in the bucket of groups, as :mod:`seals` decides."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping
from typing import Final, Protocol

import msgspec
from ringcast.hosting import TRANSIENT, Backoff, ConflictError, RefusedError, RejectedError, SealEntry
from ringcast_wire import EventLog, GroupSeal, event_within, names

from ringcast_heartbeat_agent.dispatch.positions import Place
from ringcast_heartbeat_agent.dispatch.seal_pace import SealPace
from ringcast_heartbeat_agent.dispatch.seals import Outcome, Seals, Settled, Write

log = EventLog(logging.getLogger(__name__))

SEAL_S: Final = 0.2
"""How often it is looked how far the group has come: what is settled in between, a killed agent's successor repeats."""
_LOOK_SHARE: Final = 20
"""A look that takes long is not repeated before so many times as long."""
_WRITES_AT_ONCE: Final = 32
CHECK_S: Final = 5.0
"""How often it is looked whether the seals of the partitions that are held are still those that were written."""
_AGAIN_S: Final = 15.0
"""How often it is tried whether seals can be kept after all."""
_PATIENCE_S: Final = 30.0
"""For so long seals may fail while the lease of this process is held, and so NATS is there: then they can't be kept."""
_NO_BUCKET: Final = "the store has no bucket of groups"


class SealStore(Protocol):
    """Where seals are kept."""

    async def exists(self) -> bool:
        """Whether the store has a bucket for them."""

    async def read(self, keys: list[str]) -> dict[str, SealEntry]:
        """What stands under each key."""

    async def write(self, key: str, seal: GroupSeal, *, last: int) -> int:
        """Writes by compare-and-set."""

    async def living(self, leases: set[str]) -> dict[str, str]:
        """The incarnations of the processes that have these leases."""


class Lease(Protocol):
    """The lease by which this process counts as alive."""

    id: str

    @property
    def incarnation(self) -> str: ...

    @property
    def held(self) -> bool: ...

    @property
    def losses(self) -> int: ...


class Sealed(Protocol):
    """The group whose seals are kept."""

    def start(self, partition: int) -> Settled:
        """Where it begins in a partition that has no seal."""

    def settled(self) -> Mapping[int, Settled]:
        """How far it has come in the partitions that it holds, where that may be news."""

    def look(self) -> None:
        """Gives up what can be, and asks for what is the host's now."""

    def acquired(self, partition: int, since: Settled, *, known: bool) -> None:
        """It delivers a partition from now on; ``known``: a seal says since when."""

    def resumed(self, partition: int) -> None:
        """It delivers it again, after a doubt."""

    def lost(self, partition: int) -> None:
        """Another process has it: what it knows of it is worth nothing."""

    def unsealed(self, why: str) -> None:
        """Seals can't be kept, and why; empty: they can be again."""


class SealCounts:
    """What came of all seals of an agent."""

    def __init__(self) -> None:
        self.written = 0
        self.refused = 0
        """Compare-and-set writes that found another seal."""
        self.failed = 0
        """Writes that NATS did not answer or take."""


class SealKeeper:
    """Runs until the group has ended and its seals are given up."""

    def __init__(
        self, place: Place, store: SealStore, group: Sealed, lease: Lease, counts: SealCounts, pace: SealPace
    ) -> None:
        self.seals = Seals(lease.incarnation, lease.id)
        self.why_not = ""
        """Why seals can't be kept now."""
        self.ended = asyncio.Event()
        self._place = place
        self._store = store
        self._group = group
        self._lease = lease
        self._losses = lease.losses
        self._counts = counts
        self._pace = pace
        self._closing = False
        self._hurries = False
        self._wake = asyncio.Event()
        self._look_at = 0.0
        self._again_at = 0.0
        self._failing_since: float | None = None
        self._check_at = 0.0

    # ---- for the group

    def is_held(self, partition: int) -> bool:
        """Whether the group may deliver rows of a partition now."""
        if self.why_not:
            return True
        if not self._lease.held or self._lease.losses != self._losses:
            return False
        return self.seals.is_held(partition)

    def held(self) -> list[int]:
        """The partitions of which that holds, where seals are kept."""
        return [partition for partition in self.seals.held() if self.is_held(partition)]

    @property
    def awaited(self) -> int:
        """How many partitions wait for a seal: other hosts hold them, or this one may have lost them."""
        if self.why_not:
            return 0
        return len(self.seals.waiting()) + len(self.seals.held()) - len(self.held())

    def wake(self) -> None:
        """There is something to do at once."""
        self._wake.set()

    def close(self) -> None:
        """The group has ended: what it held is written as given up, however long NATS or the bucket takes.

        Otherwise others would wait for it as long as this process lives.
        """
        self._closing = True
        self._wake.set()

    @property
    def is_closing(self) -> bool:
        """Whether the group has ended."""
        return self._closing

    def hurry(self) -> None:
        """Has a keeper whose group has ended give up what it has left at once, or end when that fails."""
        self._hurries = True
        self._wake.set()

    # ---- the work

    async def run(self, before: SealKeeper | None) -> None:
        """Works until the group has ended. ``before``: the keeper of the group of this name that ended last."""
        try:
            if before is not None:
                before.hurry()
                await before.ended.wait()
                self.seals.take_over(before.seals)
            await self._work()
        finally:
            self.ended.set()

    async def _work(self) -> None:
        backoff = Backoff(random.random, first_s=0.1, most_s=2.0)
        while not self._is_over:
            pause_s, failed = SEAL_S, True
            try:
                if self.why_not:
                    await self._try_again()
                else:
                    await self._step()
                backoff.reset()
                failed = False
            except RefusedError as error:
                self._give_in(str(error))
            except RejectedError as error:
                self._give_in(f"the bucket of groups takes no seal: {error}")
            except TRANSIENT as error:
                pause_s = await self._failed(error, backoff)
            if self._closing and self._hurries and (failed or self.why_not):
                return
            await self._sleep(pause_s)

    @property
    def _is_over(self) -> bool:
        """Whether nothing is left to do."""
        return self._closing and not len(self.seals)

    async def _step(self) -> None:
        now = self._now()
        if self._lease.losses != self._losses:
            self._losses = self._lease.losses
            self.seals.reads.doubt(now)
        if not self._lease.held and not self._closing:
            self._failing_since = None
            return  # NATS is away, or this process was paused: what it would write might be a successor's
        self._look(now)
        if now >= self._check_at and (held := self.seals.held()):
            entries = await self._store.read([self._key(partition) for partition in held])
            self._failing_since = None
            for partition in held:
                self.seals.reads.checked(partition, entries[self._key(partition)].revision, now)
            self._check_at = now + CHECK_S
        if due := self.seals.reads.due(now):
            await self._read(due)
        settlements = self._pace.take(self._now())
        try:
            while writes := self.seals.writes.due(self._now(), _WRITES_AT_ONCE, settlements):
                settlements -= sum(self.seals.is_held(write.partition) for write in writes)
                await self._write(writes)
        finally:
            self._pace.give_back(settlements)

    def _look(self, now: float) -> None:
        if self._closing:
            return
        self._group.look()
        if now >= self._look_at or self.seals.leaving():
            began = time.perf_counter()
            for partition, settled in self._group.settled().items():
                self.seals.writes.settle(partition, settled, now)
            self._look_at = now + _LOOK_SHARE * (time.perf_counter() - began)

    async def _read(self, due: list[int]) -> None:
        try:
            entries = await self._store.read([self._key(partition) for partition in due])
            leases = {
                entry.seal.lease
                for entry in entries.values()
                if entry.seal is not None and entry.seal.holder and entry.seal.lease is not None
            }
            living = await self._store.living(leases | {self._lease.id}) if leases else {}
        except BaseException:
            self.seals.reads.put_off(due, self._now() + SEAL_S)
            raise
        self._failing_since = None
        # A server that lags may lack a lease that lives: it is believed only where it has this process's own.
        is_current = living.get(self._lease.id) == self._lease.incarnation
        for partition in due:
            entry = entries[self._key(partition)]
            seal = entry.seal
            lives = seal is not None and _lives(seal, living, is_current=is_current)
            if entry.damaged and not lives and self.seals.was_held(partition):
                seal = None  # what was written last is known here
            outcome = self.seals.reads.found(
                partition, entry.revision, seal, lives=lives, start=self._group.start(partition), now=self._now()
            )
            self._tell(partition, outcome)

    async def _write(self, writes: list[Write]) -> None:
        results = await asyncio.gather(*(self._write_one(write) for write in writes), return_exceptions=True)
        failed: BaseException | None = None
        for write, result in zip(writes, results, strict=True):
            if isinstance(result, int):
                self._failing_since = None
                self._counts.written += 1
                self._tell(write.partition, self.seals.writes.written(write, result, self._now()))
            elif isinstance(result, ConflictError):
                self._counts.refused += 1
                store, key, group = self._place
                log.info("group.seal_refused", store=store, key=key, group=group, partition=write.partition)
                self.seals.writes.refused(write, self._now())
            else:
                self._counts.failed += 1
                failed = result
        if failed is not None:
            raise failed

    async def _write_one(self, write: Write) -> int:
        seal = msgspec.structs.replace(write.seal, sealed_at_ms=int(time.time() * 1000))
        return await self._store.write(self._key(write.partition), seal, last=write.last)

    def _tell(self, partition: int, outcome: Outcome) -> None:
        match outcome:
            case Outcome.TAKEN:
                since, known = self.seals.reads.begins_with(partition)
                self._group.acquired(partition, since, known=known)
            case Outcome.RESUMED:
                self._group.resumed(partition)
            case Outcome.LOST:
                store, key, group = self._place
                log.warning("group.partition_lost", store=store, key=key, group=group, partition=partition)
                self._group.lost(partition)

    # ---- where seals can't be kept

    async def _failed(self, error: BaseException, backoff: Backoff) -> float:
        """Looks whether the bucket is the reason, or seals fail for too long; returns how long to wait."""
        if self._failing_since is None or not self._lease.held:
            self._failing_since = self._now()
        try:
            if not await self._store.exists():
                self._give_in(_NO_BUCKET)
        except RefusedError as refused:
            self._give_in(str(refused))
        except TRANSIENT:
            pass
        store, key, group = self._place
        log.debug("group.seals_failed", store=store, key=key, group=group, error=error)
        if not self.why_not and self._now() - self._failing_since >= _PATIENCE_S:
            self._give_in(f"seals can't be read or written: {error}")
        return backoff.next_s()

    def _give_in(self, why: str) -> None:
        self.why_not = why
        self._again_at = self._now() + _AGAIN_S
        if not self._closing:
            self._group.unsealed(why)
        elif why == _NO_BUCKET:
            self.seals.clear()  # nothing is left that others could wait for

    async def _try_again(self) -> None:
        """Goes on with seals if they can be kept now: what is in the bucket then decides which host holds what."""
        if not self._closing:
            self._group.look()
            if not self._lease.held:
                return
        if self._now() < self._again_at and not (self._closing and self._hurries):
            return
        self._again_at = self._now() + _AGAIN_S
        if await self._store.exists():
            self.seals.reads.doubt(self._now())
            await self._step()
            self.why_not, self._failing_since = "", None
            if not self._closing:
                self._group.unsealed("")
        elif self._closing:
            self.seals.clear()

    # ---- small

    async def _sleep(self, seconds: float) -> None:
        await event_within(self._wake, seconds)
        self._wake.clear()

    def _key(self, partition: int) -> str:
        _, key, group = self._place
        return names.seal_key(key, group, partition)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _lives(seal: GroupSeal, living: Mapping[str, str], *, is_current: bool) -> bool:
    """Whether a process holds the partition that may live. Leases that are not current prove no death."""
    if not seal.holder or seal.lease is None:
        return False
    return not is_current or living.get(seal.lease) == seal.holder
