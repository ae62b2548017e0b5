"""A key as it was, and what differs between two states of it, over SQLite and PostgreSQL: right, or refused."""

from __future__ import annotations

import random
from typing import Any

import pytest
from ringcast_config_service.repository import Authorship, ListFilter, RowWrite, StageBatch, StagedRow, states
from ringcast_core import row_partition
from ringcast_testkit.rows import same_partition
from ringcast_wire import HeadsReply, InvalidInputError, ReleaseState, RevisionGoneError

Bench = Any  # of conftest.py
Content = dict[str, tuple[str, tuple[tuple[str, str], ...]]]
"""Value and metadata by row id."""

DAY_MS = 86_400_000
WHOLE = ListFilter()
IDS = [f"r{number}" for number in range(40)]


async def heads(bench: Bench) -> HeadsReply:
    found: HeadsReply = await bench.repo.reader.heads("s", "k")
    return found


def content(row: Any) -> tuple[str, tuple[tuple[str, str], ...]]:
    return row.value, tuple(sorted((row.metadata or {}).items()))


async def rows_as_of(bench: Bench, then: HeadsReply, query: ListFilter = WHOLE) -> Content:
    pages = [page async for page in bench.repo.reader.rows_as_of("s", "k", then, query)]
    listed = [one for page in pages for one in page]
    assert all(pages)
    places = [(one.partition, one.row.row_id) for one in listed]
    assert places == sorted(set(places)), "a row came twice, or out of order"
    assert all(partition == row_partition(row_id, 8) for partition, row_id in places)
    return {one.row.row_id: content(one.row) for one in listed}


async def differences(
    bench: Bench, before: HeadsReply, after: HeadsReply, query: ListFilter = WHOLE
) -> dict[str, tuple[Any, Any]]:
    pages = [page async for page in bench.repo.reader.differences("s", "k", before, after, query)]
    found = [one for page in pages for one in page]
    assert all(pages)
    places = [(one.partition, one.row_id) for one in found]
    assert places == sorted(set(places)), "a row came twice, or out of order"
    return {one.row_id: (one.before and content(one.before), one.after and content(one.after)) for one in found}


def model_differences(before: Content, after: Content) -> dict[str, tuple[Any, Any]]:
    ids = before.keys() | after.keys()
    return {one: (before.get(one), after.get(one)) for one in ids if before.get(one) != after.get(one)}


async def write_some(bench: Bench, draw: random.Random, now: Content) -> Content:
    """A request with a few puts and deletes, among them such that change nothing, or the metadata alone."""
    values = {one: draw.choice([None, "x", "y", f"{draw.random()}"]) for one in draw.sample(IDS, draw.randrange(1, 9))}
    metadata = draw.choice([None, None, {"by": "me"}])
    await bench.write(values, metadata=metadata)
    written = {one: (value, tuple((metadata or {}).items())) for one, value in values.items() if value is not None}
    return {one: found for one, found in {**now, **written}.items() if values.get(one, "") is not None}


