"""The configuration of the streams and buckets of a store, in one place.

Every stream has ``max_bytes``. JetStream reserves that room when a stream is made, and refuses a stream that does not
fit: so events and dead letters, which throw their oldest away, can't take the room of leases and members, which refuse
what is too much. Tags keep the two on different servers, so that neither can fill the disk of the other.

Records of members have a limit and known names: what has another name is not stored, so that no worker can fill the
bucket, or the memory of its peers, with records that no worker needs. Nothing may be rolled up: one message of one
worker would empty a bucket. That leaves no markers of expired entries (a server with markers allows roll-ups): watchers
see by time that a lease was not refreshed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nats.js.api import DiscardPolicy, Placement, StorageType, StreamConfig
from ringcast_service import at_least, duration_s, setting, size
from ringcast_wire import limits, names
from ringcast_wire.buckets import stream_of, subject_of
from ringcast_wire.owner_records import RECORD_AGE_S

EVENTS_PER_PARTITION: Final = 64
DUPLICATE_WINDOW_S: Final = 120.0
NODE_TTL_S: Final = RECORD_AGE_S
OWNERS_TTL_S: Final = RECORD_AGE_S
"""The proof of exclusive ownership wants a session kept for much longer than a death takes to prove."""
OWNERS_REVISIONS_PER_MS: Final = 10
"""More than such a bucket takes in for long: 10,000 a second. 2,000 workers refresh their sessions once a second."""
SEAL_TTL_S: Final = 30 * 86_400.0
"""How long a group's position outlives the group. The host that delivers it rewrites it every day."""
DEAD_LETTERS: Final = 100_000
DEAD_LETTER_AGE_S: Final = 30 * 86_400.0
META_BYTES: Final = limits.MIB
WISHES_BYTES: Final = 8 * limits.MIB
"""Room for the largest record of each of the 100 keys that a store may have."""
SMALLEST_BYTES: Final = limits.MIB
"""What a stream gets at least where there is less room than it should have."""
LAYOUT: Final = 1
"""The number of what this module says. Raise it with each change: an older build then leaves the streams as a newer one
has made them, in place of changing them back."""
_LAYOUT_KEY: Final = "ringcast.layout"
_RAISED_ONLY: Final = frozenset({"deny_delete", "deny_purge", "allow_msg_ttl"})
"""What a server does not let be undone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSizes:
    """How much room each stream of a store has, and the bucket of leases, which is everybody's."""

    events_max_bytes: int = size(
        "256MiB", "Room for the events of each store; the oldest go when it is full.", allowed=at_least(SMALLEST_BYTES)
    )
    events_max_age_s: float = duration_s("7d", "How long events are kept.", allowed=at_least(DUPLICATE_WINDOW_S))
    dead_letters_max_bytes: int = size(
        "64MiB", "Room for the dead letters of each store; the oldest go.", allowed=at_least(SMALLEST_BYTES)
    )
    members_max_bytes: int = size(
        "32MiB", "Room for the member records of each store.", allowed=at_least(SMALLEST_BYTES)
    )
    groups_max_bytes: int = size(
        "32MiB", "Room for how far the groups of each store have come.", allowed=at_least(SMALLEST_BYTES)
    )
    leases_max_bytes: int = size("32MiB", "Room for the leases of all processes.", allowed=at_least(SMALLEST_BYTES))
    lease_tags: tuple[str, ...] = setting(
        (), "Tags of the servers of a cluster that keep leases and members, commas between.", metavar="TAG,TAG"
    )
    data_tags: tuple[str, ...] = setting(
        (),
        "Tags of the servers that keep events, dead letters and positions of groups, commas between.",
        metavar="TAG,TAG",
    )


def leases(sizes: StreamSizes) -> StreamConfig:
    """The bucket of leases."""
    bucket = names.LEASES_BUCKET
    subjects = [subject_of(bucket, "*"), subject_of(bucket, "*.*")]  # a worker's, and those that an agent has had
    return _bucket(
        bucket, subjects, limits.MAX_RECORD_BYTES, limits.LEASE_TTL_S, sizes.leases_max_bytes, sizes.lease_tags
    )


def of_store(store: str, sizes: StreamSizes) -> Iterator[StreamConfig]:
    """The streams of a store, in the order in which they get room where there is little."""
    meta, nodes = names.meta_bucket(store), names.nodes_bucket(store)
    yield _bucket(meta, [subject_of(meta, ">")], limits.MAX_SETTING_BYTES, None, META_BYTES, ())
    yield StreamConfig(
        name=names.notify_stream(store),
        subjects=[names.notify_stream_subjects(store)],
        max_msgs_per_subject=EVENTS_PER_PARTITION,
        max_msg_size=limits.MAX_EVENT_BYTES + limits.CHUNK_HEADROOM_BYTES,
        max_bytes=sizes.events_max_bytes,
        max_age=sizes.events_max_age_s,
        placement=_placement(sizes.data_tags),
        **_COMMON,
    )
    slots = (names.slot_key("*", slot) for slot in range(limits.MAX_WORKERS_PER_KEY))
    subjects = [subject_of(nodes, name) for name in (names.node_key("*", "*"), *slots)]
    yield _bucket(nodes, subjects, limits.MAX_RECORD_BYTES, NODE_TTL_S, sizes.members_max_bytes, sizes.lease_tags)
    yield StreamConfig(
        name=names.dead_stream(store),
        subjects=[names.dead_stream_subjects(store)],
        max_msgs=DEAD_LETTERS,
        max_msg_size=limits.MAX_DEAD_LETTER_BYTES,
        max_bytes=sizes.dead_letters_max_bytes,
        max_age=DEAD_LETTER_AGE_S,
        placement=_placement(sizes.data_tags),
        **_COMMON,
    )


