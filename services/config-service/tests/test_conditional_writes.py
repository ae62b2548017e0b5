"""Conditions, idempotency keys, writes of several keys and permits, on each database."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from ringcast_config_service.permits import Permit, clock_s
from ringcast_config_service.repository import Deletion, WriteOutcome, WriteRequest, make_repository
from ringcast_config_service.writes.batches import RowInput
from ringcast_config_service.writes.terms import NO_TERMS, KeyedRow, Terms, bundle, make_mark
from ringcast_wire import (
    ConditionFailedError,
    InvalidInputError,
    LimitExceededError,
    RingcastError,
    UnavailableError,
    UnknownKeyError,
    limits,
)

Bench = Any  # of conftest.py


def when(request: WriteRequest, condition: int) -> WriteRequest:
    """The request, if its rows have this version (0: none)."""
    return replace(request, rows=[row._replace(condition=condition) for row in request.rows])


def once(request: WriteRequest, key: str) -> WriteRequest:
    """The request with an idempotency key."""
    return replace(request, mark=make_mark(key, [(request.key, request.rows)]))


async def one(bench: Bench, request: WriteRequest) -> WriteOutcome:
    (outcome,) = await bench.group([request])
    if isinstance(outcome, RingcastError):
        raise outcome
    return outcome  # type: ignore[no-any-return]


# --- Conditions


async def test_a_row_is_written_only_at_the_version_that_it_has(bench: Bench) -> None:
    assert (await bench.write({"a": "1"})).versions == [1]
    assert (await one(bench, when(bench.request({"a": "2"}), 1))).versions == [2]
    with pytest.raises(
        ConditionFailedError, match=r"s/k has row 'a' at version 2: version 1 was expected, nothing"
    ) as e:
        await one(bench, when(bench.request({"a": "3"}), 1))
    assert (e.value.found_version, e.value.field) == (2, "if_version")
    with pytest.raises(ConditionFailedError, match="s/k has no row 'b': version 7 was expected"):
        await one(bench, when(bench.request({"b": "1"}), 7))
    assert (await one(bench, when(bench.request({"a": None}), 2))).deleted == 1
    with pytest.raises(ConditionFailedError) as gone:  # the tombstone's version does not count
        await one(bench, when(bench.request({"a": "4"}), 3))
    assert gone.value.found_version == 0
    assert await bench.live() == {}
    await bench.check_gap_free()


async def test_a_row_is_written_only_where_there_is_none(bench: Bench) -> None:
    assert (await one(bench, when(bench.request({"a": "1"}), 0))).versions == [1]
    with pytest.raises(ConditionFailedError, match="has row 'a' at version 1: no row was expected") as error:
        await one(bench, when(bench.request({"a": "2"}), 0))
    assert (error.value.found_version, error.value.field) == (1, "if_absent")
    await bench.write({"a": None})
    assert (await one(bench, when(bench.request({"a": "3"}), 0))).versions == [3]


async def test_a_condition_sees_what_the_same_group_wrote_before(bench: Bench) -> None:
    outcomes = await bench.group(
        [
            when(bench.request({"a": "1"}), 0),
            when(bench.request({"a": "2"}), 1),
            when(bench.request({"a": "lost"}), 1),
            bench.request({"a": None}),
            when(bench.request({"a": "lost"}), 2),
            when(bench.request({"a": "3"}), 0),
        ]
    )
    assert [isinstance(outcome, ConditionFailedError) for outcome in outcomes] == [
        False,
        False,
        True,
        False,
        True,
        False,
    ]
    assert await bench.live() == {"a": "3"}
    await bench.check_gap_free()


async def test_one_condition_that_fails_refuses_its_batch(bench: Bench) -> None:
    await bench.write({"a": "1"})
    mixed = bench.request({"a": "2", "b": "2"})
    mixed = replace(mixed, rows=[mixed.rows[0]._replace(condition=9), mixed.rows[1]])
    with pytest.raises(ConditionFailedError):
        await one(bench, mixed)
    assert await bench.live() == {"a": "1"}


@pytest.mark.parametrize("skip_unchanged", [False, True])
async def test_conditions_in_a_large_write(bench: Bench, skip_unchanged: bool) -> None:
    """Beyond the number from which rows are copied, and guessed to be new."""
    for start in range(0, 1_200, 400):
        rows = {f"r{number}": "1" for number in range(start, start + 400)}
        request = replace(when(bench.request(rows), 0), skip_unchanged=skip_unchanged)
        assert (await one(bench, request)).written == 400
    with pytest.raises(ConditionFailedError):
        await one(bench, when(bench.request({f"r{number}": "2" for number in range(1_100, 1_500)}), 0))
    assert len(await bench.live()) == 1_200
    await bench.check_gap_free()


async def test_of_many_that_swap_one_wins(bench: Bench) -> None:
    """Instances side by side, one counter: no increment is lost."""
    others = [make_repository(bench.address) for _ in range(3)]
    for other in others:
        await other.open()
    await bench.write({"n": "0"})

    async def add(repo: Any) -> None:
        for _ in range(5):
            while True:
                (entry,) = (await repo.reader.read_rows("s", "k", ["n"])).partitions
                (row,) = entry.rows
                request = when(bench.request({"n": str(int(row.value) + 1)}), row.version)
                (outcome,) = (await repo.writer.write([request], 1)).outcomes
                if not isinstance(outcome, RingcastError):
                    break

    try:
        await asyncio.gather(*(add(repo) for repo in [bench.repo, *others]))
    finally:
        for other in others:
            await other.close()
    assert await bench.live() == {"n": "20"}


# --- Idempotency keys


async def test_a_repeat_returns_the_first_outcome_and_writes_nothing(bench: Bench) -> None:
    request = once(bench.request({"a": "1", "b": "1"}), "job-1")
    first = await one(bench, request)
    await bench.write({"a": "2"})
    assert await one(bench, once(bench.request({"a": "1", "b": "1"}), "job-1")) == first
    assert (await bench.live())["a"] == "2"
    await bench.check_gap_free()


async def test_a_repeat_in_the_same_group(bench: Bench) -> None:
    outcomes = await bench.group([once(bench.request({"a": "1"}), "j"), bench.request({"a": "2"})] * 2)
    assert [outcome.versions for outcome in outcomes] == [[1], [2], [1], [3]]


async def test_a_key_is_for_one_request(bench: Bench) -> None:
    await one(bench, once(bench.request({"a": "1"}), "j"))
    for other in (
        bench.request({"a": "2"}),
        bench.request({"b": "1"}),
        bench.request({"a": None}),
        bench.request({"a": "1"}, key="other"),
        bench.request({"a": "1"}, metadata={"by": "me"}),
        when(bench.request({"a": "1"}), 1),
    ):
        with pytest.raises(
            InvalidInputError, match=r"idempotency_key 'j' was used in store 's' for another write"
        ) as e:
            await one(bench, once(other, "j"))
        assert e.value.field == "idempotency_key"
    assert await bench.live() == {"a": "1"}


async def test_a_refused_write_does_not_use_its_key_up(bench: Bench) -> None:
    request = once(when(bench.request({"a": "2"}), 1), "j")
    with pytest.raises(ConditionFailedError):
        await one(bench, request)
    await bench.write({"a": "1"})
    assert (await one(bench, request)).versions == [2]
    assert (await one(bench, request)).versions == [2]  # though its condition no longer holds


async def test_a_delete_of_nothing_is_remembered(bench: Bench) -> None:
    await bench.write({"b": "1"})
    request = once(bench.request({"a": None}), "j")
    assert (await one(bench, request)).deleted == 0
    await bench.write({"a": "1"})
    assert (await one(bench, request)).deleted == 0
    assert set(await bench.live()) == {"a", "b"}


async def test_many_new_rows_with_keys(bench: Bench) -> None:
    """The groups that are guessed to be new take the same care."""
    requests = [once(bench.request({f"{part}-{n}": "1" for n in range(300)}), f"job:{part}") for part in range(5)]
    first = [await one(bench, request) for request in requests]
    assert [await one(bench, request) for request in requests] == first
    assert len(await bench.live()) == 1_500
    await bench.check_gap_free()


async def test_the_same_request_at_two_instances_at_once(bench: Bench) -> None:
    other = make_repository(bench.address)
    await other.open()
    try:
        for number in range(10):
            request = once(bench.request({"a": str(number)}), f"j{number}")
            written = await asyncio.gather(*(repo.writer.write([request], 1) for repo in (bench.repo, other)))
            assert written[0].outcomes == written[1].outcomes
            assert sum(len(found.events) for found in written) == 1
    finally:
        await other.close()
    await bench.check_gap_free()


async def test_one_key_for_different_rows_at_two_instances_at_once(bench: Bench) -> None:
    """No lock of a partition keeps them apart: the key does."""
    other = make_repository(bench.address)
    await other.open()
    try:
        for number in range(10):
            requests = [once(bench.request({row_id: str(number)}), f"j{number}") for row_id in ("a", "b")]
            written = await asyncio.gather(
                bench.repo.writer.write(requests[:1], 1), other.writer.write(requests[1:], 1)
            )
            outcomes = [found.outcomes[0] for found in written]
            assert sum(isinstance(outcome, InvalidInputError) for outcome in outcomes) == 1
    finally:
        await other.close()
    await bench.check_gap_free()


async def test_keys_are_forgotten_in_pieces(bench: Bench) -> None:
    """By the clock of the database, here one that is a minute ahead."""
    for number in range(4):
        await one(bench, once(bench.request({"a": str(number)}), f"j{number}"))
    assert await bench.repo.maintenance.forget_marks(await bench.lead(), 60_000, 3) == 0
    assert (await one(bench, once(bench.request({"a": "0"}), "j0"))).versions == [1]
    assert await bench.repo.maintenance.forget_marks(await bench.lead(), -60_000, 3) == 3
    assert await bench.repo.maintenance.forget_marks(await bench.lead(), -60_000, 3) == 1
    assert await bench.repo.maintenance.forget_marks(await bench.lead(), -60_000, 3) == 0
    assert (await one(bench, once(bench.request({"a": "0"}), "j0"))).versions == [5]


async def test_a_store_created_again_knows_nothing_of_the_old_ones_keys(bench: Bench, new_store: Any) -> None:
    await one(bench, once(bench.request({"a": "1"}), "j"))
    await bench.repo.deletions.delete_store("s", Deletion(1, 2))
    await bench.repo.deletions.expire_deleted(await bench.lead(), 3)
    while await bench.repo.deletions.purge_rows("s", None):
        pass
    await bench.repo.deletions.drop_store("s")
    await bench.repo.stores.create_store(new_store())
    assert (await one(bench, once(bench.request({"a": "other"}), "j"))).versions == [1]


async def test_a_config_key_made_anew_knows_nothing_of_the_old_ones_keys(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import that is repeated by its job would say that everything is written, and write nothing."""
    for module in ("postgres", "sqlite"):
        monkeypatch.setattr(f"ringcast_config_service.repository.{module}.deletions.PURGE_ROWS", 2)
    mine = [once(bench.request({"a": str(number)}), f"j{number}") for number in range(5)]
    kept = once(bench.request({"a": "1"}, key="kk"), "other")
    for request in (*mine, kept):
        await one(bench, request)
    both = (("k", "b", "1", None), ("kk", "b", "1", None))
    await bench.group(commit(bench, *both, key="both"))
    await bench.repo.deletions.delete_key("s", "k", Deletion(1, 2))
    await bench.repo.deletions.expire_deleted(await bench.lead(), 3)
    while await bench.repo.deletions.purge_rows("s", "k"):
        pass
    await bench.repo.deletions.drop_key("s", "k")
    assert [(await one(bench, request)).versions for request in mine] == [[1], [2], [3], [4], [5]]
    assert await bench.live("k") == {"a": "4"}
    outcomes = await bench.group(commit(bench, *both, key="both"))
    assert [outcome.written for outcome in outcomes] == [1, 1]
    assert set(await bench.live("k")) == {"a", "b"}
    revision = (await bench.repo.reader.heads("s", "kk")).heads
    await one(bench, kept)
    assert (await bench.repo.reader.heads("s", "kk")).heads == revision, "another key's are remembered"


