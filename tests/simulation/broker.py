"""NATS as the protocol uses it: key-value buckets with compare-and-set, leases and watches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Final, NamedTuple

from nats.js.api import StreamConfig
from ringcast._protocol.kv_mirror import Entry
from ringcast_wire import Event, decode_event

from tests.simulation.engine import Process, Scheduler
from tests.simulation.jetstream import Stream
from tests.simulation.network import ConflictError, Link, Network, TransientError

if TYPE_CHECKING:
    from tests.simulation.connection import SimConnection

EXPIRY_DELAY_S: Final = (0.05, 0.34)
"""How late the server notices that a key has expired."""


class Watcher(NamedTuple):
    """A push consumer of a bucket."""

    link: Link
    name: str
    prefixes: tuple[str, ...]
    heartbeat_s: float
    take: Callable[[str, Entry], None]
    """Is given a key, and what stands under it."""


class Bucket:
    """The newest entry of each key. ``ttl_s``: how long an entry lives unless it is written again.

    A marker stands for a key that was deleted, for ``marker_s``; then nothing is left of it. No watch hears of that,
    nor of an entry that expires.
    """

    def __init__(self, ttl_s: float | None, marker_s: float) -> None:
        self.ttl_s = ttl_s
        self.marker_s = marker_s
        self.sequence = 0
        self.entries: dict[str, Entry] = {}
        self.stored_s: dict[str, float] = {}
        """When each entry was stored, by the server's clock."""
        self.kept: dict[str, tuple[Entry, float]] = {}
        """Entries that have ended, and that some server of the cluster has still."""
        self.watchers: list[Watcher] = []


