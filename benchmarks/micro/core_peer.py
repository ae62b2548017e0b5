"""One figure of the core beside its peer, timed alternately in the same run so that both meet the same machine."""

from __future__ import annotations

import statistics
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
        ratio, around = best_peer / best_ours, spread([theirs / own for own, theirs in pairs])
        benchmark.extra_info.update(
            peer_over_ours=round(ratio, 2),
            spread=f"± {around:.0%}",
            million_items_per_s=float(f"{items / best_ours / 1e6:.3g}"),
        )
        print(
            f"\n{label}: {ratio:.1f} ± {around:.0%} times as fast as its peer, {best_ours / items * 1e9:.1f} ns an item"
        )
    return result


def spread(ratios: list[float]) -> float:
    """Half the distance between the quartiles, as a share of the median."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return (high - low) / 2 / middle
