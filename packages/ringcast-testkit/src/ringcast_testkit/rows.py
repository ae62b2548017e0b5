"""Row ids for tests that need them in certain partitions."""

from __future__ import annotations

import itertools

from ringcast_core import row_partition


def partition_of(row_id: str, partitions: int = 8) -> int:
    """The partition that a row belongs to."""
    return row_partition(row_id, partitions)


def same_partition(count: int, partition: int = 3, partitions: int = 8) -> list[str]:
    """So many row ids that fall into one partition."""
    rows = (f"r{number}" for number in itertools.count())
    return list(itertools.islice((row for row in rows if partition_of(row, partitions) == partition), count))
