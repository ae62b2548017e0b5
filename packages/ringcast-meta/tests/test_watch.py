"""What a watch does with a session that breaks."""

from __future__ import annotations

import asyncio

from ringcast_meta import Entry, Snapshot, StoreOptions
from ringcast_meta._limits import no_watches
from ringcast_meta._watch import Deliver, Watch, WatchBrokenError
from ringcast_testkit import PATIENCE_S


class _Session:
    """Never finds out by itself whether all was delivered."""

    def __init__(self, prefix: str, deliver: Deliver) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.revision = 1
        self.checking = asyncio.Event()

    async def snapshot(self) -> list[Entry]:
        return []

    async def check(self) -> None:
        self.checking.set()
        await asyncio.Event().wait()

    async def close(self) -> None:
        pass


async def test_a_session_that_breaks_under_a_check_is_replaced_at_once() -> None:
    sessions: list[_Session] = []

    def open_session(prefix: str, deliver: Deliver) -> _Session:
        sessions.append(_Session(prefix, deliver))
        return sessions[-1]

    options = StoreOptions(check_interval_s=0.05, silent_after_s=2 * PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S), Watch("a.", open_session, options, no_watches()) as watch:
        assert isinstance(await anext(watch), Snapshot)
        await sessions[0].checking.wait()
        sessions[0].failed.set_exception(WatchBrokenError("the server has compacted what comes next"))
        assert isinstance(await anext(watch), Snapshot)
    assert len(sessions) == 2
