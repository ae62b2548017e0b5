"""The files of a worker's cache: one for each store and worker id, locked by one process, and those in quarantine."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from ringcast_sqlite import quarantine, quarantined, remove_database, try_lock
from ringcast_wire import InUseError, limits

from ringcast._common.process import this_process

KEPT_QUARANTINED: Final = 3
"""Files in quarantine that are kept; the oldest goes when there is one more."""
_PATIENCE_S: Final = limits.LEASE_TTL_S + 2.0
_POLL_S: Final = 0.1
_LABEL: Final = "quarantined"


class CachePlace:
    """The names of the files of one cache."""

    def __init__(self, directory: Path, store: str, worker_id: str) -> None:
        self.directory = directory
        self.path = directory / f"{store}.{worker_id}.db"

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Makes the directory, and keeps other processes out of the cache; waits for one that is ending.

        Raises:
            InUseError: another process, or another worker of this one, has locked it.
            OSError: the directory can't be made or written.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # other users must not read the rows
        file = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        this_process.open_lock(file)
        try:
            await self._lock(file)
            yield
        finally:
            this_process.close_lock(file)  # which unlocks it, as the end of the process does

    async def _lock(self, file: int) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not try_lock(file):
            if time.monotonic() >= deadline:
                raise InUseError(
                    f"cache {self.path} is in use by another process with this worker id", field="cache_dir"
                )
            await asyncio.sleep(_POLL_S)

    def quarantine(self) -> Path:
        """Renames the file with what belongs to it, so that a new one can take its place; returns its new name.

        Waits for the disk.
        """
        moved_to = quarantine(self.path, _LABEL)
        for old in self.quarantined()[:-KEPT_QUARANTINED]:
            remove_database(old)
        return moved_to

    def quarantined(self) -> list[Path]:
        """The files in quarantine, the oldest first."""
        return quarantined(self.path, _LABEL)
