"""Between what both databases return and what the service speaks of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
from ringcast_wire import (
    MIGRATING_WIRE_VERSION,
    NO_POLICY,
    WIRE_VERSION,
    AlreadyExistsError,
    ConditionFailedError,
    FetchReply,
    HeadsReply,
    KeyDeletedError,
    LimitExceededError,
    Migration,
    Mode,
    PartitionRows,
    Row,
    StoreDeletedError,
    StorePolicy,
    StoreSettings,
    Strategy,
    UnavailableError,
    UnknownKeyError,
    UnknownStoreError,
    decode_migration,
    encode_migration,
    limits,
    names,
)

from ringcast_config_service.repository.base import (
    Authorship,
    Deletion,
    Difference,
    KeyStats,
    ListedRow,
    Revision,
    StoreInfo,
    StoreRecord,
)
from ringcast_config_service.repository.packing import pack_metadata, unpack_metadata
from ringcast_config_service.repository.writes import KeyRef, PlannedRow

_MAX_CHANGES_BEYOND_LIVE = 10_000
_policy = msgspec.json.Decoder(StorePolicy)
_json = msgspec.json.Encoder()

E = TypeVar("E", bound=StrEnum)

Record = Sequence[Any]
"""A row of a result, by position: a tuple of sqlite3 or a record of asyncpg."""


def known(kind: type[E], value: str, what: str) -> E:
    """A word of the database, which a newer build may have written.

    Raises:
        UnavailableError: this build does not know it; an instance of that one may answer.
    """
    try:
        return kind(value)
    except ValueError as error:
        raise UnavailableError(f"this instance does not know {what} {value!r}: upgrade it") from error


def to_store(record: Record) -> StoreRecord:
    name, count, mode, hash_name, strategy, load_factor, wire_version, inline, created_at_ms, history, *others = record
    lease_ttl_ms, call_bound_ms, policy, migration, wire_pin, *ended = others
    settings = StoreSettings(
        partition_count=count,
        mode=known(Mode, mode, f"the mode of store {name!r},"),
        strategy=known(Strategy, strategy, f"the strategy of store {name!r},"),
        hash=hash_name,
        load_factor=load_factor,
        wire_version=wire_version,
        lease_ttl_ms=lease_ttl_ms,
        call_bound_ms=call_bound_ms,
    )
    return StoreRecord(
        name,
        settings,
        inline,
        created_at_ms,
        history,
        to_deletion(*ended),
        to_policy(policy),
        decode_migration(migration) if migration else None,
        wire_pin or WIRE_VERSION,
    )


def to_policy(text: str | None) -> StorePolicy:
    """The policies of a store as they are stored: JSON text, null where there are none."""
    return _policy.decode(text) if text else NO_POLICY


def from_policy(policy: StorePolicy, before: str | None) -> str | None:
    """The other way. ``before``: what is stored, of which policies of a newer build stay."""
    stored: dict[str, Any] = msgspec.json.decode(before) if before else {}
    others = {name: value for name, value in stored.items() if name not in StorePolicy.__struct_fields__}
    given = {**others, **msgspec.to_builtins(policy)}
    return _json.encode(given).decode() if given else None


def from_step(step: Migration) -> tuple[str, int]:
    """A step of a migration as it is stored, and the wire version of the settings that goes with it."""
    return encode_migration(step).decode(), MIGRATING_WIRE_VERSION if step.is_on else WIRE_VERSION


def check_step(found: StoreRecord, before: Migration | None) -> None:
    """Looks whether the last step of a store is the one that the next was computed from.

    Raises:
        ConditionFailedError: another one was taken since.
    """
    if found.migration != before:
        number = found.migration.number if found.migration is not None else 0
        raise ConditionFailedError(
            f"store {found.name!r} has taken another step of a migration meanwhile: look at it again",
            field="stage",
            found_version=number,
        )


def to_deletion(deleted_at_ms: int | None, expires_at_ms: int | None) -> Deletion | None:
    """``None``: it is there."""
    return None if deleted_at_ms is None else Deletion(deleted_at_ms, expires_at_ms or 0)


def from_store(store: StoreRecord) -> tuple[object, ...]:
    """In the order of the columns."""
    found = store.settings
    return (
        store.name,
        found.partition_count,
        found.mode.value,
        found.hash,
        found.strategy.value,
        found.load_factor,
        found.wire_version,
        store.inline_max_bytes,
        store.created_at_ms,
        store.history_id,
        found.lease_ttl_ms,
        found.call_bound_ms,
    )


def store_deleted(store: str, deletion: Deletion) -> StoreDeletedError:
    """What every read and write of it is refused with."""
    return StoreDeletedError(f"store {store!r} {_when(deletion)}", field="store")


def key_deleted(store: str, key: str, deletion: Deletion) -> KeyDeletedError:
    """What every read and write of it is refused with."""
    return KeyDeletedError(f"config key {key!r} of store {store!r} {_when(deletion)}", field="key")


def _when(deletion: Deletion) -> str:
    deleted = f"was deleted at {utc(deletion.deleted_at_ms)}"
    if not deletion.expires_at_ms:
        return f"{deleted} and is being purged: its name is free once that is done"
    return f"{deleted}, it can be restored until {utc(deletion.expires_at_ms)}"


def utc(time_ms: int) -> str:
    """A moment for a sentence."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(" ", timespec="seconds").replace("+00:00", " UTC")


