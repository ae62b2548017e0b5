"""Policies of a store: how they change, and the one that is about keys."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final, NamedTuple

import msgspec
from ringcast_wire import POLICY_RANGES, LimitExceededError, PermissionDeniedError, StorePolicy, limits

_SHARES: Final = {
    **dict.fromkeys(("max_release_growth_percent", "max_release_shrink_percent", "max_release_change_percent"), 14),
    "max_release_byte_growth_percent": 15,
    "max_release_byte_shrink_percent": 15,
    "max_release_partition_growth_percent": 15,
    "max_release_partition_shrink_percent": 15,
    "release_partition_tolerance_rows": 15,
}
"""Those that say something when they are 0."""
_KNOWN_FROM: Final = {
    "releases_only": 12,
    "approvals": 12,
    "tombstone_retention_ms": 15,
    **_SHARES,
    **dict.fromkeys((name for name in POLICY_RANGES if name.startswith("unique_ignoring_")), 15),
    "external_check": 16,
}
"""From which version of the schema on a build knows a policy that it must not leave out: what was promised of the store
would not hold."""


class PolicyChange(NamedTuple):
    """Policies of ``wanted`` that are there are set, those named in ``lift`` are removed, the others stay."""

    wanted: StorePolicy
    lift: frozenset[str] = frozenset()

    def of(self, policy: StorePolicy) -> StorePolicy:
        """What becomes of the policies of a store."""
        return msgspec.structs.replace(policy, **self.details())

    def details(self) -> dict[str, Any]:
        """What changes, with ``None`` for a policy that is removed."""
        given = {name: value for name, value in msgspec.structs.asdict(self.wanted).items() if value is not None}
        return given | dict.fromkeys(sorted(self.lift))


def least_schema(policy: StorePolicy) -> int:
    """The version of the schema that a build must know to keep a store's policies; 0: any."""
    given = {name for name in _KNOWN_FROM if getattr(policy, name) or (name in _SHARES and getattr(policy, name) == 0)}
    return max((_KNOWN_FROM[name] for name in given), default=0)


def check_direct(store: str, releases_only: Container[str]) -> None:
    """Refuses a write that is no step of a release to a store that takes no others."""
    if store in releases_only:
        raise PermissionDeniedError(
            f"store {store!r} takes no direct writes, its policy releases_only is set: stage this as a release and "
            "publish it (ringcast release stage)",
            field="releases_only",
        )


def check_key_count(count: int, store: str, key: str, policy: StorePolicy) -> None:
    """Refuses one more key than a store may have."""
    if policy.max_keys is not None and policy.max_keys <= count < limits.MAX_KEYS_PER_STORE:
        raise LimitExceededError(
            f"store {store!r} has {count} config keys, and its policy max_keys allows {policy.max_keys}: "
            f"{key!r} can't be added",
            field="max_keys",
        )
    if count >= limits.MAX_KEYS_PER_STORE:
        raise LimitExceededError(
            f"store {store!r} has {count} config keys, the limit is {limits.MAX_KEYS_PER_STORE}: "
            f"{key!r} can't be added",
            field="key",
        )
