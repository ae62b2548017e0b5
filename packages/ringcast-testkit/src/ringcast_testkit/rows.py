"""Row ids for tests that need them in certain partitions."""

from __future__ import annotations

import itertools

from ringcast_core import row_partition


def same_partition(count: int, partition: int = 3, partitions: int = 8) -> list[str]:
    """So many row ids that fall into one partition."""
    rows = (f"r{number}" for number in itertools.count())
    return list(itertools.islice((row for row in rows if row_partition(row, partitions) == partition), count))