def groups(store: str, sizes: StreamSizes) -> StreamConfig:
    """The bucket of how far the groups of a store have come. A store is served without it, too."""
    bucket = names.groups_bucket(store)
    subjects = [subject_of(bucket, names.seal_key("*", "*", "*"))]
    return _bucket(bucket, subjects, limits.MAX_RECORD_BYTES, SEAL_TTL_S, sizes.groups_max_bytes, sizes.data_tags)


def owners(store: str, sizes: StreamSizes, age_ms: int = 0) -> StreamConfig:
    """The bucket of exclusive ownership, of a store of strategy ``sticky`` and of one that migrates, or once did.

    ``age_ms``: of the store. Tokens are revisions of this bucket, and databases of applications refuse older ones: so
    where the bucket was lost, with all that says how far it was, its revisions begin above what it can have had.
    """
    bucket = names.owners_bucket(store)
    of_key = (names.term_key("*"), names.table_key("*"), names.state_key("*", "*"), names.gone_key("*", "*"))
    keys = (*of_key, names.session_key("*"), names.load_key("*"))
    record_bytes = limits.MAX_TABLE_BYTES + limits.CHUNK_HEADROOM_BYTES
    subjects = [subject_of(bucket, key) for key in keys]
    made = _bucket(bucket, subjects, record_bytes, OWNERS_TTL_S, sizes.members_max_bytes, sizes.lease_tags)
    return made.evolve(first_seq=1 + max(0, age_ms) * OWNERS_REVISIONS_PER_MS)


def wishes(store: str) -> StreamConfig:
    """The bucket of what operators want of the keys of such a store. Only tools write it, and nothing in it ages:
    what an operator wants counts until it is taken back, also where no worker runs meanwhile."""
    bucket = names.wishes_bucket(store)
    record_bytes = limits.MAX_WISHES_BYTES + limits.CHUNK_HEADROOM_BYTES
    return _bucket(bucket, [subject_of(bucket, names.wishes_key("*"))], record_bytes, None, WISHES_BYTES, ())


def _placement(tags: Sequence[str]) -> Placement | None:
    return Placement(tags=list(tags)) if tags else None


_COMMON: Final[dict[str, Any]] = {
    "storage": StorageType.FILE,
    "discard": DiscardPolicy.OLD,
    "duplicate_window": DUPLICATE_WINDOW_S,
    "allow_direct": True,
    "allow_rollup_hdrs": False,
    "metadata": {_LAYOUT_KEY: str(LAYOUT)},
}


def _bucket(
    bucket: str, subjects: list[str], record_bytes: int, ttl_s: float | None, max_bytes: int, tags: Sequence[str]
) -> StreamConfig:
    """A key-value bucket as the client libraries know it, but without roll-ups, and for known names alone."""
    return StreamConfig(
        name=stream_of(bucket),
        subjects=subjects,
        storage=StorageType.FILE,
        max_msgs_per_subject=1,
        max_msg_size=record_bytes,
        max_bytes=max_bytes,
        max_age=ttl_s,
        discard=DiscardPolicy.NEW,
        duplicate_window=min(ttl_s or DUPLICATE_WINDOW_S, DUPLICATE_WINDOW_S),
        allow_direct=True,
        allow_rollup_hdrs=False,
        deny_delete=True,
        deny_purge=True,
        placement=_placement(tags),
        metadata={_LAYOUT_KEY: str(LAYOUT)},
    )


_COMPARED: Final = (
    "subjects",
    "max_msgs",
    "max_msgs_per_subject",
    "max_msg_size",
    "max_bytes",
    "max_age",
    "discard",
    "duplicate_window",
    "allow_direct",
    "allow_rollup_hdrs",
    "deny_delete",
    "deny_purge",
    "subject_delete_marker_ttl",
    "placement",
)
_NONE: Final = (None, 0, 0.0, -1, False)


def layout_of(found: StreamConfig) -> int:
    """The :data:`LAYOUT` of the build that made a stream or changed it last; 1 where that had none."""
    said = (found.metadata or {}).get(_LAYOUT_KEY, "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < _LAYOUT_DIGITS else 1


_LAYOUT_DIGITS: Final = 10


def differences(wanted: StreamConfig, found: StreamConfig) -> dict[str, Any]:
    """What to change in a stream that is there: nothing where a newer build has made it. Its storage can't be changed,
    and its replicas are left as they are."""
    changes: dict[str, Any] = {}
    if layout_of(found) > LAYOUT:
        return changes
    if layout_of(found) < LAYOUT:
        changes["metadata"] = {**(found.metadata or {}), **(wanted.metadata or {})}
    for name in _COMPARED:
        new, old = getattr(wanted, name), getattr(found, name)
        if new == old or (new in _NONE and old in _NONE) or (name in _RAISED_ONLY and old):
            continue
        if name == "placement" and new is None:
            continue  # an operator's own
        changes[name] = new
    return changes
