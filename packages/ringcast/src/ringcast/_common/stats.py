"""Counters of a worker."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum


class Trigger(StrEnum):
    """What led to a new assignment; of several at once, the worst."""

    JOIN = "join"
    LEAVE = "leave"
    HEARTBEAT_MISS = "heartbeat-miss"


@dataclass(slots=True)
class Stats:
    """What has happened since the worker started; every counter only rises."""

    events: int = 0
    """Deliveries of change events, repeats included."""
    unreadable: int = 0
    """Events that were damaged, or on no subject of ours; the partition is fetched instead."""
    bad_replies: int = 0
    """Answers to fetches that were damaged or did not fit the request; the fetch is sent again."""
    bad_records: int = 0
    """Damaged records of members, slots and leases; they are passed over."""
    duplicates: int = 0
    """Events that were applied, or on their way, already."""
    gaps: int = 0
    """Times a partition had to catch up with a fetch because events were missing or did not list their changes."""
    deferred: int = 0
    """Events that were acknowledged at once, as their key held as many as it may; their partitions are fetched."""
    changes: int = 0
    """Row changes handed to the application."""
    stale: int = 0
    """Row changes dropped because a newer version of the row was known."""
    fetches: int = 0
    """Fetches of partitions and of whole keys."""
    fetches_since: int = 0
    """Those of them that asked only for what changed since a revision."""
    batch_fetches: int = 0
    """Fetches of named rows."""
    fetch_failures: int = 0
    batches: int = 0
    """Micro-batches."""
    handler_failures: int = 0
    """Calls of the handler that raised."""
    handler_timeouts: int = 0
    """Those of them that took longer than ``handler_timeout_s``."""
    calls_over_bound: int = 0
    """Calls of the handler, ``on_assigned`` or ``on_revoked`` that took longer than the store's ``call_bound_ms``."""
    calls_ended: int = 0
    """Such calls that waited, and were cancelled: their session was over, and their bound was up."""
    fence_refusals: int = 0
    """Calls of the handler, ``on_assigned`` or ``on_revoked`` that were not let start: the fence had passed, or the
    partition was another worker's."""
    callback_failures: int = 0
    """Calls of ``on_assigned`` or ``on_revoked`` that raised."""
    poisoned: int = 0
    """Changes given up after the handler failed every time."""
    unopened: int = 0
    """Times an encrypted value could not be opened for the handler, each of them a failure of it."""
    dead_letters: int = 0
    """Those of them that went to the dead letters."""
    dead_letter_failures: int = 0
    """Attempts to send one that failed; each was followed by another."""
    blocked: int = 0
    """Poisoned changes whose row was blocked."""
    replays: int = 0
    """Rows that were handed over again because of a dead letter."""

    def __add__(self, other: Stats) -> Stats:
        return Stats(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Stats)))
