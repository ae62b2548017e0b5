"""One figure of the core beside its peer, timed alternately in the same run so that both meet the same machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

ROUNDS = 15


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def beside(benchmark: Any, label: str, items: int, ours: Callable[[], object], peer: Callable[[], object]) -> Any:
    """Benchmarks `ours` and returns its result; prints and records how many times as fast as `peer` it is.

    Both work through the same `items` items. The best of alternating rounds counts for each. With timing disabled
    `ours` runs once and `peer` not at all.
    """
    result = benchmark(ours)
    if benchmark.enabled:
        pairs = [(seconds(ours), seconds(peer)) for _ in range(ROUNDS)]
        best_ours, best_peer = (min(times) for times in zip(*pairs, strict=True))
        ratio = best_peer / best_ours
        benchmark.extra_info.update(
            peer_over_ours=round(ratio, 2), million_items_per_s=round(items / best_ours / 1e6, 1)
        )
        print(f"\n{label}: {ratio:.1f} times as fast as its peer, {best_ours / items * 1e9:.1f} ns an item")
    return result
