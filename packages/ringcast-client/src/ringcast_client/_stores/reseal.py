"""Seals the rows of a list again with the active key of the key ring."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, Protocol

from ringcast_wire import ConditionFailedError, check_row, limits
from ringcast_wire.key_ring import ListKeys

from ringcast_client._common.records import CommittedRow, KeyedWrite, RowRecord

_FIRST_CONFLICTS: Final = 10


@dataclass(slots=True)
class ResealResult:
    """How many rows were looked at, sealed with the active key, and changed by another writer meanwhile, so that they
    stay as that one has left them; the ids of the first ten of these."""

    rows: int = 0
    resealed: int = 0
    conflicts: int = 0
    first_conflicts: list[str] = field(default_factory=list)


class ResealService(Protocol):
    """The calls of a client without a key ring of these names."""

    def list(self, store: str, key: str) -> AsyncGenerator[RowRecord, None]: ...
    async def commit(
        self, store: str, writes: Sequence[KeyedWrite], *, reason: str | None = None
    ) -> Sequence[CommittedRow]: ...


class Reseal:
    """One pass over one list. Rows go out in transactions of one batch, each on the condition that it is unchanged."""

    def __init__(
        self,
        service: ResealService,
        keys: ListKeys,
        store: str,
        key: str,
        reason: str,
        on_progress: Callable[[ResealResult], None],
    ) -> None:
        self._service = service
        self._keys = keys
        self._store = store
        self._key = key
        self._reason = reason
        self._on_progress = on_progress
        self._batch: list[KeyedWrite] = []
        self._bytes = 0
        self._result = ResealResult()

    async def run(self) -> ResealResult:
        """Looks at every live row.

        Raises:
            ValueSealedError: a row can't be opened; those before it are sealed.
        """
        async with aclosing(self._service.list(self._store, self._key)) as rows:
            async for row in rows:
                self._result.rows += 1
                if not self._keys.is_current(row.metadata):
                    await self._add(row)
        await self._flush()
        return self._result

    async def _add(self, row: RowRecord) -> None:
        opened = self._keys.open(row.row_id, row.value, row.metadata)
        value, metadata = self._keys.seal(row.row_id, *opened)
        size = check_row(row.row_id, value, metadata)
        if self._batch and self._bytes + size > limits.MAX_BATCH_BYTES:
            await self._flush()
        self._batch.append(KeyedWrite(self._key, row.row_id, value, metadata or {}, if_version=row.version))
        self._bytes += size
        if len(self._batch) >= limits.MAX_BATCH_ROWS:
            await self._flush()

    async def _flush(self) -> None:
        batch, self._batch, self._bytes = self._batch, [], 0
        if batch:
            try:
                await self._commit(batch)
            except ConditionFailedError:
                for write in batch:  # which of them it is
                    await self._write_one(write)
        self._on_progress(self._result)

    async def _commit(self, writes: Sequence[KeyedWrite]) -> None:
        await self._service.commit(self._store, writes, reason=self._reason)
        self._result.resealed += len(writes)

    async def _write_one(self, write: KeyedWrite) -> None:
        try:
            await self._commit([write])
        except ConditionFailedError:
            self._result.conflicts += 1
            if len(self._result.first_conflicts) < _FIRST_CONFLICTS:
                self._result.first_conflicts.append(write.row_id)
