"""The step of a migration in the metadata of a store, and the wire version that goes with it."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KeyValue
from ringcast_wire import (
    MIGRATING_WIRE_VERSION,
    WIRE_VERSION,
    Migration,
    MismatchError,
    UnavailableError,
    decode_migration,
    encode_migration,
    names,
)

from ringcast_config_service.repository import StoreRecord

WIRE_SETTING: Final = "wire_version"
_TRIES: Final = 20
_PAUSE_S: Final = 0.05
_VERSIONS: Final = frozenset({msgspec.json.encode(version) for version in (WIRE_VERSION, MIGRATING_WIRE_VERSION)})


async def ensure_step(bucket: KeyValue, store: StoreRecord) -> None:
    """Has the metadata say the last step, and, in this order, the wire version: a store that migrates has another one,
    which builds refuse that know of no step.

    An instance whose record is older than what is there changes nothing: numbers of steps rise. The wire version goes
    with the step that stands there, whichever instance wrote it.

    Raises:
        MismatchError: the store has a wire version that is neither.
        UnavailableError: others go on changing it.
    """
    for _ in range(_TRIES):
        version = await _entry(bucket, WIRE_SETTING)
        entry, own = await _entry(bucket, names.META_MIGRATION), store.migration
        step = decode_migration(entry.value) if entry is not None and entry.value is not None else None
        if own is not None and (step is None or step.number < own.number):
            await _put(bucket, names.META_MIGRATION, encode_migration(own), entry)
            continue
        wanted = msgspec.json.encode(MIGRATING_WIRE_VERSION if step is not None and step.is_on else WIRE_VERSION)
        if version is not None and version.value == wanted:
            return
        if version is not None and version.value not in _VERSIONS:
            raise MismatchError(
                f"store {store.name!r} has {WIRE_SETTING} {wanted.decode()} in the database, NATS says "
                f"{(version.value or b'').decode(errors='replace')}",
                field=WIRE_SETTING,
            )
        await _put(bucket, WIRE_SETTING, wanted, version)  # and look again: the step may be another by now
    raise UnavailableError(f"the step of store {store.name!r} is being changed: it is written at the next check")


async def last_step(js: JetStreamContext, store: StoreRecord) -> Migration | None:
    """The last step of a store: the one of its record, or what NATS has where the database has forgotten it."""
    own = store.migration
    try:
        entry = await _entry(await js.key_value(names.meta_bucket(store.name)), names.META_MIGRATION)
    except NotFoundError:
        return own
    found = decode_migration(entry.value) if entry is not None and entry.value is not None else None
    return found if found is not None and (own is None or found.number > own.number) else own


async def _entry(bucket: KeyValue, name: str) -> KeyValue.Entry | None:
    try:
        return await bucket.get(name)
    except KeyNotFoundError:
        return None


async def _put(bucket: KeyValue, name: str, value: bytes, before: KeyValue.Entry | None) -> None:
    """Writes in place of what was read, or of nothing; where something else stands there by now it does nothing."""
    try:
        if before is None:
            await bucket.create(name, value)
        else:
            await bucket.update(name, value, last=before.revision)
    except KeyWrongLastSequenceError:
        await asyncio.sleep(_PAUSE_S)