class Broker:
    """One NATS server with its disk."""

    def __init__(self, scheduler: Scheduler, network: Network) -> None:
        self.up = True
        self.silent = False
        """Some server of the cluster keeps entries that expire now, as when its leader changes."""
        self.overlooked: set[str] = set()
        """Keys that some server of the cluster has not got yet, or not any more."""
        self.wipes = 0
        self.links: list[Link] = []
        self.buckets: dict[str, Bucket] = {}
        self.stream: Stream | None = None
        self.configs: dict[str, StreamConfig] = {}
        """The streams that there are, as they were asked for."""
        self.make_stream: Callable[[StreamConfig], Stream | Bucket | None] = lambda _: None
        self.published: Callable[[str, Event], None] = lambda _subject, _event: None
        """Is told what the stream has."""
        self.reported: Callable[[str, bytes], None] = lambda _subject, _data: None
        """Is told what workers answer when they are asked how far they are."""
        self.connections: dict[str, SimConnection] = {}
        """By what their inboxes begin with."""
        self.responders: list[SimConnection] = []
        """Those that take fetches."""
        self._scheduler = scheduler
        self._network = network
        self._put_off: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    # ---- life

    def link(self, process: Process) -> Link:
        """The connection of a new process."""
        link = Link(self._network, process, lambda: self.up)
        link.closed = self._closed
        self.links = [other for other in self.links if other.process.alive] + [link]
        return link

    def stop(self) -> None:
        """The server ends; its consumers in memory go with it."""
        self.up = False
        for bucket in self.buckets.values():
            bucket.watchers.clear()
        for link in self.links:
            link.cut()

    def start(self, *, wiped: bool) -> None:
        """It is there again; ``wiped``: without anything that it had stored."""
        self.up = True
        if wiped:
            self.wipes += 1
            self.buckets.clear()
            self.configs.clear()
            if self.stream is not None:
                self.stream.wipe()
            self.stream = None
        put_off, self._put_off = self._put_off, []
        for fn, args in put_off:
            fn(*args)

    def make(self, config: StreamConfig) -> None:
        """Makes a stream, or a bucket, unless it is there."""
        assert config.name is not None
        there = config.name in self.configs
        self.configs[config.name] = config
        if there:
            return
        made = self.make_stream(config)
        if isinstance(made, Stream):
            self.stream = made
        elif made is not None:
            self.buckets[config.name.removeprefix("KV_")] = made

    def store_event(self, subject: str, data: bytes, msg_id: str) -> tuple[int, bool]:
        """Takes an event in; its number, and whether it came before.

        Raises:
            TransientError: the stream was lost.
        """
        event = decode_event(data)
        found = self.events().publish(subject, event, data, msg_id)
        self.published(subject, event)
        return found

    def events(self) -> Stream:
        """The stream of the store.

        Raises:
            TransientError: it was lost.
        """
        if self.stream is None:
            raise TransientError("no stream")
        return self.stream

    def _closed(self, link: Link) -> None:
        for bucket in self.buckets.values():
            bucket.watchers = [watcher for watcher in bucket.watchers if watcher.link is not link]
        if self.stream is not None:
            self.stream.disconnected(link)

    # ---- buckets

    def get(self, name: str, key: str) -> Entry | None:
        """What stands under a key, ``None`` if nothing does."""
        return self._bucket(name).entries.get(key)

    def read(self, name: str, keys: Iterable[str]) -> dict[str, tuple[Entry, float]]:
        """What some server of the cluster has of several keys at one moment, and when each was stored."""
        bucket = self._bucket(name)
        kept = bucket.kept if bucket.kept and self._network.random.random() < 0.5 else {}
        hidden = self.overlooked if self.overlooked and self._network.random.random() < 0.5 else frozenset()
        found = {}
        for key in keys:
            entry = bucket.entries.get(key)
            held = (entry, bucket.stored_s[key]) if entry is not None else kept.get(key)
            if held is not None and held[0].value is not None and key not in hidden:
                found[key] = held
        return found

    def overwrite(self, name: str, key: str, value: bytes | None) -> int:
        """Writes an entry, or its deletion, whatever stands there."""
        return self._store(self._bucket(name), key, value)

    def put(self, name: str, key: str, value: bytes | None, last: int, among: str = "") -> int:
        """Writes an entry, or its deletion, if the key is at a revision, or the newest ``among`` keys of a pattern is.

        Raises:
            ConflictError: it is at another.
        """
        bucket = self._bucket(name)
        compared = [one for one in bucket.entries if fnmatch(one, among)] if among else [key]
        if max((bucket.entries[one].revision for one in compared if one in bucket.entries), default=0) != last:
            raise ConflictError(key)
        return self._store(bucket, key, value)

    def lose(self, name: str, key: str) -> None:
        """What stands under a key is not there any more, and nothing tells of it."""
        if name in self.buckets:
            self.buckets[name].entries.pop(key, None)

    def _bucket(self, name: str) -> Bucket:
        try:
            return self.buckets[name]
        except KeyError:
            raise TransientError(f"no bucket {name}") from None

    def _store(self, bucket: Bucket, key: str, value: bytes | None) -> int:
        bucket.sequence += 1
        entry = bucket.entries[key] = Entry(bucket.sequence, value)
        bucket.kept.pop(key, None)
        bucket.stored_s[key] = self._scheduler.now
        if value is None:
            self._scheduler.after(bucket.marker_s, self._forget, bucket, key, entry.revision)
        elif bucket.ttl_s is not None:
            late = self._network.random.uniform(*EXPIRY_DELAY_S)
            self._scheduler.after(bucket.ttl_s + late, self._expire, bucket, key, entry.revision)
        for watcher in bucket.watchers:
            if key.startswith(watcher.prefixes):
                watcher.take(key, entry)
        return entry.revision

    def _expire(self, bucket: Bucket, key: str, revision: int) -> None:
        if not self.up:
            self._put_off.append((self._expire, (bucket, key, revision)))
        elif (held := bucket.entries.get(key)) is not None and held.revision == revision:
            if self.silent:
                bucket.kept[key] = (held, bucket.stored_s[key])
            self._forget(bucket, key, revision)  # no watch hears of it

    def _forget(self, bucket: Bucket, key: str, revision: int) -> None:
        held = bucket.entries.get(key)
        if held is not None and held.revision == revision:
            del bucket.entries[key]

    # ---- watches

    def watch(self, name: str, watcher: Watcher) -> dict[str, Entry]:
        """Makes a consumer on some server of the cluster; returns what there is."""
        bucket = self._bucket(name)
        bucket.watchers.append(watcher)
        return {key: entry for key, entry in bucket.entries.items() if key.startswith(watcher.prefixes)}

    def beat(self, name: str, watcher: Watcher, tell: Callable[[], None]) -> None:
        """Has a consumer give signs of life as long as there is one."""
        self._scheduler.after(watcher.heartbeat_s, self._beat, name, watcher, tell)

    def _beat(self, name: str, watcher: Watcher, tell: Callable[[], None]) -> None:
        if self.watches(name, watcher):
            tell()
            self.beat(name, watcher, tell)

    def unwatch(self, name: str, consumer: str) -> bool:
        """Deletes a consumer by its name, whosever it is; whether there was one."""
        bucket = self._bucket(name)
        left = [watcher for watcher in bucket.watchers if watcher.name != consumer]
        found = len(left) < len(bucket.watchers)
        bucket.watchers = left
        return found

    def deafen(self, link: Link) -> None:
        """The watches of a connection go silent, with no sign of it."""
        for bucket in self.buckets.values():
            bucket.watchers = [watcher for watcher in bucket.watchers if watcher.link is not link]

    def watches(self, name: str, watcher: Watcher) -> bool:
        """Whether there is this consumer."""
        bucket = self.buckets.get(name)
        return bucket is not None and any(other is watcher for other in bucket.watchers)

    def is_watched_by(self, link: Link, name: str) -> bool:
        """Whether a process watches a bucket."""
        bucket = self.buckets.get(name)
        return bucket is not None and any(watcher.link is link for watcher in bucket.watchers)
