"""Releases that are undone one after the other, in each database: a row goes back through all that it was."""

from __future__ import annotations

import random
from typing import Any

import pytest
from ringcast_config_service.repository import Authorship, RowWrite, StageBatch, StagedRow
from ringcast_core import row_partition
from ringcast_wire import ReleaseState, check_row

Bench = Any  # of conftest.py

BY = Authorship("alice", "new list")
DAY_MS = 86_400_000


class Releases:
    """Publishes and undoes releases of single rows, and knows what each row has to be.

    A row is what its last change made of it: an object of its own for each change, with its value. An undo brings back
    the very object that was there before, if the row is still the one that the release has made.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.now: dict[str, list[str | None]] = {}
        self._made: dict[int, dict[str, tuple[list[str | None], list[str | None]]]] = {}

    @property
    def expected(self) -> dict[str, str]:
        return {row_id: made[0] for row_id, made in self.now.items() if made[0] is not None}

    async def put(self, **values: str) -> None:
        """What somebody writes by hand."""
        await self._bench.write(values)
        self.now |= {row_id: [value] for row_id, value in values.items()}

    async def publish(self, **values: str | None) -> int:
        """Stages and publishes a release; returns its number."""
        versions: dict[str, int] = {}
        async for page in self._bench.repo.reader.list_rows("s", "k", _everything()):
            versions |= {found.row.row_id: found.row.version for found in page}
        rows = []
        for row_id, value in values.items():
            size = check_row(row_id, value or "", None)
            write = RowWrite(row_partition(row_id, 8), row_id, value, None, size, versions.get(row_id, 0))
            rows.append(StagedRow("k", write))
        batch = StageBatch(f"stage-{len(self._made)}", 0, rows, True)
        release = await self._bench.repo.releases.stage(self._bench.store, batch, BY)
        await self._bench.repo.releases.publish("s", release.number, DAY_MS, BY)
        await self._work(release.number, ReleaseState.PUBLISHED)
        self._made[release.number] = {}
        for row_id, value in values.items():
            made: list[str | None] = [value]
            self._made[release.number][row_id] = (self.now.get(row_id, [None]), made)
            self.now[row_id] = made
        return int(release.number)

    async def undo(self, number: int) -> int:
        """Undoes a release; returns how many rows stay as they are."""
        await self._bench.repo.releases.undo("s", number, BY)
        done = await self._work(number, ReleaseState.UNDONE)
        kept = 0
        for row_id, (before, made) in self._made[number].items():
            if self.now[row_id] is made:
                self.now[row_id] = before
            else:
                kept += 1
        assert done.skipped == kept
        assert await self._bench.live() == self.expected
        return kept

    async def _work(self, number: int, state: ReleaseState) -> Any:
        while not (await self._bench.repo.releases.step("s", number, self._bench.repo.histories.generation)).done:
            pass
        done = await self._bench.repo.releases.get("s", number)
        assert done.state is state
        return done


def _everything() -> Any:
    from ringcast_config_service.repository import ListFilter

    return ListFilter()


async def test_a_row_of_several_releases_goes_back_through_all_of_them(bench: Bench) -> None:
    releases = Releases(bench)
    await releases.put(a="0", b="0", c="0")
    for values in (
        {"a": "1", "b": None, "c": "1", "d": "1"},
        {"a": "2", "b": "2", "c": None, "d": None},
        {"a": None, "b": "3", "c": "3", "d": "3"},
        {"a": "4", "b": None, "d": None},
    ):
        await releases.publish(**values)
    await releases.put(c="by hand")
    for number in (4, 3, 2, 1):
        assert await releases.undo(number) == (number < 4), "c alone stays"
    assert await bench.live() == {"a": "0", "b": "0", "c": "by hand"}
    await bench.check_gap_free()


async def test_a_row_that_others_have_written_between_releases_stays(bench: Bench) -> None:
    releases = Releases(bench)
    await releases.put(a="0", b="0", c="0")
    await releases.publish(a="1", b="1", c=None)
    await releases.put(b="by hand", c="by hand")
    await releases.publish(a="2", b="2", c=None)
    third = await releases.publish(c="3")
    assert await releases.undo(third) == 0
    assert await releases.undo(1) == 3, "a is as the second has left it, and so is c, which the first has deleted too"
    assert await releases.undo(2) == 0
    assert await bench.live() == {"a": "1", "b": "by hand", "c": "by hand"}


async def test_a_release_that_is_undone_and_published_again_can_be_undone_below(bench: Bench) -> None:
    releases = Releases(bench)
    await releases.put(a="0")
    await releases.publish(a="1")
    for value in "234":
        assert await releases.undo(await releases.publish(a=value)) == 0
    assert await releases.undo(1) == 0
    assert await bench.live() == {"a": "0"}


@pytest.mark.parametrize("seed", range(6))
async def test_random_releases_are_undone_in_any_order(bench: Bench, seed: int) -> None:
    draw = random.Random(seed)
    releases = Releases(bench)
    published: list[int] = []
    await releases.put(a="0", b="0", c="0")
    for step in range(30):
        rows = draw.sample("abcd", draw.randint(1, 4))
        match draw.choice(["publish", "publish", "publish", "undo", "undo newest", "put"]):
            case "publish":
                live = releases.expected
                values = {row: draw.choice([None, f"r{step}"]) if row in live else f"r{step}" for row in rows}
                published.append(await releases.publish(**values))
            case "put":
                await releases.put(**dict.fromkeys(rows, f"h{step}"))
            case order if published:
                at = -1 if order == "undo newest" else draw.randrange(len(published))
                await releases.undo(published.pop(at))
    for number in reversed(published):
        await releases.undo(number)
    await bench.check_gap_free()
