"""What the fault tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.faults.arena import Arena, Shape
from tests.integration.faults.load import Load
from tests.integration.faults.run import Outcome, Run

SEED = 20
Start = Callable[..., AbstractAsyncContextManager[Run]]


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Start:
    """Starts a system under load; at the end of its block the load ends, and the judge must find nothing."""

    @asynccontextmanager
    async def started(**shape: Any) -> AsyncIterator[Run]:
        shape = {"own_postgres": False, "hold": 0.3, **shape}
        database = "" if shape["own_postgres"] or "sqlite" in shape else request.getfixturevalue("postgres_url")
        outcome = Outcome()
        async with (
            Arena(tmp_path, Shape(**shape), database=database) as arena,
            Load(arena, seed=SEED, pause_s=0.02) as load,
        ):
            run = Run(arena, load, outcome, seed=SEED, say=print)
            yield run
            await run.judge()
        print(outcome.figures())
        assert outcome.kept, "\n".join(outcome.findings.sentences + outcome.ended_by_itself)
        assert outcome.acknowledged > 50

    return started
