"""Reading what a store's creator locked."""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple

from ringcast_wire import (
    Backoff,
    EventLog,
    Migration,
    StoreDeletedError,
    StoreSettings,
    UnavailableError,
    UnknownStoreError,
    decode_migration,
    names,
)

from ringcast._bus.buckets import Buckets
from ringcast._bus.bus import Bus, NoJetStreamError, translated
from ringcast._common.config import WorkerConfig


class StoreMetadata(NamedTuple):
    """What the metadata bucket of a store says."""

    created: StoreSettings
    """The settings that its creator locked."""
    step: Migration | None
    """The last step of a migration, as a server has it that may lag behind; ``None``: there was none."""

    @property
    def settings(self) -> StoreSettings:
        """The settings that count: of a store that has finished migrating they are others."""
        return self.created.after(self.step)


def decode_metadata(entries: dict[str, bytes]) -> StoreMetadata:
    """Reads the entries of a metadata bucket.

    Raises:
        ProtocolError, MismatchError: as :meth:`StoreSettings.from_kv`; or the step of its migration can't be read.
    """
    step = entries.get(names.META_MIGRATION)
    return StoreMetadata(StoreSettings.from_kv(entries), decode_migration(step) if step else None)


async def load_settings(buckets: Buckets, store: str) -> StoreMetadata:
    """The settings of a store, from its metadata bucket.

    Raises:
        UnknownStoreError: there is no such store, or its creation has not been finished.
        StoreDeletedError: it is deleted.
        UnavailableError: JetStream does not answer.
        MismatchError: the store needs another version of this package.
        ProtocolError: the step of its migration can't be read.
    """
    bucket = buckets.bucket(names.meta_bucket(store))
    unknown = UnknownStoreError(f"store {store!r} does not exist on this NATS: create it first", field="store")
    with translated(f"reading the settings of store {store}"):
        try:
            if not await bucket.exists():
                raise unknown
        except NoJetStreamError as error:
            raise UnavailableError("JetStream is not enabled on this NATS server") from error
        fields = StoreSettings.__struct_fields__
        others = (names.META_DELETED, names.META_MIGRATION)
        deleted, step, *entries = await asyncio.gather(*(bucket.get(field) for field in (*others, *fields)))
    values = {field: entry.value for field, entry in zip(fields, entries, strict=True) if entry and entry.value}
    if any(field not in values for field in fields if field not in StoreSettings.OPTIONAL):
        raise unknown
    if deleted is not None and deleted.value:
        raise StoreDeletedError(deleted.value.decode(errors="replace"), field="store")
    if step is not None and step.value:
        values[names.META_MIGRATION] = step.value
    return decode_metadata(values)


async def find_store(
    bus: Bus, buckets: Buckets, config: WorkerConfig, *, patient: bool, log: EventLog
) -> StoreMetadata:
    """Connects and reads the settings; a worker that has rows to serve meanwhile (``patient``) tries until it can.

    Raises:
        UnavailableError, UnknownStoreError: it is not to be tried again.
        StoreDeletedError: it is deleted, as the database knows: to try again is of no use.
        MismatchError: the store needs another version of this package.
    """
    backoff = Backoff(random.random)
    while True:
        try:
            if not bus.is_connected:
                await bus.connect(config)
            return await load_settings(buckets, config.store)
        except (UnavailableError, UnknownStoreError) as error:
            if not patient:
                raise
            delay_s = backoff.next_s()
            log.warning("store.join_failed", error=error, retry_in_s=round(delay_s, 1))
        await asyncio.sleep(delay_s)
