"""The hard limits of Ringcast, each in one place.

They come from the operating envelope. The process that receives a value checks it with :mod:`ringcast_wire`, and
refuses it with an error that gives the limit and the value.
"""

from __future__ import annotations

from typing import Final

from ringcast_core import MAX_PARTITIONS as _MAX_PARTITIONS

KIB: Final = 1024
MIB: Final = 1024 * KIB

MAX_PARTITIONS: Final = _MAX_PARTITIONS
"""Partitions of one store; the core hashes to no more."""
MAX_NAME_LENGTH: Final = 64
"""Characters of a store, config key or worker name."""
MAX_ROW_ID_BYTES: Final = 512
"""UTF-8 bytes of a row id."""
MAX_ROW_BYTES: Final = 1 * MIB
"""UTF-8 bytes of a row: id, value and metadata together."""
MAX_METADATA_ENTRIES: Final = 64
MAX_METADATA_BYTES: Final = 16 * KIB
"""UTF-8 bytes of all metadata names and values of one row."""
MAX_PARTITION_BYTES: Final = 8 * MIB
"""Bytes of all live rows of one partition: what a worker has to fetch when it gains it."""
MAX_STORES: Final = 50
MAX_DELETED_STORES: Final = 50
"""Stores that are deleted and can still be restored; they don't count as stores."""
MAX_KEYS_PER_STORE: Final = 100
MAX_DELETED_KEYS_PER_STORE: Final = 1_000
"""Keys that are deleted and can still be restored; they don't count as keys."""
MAX_WORKERS_PER_KEY: Final = 200
MAX_BATCH_ROWS: Final = 1_000
"""Rows of one bulk write batch, and row ids of one get or batch fetch."""
MAX_BATCH_BYTES: Final = 3 * MIB
"""Row bytes of one bulk write batch; below gRPC's default message limit of 4 MiB."""
MAX_IDEMPOTENCY_KEY_BYTES: Final = 128
"""UTF-8 bytes of an idempotency key."""
MAX_REASON_BYTES: Final = 512
"""UTF-8 bytes of the reason of a write: the history has it with each row."""
MAX_EVENT_CHANGES: Final = 256
"""Changes listed in one event; a write of more rows to a partition says only ``prev`` and ``rev``."""
MAX_EVENT_BYTES: Final = 256 * KIB
"""Encoded size above which an event leaves its list of changes out."""
DEFAULT_INLINE_BYTES: Final = 256
MAX_INLINE_BYTES: Final = 4 * KIB
MAX_REPLY_BYTES: Final = 64 * MIB
"""Encoded size of one fetch reply, all chunks together."""
MAX_FULL_BYTES: Final = 48 * MIB
"""Bytes of all live rows of a key that is fetched whole; a larger one is fetched partition by partition. It leaves room
for other answers below the 64 MiB that NATS keeps for a client."""
MAX_FILTERS_PER_CONSUMER: Final = 500
"""Filter subjects of one JetStream consumer; a worker with more partitions gets further consumers."""
CHUNK_HEADROOM_BYTES: Final = 4 * KIB
"""What a chunk leaves free below the server's payload limit: headers count towards it."""
MAX_LABELS: Final = 8
"""Labels of a worker."""
MAX_LABEL_PART_CHARS: Final = 63
"""Characters of the name of a label, and of its value."""
MAX_SOCKET_PATH_BYTES: Final = 107
"""What the system takes as the path of a Unix socket."""

LEASE_TTL_S: Final = 10
LEASE_REFRESH_S: Final = 5.0
LEASE_SEEN_TO_END_S: Final = LEASE_TTL_S + 1.0
"""After so long without a refresh a watcher looks whether a lease has ended: nothing on the bus tells of it."""
MAX_RECORD_BYTES: Final = 4 * KIB
"""A lease, a member or a claim on a slot, with headers: a worker keeps all records of its keys in memory."""
MAX_TABLE_BYTES: Final = 256 * KIB
"""A table of owners, as JSON. One of 4096 partitions that 200 workers own takes about 50 KiB."""
MAX_WISHES_BYTES: Final = 64 * KIB
"""What an operator wants of a key, as JSON. Pins of 4096 partitions to 200 workers, all of which drain, take less."""
MAX_SEAL_PENDING: Final = 128
"""Unsettled changes that a group's seal of a partition names; it stops before those that do not fit."""
MAX_SETTING_BYTES: Final = 16 * KIB
"""A setting of a store, with headers."""
MAX_DEAD_LETTER_BYTES: Final = 8 * MIB
"""A dead letter as JSON, with headers; the server's payload limit is usually lower."""
MAX_DEAD_LETTER_PAGE: Final = 1_000
"""Dead letters of one answer."""
DEFAULT_DEAD_LETTER_PAGE: Final = 100
MAX_REPLAYED_LETTERS: Final = 100
"""Dead letters that one call has replayed."""
MAX_RELEASE_ROWS: Final = 1_000_000
"""Rows of one release."""
MAX_RELEASE_BYTES: Final = 1024 * MIB
"""Bytes of all rows of one release: ids, values and metadata."""
MAX_OPEN_RELEASES: Final = 20
"""Releases of one store that are being staged, staged, being published or being undone."""
PARTITION_TOLERANCE_ROWS: Final = 100
"""Rows by which a release may make a partition longer or shorter whatever part of it they are, where the policy of a
store says nothing: a few rows are a large part of a small partition, and hashes don't spread them evenly."""
MAX_APPROVALS: Final = 20
"""Of a release: as many as the policy of a store may want."""
MAX_SCHEMA_BYTES: Final = 64 * KIB
"""The text of a schema for the values of a key."""
MAX_SCHEMA_VERSIONS: Final = 100
"""Versions of the schema of a key that are kept; older ones are forgotten."""
MAX_SCHEMA_KEYS: Final = 1_000
"""Keys of one store that have schemas, also keys that are not there yet."""
MAX_CONDITIONS: Final = 8
"""PromQL conditions of a gate."""
MAX_CONDITION_BYTES: Final = 1_000
"""Of one of them."""
MAX_DRY_WAVE_S: Final = 60.0
"""How long publishing waits for the dry wave of a release."""
MAX_PROVISIONAL_ROWS: Final = 100_000
"""Rows of a release that has a canary in a store of mode FULL: its workers hold them beside what they have."""
MAX_PROVISIONAL_BYTES: Final = 64 * MIB
"""Bytes of these rows: ids, values and metadata."""
MAX_KEPT_RELEASES: Final = 1_000
"""Releases of one store that are known; the oldest that are done are forgotten."""
MAX_RELEASE_PAGE: Final = 100
"""Releases of one answer."""
