"""The Ringcast worker SDK: the rows that a worker owns, and each change to them, over NATS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringcast_wire import (
    InUseError,
    InvalidInputError,
    KeyDeletedError,
    LimitExceededError,
    MismatchError,
    Mode,
    RingcastError,
    Row,
    StoreDeletedError,
    StoreSettings,
    UnavailableError,
    UnknownStoreError,
)

from ringcast._apply import Handler, Listener
from ringcast._change import Change, PoisonPolicy
from ringcast._config import WorkerConfig
from ringcast._health import CacheHealth, Health, KeyHealth
from ringcast._poison import BlockedRow, DeadLetter
from ringcast._stats import Stats
from ringcast._worker import Worker

if TYPE_CHECKING:
    from ringcast._dapr import DaprClient

__all__ = [
    "BlockedRow",
    "CacheHealth",
    "Change",
    "DaprClient",
    "DeadLetter",
    "Handler",
    "Health",
    "InUseError",
    "InvalidInputError",
    "KeyHealth",
    "KeyDeletedError",
    "LimitExceededError",
    "Listener",
    "MismatchError",
    "Mode",
    "PoisonPolicy",
    "RingcastError",
    "Row",
    "Stats",
    "StoreDeletedError",
    "StoreSettings",
    "UnavailableError",
    "UnknownStoreError",
    "Worker",
    "WorkerConfig",
]


def __getattr__(name: str) -> Any:
    # The Dapr-shaped client has a thread and types of its own: only who uses it pays for it.
    if name == "DaprClient":
        from ringcast._dapr import DaprClient

        return DaprClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