# --- Several keys


def commit(bench: Bench, *writes: tuple[str, str, str | None, int | None], key: str = "") -> list[WriteRequest]:
    rows = [KeyedRow(name, RowInput(row_id, value, None, condition)) for name, row_id, value, condition in writes]
    return bundle(bench.store, rows, Terms(idempotency_key=key))[0]


async def test_rows_of_several_keys_are_written_together(bench: Bench) -> None:
    await bench.write({"a": "1"}, key="x")
    group = commit(bench, ("x", "a", "2", 1), ("y", "a", "1", 0), ("y", "b", "1", None))
    outcomes = await bench.group([bench.request({"c": "1"}), *group, bench.request({"d": "1"})])
    assert [outcome.written for outcome in outcomes] == [1, 1, 2, 1]
    assert await bench.live("x") == {"a": "2"}
    assert await bench.live("y") == {"a": "1", "b": "1"}
    for key in ("k", "x", "y"):
        await bench.check_gap_free(key)


async def test_all_or_none_of_several_keys(bench: Bench) -> None:
    """What was written before in the same group stays, and what comes after it goes on from there."""
    await bench.write({"a": "1"}, key="x")
    group = commit(
        bench, ("w", "a", "lost", None), ("x", "a", "lost", None), ("x", "b", "lost", 7), ("z", "a", "1", None)
    )
    before, after = bench.request({"a": "2"}, key="x"), bench.request({"a": "3"}, key="x")
    outcomes = await bench.group([before, *group, after])
    assert [isinstance(outcome, ConditionFailedError) for outcome in outcomes] == [False, True, True, True, False]
    assert await bench.live("x") == {"a": "3"}
    for missing in ("w", "z"):
        with pytest.raises(UnknownKeyError):
            await bench.live(missing)
    await bench.check_gap_free("x")


