"""What a release has staged, or has kept, is stored as any write of the same rows is, in each database."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
from ringcast_config_service.repository import Authorship, RowWrite, StageBatch, StagedRow, StoreRecord, release_steps
from ringcast_config_service.repository.release_transactions import Write
from ringcast_core import row_partition
from ringcast_wire import ReleaseState, check_row

Bench = Any  # of conftest.py

BY: Final = Authorship("alice", "new list")
UNDOER: Final = Authorship("bob", "too strict")
DAY_MS: Final = 86_400_000
KEYS: Final = ("k", "l")
VALUES: Final = ("", "plain", "a\ttab, a\nline, a \\ and 'quotes'", "ünï⚡", "long" * 100)
METADATA: Final = (None, None, {"by": "me"}, {"ü": "\\N", "x": ""})


class Side:
    """One of two stores to which the same is done."""

    def __init__(self, bench: Bench, store: StoreRecord) -> None:
        self._bench = bench
        self.store = store
        self.name = store.name

    async def write(self, key: str, row_id: str, value: str | None, metadata: dict[str, str] | None) -> None:
        request = self._bench.request({row_id: value}, key, self.store, metadata)
        await self._bench.group([request])

    async def publish(self, changes: Sequence[tuple[str, str, str | None, dict[str, str] | None]]) -> None:
        """A release with a condition on what each row is now."""
        await self.begin(changes)
        await self.work()

    async def begin(self, changes: Sequence[tuple[str, str, str | None, dict[str, str] | None]]) -> None:
        rows = []
        for key, row_id, value, metadata in changes:
            found = await self._of_key("SELECT version FROM rows r", key, f"AND row_id = '{row_id}' AND NOT deleted")
            size, base = check_row(row_id, value or "", metadata), found[0][0] if found else 0
            if value is not None or base:
                write = RowWrite(row_partition(row_id, self.store.partition_count), row_id, value, metadata, size, base)
                rows.append(StagedRow(key, write))
        await self._bench.repo.releases.stage(self.store, StageBatch("one", 0, rows, True), BY)
        await self._bench.repo.releases.publish(self.name, 1, DAY_MS, BY)

    async def undo(self) -> Any:
        await self._bench.repo.releases.undo(self.name, 1, UNDOER)
        await self.work()
        done = await self._bench.repo.releases.get(self.name, 1)
        assert done.state is ReleaseState.UNDONE
        return done

    async def stored(self) -> dict[str, list[tuple[Any, ...]]]:
        """All that the database has of its keys, but for times and what is random."""
        found: dict[str, list[tuple[Any, ...]]] = {}
        for key in KEYS:
            for what, columns in {
                "rows r": "partition, row_id, value, version, deleted, metadata, size",
                "history r": "partition, revision, row_id, value, deleted, metadata, prev, author, reason",
                "partitions r": "partition, head, live_rows, live_bytes",
            }.items():
                found[f"{what} {key}"] = await self._of_key(f"SELECT {columns} FROM {what}", key, "ORDER BY 1, 2, 3")
            found[f"audit {key}"] = await self._bench.ask(
                "SELECT principal, action, outcome, reason, details FROM audit_pending "
                f"WHERE store = '{self.name}' AND config_key = '{key}' ORDER BY id"
            )
        found["events"] = [
            (subject.split(".")[3:], event.prev, event.rev, event.changes, event.release)
            for subject, event in await self._bench.events()
            if subject.split(".")[2] == self.name
        ]
        return found

    async def noted(self) -> dict[tuple[str, str], tuple[str, int]]:
        """What the release has noted of each row."""
        found = await self._bench.ask(
            f"SELECT config_key, row_id, outcome, undo_version FROM release_rows WHERE store = '{self.name}'"
        )
        return {(key, row_id): (outcome, version) for key, row_id, outcome, version in found}

    async def of_release(self) -> list[tuple[Any, ...]]:
        """All that the release has of its rows."""
        columns = (
            "place, config_key, partition, row_id, value, metadata, size, base, outcome, version, undo_version, "
            "old_value, old_metadata, old_size"
        )
        return list(await self._bench.ask(f"SELECT {columns} FROM release_rows WHERE store = '{self.name}' ORDER BY 1"))

    async def torn(self) -> list[tuple[Any, ...]]:
        """Rows that their last revision does not agree with, its time included."""
        return list(
            await self._bench.ask(
                "SELECT r.row_id FROM rows r JOIN config_keys k ON k.key_id = r.key_id LEFT JOIN history h "
                "ON h.key_id = r.key_id AND h.partition = r.partition AND h.revision = r.version "
                f"AND h.written_at_ms = r.written_at_ms AND h.row_id = r.row_id WHERE k.store = '{self.name}' "
                "AND h.row_id IS NULL"
            )
        )

    async def _of_key(self, select: str, key: str, rest: str) -> list[tuple[Any, ...]]:
        where = f"WHERE r.key_id = (SELECT key_id FROM config_keys WHERE store = '{self.name}' AND name = '{key}')"
        return list(await self._bench.ask(f"{select} {where} {rest}"))

    async def work(self) -> None:
        while not (await self._bench.repo.releases.step(self.name, 1, self._bench.repo.histories.generation)).done:
            pass


@pytest.mark.parametrize("seed", range(4))
async def test_what_a_release_has_kept_is_written_back_as_any_write_is_stored(
    any_bench: Bench, new_store: Callable[..., StoreRecord], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The same is done to two stores; in one of them the undo writes what it has read, as everybody writes."""
    draw = random.Random(seed)
    monkeypatch.setattr(release_steps, "STEP_ROWS", 9)
    other = await any_bench.repo.stores.create_store(new_store("t"))
    sides = back, plain = Side(any_bench, any_bench.store), Side(any_bench, other)
    ids = [f"r{number}" for number in range(12)]

    def drawn(count: int) -> list[tuple[str, str, str | None, dict[str, str] | None]]:
        places = draw.sample([(key, row_id) for key in KEYS for row_id in ids], count)
        return [(*place, draw.choice([None, *VALUES]), draw.choice(METADATA)) for place in places]

    for change in drawn(16):
        for side in sides:
            await side.write(*change)
    changes = drawn(20)
    for side in sides:
        await side.publish(changes)
    if seed % 2:
        await any_bench.execute("DELETE FROM rows WHERE deleted AND partition % 2 = 0")  # old tombstones
    for change in drawn(4):
        for side in sides:
            await side.write(*change)
    published = await plain.noted()
    done = await back.undo()
    with monkeypatch.context() as patch:
        patch.setattr(release_steps, "Write", lambda requests, kept: Write(requests))
        assert (await plain.undo()).undone == done.undone
    assert done.undone

    stored = await back.stored()
    assert stored == await plain.stored()
    undone = {
        (key, record[2]): record[1]
        for key in KEYS
        for record in stored[f"history r {key}"]
        if record[-1] == "undo of release 1: too strict"
    }
    assert len(undone) == done.undone
    assert await back.noted() == {
        place: ("undone", undone[place]) if place in undone else ("kept" if was == "published" else was, 0)
        for place, (was, _) in published.items()
    }
    assert not await back.torn()


@pytest.mark.parametrize("seed", range(2))
async def test_a_release_is_published_alike_by_all_databases(
    sqlite_bench: Bench,
    postgres_bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """SQLite is sent what is published, and PostgreSQL has it already; rows that others have changed are skipped."""
    draw = random.Random(seed)
    monkeypatch.setattr(release_steps, "STEP_ROWS", 9)
    sides = [Side(bench, bench.store) for bench in (sqlite_bench, postgres_bench)]
    ids = [f"r{number}" for number in range(12)]
    places = [(key, row_id) for key in KEYS for row_id in ids]

    def drawn(count: int) -> list[tuple[str, str, str | None, dict[str, str] | None]]:
        return [(*place, draw.choice([None, *VALUES]), draw.choice(METADATA)) for place in draw.sample(places, count)]

    before, changes, meanwhile = drawn(16), drawn(20), drawn(4)
    for side in sides:
        for change in before:
            await side.write(*change)
        await side.begin(changes)
        for change in meanwhile:
            await side.write(*change)
        await side.work()
        assert not await side.torn()
    first, second = [await side.of_release() for side in sides]
    assert first == second
    assert {record[8] for record in first} == {"published", "skipped"}
    assert await sides[0].stored() == await sides[1].stored()
