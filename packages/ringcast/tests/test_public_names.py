from __future__ import annotations

import subprocess
import sys

import ringcast

FROZEN = [
    "BlockedRow",
    "CacheHealth",
    "Change",
    "DaprClient",
    "DeadLetter",
    "Handler",
    "Health",
    "InUseError",
    "InvalidInputError",
    "KeyDeletedError",
    "KeyHealth",
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


def test_the_exported_names_are_frozen() -> None:
    assert sorted(ringcast.__all__) == FROZEN
    assert all(hasattr(ringcast, name) for name in FROZEN)


def test_a_worker_does_not_pay_for_grpc() -> None:
    code = "import sys, ringcast; sys.exit('grpc' in sys.modules or 'google.protobuf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
