"""What the machine of a config key decides, for its session to carry out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from ringcast._common.change import Change
from ringcast._protocol.batches import Batch
from ringcast._protocol.key_history import Refusal
from ringcast._protocol.partition import Token


@dataclass(slots=True, frozen=True)
class Ack:
    """Acknowledge these deliveries; one that gets lost comes again and is acknowledged then.

    ``deferred``: they are not applied, but known to be missing, and will be fetched.
    """

    tokens: list[Token]
    deferred: bool = False


@dataclass(slots=True, frozen=True)
class FetchPartition:
    """Fetch a partition, whole or (``since``) what changed after a revision of a ``history``; answer with the request
    number."""

    request: int
    partition: int
    since: int | None
    history: str = ""


@dataclass(slots=True, frozen=True)
class FetchFull:
    """Fetch every partition of the key."""

    request: int


@dataclass(slots=True, frozen=True)
class FetchBatch:
    """Fetch named rows, at most ``MAX_BATCH_ROWS``, that a batch waits for."""

    request: int
    row_ids: list[str]
    batch: Batch | None = field(default=None, compare=False, repr=False)


@dataclass(slots=True, frozen=True)
class GiveUpFetch:
    """The answer to this request is not needed any more: end the fetch, and give no answer."""

    request: int


@dataclass(slots=True, frozen=True)
class Apply:
    """Hand these changes to the application, each row at most once, in any order; then call ``Handover.done``.

    They are of a batch, or else of one partition that was fetched; ``tokens``: the events that the fetch makes up for.
    """

    number: int
    changes: list[Change]
    batch: Batch | None = field(default=None, compare=False, repr=False)
    tokens: list[Token] = field(default_factory=list, compare=False, repr=False)


@dataclass(slots=True, frozen=True)
class Announce:
    """Notify the application of partitions that it got or lost; then call ``Handover.done``."""

    number: int
    assigned: bool
    partitions: frozenset[int]


@dataclass(slots=True, frozen=True)
class Restored:
    """The service's revision went back: its database was restored from a backup, and the partition was replaced."""

    partition: int
    applied: int
    head: int


@dataclass(slots=True, frozen=True)
class CompareRevisions:
    """Compare with the service's head revisions soon: an event has named another history."""


@dataclass(slots=True, frozen=True)
class HistoryChanged:
    """The service's revisions are of another history: the database was restored, or the key was created again. Every
    partition is taken whole."""

    before: str
    after: str


@dataclass(slots=True, frozen=True)
class HistoryRefused:
    """Another history lacks so many rows that it is not taken: the worker keeps what it has."""

    refusal: Refusal


@dataclass(slots=True, frozen=True)
class MissedEvents:
    """Events of a partition were missed, and only its head revision showed it: make sure that they are delivered."""

    partition: int


Action: TypeAlias = (
    Ack
    | FetchPartition
    | FetchFull
    | FetchBatch
    | GiveUpFetch
    | Apply
    | Announce
    | CompareRevisions
    | HistoryChanged
    | HistoryRefused
    | Restored
    | MissedEvents
)