def to_infos(stores: Iterable[Record], stats: Iterable[Record], *, include_deleted: bool) -> list[StoreInfo]:
    keys: dict[str, list[KeyStats]] = {}
    for store, name, rows, size, *ended in stats:
        found = KeyStats(name, rows, size, to_deletion(*ended))
        if include_deleted or found.deletion is None:
            keys.setdefault(store, []).append(found)
    records = [to_store(record) for record in stores]
    return [
        StoreInfo(record, tuple(keys.get(record.name, ())))
        for record in records
        if include_deleted or record.deletion is None
    ]


def only_store(
    stores: Sequence[Record], stats: Iterable[Record], name: str, *, include_deleted: bool = False
) -> StoreInfo:
    """The one store of a look-up by name."""
    record = existing_record(stores[0] if stores else None, name)
    if record.deletion is not None and not include_deleted:
        raise store_deleted(name, record.deletion)
    return to_infos(stores, stats, include_deleted=include_deleted)[0]


def only_key(stats: Iterable[Record], store: str, key: str) -> KeyStats:
    """The one key of a look-up by the name of its store."""
    for _, name, rows, size, *ended in stats:
        if name == key:
            return KeyStats(name, rows, size, to_deletion(*ended))
    raise UnknownKeyError(f"store {store!r} has no config key {key!r}", field="key")


def only_record(record: Record | None, name: str) -> StoreRecord:
    """The store of a look-up by name, if it is not deleted."""
    found = existing_record(record, name)
    if found.deletion is not None:
        raise store_deleted(name, found.deletion)
    return found


def existing_record(record: Record | None, name: str) -> StoreRecord:
    """The store of a look-up by name, deleted or not."""
    if record is None:
        raise UnknownStoreError(f"there is no store {name!r}", field="store")
    return to_store(record)


def is_created_at(record: Record | None, created_at_ms: int | None) -> bool:
    """Whether there is a store, and it was created then, if that matters."""
    return record is not None and created_at_ms in (None, to_store(record).created_at_ms)


