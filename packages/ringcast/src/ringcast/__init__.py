"""The Ringcast worker SDK: the rows that a worker owns, and each change to them, over NATS."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from ringcast_wire import (
    DeadLetter,
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
    ValueSealedError,
)

from ringcast._common.change import Change, PoisonPolicy
from ringcast._common.config import WorkerConfig
from ringcast._common.stats import Stats

if TYPE_CHECKING:
    from ringcast._dapr.sync import DaprClient
    from ringcast._delivery.attempts import Handler
    from ringcast._delivery.callbacks import Listener
    from ringcast._delivery.poison import BlockedRow
    from ringcast._worker.dry_waves import Validator
    from ringcast._worker.health import CacheHealth, Health, KeyHealth
    from ringcast._worker.worker import Worker

# The client of NATS takes longer to import than all else: tools that only call the config service don't pay for it.
_ON_FIRST_USE: Final = {
    "BlockedRow": "_delivery.poison",
    "CacheHealth": "_worker.health",
    "DaprClient": "_dapr.sync",
    "Handler": "_delivery.attempts",
    "Health": "_worker.health",
    "KeyHealth": "_worker.health",
    "Listener": "_delivery.callbacks",
    "Validator": "_worker.dry_waves",
    "Worker": "_worker.worker",
}

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
    "Validator",
    "ValueSealedError",
    "Worker",
    "WorkerConfig",
]


if not TYPE_CHECKING:  # a checker would take any name for one of the module

    def __getattr__(name: str) -> Any:
        if name not in _ON_FIRST_USE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(f"ringcast.{_ON_FIRST_USE[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted(globals().keys() | set(__all__))
