"""What is known of NATS: how full its streams and the account are, and how the copies are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

DEFAULT_CONSUMER_LIMIT: Final = 1_000
"""Consumers that a server lets a stream have which does not say how many: its `default_max_consumers`. NATS does not
tell whether an operator has set another."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """One stream, as it was found last. ``store`` is empty for the bucket of leases, which is everybody's.

    ``refuses``: it takes nothing more when it is full, where others throw their oldest away. ``replicas_behind``:
    copies that are not there or not up to date. ``differs``: settings that are not as they should be. ``problem``: why
    nothing can be written to it, or known of it; then the numbers may be those of before. ``found_at_s``: when NATS
    said so, by the monotonic clock; ``None``: it never has.
    """

    name: str
    store: str
    kind: str
    bytes: int = 0
    max_bytes: int = 0
    wanted_bytes: int = 0
    messages: int = 0
    consumers: int = 0
    consumer_limit: int = DEFAULT_CONSUMER_LIMIT
    replicas: int = 0
    replicas_behind: int = 0
    refuses: bool = False
    differs: tuple[str, ...] = ()
    problem: str = ""
    found_at_s: float | None = None


class AccountLimits(msgspec.Struct):
    """-1: there is no limit but the server's own."""

    max_memory: int = -1
    max_storage: int = -1
    max_streams: int = -1
    max_consumers: int = -1


class AccountState(msgspec.Struct):
    """The account of the config service: bytes that are used, and those that are reserved for its streams; counts."""

    storage: int = 0
    reserved_storage: int = 0
    memory: int = 0
    reserved_memory: int = 0
    streams: int = 0
    consumers: int = 0
    limits: AccountLimits = msgspec.field(default_factory=AccountLimits)