@pytest.mark.parametrize("seed", [1, 2])
async def test_every_two_states_of_random_writes(any_bench: Bench, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    now: Content = {}
    found = []
    for _ in range(14):
        now = await write_some(any_bench, draw, now)
        found.append((await heads(any_bench), now))
    found.append((HeadsReply(1, [0] * 8, found[0][0].history), {}))
    if seed == 2:
        monkeypatch.setattr(states, "_MOST_ROWS", 2)
        monkeypatch.setattr(states, "_FIRST_ROWS", 1)
    for then, wanted in found:
        assert await rows_as_of(any_bench, then) == wanted
        for later, after in found:
            assert await differences(any_bench, then, later) == model_differences(wanted, after)


async def test_parts_of_a_state(bench: Bench) -> None:
    """One partition, a limit, and what comes behind each row."""
    draw = random.Random(3)
    now: Content = {}
    for _ in range(10):
        now = await write_some(bench, draw, now)
    then, wanted = await heads(bench), now
    for _ in range(4):
        now = await write_some(bench, draw, now)
    later = await heads(bench)
    places = sorted((row_partition(one, 8), one) for one in wanted)
    differ = model_differences(wanted, now)
    different = sorted((row_partition(one, 8), one) for one in differ)
    for partition in range(8):
        query = ListFilter(partition)
        mine = [one for home, one in places if home == partition]
        assert list(await rows_as_of(bench, then, query)) == mine
        assert list(await differences(bench, then, later, query)) == [one for at, one in different if at == partition]
    for count in range(1, len(places) + 1):
        first = await rows_as_of(bench, then, ListFilter(limit=count))
        rest = await rows_as_of(bench, then, ListFilter(after=places[count - 1]))
        assert list(first) + list(rest) == [one for _, one in places]
    for count in range(1, len(different) + 1):
        first = await differences(bench, later, then, ListFilter(limit=count))
        rest = await differences(bench, later, then, ListFilter(after=different[count - 1]))
        assert list(first) + list(rest) == [one for _, one in different]
    with pytest.raises(InvalidInputError, match="partition 8"):
        await rows_as_of(bench, then, ListFilter(8))


async def test_pages_end_by_their_bytes(bench: Bench) -> None:
    ids = same_partition(12)
    await bench.write(dict.fromkeys(ids, "é" * 200_000))
    then = await heads(bench)
    await bench.write(dict.fromkeys(ids, "è" * 200_000))
    pages = [page async for page in bench.repo.reader.rows_as_of("s", "k", then, ListFilter())]
    assert [one.row.row_id for page in pages for one in page] == sorted(ids)
    assert {one.row.value[0] for page in pages for one in page} == {"é"}
    assert max(map(len, pages)) <= 6
    differ = [page async for page in bench.repo.reader.differences("s", "k", then, await heads(bench), ListFilter())]
    assert [one.row_id for page in differ for one in page] == sorted(ids)
    assert max(map(len, differ)) <= 3


async def test_states_that_are_none(bench: Bench) -> None:
    await bench.write({"a": "1"})
    then = await heads(bench)
    ahead = HeadsReply(1, [head + 1 for head in then.heads], then.history)
    with pytest.raises(InvalidInputError, match="is still to come"):
        await rows_as_of(bench, ahead)
    await bench.repo.histories.new_history("s")
    for call in (rows_as_of(bench, then), differences(bench, then, await heads(bench))):
        with pytest.raises(RevisionGoneError, match="is of another history"):
            await call


@pytest.mark.parametrize("tombstones_ms", [DAY_MS // 2, 30 * DAY_MS])
async def test_weeks_of_compaction_against_a_model(bench: Bench, tombstones_ms: int) -> None:
    """Every two days of the last week can be compared; with one before it they are compared right, or refused."""
    seed = 9
    draw = random.Random(seed)
    days: list[tuple[HeadsReply, Content]] = []
    now: Content = {}
    refused = right = 0
    for day in range(16):
        now = await write_some(bench, draw, now)
        days.append((await heads(bench), now))
        await bench.pass_time(DAY_MS)
        await bench.repo.maintenance.compact(await bench.lead(), tombstones_ms, 7 * DAY_MS - DAY_MS // 2)
        for number, (then, wanted) in enumerate(days):
            for later, (end, after) in draw.sample(list(enumerate(days)), min(3, len(days))):
                where = f"seed {seed}, days {number} and {later} on day {day}"
                try:
                    assert await rows_as_of(bench, then) == wanted, where
                    assert await differences(bench, then, end) == model_differences(wanted, after), where
                    right += 1
                except RevisionGoneError:
                    assert min(number, later) < day - 5, where
                    refused += 1
    assert refused > 10 < right


async def test_what_was_compacted_is_refused(bench: Bench) -> None:
    a, b = same_partition(2)
    await bench.write({a: "1"})
    then = await heads(bench)
    await bench.write({a: "2", b: "2"})
    await bench.pass_time(8 * DAY_MS)
    assert (await bench.repo.maintenance.compact(await bench.lead(), DAY_MS, 7 * DAY_MS)).revisions == 1
    sentence = (
        "revision 1 of partition 3 of s/k can't be read any more: what was replaced since is kept for a time only"
    )
    for call in (rows_as_of(bench, then), differences(bench, await heads(bench), then)):
        with pytest.raises(RevisionGoneError, match=sentence):
            await call
    nothing = HeadsReply(1, [0] * 8, then.history)
    assert await differences(bench, nothing, await heads(bench)) == {a: (None, ("2", ())), b: (None, ("2", ()))}


async def test_a_row_that_was_deleted_and_made_again(bench: Bench) -> None:
    a, b = same_partition(2)
    found = []
    for rows in ({a: "1", b: "1"}, {a: None}, {a: "1"}, {a: "2"}):
        await bench.write(rows)
        found.append(await heads(bench))
    one = ("1", ())
    assert await differences(bench, found[0], found[1]) == {a: (one, None)}
    assert await differences(bench, found[0], found[2]) == {}, "as it was, by another version"
    assert await differences(bench, found[1], found[3]) == {a: (None, ("2", ()))}
    assert await differences(bench, found[3], found[1]) == {a: (("2", ()), None)}


async def test_a_release_that_was_undone(bench: Bench) -> None:
    await bench.write({"a": "1", "b": "1"})
    before = await heads(bench)
    rows = [("a", "2", before), ("new", "1", None), ("b", None, before)]
    batch = [
        StagedRow(
            "k", RowWrite(row_partition(one, 8), one, value, None, 8, base.heads[row_partition(one, 8)] if base else 0)
        )
        for one, value, base in rows
    ]
    by = Authorship("alice")
    await bench.repo.releases.stage(bench.store, StageBatch("one", 0, tuple(batch), True), by)
    await bench.repo.releases.publish("s", 1, DAY_MS, by)
    await finish(bench, ReleaseState.PUBLISHED)
    published = await heads(bench)
    await bench.repo.releases.undo("s", 1, by)
    await finish(bench, ReleaseState.UNDONE)
    then = await bench.repo.reader.heads_of_release("s", "k", 1)
    assert then.heads == published.heads
    assert await rows_as_of(bench, then) == {"a": ("2", ()), "new": ("1", ())}
    changed = {"a": (("1", ()), ("2", ())), "b": (("1", ()), None), "new": (None, ("1", ()))}
    assert await differences(bench, before, then) == changed
    assert await differences(bench, then, await heads(bench)) == {one: (b, a) for one, (a, b) in changed.items()}
    assert await differences(bench, before, await heads(bench)) == {}


async def test_a_pin_keeps_the_state_of_its_release_however_old_it_becomes(bench: Bench) -> None:
    a, b, c = same_partition(3)
    releases, by = bench.repo.releases, Authorship("alice")

    async def a_week_later() -> int:
        """How many revisions are removed then."""
        await bench.pass_time(8 * DAY_MS)
        await bench.execute(f"UPDATE releases SET staged_at_ms = staged_at_ms - {8 * DAY_MS}")
        done = await bench.repo.maintenance.compact(await bench.lead(), DAY_MS, 7 * DAY_MS)
        removed: int = done.revisions
        return removed

    for value in ("before 1", "before 2"):
        await bench.write({a: value, b: value})
    await bench.pass_time(8 * DAY_MS)
    staged = StagedRow("k", RowWrite(row_partition(c, 8), c, "1", None, 8, 0))
    await releases.stage(bench.store, StageBatch("one", 0, (staged,), True), by)
    await releases.publish("s", 1, DAY_MS, by)
    await finish(bench, ReleaseState.PUBLISHED)
    was = await rows_as_of(bench, await heads(bench))
    await releases.pin("s", 1, by)
    for week, rows in enumerate(({a: "1", b: None, c: "2"}, {a: None, b: "back"}, {a: "2", c: None}, {b: None})):
        await bench.write(rows)
        assert await a_week_later() == (0 if week else 2), "what was replaced before the release goes"
        assert await rows_as_of(bench, await bench.repo.reader.heads_of_release("s", "k", 1)) == was
    await releases.unpin("s", 1, by)
    assert await a_week_later() > 0
    with pytest.raises(RevisionGoneError, match="when release 1 was published can't be read any more"):
        await bench.repo.reader.heads_of_release("s", "k", 1)


async def finish(bench: Bench, state: ReleaseState) -> None:
    while not (await bench.repo.releases.step("s", 1, bench.repo.histories.generation)).done:
        pass
    assert (await bench.repo.releases.get("s", 1)).state is state
