"""Exclusive ownership under real faults: one owner at every moment, and no call after a fence; broken workers show."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ringcast.wishes import drain_worker
from ringcast_testkit import PATIENCE_S
from ringcast_wire import Strategy, names

from tests.integration.faults.arena import STORE, WITNESSES, Arena, Shape
from tests.integration.faults.conftest import SEED, Start
from tests.integration.faults.exclusive import Fence, Times
from tests.integration.faults.kinds import KINDS
from tests.integration.faults.load import Load
from tests.integration.faults.run import Outcome, Run
from tests.integration.faults.user_faults import denied
from tests.integration.faults.witness import read_witnesses

MOST_S = 60.0
KILLS = 4
STICKY: dict[str, Any] = {"strategy": Strategy.STICKY, "lease_ttl_ms": 4_000, "call_bound_ms": 400}


async def test_the_worker_that_leads_is_killed_in_each_phase_of_a_move(start: Start) -> None:
    async with start(**STICKY, slow_workers=("worker1",)) as run:
        for phase in ("killed_in_prepare", "killed_in_drain", "killed_after_release"):
            # On a busy machine the phase may be over before the process is.
            for _ in range(KILLS):
                assert await run.fault(KINDS[f"key_leader_{phase}"]) < MOST_S
                if run.arena.met[phase]:
                    break
            assert run.arena.met[phase], "each time the phase was over before the process was"
        assert await run.fault(KINDS["worker_drained"]) < MOST_S
        assert run.arena.met["drained"]
    assert run.outcome.exclusive.calls > 500


async def test_sessions_end_by_a_halt_a_refusal_and_a_kill(start: Start) -> None:
    async with start(**STICKY, slow_workers=("worker1",)) as run:
        for kind in ("worker_halted_within_a_call", "session_refused", "worker_killed_and_restarted"):
            assert await run.fault(KINDS[kind]) < MOST_S
        assert run.arena.met["halted_within_a_call"]
    assert run.outcome.exclusive.fences_passed >= 2
    assert run.outcome.exclusive.halted, "the judge has not seen the call that was halted"


async def test_the_records_of_owners_are_gone_and_nats_too(start: Start) -> None:
    async with start(**STICKY) as run:
        for kind in ("owners_deleted", "nats_killed", "buckets_rolled_up"):
            assert await run.fault(KINDS[kind]) < MOST_S
    assert run.outcome.exclusive.processes == 6


# ---- workers that lack something


@asynccontextmanager
async def broken(directory: Path, lacks: str, **shape: Any) -> AsyncIterator[Run]:
    """A small system of such workers under load, judged at the end."""
    shape = {**STICKY, "sqlite": True, "services": 1, "workers": 2, "partitions": 8, "hold": 0.2, **shape}
    async with Arena(directory, Shape(broken=lacks, **shape)) as arena, Load(arena, seed=SEED, pause_s=0.02) as load:
        run = Run(arena, load, Outcome(), seed=SEED, say=print)
        yield run
        await run.judge()


async def test_a_worker_that_starts_calls_past_its_fence(tmp_path: Path) -> None:
    async with broken(tmp_path, "starts_calls_past_its_fence") as run:
        await run.fault(KINDS["session_refused"])
    assert run.outcome.findings.counts["after_fence"]


async def test_a_worker_that_takes_up_what_is_not_released(tmp_path: Path) -> None:
    # It is within a call of each partition when it is told to stop, one that takes no longer than it may.
    slow = {"slow_workers": ("worker0",), "slow_s": 1.0, "lease_ttl_ms": 8_000, "call_bound_ms": 4_000}
    async with broken(tmp_path, "activates_before_released", **slow) as run:
        await run.load.acknowledge(50)
        await drain_worker(run.arena.url, STORE, "worker0")
        (key,), mirror = run.arena.shape.keys, run.arena.mirror
        await mirror.wait(lambda: not mirror.owned("worker0", key), PATIENCE_S, "it was not drained")
    assert run.outcome.findings.counts["double_owned"]


async def test_a_worker_that_goes_on_with_its_tokens(tmp_path: Path) -> None:
    times = {"lease_ttl_ms": 8_000, "call_bound_ms": 4_000}  # much time between its fence and when others take over
    async with broken(tmp_path, "resumes_its_token", **times) as run:
        await run.load.acknowledge(50)
        async with denied(run.arena, "worker0", f"$KV.{names.owners_bucket(STORE)}.{names.session_key('worker0')}"):
            await _fence_passed(run.arena.directory / WITNESSES, "worker0", Times.of(**times))
        await run.load.acknowledge(200)
    assert run.outcome.findings.counts["resumed_token"]


async def _fence_passed(directory: Path, worker_id: str, times: Times) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            (witness,) = (each for each in read_witnesses(directory) if each.worker_id == worker_id)
            now_ns = time.monotonic_ns()
            if Fence(witness, times).at(now_ns) < now_ns:
                return
            await asyncio.sleep(0.05)