def check_same(existing: StoreRecord, wanted: StoreRecord) -> StoreRecord:
    """Returns the store that is there if it has the wanted settings.

    Raises:
        AlreadyExistsError: names the first setting that differs and both values.
        StoreDeletedError: it is deleted.
    """
    if existing.deletion is not None:
        raise store_deleted(existing.name, existing.deletion)
    have = {**_settings(existing), "inline_max_bytes": existing.inline_max_bytes}
    want = {**_settings(wanted), "inline_max_bytes": wanted.inline_max_bytes}
    for name, value in have.items():
        if want[name] != value:
            raise AlreadyExistsError(
                f"store {existing.name!r} exists with {name} {value}: it can't be created with {name} {want[name]}",
                field=name,
            )
    return existing


def _settings(store: StoreRecord) -> dict[str, object]:
    settings: dict[str, object] = {
        name: str(getattr(store.settings_now, name)) for name in StoreSettings.__struct_fields__
    }
    if store.migration is not None and store.migration.is_on:
        settings["wire_version"] = str(WIRE_VERSION)  # it was created with this one
    return settings


def check_store_count(count: int, name: str) -> None:
    if count >= limits.MAX_STORES:
        raise LimitExceededError(
            f"there are {count} stores, the limit is {limits.MAX_STORES}: {name!r} can't be created", field="name"
        )


def existing_key(record: Record | None, store: str, key: str) -> Deletion | None:
    """The deletion of a key of a look-up by its name (its id, and the deletion)."""
    if record is None:
        raise UnknownKeyError(f"store {store!r} has no config key {key!r}", field="key")
    return to_deletion(*record[1:])


def after_delete(current: Deletion | None, wanted: Deletion) -> Deletion:
    """What is stored: deleting again changes nothing, but that a purge may begin earlier."""
    if current is None:
        return wanted
    if wanted.expires_at_ms == 0:
        return Deletion(current.deleted_at_ms, 0)
    return current


def event_subjects(store: str, key: str) -> str:
    """What the subjects of a key's events begin with."""
    return names.notify_subject(store, key, 0).removesuffix("0")


def mark_of(key: str) -> str:
    """What the digests of idempotency keys for a config key have in them, and no others."""
    return f"/{key}/"


def store_event_subjects(store: str) -> str:
    """What the subjects of the events of all keys of a store begin with."""
    return names.notify_stream_subjects(store).removesuffix("*.*")


def check_store_restorable(name: str, deletion: Deletion, now_ms: int) -> None:
    """Refuses to restore a store whose retention is over."""
    if deletion.expires_at_ms <= now_ms:
        raise store_deleted(name, Deletion(deletion.deleted_at_ms, 0))


def check_key_restorable(store: str, key: str, deletion: Deletion, now_ms: int) -> None:
    """The same for a key."""
    if deletion.expires_at_ms <= now_ms:
        raise key_deleted(store, key, Deletion(deletion.deleted_at_ms, 0))


def check_deleted_stores(count: int) -> None:
    """Refuses to delete more stores than can be kept for a restore."""
    _check_deleted_count(count, limits.MAX_DELETED_STORES, "stores")


def check_deleted_keys(count: int, store: str) -> None:
    """The same for the keys of a store."""
    _check_deleted_count(count, limits.MAX_DELETED_KEYS_PER_STORE, f"config keys of store {store!r}")


def _check_deleted_count(count: int, limit: int, what: str) -> None:
    if count >= limit:
        raise LimitExceededError(
            f"{count} {what} are deleted and not purged yet, the limit is {limit}: purge some of them first",
            field="name",
        )


def located(record: Record | None, store: str, key: str) -> Record:
    """The result of a look-up whose second column is the key's id, if both are there, without the last four columns:

    the deletion of the store, and that of the key.
    """
    if record is None:
        raise UnknownStoreError(f"there is no store {store!r}", field="store")
    if (error := deleted(record, store, key)) is not None:
        raise error
    if record[1] is None:
        raise UnknownKeyError(f"store {store!r} has no config key {key!r}", field="key")
    return record[:-4]


