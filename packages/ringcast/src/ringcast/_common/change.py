"""What an application gets to see: a change of a row, and what becomes of a change that its handler can't take."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Change(msgspec.Struct, frozen=True, gc=False):
    """A row that is new, has a new value, or is gone.

    Each change is handed over at least once. The versions of one row only rise, so a handler that keeps the highest
    version it has seen of each row needs no other guard. Only of a canary in a store of mode ``FULL`` a change that is
    ``provisional``, and the one that takes it back, have the version of the row which they are about.
    """

    store: str
    key: str
    partition: int
    row_id: str
    value: str | None
    """The text of the row, ``None`` for a deleted row."""
    version: int
    """Revision of the partition at the row's last write."""
    deleted: bool = False
    metadata: dict[str, str] | None = None
    committed_at_ms: int | None = None
    """Wall clock of the service at the write, in ms since the epoch; ``None`` when the row came with its partition."""
    cached_age_s: float | None = None
    """For a row from the cache on the disk: how long ago it was known to be current, in seconds; else ``None``."""
    token: int = 0
    """The fencing token of the partition's owner, in a store with exclusive ownership; 0 in others. It rises with each
    owner, so that a database which a handler writes to can refuse an older one (``WHERE token <= ...``)."""

    release: int = 0
    """The number of the release that the change came by; 0: by another write, or with its partition, which does not say
    it."""
    provisional: bool = False
    """Whether it is not published yet: the worker is of the canary of ``release``, in a store of mode ``FULL``. It
    comes once more with its revision, or the row as it was comes back. ``version`` is that of the row which it takes
    the place of, 0 for none."""

    @property
    def stale(self) -> bool:
        """Whether it comes from the cache on the disk: the row may have changed since; that change comes later."""
        return self.cached_age_s is not None


class PoisonPolicy(StrEnum):
    """What becomes of a change whose handler has failed every time."""

    DROP = "drop"
    """It is logged, counted and counts as applied."""
    DEAD_LETTER = "dead-letter"
    """It is published to ``config.dead.<store>.<key>.<partition>``, and counts as applied once the stream has it."""
    BLOCK = "block"
    """Its row is held back until :meth:`ringcast.Worker.unblock`: only the newest change is kept. Other rows go on."""
