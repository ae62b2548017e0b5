"""What a store allows, as its administrators set it and lift it: the policies of the store."""

from __future__ import annotations

from typing import Final

import msgspec

from ringcast_wire._common import limits
from ringcast_wire._common.errors import InvalidInputError

_MOST: Final = (1 << 53) - 1
"""What JSON carries without loss."""
MIN_HISTORY_RETENTION_MS: Final = 3_600_000
"""A read of a large list names the revisions at which it began, and the history has to bring them to its end."""
MIN_TOMBSTONE_RETENTION_MS: Final = 3_600_000
"""Workers that are away for longer get partitions whole, and agents may not tell groups of deletions."""
MAX_RETENTION_MS: Final = 3_650 * 86_400_000


class StorePolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """The policies of a store; ``None``: there is none of that name.

    ``max_rows`` and ``max_bytes`` bound the live rows of all keys of the store and their bytes (ids, values and
    metadata); keys that are deleted and not purged yet count too. ``max_row_bytes`` bounds each row that is written,
    ``max_keys`` the config keys. What is there already stays when a policy allows less: it only can't grow.

    ``max_rows_per_second`` is what one instance of the service takes for the store, in equal parts for the principals
    that write; ``burst_rows`` is how much may come at once after a pause, by default what comes in a second, and at
    least one batch.

    ``history_retention_ms`` is how long old revisions are kept, in place of the service's own setting, and
    ``tombstone_retention_ms`` the same of the tombstones of deleted rows.

    ``releases_only``: rows change only by releases, which are published and undone; every other write is refused.
    ``approvals``: a release is published only when so many principals other than its author have approved it.

    ``max_release_growth_percent``, ``max_release_shrink_percent`` and ``max_release_change_percent`` bound by how much
    one release makes a key longer or shorter, and how many of its rows it changes or deletes, in percent of the rows
    that the key has. They say nothing of a key without rows. ``max_release_byte_growth_percent`` and
    ``max_release_byte_shrink_percent`` are the same of its bytes: ids, values and metadata.

    ``max_release_partition_growth_percent`` and ``max_release_partition_shrink_percent`` bound each partition of a key
    that has rows, by the rows that the partition has. One that becomes longer or shorter by up to
    ``release_partition_tolerance_rows``, by default ``limits.PARTITION_TOLERANCE_ROWS``, breaks neither.

    ``unique_ignoring_…``: a release adds no row whose id is the same as that of another row of its key once case (by
    Unicode case folding), white space at both ends, the Unicode form (NFKC) or one dot at the end is ignored; with
    several, once all of them are.

    ``external_check``: a release is published only when the server allows it that the operator of the service names.
    """

    max_rows: int | None = None
    max_bytes: int | None = None
    max_row_bytes: int | None = None
    max_keys: int | None = None
    max_rows_per_second: int | None = None
    burst_rows: int | None = None
    history_retention_ms: int | None = None
    releases_only: bool | None = None
    approvals: int | None = None
    max_release_growth_percent: int | None = None
    max_release_shrink_percent: int | None = None
    max_release_change_percent: int | None = None
    tombstone_retention_ms: int | None = None
    max_release_byte_growth_percent: int | None = None
    max_release_byte_shrink_percent: int | None = None
    max_release_partition_growth_percent: int | None = None
    max_release_partition_shrink_percent: int | None = None
    release_partition_tolerance_rows: int | None = None
    unique_ignoring_case: bool | None = None
    unique_ignoring_outer_space: bool | None = None
    unique_ignoring_unicode_form: bool | None = None
    unique_ignoring_trailing_dot: bool | None = None
    external_check: bool | None = None


NO_POLICY: Final = StorePolicy()
POLICY_RANGES: Final[dict[str, tuple[int, int]]] = {
    "max_rows": (0, _MOST),
    "max_bytes": (0, _MOST),
    "max_row_bytes": (1, limits.MAX_ROW_BYTES),
    "max_keys": (0, limits.MAX_KEYS_PER_STORE),
    "max_rows_per_second": (1, 1_000_000_000),
    "burst_rows": (limits.MAX_BATCH_ROWS, 1_000_000_000),
    "history_retention_ms": (MIN_HISTORY_RETENTION_MS, MAX_RETENTION_MS),
    "releases_only": (False, True),
    "approvals": (0, limits.MAX_APPROVALS),
    "max_release_growth_percent": (0, 1_000_000),
    "max_release_shrink_percent": (0, 100),
    "max_release_change_percent": (0, 100),
    "tombstone_retention_ms": (MIN_TOMBSTONE_RETENTION_MS, MAX_RETENTION_MS),
    "max_release_byte_growth_percent": (0, 1_000_000),
    "max_release_byte_shrink_percent": (0, 100),
    "max_release_partition_growth_percent": (0, 1_000_000),
    "max_release_partition_shrink_percent": (0, 100),
    "release_partition_tolerance_rows": (0, 1_000_000),
    "unique_ignoring_case": (False, True),
    "unique_ignoring_outer_space": (False, True),
    "unique_ignoring_unicode_form": (False, True),
    "unique_ignoring_trailing_dot": (False, True),
    "external_check": (False, True),
}
"""The lowest and the highest value of each policy."""


def check_policy(policy: StorePolicy) -> StorePolicy:
    """Returns ``policy`` if each of its values is in its range.

    Raises:
        InvalidInputError: one is not.
    """
    for name, (least, most) in POLICY_RANGES.items():
        value = getattr(policy, name)
        if value is not None and not least <= value <= most:
            raise InvalidInputError(f"{name} {value} is out of range: {least} to {most} is allowed", field=name)
    return policy


def check_policy_name(name: str) -> str:
    """Returns ``name`` if a policy is called so.

    Raises:
        InvalidInputError: none is.
    """
    if name not in POLICY_RANGES:
        raise InvalidInputError(f"policy {name[:64]!r} is unknown: {', '.join(POLICY_RANGES)} are known", field="lift")
    return name
