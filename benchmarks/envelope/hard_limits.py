"""Every row of the operating envelope: its hard limit is reached here, and one more is refused with a reason."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ringcast_client import ConfigServiceClient
from ringcast_wire import RingcastError, limits

from benchmarks.envelope.loops import run_coroutine
from benchmarks.envelope.results import Figure, median_of
from benchmarks.envelope.run import Run
from benchmarks.envelope.system import running
from benchmarks.envelope.targets import KEY

LIMITS = "limits"
_EDGE = 5
"""Of so many steps at the beginning and at the end the time is told: it should not grow."""
_ROW_ID = "row"
_PART_BYTES = 256 * limits.KIB


@dataclass(frozen=True, slots=True)
class Walk:
    """One parameter: its name in the envelope, its two bounds, and what goes up to the hard one and then beyond it.

    ``to_limit`` yields the milliseconds of its steps; ``beyond`` must be refused.
    """

    parameter: str
    target: float
    limit: float
    unit: str
    to_limit: Callable[[ConfigServiceClient], Awaitable[Sequence[float]]]
    beyond: Callable[[ConfigServiceClient], Awaitable[object]]


async def _timed(steps: Sequence[Callable[[], Awaitable[object]]]) -> list[float]:
    took: list[float] = []
    for step in steps:
        began_s = time.perf_counter()
        await step()
        took.append((time.perf_counter() - began_s) * 1e3)
    return took


async def _partitions(client: ConfigServiceClient) -> Sequence[float]:
    return await _timed([partial(client.create_store, "most-partitions", partition_count=limits.MAX_PARTITIONS)])


async def _row(client: ConfigServiceClient) -> Sequence[float]:
    await client.create_store("large", partition_count=1)
    return await _timed([partial(client.put, "large", KEY, _ROW_ID, "x" * (limits.MAX_ROW_BYTES - len(_ROW_ID)))])


async def _partition_bytes(client: ConfigServiceClient) -> Sequence[float]:
    """Rows of the same size, ids and all, up to the last byte."""
    await client.create_store("full", partition_count=1)
    rows = [f"{number:03d}" for number in range(limits.MAX_PARTITION_BYTES // _PART_BYTES)]
    return await _timed([partial(client.put, "full", KEY, row, "x" * (_PART_BYTES - len(row))) for row in rows])


async def _keys(client: ConfigServiceClient) -> Sequence[float]:
    await client.create_store("keys", partition_count=16)
    names = [f"list{number}" for number in range(limits.MAX_KEYS_PER_STORE)]
    return await _timed([partial(client.put, "keys", name, "row", "value") for name in names])


async def _stores(client: ConfigServiceClient) -> Sequence[float]:
    """As many as are still missing."""
    missing = limits.MAX_STORES - len(await client.list_stores())
    names = [f"store{number}" for number in range(missing)]
    return await _timed([partial(client.create_store, name, partition_count=256) for name in names])


WALKS = (
    Walk(
        "partitions of a store",
        256,
        limits.MAX_PARTITIONS,
        "partitions",
        _partitions,
        lambda client: client.create_store("more-partitions", partition_count=limits.MAX_PARTITIONS + 1),
    ),
    Walk(
        "size of a row",
        4 * limits.KIB,
        limits.MAX_ROW_BYTES,
        "bytes",
        _row,
        lambda client: client.put("large", KEY, _ROW_ID, "x" * (limits.MAX_ROW_BYTES - len(_ROW_ID) + 1)),
    ),
    Walk(
        "size of a partition",
        limits.MIB,
        limits.MAX_PARTITION_BYTES,
        "bytes",
        _partition_bytes,
        lambda client: client.put("full", KEY, "one more", "x"),
    ),
    Walk(
        "config keys of a store",
        20,
        limits.MAX_KEYS_PER_STORE,
        "keys",
        _keys,
        lambda client: client.put("keys", "one-more", "row", "value"),
    ),
    Walk(
        "stores",
        10,
        limits.MAX_STORES,
        "stores",
        _stores,
        lambda client: client.create_store("one-more", partition_count=16),
    ),
)
ELSEWHERE = (
    ("workers of a key", 50, limits.MAX_WORKERS_PER_KEY, "rebalance", "200 workers"),
    ("changes/s into a partition", 500, 5_000, "sustained", "5000/s into 1 partition"),
)
"""Parameters whose hard limit another scenario reaches: its name, and how the names of its cases begin."""


def hard_limits(run: Run) -> None:
    """Stores last: they are counted together with those that the others made."""
    with run.directory() as directory, running(directory) as system:
        for walk in WALKS:
            with run.case(LIMITS, walk.parameter, {"unit": walk.unit}) as case:
                took, case.note = run_coroutine(_walk(system.service.address, walk))
                case.figures = {
                    "target": Figure(walk.target, ""),
                    "hard limit": Figure(walk.limit, ""),
                    "first steps_ms": median_of(took[:_EDGE], "ms"),
                    "last steps_ms": median_of(took[-_EDGE:], "ms"),
                }
    for parameter, target, limit, scenario, begin in ELSEWHERE:
        cases = [case for case in run.results.cases if case.scenario == scenario and case.name.startswith(begin)]
        if cases:
            with run.case(LIMITS, parameter, {}) as case:
                case.figures = {"target": Figure(target, ""), "hard limit": Figure(limit, "")}
                states = ", ".join(f"{found.name}: {found.status}" for found in cases)
                case.note = f"see {scenario} ({states})"


async def _walk(address: str, walk: Walk) -> tuple[Sequence[float], str]:
    """The milliseconds of each step, and what was said beyond the last."""
    async with ConfigServiceClient(address) as client:
        took = await walk.to_limit(client)
        try:
            await walk.beyond(client)
        except RingcastError as error:
            return took, f"one more is refused: {type(error).__name__}: {error}"
    raise AssertionError(f"{walk.parameter}: more than {walk.limit:g} {walk.unit} were not refused")
