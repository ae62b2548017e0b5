"""What a repository does with releases, in every database alike: each call is a transaction that it runs."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from ringcast_wire import DEFAULT_GATE, KeyCertificate, ReleaseGate

from ringcast_config_service.repository import release_approvals, release_pins, release_proofs, release_waves, releases
from ringcast_config_service.repository.base import Authorship, StoreRecord
from ringcast_config_service.repository.release_draw import NO_CANARY, Canary
from ringcast_config_service.repository.release_records import (
    Certificate,
    KeyRevisions,
    Release,
    ReleaseRow,
    RowRelease,
    StageBatch,
    StagedFound,
    StagedPage,
    Step,
)
from ringcast_config_service.repository.release_steps import step
from ringcast_config_service.repository.release_transactions import ReleaseStatements, Transaction

T = TypeVar("T")


class TransactedReleases(ABC):
    """All of a :class:`~ringcast_config_service.repository.release_records.ReleaseRepository` that is a transaction.

    ``sql``: the statements of the database.
    """

    def __init__(self, sql: ReleaseStatements) -> None:
        self._sql = sql
        # Callers share the connections for upkeep with the relay: however many they are, they take one of them.
        self._calls = asyncio.Lock()

    async def stage(self, store: StoreRecord, batch: StageBatch, by: Authorship) -> Release:
        return await self._call(lambda: releases.stage(self._sql, store, batch, by))

    async def get(self, store: str, number: int) -> Release:
        return await self._read(lambda: releases.get(self._sql, store, number))

    async def newest(self, store: str, before: int, limit: int) -> list[Release]:
        return await self._read(lambda: releases.listed(self._sql, store, before, limit))

    async def rows(
        self, store: str, number: int, after: int, limit: int, max_bytes: int, *, conflicts_only: bool
    ) -> list[ReleaseRow]:
        words = store, number, after, limit, max_bytes, conflicts_only
        return await self._read(lambda: releases.rows(self._sql, *words))

    async def publish(
        self,
        store: str,
        number: int,
        staged_ms: int,
        by: Authorship,
        waves: Sequence[int] = (),
        gate: ReleaseGate = DEFAULT_GATE,
        canary: Canary = NO_CANARY,
        *,
        allowed: bool = False,
    ) -> Release:
        while True:
            compared = await self._read(lambda: releases.check_publishable(self._sql, store, number, staged_ms))
            partitions = await self._read(lambda: release_waves.partitions(self._sql, store, number)) if waves else []
            words = by, waves, partitions, gate, canary, allowed, compared
            release = await self._call(partial(releases.publish, self._sql, store, number, *words))
            if release is not None:
                return release

    async def key_partitions(self, store: str, number: int) -> dict[str, set[int]]:
        return await self._read(lambda: release_waves.key_partitions(self._sql, store, number))

    async def staged_rows(
        self, store: str, number: int, key: str, partitions: Collection[int], after: int, limit: int, max_bytes: int
    ) -> list[StagedFound]:
        words = store, number, key, partitions, after, limit, max_bytes
        return await self._read(lambda: release_waves.staged_rows(self._sql, *words))

    async def provisional_rows(
        self, store: str, number: int, key: str, partitions: Collection[int], after: int, limit: int, max_bytes: int
    ) -> StagedPage:
        words = store, number, key, partitions, after, limit, max_bytes
        return await self._read(lambda: release_waves.provisional_rows(self._sql, *words))

    async def approve(self, store: str, number: int, by: Authorship, digest: str = "") -> Release:
        return await self._call(lambda: release_approvals.approve(self._sql, store, number, by, digest))

    async def revoke(self, store: str, number: int, by: Authorship) -> Release:
        return await self._call(lambda: release_approvals.revoke(self._sql, store, number, by))

    async def pause(self, store: str, number: int, by: Authorship) -> Release:
        return await self._call(lambda: release_waves.pause(self._sql, store, number, by))

    async def resume(self, store: str, number: int, by: Authorship) -> Release:
        return await self._call(lambda: release_waves.resume(self._sql, store, number, by))

    async def stop(self, store: str, number: int, by: Authorship) -> Release:
        return await self._call(lambda: release_waves.stop(self._sql, store, number, by))

    async def note_gate(self, store: str, number: int, wave: int, waits_for: str) -> bool:
        return await self._write(lambda: release_waves.note_gate(self._sql, store, number, wave, waits_for))

    async def fail_gate(self, store: str, number: int, wave: int, why: str) -> Release:
        return await self._write(lambda: release_waves.fail_gate(self._sql, store, number, wave, why))

    async def pass_gate(
        self, store: str, number: int, wave: int, proven: Sequence[KeyCertificate] = (), instance: str = ""
    ) -> Release:
        words = store, number, wave, proven, instance
        return await self._write(lambda: release_waves.pass_gate(self._sql, *words))

    async def undo(self, store: str, number: int, by: Authorship) -> Release:
        return await self._call(lambda: releases.undo(self._sql, store, number, by))

    async def drop(self, store: str, number: int, by: Authorship) -> Release:
        return await self._call(lambda: releases.drop(self._sql, store, number, by))

    async def pin(self, store: str, number: int, by: Authorship) -> Release:
        return await self._call(lambda: release_pins.pin(self._sql, store, number, by))

    async def unpin(self, store: str, number: int, by: Authorship) -> Release:
        return await self._call(lambda: release_pins.unpin(self._sql, store, number, by))

    async def revisions(self, store: str, number: int) -> list[KeyRevisions]:
        return await self._read(lambda: release_proofs.revisions(self._sql, store, number))

    async def version_of(self, store: str, number: int, key: str, row_id: str) -> int:
        return await self._read(lambda: release_proofs.version_of(self._sql, store, number, key, row_id))

    async def of_row(self, store: str, key: str, row_id: str, limit: int) -> list[RowRelease]:
        return await self._read(lambda: release_proofs.of_row(self._sql, store, key, row_id, limit))

    async def set_proven(
        self, store: str, number: int, keys: Sequence[KeyCertificate], instance: str
    ) -> tuple[Release, Certificate]:
        return await self._call(lambda: release_proofs.set_proven(self._sql, store, number, keys, instance))

    async def certificate(self, store: str, number: int) -> Certificate | None:
        return await self._read(lambda: release_proofs.certificate(self._sql, store, number))

    async def step(self, store: str, number: int, generation: int) -> Step:
        return await self._write(lambda: step(self._sql, store, number, generation))

    async def expire(self, staged_ms: int, done_ms: int) -> Release | None:
        return await self._write(lambda: releases.expire(self._sql, staged_ms, done_ms))

    async def _call(self, make: Callable[[], Transaction[T]]) -> T:
        async with self._calls:
            return await self._write(make)

    @abstractmethod
    async def _read(self, make: Callable[[], Transaction[T]]) -> T:
        """What a transaction returns that writes nothing; ``make`` is called for each try."""

    @abstractmethod
    async def _write(self, make: Callable[[], Transaction[T]]) -> T:
        """What a transaction returns; ``make`` is called for each try."""