async def test_a_limit_refuses_all_keys_of_a_commit(bench: Bench) -> None:
    group = commit(bench, ("a", "r", "1", None), ("x", "n", "1", None))
    heavy = [row._replace(size=9 * limits.MIB) for row in group[1].rows]  # larger than a commit may be, to reach it
    outcomes = await bench.group([group[0], replace(group[1], rows=heavy)])
    assert {type(outcome) for outcome in outcomes} == {LimitExceededError}
    with pytest.raises(UnknownKeyError):
        await bench.live("a")


async def test_a_commit_is_repeated_by_its_key(bench: Bench) -> None:
    writes = (("x", "a", "1", 0), ("y", "b", "1", 0))
    first = await bench.group(commit(bench, *writes, key="j"))
    assert await bench.group(commit(bench, *writes, key="j")) == first
    refused = await bench.group(commit(bench, writes[0], key="j"))
    assert isinstance(refused[0], InvalidInputError)


@pytest.mark.parametrize(
    ("writes", "reason"),
    [
        ([], "writes has 0 entries: 1 to 1000 are allowed in a commit"),
        ([KeyedRow("k", RowInput(f"r{n}", "", None)) for n in range(1_001)], "writes has 1001 entries"),
        ([KeyedRow("k", RowInput("a", "1", None))] * 2, "write 1 of the commit: row 'a' of key 'k' comes twice"),
        ([KeyedRow("bad key", RowInput("a", "1", None))], "write 0 of the commit: key 'bad key'"),
        ([KeyedRow("k", RowInput("", "1", None))], "write 0 of the commit: row_id '' has 0 bytes"),
        (
            [KeyedRow("k", RowInput(f"r{n}", "x" * 1_000_000, None)) for n in range(4)],
            "writes has 4000008 bytes: at most",
        ),
    ],
)
def test_what_a_commit_may_be(new_store: Any, writes: list[KeyedRow], reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        bundle(new_store(), writes, NO_TERMS)


@pytest.mark.parametrize("key", ["x" * 129, "ö" * 65, "a\0b"])
def test_what_an_idempotency_key_may_be(key: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        make_mark(key, [])
    assert error.value.field == "idempotency_key"
    assert make_mark("x" * 128, []) is not None
    assert make_mark("", []) is None


# --- Permits


async def test_an_expired_request_is_not_written(bench: Bench) -> None:
    late = replace(bench.request({"a": "1"}), permit=Permit(clock_s() - 0.001))
    in_time = replace(bench.request({"b": "1"}), permit=Permit(clock_s() + 60))
    outcomes = await bench.group([late, in_time])
    assert isinstance(outcomes[0], UnavailableError)
    assert str(outcomes[0]) == "the write did not begin in the time that its caller waits: it was not written"
    assert await bench.live() == {"b": "1"}


async def test_the_permit_is_looked_at_with_the_locks_held(postgres_bench: Bench) -> None:
    """A request that waited for a lock for too long is not written: its caller has written the row anew meanwhile."""
    bench = postgres_bench
    await bench.write({"a": "0"})
    other = make_repository(bench.address)
    await other.open()
    try:
        async with bench.repo._sessions.use("upkeep") as db:  # an instance that hangs with the lock
            transaction = db.transaction()
            await transaction.start()
            await db.execute("SELECT 1 FROM partitions FOR UPDATE")
            permit = Permit(clock_s() + 0.3)
            old = asyncio.create_task(other.writer.write([replace(bench.request({"a": "old"}), permit=permit)], 1))
            await asyncio.sleep(permit.expires_s - clock_s() + 0.01)
            assert not old.done()
            await transaction.rollback()
        (outcome,) = (await old).outcomes
        assert isinstance(outcome, UnavailableError)
    finally:
        await other.close()
    assert await bench.live() == {"a": "0"}