def deleted(record: Record, store: str, key: str) -> StoreDeletedError | KeyDeletedError | None:
    """What a look-up that ends in these four columns says of a deletion."""
    of_store, of_key = to_deletion(*record[-4:-2]), to_deletion(*record[-2:])
    if of_store is not None:
        return store_deleted(store, of_store)
    return None if of_key is None else key_deleted(store, key, of_key)


def to_row(row_id: str, value: str, version: int, deleted: bool | int, metadata: str | None) -> Row:
    return Row(row_id, value, version, bool(deleted), unpack_metadata(metadata))


def wants_whole(since: int | None, head: int, floor: int, live_rows: int) -> bool:
    """Whether the whole partition has to be sent.

    Also where tombstones after ``since`` are gone, where the asker is ahead of us (a database that was restored from a
    backup), and where so much changed that it could be more than all live rows: tombstones have no limit, live rows do.
    """
    return since is None or not floor <= since <= head or head - since > live_rows + _MAX_CHANGES_BEYOND_LIVE


def by_partition(heads: Iterable[Record], records: Iterable[Record]) -> list[PartitionRows]:
    """Groups named rows (their partition first) under the heads (partition, head) of the same snapshot."""
    rows: dict[int, list[Row]] = {}
    for partition, *record in records:
        rows.setdefault(partition, []).append(to_row(*record))
    return [PartitionRows(head[0], head[1], False, rows.get(head[0], [])) for head in heads]


def fetch_reply(history: str, partitions: list[PartitionRows]) -> FetchReply:
    """Partitions of one snapshot."""
    return FetchReply(WIRE_VERSION, partitions, history)


def dense_heads(heads: Iterable[Record], partition_count: int, history: str) -> HeadsReply:
    """Heads with an entry for every partition."""
    revisions, rows = [0] * partition_count, [0] * partition_count
    for partition, head, _, live_rows in heads:
        revisions[partition], rows[partition] = head, live_rows
    return HeadsReply(WIRE_VERSION, revisions, history, rows)


def to_listed(records: Iterable[Record]) -> list[ListedRow]:
    return [ListedRow(partition, to_row(*record)) for partition, *record in records]


def to_differences(partition: int, records: Iterable[Record]) -> list[Difference]:
    """Rows that were written between two revisions, without those that were the same in the end."""
    found = []
    for row_id, was, was_version, was_deleted, was_metadata, value, version, deleted, metadata, _ in records:
        before = None if was is None or was_deleted else to_row(row_id, was, was_version, False, was_metadata)
        after = None if deleted else to_row(row_id, value, version, False, metadata)
        if _content(before) != _content(after):
            found.append(Difference(partition, row_id, before, after))
    return found


def _content(row: Row | None) -> tuple[str, Mapping[str, str]] | None:
    return None if row is None else (row.value, row.metadata or {})


def to_revisions(records: Iterable[Record]) -> list[Revision]:
    found = []
    for partition, revision, row_id, value, deleted, metadata, written_at_ms, prev, author, reason, *before in records:
        was, was_deleted, was_metadata = before
        previous = None if was is None else to_row(row_id, was, prev, was_deleted, was_metadata)
        row = to_row(row_id, value, revision, deleted, metadata)
        found.append(Revision(partition, row, written_at_ms, prev, previous, to_authorship(author, reason)))
    return found


def to_authorship(author: str | None, reason: str | None) -> Authorship:
    """Null: there is none."""
    return Authorship(author or "", reason or "")


def from_authorship(by: Authorship) -> tuple[str | None, str | None]:
    """The other way."""
    return by.author or None, by.reason or None


def from_row(row: PlannedRow, key_ids: Mapping[KeyRef, int]) -> tuple[int, int, str, str, int, bool, str | None]:
    """Key id, partition, row id, value, version, deleted, metadata."""
    key, partition, row_id, value, version, metadata, *_ = row
    packed = None if metadata is None else pack_metadata(metadata)
    return key_ids[key], partition, row_id, value or "", version, value is None, packed
