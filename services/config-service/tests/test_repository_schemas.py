"""Schemas of values: what breaks them is refused, exactly from the moment in which one is enforced."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from ringcast_config_service.repository import (
    AuditFilter,
    Authorship,
    Bundle,
    Chain,
    Deletion,
    IdempotencyMark,
    KeySchema,
    LockedError,
    PlainWrites,
    Repository,
    RowWrite,
    SchemaChange,
    SchemaRaceError,
    Seen,
    StageBatch,
    StagedRow,
    WriteOutcome,
    WriteRequest,
)
from ringcast_config_service.repository import schemas as decisions
from ringcast_config_service.repository.postgres import write as postgres_write
from ringcast_config_service.repository.postgres.settling import settle
from ringcast_config_service.repository.sqlite.writer import write as sqlite_write
from ringcast_core import row_partition, row_partitions
from ringcast_wire import (
    ConditionFailedError,
    InvalidInputError,
    KeyDeletedError,
    LimitExceededError,
    ReleaseState,
    RingcastError,
    RowRule,
    SchemaKind,
    SchemaMode,
    UnavailableError,
    UnknownStoreError,
    check_row,
    limits,
)

Bench = Any  # of conftest.py

NUMBER = json.dumps({"type": "integer"})
SMALL = json.dumps({"type": "integer", "maximum": 9})
ALICE = Authorship("alice", "because")
NOTHING_SEEN = Seen()
DAY_MS = 86_400_000


async def seen(repo: Repository, key: str = "k") -> Seen:
    """What is there now, taken for checked."""
    found = await repo.reader.heads("s", key)
    return Seen(found.history, found.heads)


async def register(
    repo: Repository,
    definition: str | None = NUMBER,
    *,
    key: str = "k",
    mode: SchemaMode | None = None,
    kind: SchemaKind = SchemaKind.JSON_SCHEMA,
    checked: Seen | None = NOTHING_SEEN,
) -> KeySchema:
    """Registers a schema, or sets a mode, as a client does it: again where writers were in the way."""
    while True:
        newest = await repo.schemas.newest("s", key)
        expected = newest[0].version if newest else 0
        change = SchemaChange(key, kind if definition else None, definition, mode, expected)
        try:
            return await repo.schemas.change("s", change, checked, ALICE)
        except UnavailableError as error:
            if not (isinstance(error, LockedError) or "is locked by" in str(error) or "in the way" in str(error)):
                raise


def said(row_id: str, value: str = "'x'", version: int = 1, key: str = "k") -> str:
    what = "the value is no JSON (JSON is malformed: invalid character (byte 0))"
    return f"row {row_id!r} of s/{key} breaks version {version} of its schema as a whole: {what}: {value}"


async def is_refused(repo: Repository, *requests: WriteRequest, rows: Sequence[str] = ("bad",), key: str = "k") -> None:
    outcomes = (await repo.writer.write(requests, 5)).outcomes
    assert [str(outcome) for outcome in outcomes] == [said(row, key=key) for row in rows]
    for outcome in outcomes:
        assert isinstance(outcome, InvalidInputError)
        assert (outcome.rule, outcome.field) == (RowRule.SCHEMA, "value")


def plain(bench: Bench, start: int, count: int, value: str) -> WriteRequest:
    """Many rows at once, which PostgreSQL writes without looking for them once it has seen that they are new."""
    ids = [f"p{number}" for number in range(start, start + count)]
    sizes = [len(row_id) + len(value) for row_id in ids]
    rows = PlainWrites(row_partitions(ids, bench.store.partition_count), ids, [value] * count, sizes)
    return WriteRequest(bench.store, "k", rows)


async def test_what_breaks_a_schema_is_refused_by_every_instance(any_bench: Bench, another: Repository) -> None:
    await any_bench.write({"a": "1"})
    await another.writer.write([any_bench.request({"b": "2"})], 5)  # knows the key from now on
    found = await register(any_bench.repo, checked=await seen(another))
    assert (found.key, found.version, found.kind, found.definition) == ("k", 1, "json-schema", NUMBER)
    assert (found.author, found.reason, found.mode) == ("alice", "because", SchemaMode.ENFORCE)
    never_written: dict[str, str | None] = {f"n{number}": "1" for number in range(40)}
    bundle, chain = Bundle(), Chain()
    for repo in (any_bench.repo, another):
        await is_refused(repo, any_bench.request({"bad": "x"}), any_bench.request({"a": "x"}), rows=("bad", "a"))
        await is_refused(repo, any_bench.request({**never_written, "bad": "x"}))
        await is_refused(repo, replace(any_bench.request({"bad": "x"}), skip_unchanged=True))
        await is_refused(repo, replace(any_bench.request({"bad": "x"}), chain=chain))
        await is_refused(repo, replace(any_bench.request({"bad": "x"}), mark=IdempotencyMark("key", "digest")))
        both = [any_bench.request({"x": "free"}, "other"), any_bench.request({"bad": "x"})]
        await is_refused(repo, *(replace(part, bundle=bundle) for part in both), rows=("bad", "bad"))
    assert await any_bench.live() == {"a": "1", "b": "2"}
    await any_bench.write({"a": None, "b": "3", **never_written})
    await any_bench.write({"x": "free"}, "other")
    await any_bench.check_gap_free()


async def test_a_request_that_was_checked_before_is_not_checked_again(any_bench: Bench) -> None:
    await register(any_bench.repo)
    first = (await any_bench.repo.schemas.in_force("s"))["k"]
    request = replace(any_bench.request({"trusted": "x"}), schema_id=first.schema_id)
    assert isinstance((await any_bench.group([request]))[0], WriteOutcome)
    await register(any_bench.repo, SMALL, mode=SchemaMode.WARN)
    second = (await any_bench.repo.schemas.in_force("s"))["k"]
    assert (second.version, second.mode, second == first) == (2, SchemaMode.WARN, False)
    await any_bench.write({"b": "x"})  # nothing is enforced


async def test_a_write_to_a_key_without_a_schema_asks_the_database_nothing_more(sqlite_bench: Bench) -> None:
    await sqlite_bench.write({"a": "1"})
    await register(sqlite_bench.repo, key="other")
    asked: list[str] = []

    def work(db: sqlite3.Connection) -> None:
        db.set_trace_callback(asked.append)
        sqlite_write(db, [sqlite_bench.request({"a": "2", "b": "1"})], 5)
        db.set_trace_callback(None)

    await sqlite_bench.repo.writer._sessions.write(work)
    assert len(asked) >= 5
    assert not [text for text in asked if "value_schemas" in text or "schema_modes" in text]


async def test_many_new_rows_are_refused_too(any_bench: Bench) -> None:
    for start in (0, 300):
        (outcome,) = await any_bench.group([plain(any_bench, start, 300, "1")])
        assert isinstance(outcome, WriteOutcome)
    await register(any_bench.repo, checked=await seen(any_bench.repo))
    await is_refused(any_bench.repo, plain(any_bench, 600, 300, "x"), rows=("p600",))
    (outcome,) = await any_bench.group([plain(any_bench, 600, 300, "2")])
    assert isinstance(outcome, WriteOutcome)
    assert len(await any_bench.live()) == 900


async def test_a_key_that_is_not_there_yet_has_its_schema_from_the_first_row(
    any_bench: Bench, another: Repository
) -> None:
    await register(any_bench.repo)
    for repo in (any_bench.repo, another):
        await is_refused(repo, any_bench.request({"bad": "x"}))
    assert not (await any_bench.repo.stores.get_store("s")).keys
    await any_bench.write({"a": "1"})
    for repo in (any_bench.repo, another):
        await is_refused(repo, any_bench.request({"bad": "x"}), any_bench.request({"a": "x"}), rows=("bad", "a"))


async def test_versions_and_modes(any_bench: Bench) -> None:
    repo = any_bench.repo
    with pytest.raises(InvalidInputError, match=r"^s/k has no schema: register one"):
        await register(repo, None, mode=SchemaMode.OFF)
    assert (await register(repo)).version == 1
    assert (await register(repo)).version == 1, "the same again"
    assert (await register(repo, SMALL)).version == 2
    assert (await register(repo, r"[a-z]+", kind=SchemaKind.REGEX)).version == 3
    await any_bench.write({"word": "abc"})
    with pytest.raises(InvalidInputError, match="does not match the regular expression: 'ABC'"):
        await any_bench.write({"word": "ABC"})
    off = await register(repo, None, mode=SchemaMode.OFF)
    assert (off.version, off.mode) == (3, SchemaMode.OFF)
    assert await repo.schemas.in_force("s") == {}
    await any_bench.write({"word": "7"})
    back = await register(repo, NUMBER, mode=SchemaMode.ENFORCE, checked=await seen(repo))
    assert (back.version, back.mode) == (4, SchemaMode.ENFORCE)
    found = await repo.schemas.versions("s", "k")
    assert [(each.version, each.kind, each.mode) for each in found] == [
        (4, "json-schema", SchemaMode.ENFORCE),
        (3, "regex", None),
        (2, "json-schema", None),
        (1, "json-schema", None),
    ]
    assert {each.definition for each in found} == {""}
    assert [each.definition for each in await repo.schemas.versions("s", "k", 2)] == [SMALL]
    assert await repo.schemas.versions("s", "k", 5) == []
    assert [(each.key, each.version, each.definition) for each in await repo.schemas.newest("s")] == [("k", 4, "")]
    assert [each.definition for each in await repo.schemas.newest("s", "k")] == [NUMBER]
    with pytest.raises(UnknownStoreError):
        await repo.schemas.newest("none")
    actions = [(entry.action, entry.key, json.loads(entry.details)) for entry in await audited(any_bench)]
    assert actions == [
        ("RegisterSchema", "k", {"version": 1, "kind": "json-schema", "mode": "enforce", "compatibility": "none"}),
        ("RegisterSchema", "k", {"version": 2, "kind": "json-schema", "mode": "enforce", "compatibility": "none"}),
        ("RegisterSchema", "k", {"version": 3, "kind": "regex", "mode": "enforce", "compatibility": "none"}),
        ("SetSchemaMode", "k", {"version": 3, "kind": "regex", "mode": "off", "compatibility": "none"}),
        ("RegisterSchema", "k", {"version": 4, "kind": "json-schema", "mode": "enforce", "compatibility": "none"}),
    ]


async def audited(bench: Bench) -> list[Any]:
    while await bench.repo.audit.seal():
        pass
    page = await bench.repo.audit.audit_entries(AuditFilter(), 0, 1_000, newest_first=False)
    return [entry for entry in page.entries if "Schema" in entry.action]


async def test_so_many_versions_and_keys(any_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_SCHEMA_VERSIONS", 3)
    for most in range(5):
        await register(any_bench.repo, json.dumps({"maximum": most}))
    assert [each.version for each in await any_bench.repo.schemas.versions("s", "k")] == [5, 4, 3]
    monkeypatch.setattr(limits, "MAX_SCHEMA_KEYS", 3)
    for key in ("k1", "k2", "k1"):
        await register(any_bench.repo, key=key)
    sentence = r"^s/k3 can't have a schema: 3 other keys of the store have one, the limit is 3$"
    with pytest.raises(LimitExceededError, match=sentence):
        await register(any_bench.repo, key="k3")


async def test_rows_that_were_written_since_are_checked_too(any_bench: Bench, another: Repository) -> None:
    await any_bench.write({"a": "1", "b": "2"})
    before = await seen(any_bench.repo)
    await another.writer.write([any_bench.request({"bad": "x", "c": "3"})], 5)
    sentence = (
        r"^1 row breaks the schema, so it can't be enforced for s/k, nothing is changed: 'bad' as a whole: the value"
    )
    with pytest.raises(InvalidInputError, match=sentence):
        await register(any_bench.repo, checked=before)
    assert await any_bench.repo.schemas.newest("s") == []
    await any_bench.write({"bad": "4"})
    await register(any_bench.repo, checked=before)
    await is_refused(another, any_bench.request({"bad": "x"}))


async def test_too_many_rows_that_were_written_since_are_a_reason_to_look_again(
    any_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await any_bench.write({"a": "1"})
    before = await seen(any_bench.repo)
    await any_bench.write({f"n{number}": "1" for number in range(4)})
    monkeypatch.setattr(decisions, "MAX_CHANGED_ROWS", 3)
    with pytest.raises(SchemaRaceError):
        await register(any_bench.repo, checked=before)
    monkeypatch.setattr(decisions, "MAX_CHANGED_ROWS", 4)
    await register(any_bench.repo, checked=before)


async def test_what_was_decided_for_something_else_is_not_done(any_bench: Bench) -> None:
    await any_bench.write({"a": "1"})
    repo, before = any_bench.repo, await seen(any_bench.repo)
    for change, checked in (
        (SchemaChange("k", SchemaKind.JSON_SCHEMA, NUMBER, None, 1), before),  # there is none yet
        (SchemaChange("k", SchemaKind.JSON_SCHEMA, NUMBER, None, 0), None),  # rows were not looked at
        (SchemaChange("k", SchemaKind.JSON_SCHEMA, NUMBER, None, 0), Seen("another", before.heads)),
    ):
        with pytest.raises(SchemaRaceError):
            await repo.schemas.change("s", change, checked)
    await register(repo, mode=SchemaMode.WARN, checked=None)
    with pytest.raises(SchemaRaceError):
        await register(repo, None, mode=SchemaMode.ENFORCE, checked=None)
    await register(repo, None, mode=SchemaMode.ENFORCE, checked=before)
    await is_refused(repo, any_bench.request({"bad": "x"}))


async def test_encrypted_values_can_not_be_checked(any_bench: Bench) -> None:
    sealed = {"enc-alg": "A256GCM-HS256", "enc-kid": "k1"}
    await any_bench.write({"secret": "AAAA"}, metadata=sealed)
    with pytest.raises(
        InvalidInputError, match=r"'secret' as a whole: the value is encrypted, so it can't be checked: \("
    ) as caught:
        await register(any_bench.repo, checked=Seen(""))
    assert "AAAA" not in str(caught.value)
    await any_bench.write({"secret": None})
    await register(any_bench.repo)
    with pytest.raises(InvalidInputError, match="the value is encrypted, so it can't be checked") as caught:
        await any_bench.write({"secret": "1"}, metadata=sealed)


async def test_a_deleted_key_keeps_its_schema_once_it_is_restored(any_bench: Bench) -> None:
    await any_bench.write({"a": "1"})
    await register(any_bench.repo)
    await any_bench.repo.deletions.delete_key("s", "k", Deletion(1, 2**41))
    with pytest.raises(KeyDeletedError):
        await register(any_bench.repo, SMALL)
    await any_bench.repo.deletions.restore_key("s", "k", 2)
    await is_refused(any_bench.repo, any_bench.request({"bad": "x"}))


async def purge(bench: Bench, key: str | None) -> None:
    deletions, now = bench.repo.deletions, Deletion(1, 0)
    await (deletions.delete_key("s", key, now) if key else deletions.delete_store("s", now))
    while await deletions.purge_rows("s", key):
        pass
    await (deletions.drop_key("s", key) if key else deletions.drop_store("s"))


async def test_a_purged_key_is_another_one_without_a_schema(any_bench: Bench, another: Repository) -> None:
    await any_bench.write({"a": "1"})
    await register(any_bench.repo)
    await register(any_bench.repo, key="other")
    old = (await any_bench.repo.schemas.in_force("s"))["k"]
    await purge(any_bench, "k")
    assert [each.key for each in await any_bench.repo.schemas.newest("s")] == ["other"]
    assert await any_bench.repo.schemas.versions("s", "k") == []
    assert await any_bench.repo.schemas.definition(old.schema_id) is None
    await another.writer.write([any_bench.request({"a": "x"})], 5)
    assert await any_bench.live() == {"a": "x"}
    await any_bench.write({"a": "1"})
    await register(any_bench.repo, SMALL, checked=await seen(any_bench.repo))
    stale = replace(any_bench.request({"bad": "x"}), schema_id=old.schema_id)
    await is_refused(any_bench.repo, stale)
    await purge(any_bench, None)
    await any_bench.repo.stores.create_store(any_bench.store)
    assert await any_bench.repo.schemas.newest("s") == []


async def finish(bench: Bench, number: int) -> None:
    while not (await bench.repo.releases.step("s", number, bench.repo.histories.generation)).done:
        pass


async def test_a_release_is_held_to_the_schema_when_it_is_published_and_undone(any_bench: Bench) -> None:
    repo, rows = any_bench.repo, {"a": "1", "b": "22"}
    await any_bench.write({"a": "333"})
    staged = [
        StagedRow("k", RowWrite(row_partition(row, 8), row, value, None, check_row(row, value, None), int(row == "a")))
        for row, value in rows.items()
    ]
    number = (await repo.releases.stage(any_bench.store, StageBatch("stage", 0, staged, True), ALICE)).number
    await repo.releases.publish("s", number, DAY_MS, ALICE)
    await register(repo, SMALL, checked=Seen((await seen(repo)).history, [99] * 8))
    with pytest.raises(InvalidInputError, match="row 'b' of s/k breaks version 1 of its schema as a whole"):
        await finish(any_bench, number)
    assert await any_bench.live() == {"a": "333"}
    await register(repo, None, mode=SchemaMode.OFF)
    await finish(any_bench, number)
    assert await any_bench.live() == rows
    await register(repo, None, mode=SchemaMode.ENFORCE, checked=Seen((await seen(repo)).history, [99] * 8))
    await repo.releases.undo("s", number, ALICE)
    with pytest.raises(InvalidInputError, match="row 'a' of s/k breaks version 1 of its schema as a whole"):
        await finish(any_bench, number)
    await register(repo, None, mode=SchemaMode.WARN)
    await finish(any_bench, number)
    assert (await repo.releases.get("s", number)).state is ReleaseState.UNDONE
    assert await any_bench.live() == {"a": "333"}


async def test_a_release_that_breaks_a_newer_schema_is_refused_as_a_whole(any_bench: Bench) -> None:
    repo = any_bench.repo
    rows = {f"n{number}": "1" for number in range(1_200)} | {"z": "22"}
    staged = [
        StagedRow("k", RowWrite(row_partition(row, 8), row, value, None, check_row(row, value, None), 0))
        for row, value in rows.items()
    ]
    number = (await repo.releases.stage(any_bench.store, StageBatch("stage", 0, staged, True), ALICE)).number
    await register(repo, SMALL)
    sentence = (
        f"^release {number} of store 's' can't be published, nothing is published: row 'z' of s/k breaks version 1 of "
        r"its schema as a whole \(rule /maximum\): the value is greater than the maximum of 9: '22'$"
    )
    with pytest.raises(ConditionFailedError, match=sentence):
        await repo.releases.publish("s", number, DAY_MS, ALICE)
    await register(repo, NUMBER)
    await repo.releases.publish("s", number, DAY_MS, ALICE)
    await finish(any_bench, number)
    assert await any_bench.live() == rows


async def test_an_older_build_is_kept_away(any_bench: Bench) -> None:
    query = "SELECT usable_from FROM schema_version"
    assert (await any_bench.ask(query))[0][0] < decisions.KNOWN_FROM
    await register(any_bench.repo)
    assert await any_bench.ask(query) == [(decisions.KNOWN_FROM,)]


async def test_heads_that_an_older_build_made_are_mended_by_setting_it_again(any_bench: Bench) -> None:
    await any_bench.write({"a": "1"})
    await register(any_bench.repo)
    await any_bench.execute("UPDATE partitions SET schema_id = NULL")
    await register(any_bench.repo)
    await is_refused(any_bench.repo, any_bench.request({"bad": "x"}))


async def test_nothing_that_breaks_it_is_stored_once_it_is_enforced(any_bench: Bench, another: Repository) -> None:
    """Two instances write old and new partitions and keys while a third enforces a schema, again and again."""
    wrong: list[str] = []
    enforced = asyncio.Event()

    async def write(repo: Repository, writer: int, turn: int) -> int:
        """How many bad rows were stored; the last write begins when the schema is enforced."""
        done, number = 0, 0
        while True:
            number += 1
            if number > 20:
                await enforced.wait()
            began_enforced = enforced.is_set()
            rows: dict[str, str | None] = {f"{turn}.{writer}.{number}": "1", f"all{turn}.{number % 7}": "x"}
            request = any_bench.request(rows, f"k{(number + turn) % 3}")
            try:
                (outcome,) = (await repo.writer.write([request], 5)).outcomes
            except UnavailableError:  # another process has locked SQLite's file, or for long one of the heads
                continue
            if isinstance(outcome, WriteOutcome):
                done += 1
                if began_enforced:
                    wrong.append(f"{writer} wrote {number} in turn {turn}")
                    return done
            else:
                assert isinstance(outcome, InvalidInputError)
                if began_enforced:
                    return done

    async def enforce(repo: Repository, key: str) -> None:
        """Enforces it as soon as no row breaks it: the rows that do are deleted again and again."""
        while True:
            try:
                await register(repo, key=key, mode=SchemaMode.ENFORCE)
                return
            except InvalidInputError:
                bad = {row: None for row, value in (await any_bench.live(key)).items() if value == "x"}
                await repo.writer.write([any_bench.request(bad, key)], 5)
            except UnavailableError:
                continue

    keys = ("k0", "k1", "k2")
    for turn in range(3):
        enforced.clear()
        writers = [asyncio.create_task(write((any_bench.repo, another)[n % 2], n, turn)) for n in range(6)]
        await asyncio.sleep(0)
        third = await any_bench.another()
        for key in keys:
            await enforce(third, key)
        enforced.set()
        await asyncio.gather(*writers)
        assert wrong == []
        for key in keys:
            if key in {stats.name for stats in (await any_bench.repo.stores.get_store("s")).keys}:
                assert "x" not in (await any_bench.live(key)).values()
                await any_bench.check_gap_free(key)
            await register(third, None, key=key, mode=SchemaMode.OFF)
        await third.close()


@pytest.mark.parametrize("rows", [{"a": "x"}, {f"n{number}": "x" for number in range(40)}], ids=["old", "new"])
@pytest.mark.parametrize("key", ["k", "new-key"])
async def test_the_schema_waits_for_a_write_that_is_under_way(
    postgres_bench: Bench, monkeypatch: pytest.MonkeyPatch, rows: dict[str, str | None], key: str
) -> None:
    """A write that has looked at the heads is stored before the schema is enforced, which then finds its rows."""
    await postgres_bench.write({"a": "1"})
    third = await postgres_bench.another()
    has_looked, may_go_on = asyncio.Event(), asyncio.Event()

    async def stopped(*words: Any) -> Any:
        settled = await settle(*words)
        has_looked.set()
        await may_go_on.wait()
        return settled

    monkeypatch.setattr(postgres_write, "settle", stopped)
    under_way = asyncio.create_task(postgres_bench.write(rows, key))
    await has_looked.wait()
    setting = asyncio.create_task(register(third, key=key))
    done, _ = await asyncio.wait([setting], timeout=0.3)
    assert not done, "the store, or a head, is locked by the write"
    may_go_on.set()
    outcome, schema = cast(Any, await asyncio.gather(under_way, setting, return_exceptions=True))
    is_there = key in {stats.name for stats in (await postgres_bench.repo.stores.get_store("s")).keys}
    live = await postgres_bench.live(key) if is_there else {}
    if isinstance(outcome, WriteOutcome):
        assert rows.items() <= live.items()
        assert isinstance(schema, InvalidInputError), "it has found what was written"
    else:
        assert isinstance(outcome, RingcastError)
        assert isinstance(schema, KeySchema)
        assert "x" not in live.values()
    await third.close()
