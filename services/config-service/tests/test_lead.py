"""One instance leads maintenance, and the database refuses what any other does in its place."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest
from ringcast_config_service.repository import (
    Deletion,
    Lead,
    LockedError,
    LostLeadError,
    Repository,
    make_repository,
)
from ringcast_config_service.repository.compaction import ALL_OTHERS
from ringcast_config_service.repository.lead import MAX_LEASE_MS
from ringcast_config_service.repository.sql.statements import Postgres
from ringcast_testkit import PATIENCE_S

Bench = Any  # of conftest.py
HOUR_MS = 3_600_000


@pytest.fixture
async def other(bench: Bench) -> AsyncIterator[Repository]:
    """Another instance on the same database."""
    repo = make_repository(bench.address, lock_timeout_ms=200)
    await repo.open()
    yield repo
    await repo.close()


async def test_one_instance_has_the_lead_until_it_gives_it_up_or_its_lease_is_over(
    bench: Bench, other: Repository
) -> None:
    mine, theirs = bench.repo.lead, other.lead
    state = await mine.lead_state()
    assert (state.holder, state.token, state.free) == ("", 0, True)
    first = await mine.take_lead("a", 60_000)
    assert first == Lead("a", 1)
    state = await theirs.lead_state()
    assert (state.holder, state.token, state.free) == ("a", 1, False)
    assert 50_000 < state.left_ms <= 60_000
    assert await theirs.take_lead("b", 60_000) is None
    assert await mine.keep_lead(first, 90_000)
    assert (await theirs.lead_state()).left_ms > 60_000
    await bench.pass_time(100_000)
    assert (await theirs.lead_state()).free
    assert await mine.keep_lead(first, 60_000), "nobody has taken it: it is still that of the one that had it"
    await bench.pass_time(100_000)
    second = await theirs.take_lead("b", 60_000)
    assert second == Lead("b", 2)
    assert not await mine.keep_lead(first, 60_000)
    await mine.resign_lead(first)
    assert (await mine.lead_state()).holder == "b", "what was lost can't be given up"
    await theirs.resign_lead(second)
    assert (await mine.lead_state()).free
    assert not await theirs.keep_lead(second, 60_000)
    assert await mine.take_lead("a", 60_000) == Lead("a", 4), "giving it up has raised the token too"


async def test_of_many_that_want_it_one_gets_it(bench: Bench, other: Repository) -> None:
    async def take(number: int) -> Lead | None:
        repo = bench.repo if number % 2 else other
        try:
            return await repo.lead.take_lead(f"i{number}", 60_000)
        except LockedError:
            return None

    tokens = []
    for _ in range(3):
        found = [lead for lead in await asyncio.gather(*map(take, range(10))) if lead is not None]
        assert len(found) == 1
        tokens.append(found[0].token)
        await bench.pass_time(HOUR_MS)
    assert tokens == [1, 2, 3]


@pytest.mark.parametrize("hours", [-5, 5])
async def test_the_database_has_another_clock_than_the_one_that_gave_the_lease(
    bench: Bench, other: Repository, hours: int
) -> None:
    """It was restored elsewhere, or a standby was promoted: nobody waits for hours."""
    lead = await bench.repo.lead.take_lead("a", MAX_LEASE_MS)
    await bench.pass_time(hours * HOUR_MS)
    taken = await other.lead.take_lead("b", 60_000)
    assert taken is not None
    assert not await bench.repo.lead.keep_lead(lead, 60_000)


async def test_a_token_that_comes_again_after_a_restore_is_another_instances(bench: Bench, other: Repository) -> None:
    old = await bench.repo.lead.take_lead("a", 60_000)
    assert old is not None
    await bench.execute("DELETE FROM maintenance")  # a backup from before
    again = await other.lead.take_lead("b", 60_000)
    assert again is not None
    assert again.token == old.token
    with pytest.raises(LostLeadError):
        await bench.repo.maintenance.forget_marks(old, 1, 1)


Change = Callable[[Repository, Lead], Awaitable[object]]


async def _wrong_counts(repo: Repository, lead: Lead) -> object:
    return [found async for found in repo.maintenance.check_counts(lead)]


CHANGES: dict[str, Change] = {
    "compaction": lambda repo, lead: repo.maintenance.compact(lead, -1_000, -1_000),
    "idempotency_keys": lambda repo, lead: repo.maintenance.forget_marks(lead, -1_000, 10),
    "counts": _wrong_counts,
    "audit_retention": lambda repo, lead: repo.audit.forget_audit(lead, 1 << 50),
    "expire": lambda repo, lead: repo.deletions.expire_deleted(lead, 1 << 50),
    "purge_rows": lambda repo, lead: repo.deletions.purge_rows("gone", None, lead),
    "purge_key_rows": lambda repo, lead: repo.deletions.purge_rows("s", "gone", lead),
    "wire_pins": lambda repo, lead: repo.stores.pin_wire(lead, "s", 3),
    "drop_store": lambda repo, lead: repo.deletions.drop_store("gone", lead),
    "drop_key": lambda repo, lead: repo.deletions.drop_key("s", "gone", lead),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_what_comes_with_an_old_token_is_refused(bench: Bench, new_store: Any, change: str) -> None:
    """Each has something to do, and does nothing."""
    repo = bench.repo
    await bench.write({"a": "1", "b": "1"})
    await bench.write({"a": None})
    await bench.write({"a": "1"}, "gone")
    store = await repo.stores.create_store(new_store("gone"))
    await bench.group([bench.request({"a": "1"}, store=store)])
    for deleted in (
        repo.deletions.delete_store("gone", Deletion(1, 0)),
        repo.deletions.delete_key("s", "gone", Deletion(1, 0)),
    ):
        await deleted
    await repo.audit.seal()
    await bench.execute(
        "UPDATE partitions SET live_rows = live_rows + 1",
        "INSERT INTO idempotency_keys (store, idempotency_key, digest, outcomes, written_at_ms)"
        " VALUES ('s', 'i', '', '', 1)",
    )
    old = await bench.lead()
    await bench.lead()
    before = await _everything(bench)
    with pytest.raises(LostLeadError):
        await CHANGES[change](repo, old)
    assert await _everything(bench) == before


async def _everything(bench: Bench) -> dict[str, list[tuple[object, ...]]]:
    tables = (
        "stores",
        "config_keys",
        "partitions",
        "rows",
        "history",
        "idempotency_keys",
        "audit_log",
        "audit_pending",
        "maintenance",
    )
    return {table: await bench.ask(f"SELECT * FROM {table} ORDER BY 1, 2, 3") for table in tables}


async def test_who_takes_the_lead_waits_for_a_transaction_that_was_halted(
    postgres_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may extend its own lead meanwhile. Once the database has ended its transaction another instance leads."""
    bench = postgres_bench
    monkeypatch.setattr("ringcast_config_service.repository.postgres.session._IDLE_LIMIT", "1s")
    other = make_repository(bench.address, lock_timeout_ms=200)
    await other.open()
    lead = await bench.lead()
    halted = await asyncpg.connect(bench.address)
    try:
        transaction = halted.transaction()
        await transaction.start()
        assert await halted.fetchval(Postgres.CHECK_DUTY, "lead", *lead) == lead.token
        await halted.execute("DELETE FROM history")
        assert await bench.repo.lead.keep_lead(lead, 60_000), "a long piece does not keep it from that"
        await bench.pass_time(HOUR_MS)
        with pytest.raises(LockedError):
            await other.lead.take_lead("b", 60_000)
        waiting = asyncio.create_task(_until_taken(other))
        await transaction.commit()
        taken = await asyncio.wait_for(waiting, PATIENCE_S)
        assert taken == Lead("b", lead.token + 1)
        with pytest.raises(LostLeadError):
            await bench.repo.maintenance.forget_marks(lead, 1, 1)
    finally:
        await halted.close()
        await other.close()


async def _until_taken(repo: Repository) -> Lead | None:
    while True:
        try:
            return await repo.lead.take_lead("b", 60_000)
        except LockedError:
            continue


async def test_a_lead_that_is_lost_while_a_piece_begins_is_lost_for_that_piece(serializable_bench: Bench) -> None:
    """As CockroachDB has it: a transaction that read the row before it changed can't commit after it."""
    bench = serializable_bench
    lead = await bench.lead()
    other = make_repository(bench.address)
    await other.open()
    taken: list[Lead | None] = []
    try:
        steps = bench.repo.maintenance._steps

        async def take() -> None:
            await bench.execute("UPDATE maintenance SET until_ms = 0 WHERE duty = 'lead'")
            taken.append(await other.lead.take_lead("b", 60_000))

        await asyncio.gather(take(), *(_refused_or_done(steps, lead) for _ in range(5)))
        assert taken
        assert taken[0] == Lead("b", lead.token + 1)
        with pytest.raises(LostLeadError):
            await steps.done(lead, ALL_OTHERS, 7)
    finally:
        await other.close()


async def _refused_or_done(steps: Any, lead: Lead) -> None:
    with contextlib.suppress(LostLeadError):
        await steps.done(lead, ALL_OTHERS, 5)
