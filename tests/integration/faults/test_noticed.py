"""A worker that does not stand a fault, or a broker that permits one, is noticed: by the fault, or by the judge."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from ringcast_wire import names

from tests.integration.faults import fault, run
from tests.integration.faults.arena import STORE, Arena, Shape
from tests.integration.faults.kinds import KINDS
from tests.integration.faults.load import Load
from tests.integration.faults.run import Outcome, Run

SEED = 3


@asynccontextmanager
async def system(directory: Path, broken: str = "") -> AsyncIterator[Run]:
    """A small one under load, of workers that lack something."""
    shape = Shape(sqlite=True, services=1, workers=2, partitions=8, hold=0.2, broken=broken)
    async with Arena(directory, shape) as arena, Load(arena, seed=SEED, pause_s=0.02) as load:
        yield Run(arena, load, Outcome(), seed=SEED, say=print)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What never comes is waited for a short time."""
    monkeypatch.setattr(run, "RECOVERY_S", 8.0)
    monkeypatch.setattr(fault, "_TAKEN_OVER_S", 4.0)


async def test_changes_that_are_lost_with_cancelled_calls(tmp_path: Path) -> None:
    async with system(tmp_path, "loses_cancelled_calls") as found:
        await found.fault(KINDS["calls_cancelled"])
        with pytest.raises(AssertionError, match="a handler has not done what it was given"):
            await found.judge()


async def test_a_child_that_goes_on_with_its_parents_worker(tmp_path: Path) -> None:
    async with system(tmp_path, "knows_no_forks") as found:
        with pytest.raises(ExceptionGroup) as caught:
            await found.fault(KINDS["worker_forked"])
    assert "a child used the worker of its parent: 'done'" in str(caught.value.exceptions[0])


async def test_a_worker_that_ends_when_its_password_is_refused(tmp_path: Path) -> None:
    async with system(tmp_path, "ends_with_its_connection") as found:
        await found.fault(KINDS["password_rotated"])
        assert not found.outcome.kept
        (ended,) = found.outcome.ended_by_itself
        assert "NATS closed the connection for good" in ended


async def test_a_worker_that_never_gets_its_consumer_back(tmp_path: Path) -> None:
    async with system(tmp_path, "makes_no_consumer_again") as found:
        await found.recovered()  # a consumer whose filters are still to be updated is made by that
        with pytest.raises(AssertionError, match="not everything was served again"):
            await found.fault(KINDS["consumer_refused"])


async def test_a_bucket_that_takes_a_roll_up(tmp_path: Path) -> None:
    async with system(tmp_path) as found:
        services = list(found.arena.services.values())
        for service in services:
            service.pause()  # it would take that back
        try:
            async with found.arena.bus() as bus:
                js = bus.jetstream()
                stream = f"KV_{names.nodes_bucket(STORE)}"
                config = (await js.stream_info(stream)).config
                await js.delete_stream(stream)
                await js.add_stream(config.evolve(allow_rollup_hdrs=True, deny_purge=False))
            with pytest.raises(AssertionError, match=r"a roll-up on \S+ was taken"):
                await KINDS["buckets_rolled_up"].action(found.arena, random.Random(SEED))
        finally:
            for service in services:
                service.resume()
