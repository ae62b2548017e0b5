"""NATS, the agent, a consumer or a worker is killed under dispatch load: nothing is lost, each row stays in order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tests.integration.faults.arena import Shape
from tests.integration.faults.dispatch_arena import DispatchArena
from tests.integration.faults.dispatch_run import BUSY, DispatchRun
from tests.integration.faults.kinds import KINDS
from tests.integration.faults.load import Load
from tests.integration.faults.run import Outcome

SEED = 20
Start = Callable[[], AbstractAsyncContextManager[DispatchRun]]


@pytest.fixture
def start_dispatch(tmp_path: Path, postgres_url: str) -> Start:
    """Starts a system with an agent and a worker under load; at the end the judge must find nothing."""

    @asynccontextmanager
    async def started() -> AsyncIterator[DispatchRun]:
        shape = Shape(workers=1, services=1, partitions=16, own_postgres=False, hold=0.3, dispatch=True)
        outcome = Outcome()
        async with (
            DispatchArena(tmp_path, shape, database=postgres_url) as arena,
            Load(arena, seed=SEED, pause_s=0.02) as load,
        ):
            run = DispatchRun(arena, load, outcome, seed=SEED, say=print)
            yield run
            await arena.busy(BUSY)
            await run.judge()
        print(outcome.figures())
        assert outcome.kept, "\n".join(outcome.findings.sentences + outcome.ended_by_itself)
        assert outcome.rows > 0

    return started


@pytest.mark.parametrize(
    "kinds", [("nats_killed", "consumer_killed"), ("agent_killed", "worker_killed"), ("agent_replaced",)], ids=",".join
)
async def test_killed_under_dispatch_load(start_dispatch: Start, kinds: tuple[str, ...]) -> None:
    async with start_dispatch() as run:
        for kind in kinds:
            await run.arena.busy(BUSY)
            await run.fault(KINDS[kind])
