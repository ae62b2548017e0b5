"""Where the records of workers stand, as protocols: :class:`~ringcast._bus.kv.NatsBuckets` has them in NATS KV.

A lease, a registration, a table: each is a small value under a key of a bucket, written by compare-and-set. What takes
part in a store reads and writes them through this file alone, and does not know what keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from ringcast_wire import EventLog

from ringcast._protocol.kv_mirror import Entry, KvMirror


class ConflictError(Exception):
    """The key is not at the revision that a compare-and-set named."""


class Found(NamedTuple):
    """What stands under a key. ``data`` is ``None`` for a marker; ``stored_s``: by the clock of what keeps it."""

    sequence: int
    data: bytes | None
    stored_s: float


class Reader(Protocol):
    """Reads several keys of one bucket, again and again."""

    async def read(self, keys: Sequence[str]) -> dict[str, Found]:
        """As :meth:`Bucket.read`. One call after the other: it answers one question at a time."""


class Watch(Protocol):
    """Keeps a mirror of what stands under some keys of a bucket."""

    async def run(self) -> None:
        """Watches until cancelled."""


class Bucket(Protocol):
    """Small values under keys, each with a revision that rises with every write to the bucket.

    What is deleted leaves a marker, with a revision of its own, which a compare-and-set has to name: so that a write
    that was sent before the deletion, and comes after it, is refused. Entries and markers that were not written again
    for as long as the bucket keeps them are gone without a change that a watch would tell of.

    Every call that waits raises :class:`~ringcast._bus.bus.BusError`, ``UnavailableError``, ``TimeoutError`` or
    ``OSError`` (``TRANSIENT``) where there is no answer, and :class:`~ringcast._bus.refusals.RefusedError` where this
    worker may not. A write that raises may have come about, or may still do so.
    """

    name: str

    async def exists(self) -> bool:
        """Whether there is such a bucket."""

    async def get(self, key: str, *, newest: bool = False) -> Entry | None:
        """What stands under a key; ``None`` if nothing ever did, an entry without value for a marker.

        ``newest``: it sees every write that was answered before. Without, the answer may lag behind.
        """

    async def put(self, key: str, value: bytes, *, last: int, among: str = "") -> int:
        """Writes if the key is at revision ``last`` (0: it never was), and returns the new revision.

        Of several that name the same revision, one succeeds. ``among``: a pattern of keys, of which the newest has to
        be at that revision, in place of the key alone.

        Raises:
            ConflictError: it is at another.
        """

    async def delete(self, key: str, *, last: int, may_call: bool = False) -> int:
        """Deletes if the key is at revision ``last``, and returns the revision of the marker that takes its place.

        ``may_call``: of a registration, that calls of its worker may still run; the marker says so.

        Raises:
            ConflictError: it is at another.
        """

    async def read(self, keys: Sequence[str], what: str) -> dict[str, Found]:
        """What stands under these keys at one moment, at most a few hundred; markers among them.

        The answer may lag behind, and then does so as a whole: where it has a revision, it has all that was written
        before that. ``what``: what the keys are called in errors.
        """

    def reading(self, what: str) -> AbstractAsyncContextManager[Reader]:
        """What :meth:`read` needs, for a while: of who reads often."""

    def watch(
        self, name: str, patterns: Sequence[str], mirror: KvMirror, changed: Callable[[], None], log: EventLog
    ) -> Watch:
        """Keeps ``mirror`` as the entries are whose keys match one of ``patterns`` (words, ``*``, and ``>`` at the
        end), once it runs: a snapshot, then changes, and a new snapshot after each break.

        ``name``: of the watch, which no other has in this bucket at the same time. ``changed`` is called when a key has
        another value, and after each snapshot.
        """


class Buckets(Protocol):
    """All of them, over one connection."""

    @property
    def is_connected(self) -> bool:
        """Whether what is asked now has a chance to be answered."""

    def on_back(self, callback: Callable[[], None]) -> None:
        """Calls back whenever a lost connection is back; a method of an object as long as that is used elsewhere."""

    def bucket(self, name: str) -> Bucket:
        """The bucket of this name, whether or not it is there."""
