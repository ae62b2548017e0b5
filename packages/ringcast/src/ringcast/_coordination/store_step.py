"""Reading the step of a migration, which an operator takes."""

from __future__ import annotations

from typing import Final

import msgspec
from ringcast_wire import (
    WIRE_VERSION,
    EventLog,
    Migration,
    ProtocolError,
    UnavailableError,
    decode_migration,
    names,
    stage_name,
)

from ringcast._bus.buckets import Buckets
from ringcast._bus.bus import TRANSIENT
from ringcast._protocol.kv_mirror import Entry

_NEVER_MIGRATED: Final = msgspec.json.encode(WIRE_VERSION)
"""The wire version of a store without a step, and of one that is off again."""


class StoreStep:
    """The step of a store, as far as it is known; ``None``: it does not migrate.

    Numbers of steps tell a later one: revisions begin again in a bucket that NATS has lost. Where no entry is there the
    wire version tells whether the store has never migrated, was created again, or its database has gone back as well;
    or whether NATS has lost the step. It is written after the step, so a step that is on its way back is waited for.
    """

    def __init__(self, buckets: Buckets, store: str, log: EventLog) -> None:
        self.known: Migration | None = None
        """The highest step of those that could be read."""
        self.is_read = False
        """Whether it could be read yet: else nothing is known, not even that the store does not migrate."""
        self._store = store
        self._bucket = buckets.bucket(names.meta_bucket(store))
        self._data: bytes | None = None
        self._log = log

    async def read(self) -> Migration | None:
        """The step; the one that is known as long as another can't be read. A server may answer that lags behind."""
        try:
            entry = await self._read(newest=False)
        except TRANSIENT as error:
            self._log.debug("migration.read_failed", error=error)
            return self.known
        try:
            self._take(entry)
        except ProtocolError as error:
            self._log.warning("migration.unreadable", error=error)
        return self.known

    async def read_newest(self) -> Migration | None:
        """The step as it is now.

        Raises:
            ProtocolError: it can't be read.
            BusError, UnavailableError, TimeoutError, OSError: NATS does not answer, refuses to, or has lost it.
        """
        entry = await self._read(newest=True)
        self._data = None
        self._take(entry)
        return self.known

    async def _read(self, *, newest: bool) -> Entry | None:
        """The entry of the step, if there was one.

        Raises:
            UnavailableError: it is lost: the config service writes it again.
        """
        entry = await self._bucket.get(names.META_MIGRATION, newest=newest)
        has_none = not newest and self.is_read and self.known is None  # that there is none is nothing new
        if has_none or (entry is not None and entry.value is not None):
            return entry
        version = await self._bucket.get("wire_version", newest=newest)
        if version is None or version.value != _NEVER_MIGRATED:
            raise UnavailableError(
                f"the step of the migration of store {self._store!r} is lost: its config service writes it again"
            )
        return None

    def _take(self, entry: Entry | None) -> None:
        data = entry.value if entry is not None else None
        if data is None:
            self._data = self.known = None
            self.is_read = True
            return
        if data == self._data:
            return
        self._data = data  # what can't be read is said once
        found = decode_migration(data)
        self.is_read = True
        if self.known is None or found.number > self.known.number:  # else a server has answered that lags behind
            self.known = found
            self._log.info("migration.step", stage=stage_name(found.stage), step=found.number)
