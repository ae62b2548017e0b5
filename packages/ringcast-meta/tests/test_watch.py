"""What a watch does with a session that breaks, and with changes that come while it begins."""

from __future__ import annotations

import asyncio

from ringcast_meta import Change, Entry, Snapshot, StoreOptions
from ringcast_meta._limits import no_watches
from ringcast_meta._watch import Deliver, Watch, WatchBrokenError
from ringcast_testkit import PATIENCE_S


class _Session:
    """Never finds out by itself whether all was delivered."""

    def __init__(self, prefix: str, deliver: Deliver, changes: int = 0) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.revision = 1
        self.checking = asyncio.Event()
        self._deliver = deliver
        self._changes = changes

    async def snapshot(self) -> tuple[list[Entry], int]:
        asyncio.get_running_loop().call_soon(self._change)
        return [], self.revision

    def _change(self) -> None:
        """Changes come right behind the snapshot, before the watch has it."""
        for _ in range(self._changes):
            self.revision += 1
            key = f"a.{self.revision}"
            self._deliver(Change(key, Entry(key, b"", self.revision, False), self.revision))

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


async def test_a_change_right_behind_the_snapshot_is_told_after_it() -> None:
    options = StoreOptions(silent_after_s=2 * PATIENCE_S)

    def open_session(prefix: str, deliver: Deliver) -> _Session:
        return _Session(prefix, deliver, changes=2)

    async with asyncio.timeout(PATIENCE_S), Watch("a.", open_session, options, no_watches()) as watch:
        first = await anext(watch)
        assert isinstance(first, Snapshot)
        assert (first.entries, first.revision) == ((), 1)
        assert [(await anext(watch)).revision for _ in range(2)] == [2, 3]


async def test_more_changes_behind_the_snapshot_than_may_wait_need_another_one() -> None:
    changes = iter([4, 0])
    options = StoreOptions(silent_after_s=2 * PATIENCE_S, max_queued_changes=3)

    def open_session(prefix: str, deliver: Deliver) -> _Session:
        return _Session(prefix, deliver, next(changes))

    async with asyncio.timeout(PATIENCE_S), Watch("a.", open_session, options, no_watches()) as watch:
        assert isinstance(await anext(watch), Snapshot)
        assert next(changes, None) is None, "the watch has not begun again"
