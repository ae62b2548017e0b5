"""The audit log over both databases: what is in it, that its chain holds, and what shows that it was changed."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from ringcast_config_service.audit import AuditTrail
from ringcast_config_service.repository import (
    AuditFact,
    AuditFilter,
    Authorship,
    Bundle,
    Deletion,
    IdempotencyMark,
    PlainWrites,
    RoleGrant,
    WriteRequest,
    audit,
    make_repository,
)
from ringcast_config_service.repository.audit import ChainPage
from ringcast_core import row_partitions
from ringcast_wire import InvalidInputError, Role
from ringcast_wire.audit import FORGET, GENESIS, START, AuditEntry, Chain, ChainCheck, Link, entry_hash, parse_link

Bench = Any  # of conftest.py

DEPLOY = Authorship("deploy", "a new release")
DESK = Authorship("desk")


def test_what_a_build_to_come_says_of_entries_that_it_has_removed_is_understood() -> None:
    floor = Link(1, "1" * 64)
    entry = AuditEntry(2, 0, "", FORGET, "", "", "done", "", '{"upto":1,"why":"retention"}')
    entry = entry._replace(hash=entry_hash(floor.hash, entry))
    check = ChainCheck()
    check.add(Chain(Link(2, entry.hash), floor), [entry], last=True)
    assert not check.problem


async def sealed(bench: Bench) -> list[AuditEntry]:
    """Every entry, once all are chained."""
    while await bench.repo.audit.seal():
        pass
    return list((await bench.repo.audit.chain_page(0, 100_000)).entries)


async def verify(bench: Bench, anchor: Link | None = None, size: int = 3) -> str:
    """What is wrong with the chain, page by page."""
    check, after = ChainCheck(anchor), 0
    while not check.problem:
        page = await bench.repo.audit.chain_page(after, size)
        last = len(page.entries) < size
        check.add(page.chain, page.entries, last=last)
        if last:
            break
        after = check.at.seq if check.at else 0
    return check.problem


async def fill(bench: Bench, count: int = 10) -> list[AuditEntry]:
    await bench.repo.audit.add([AuditFact("p", "Put", "s", str(number)) for number in range(count)])
    return await sealed(bench)


def details(entry: AuditEntry) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(entry.details)
    return found


async def test_a_group_has_an_entry_for_each_principal_key_and_reason(bench: Bench) -> None:
    group = [
        replace(bench.request({"a": "secret", "b": "secret"}), by=DEPLOY),
        replace(bench.request({"a": "secret"}, key="other"), by=DESK),
        replace(bench.request({"a": None}), by=DEPLOY),
        replace(bench.request({"gone": None}), by=DESK),  # there is no such row: nothing is written
    ]
    await bench.group(group)
    created, first, second = await sealed(bench)
    assert (created.action, created.principal, created.store, created.seq) == ("CreateStore", "local", "s", 1)
    assert first[2:8] == ("deploy", "WriteRows", "s", "k", "done", "a new release")
    assert second[2:8] == ("desk", "WriteRows", "s", "other", "done", "")
    found = details(first)
    assert (found["written"], found["deleted"]) == (2, 1)
    heads = (await bench.repo.reader.heads("s", "k")).heads
    assert found["revisions"] == [[partition, 1, head] for partition, head in enumerate(heads) if head]
    assert found["partitions"] == len(found["revisions"])
    assert not [entry for entry in await sealed(bench) if "secret" in "".join(map(str, entry))]
    assert abs(first.at_ms - await bench.repo.clock_ms()) < 60_000
    assert not await verify(bench)


async def test_many_rows_are_one_entry_that_names_few_partitions(bench: Bench) -> None:
    """PostgreSQL plans them column by column and copies them."""
    await bench.write({"z": "1"})
    ids = [f"row-{number}" for number in range(600)]
    partitions = row_partitions(ids, bench.store.partition_count)
    rows = PlainWrites(partitions, ids, ["v"] * len(ids), [3] * len(ids))
    for _ in range(3):
        await bench.group([WriteRequest(bench.store, "k", rows, by=DEPLOY)])
        ids = [f"{row_id}+" for row_id in ids]
        rows = PlainWrites(row_partitions(ids, bench.store.partition_count), ids, ["v"] * len(ids), [4] * len(ids))
    found = [details(entry) for entry in await sealed(bench) if entry.principal == "deploy"]
    assert [each["written"] for each in found] == [600, 600, 600]
    heads = (await bench.repo.reader.heads("s", "k")).heads
    assert [[partition, last] for partition, _, last in found[-1]["revisions"]] == [list(e) for e in enumerate(heads)]
    for earlier, later in itertools.pairwise(found):
        assert [last + 1 for _, _, last in earlier["revisions"]] == [first for _, first, _ in later["revisions"]]


def test_an_entry_names_the_revisions_of_eight_partitions() -> None:
    ranges = [(partition, 1, 2) for partition in range(4_096)]
    (found,) = audit.facts_of([audit.RowChanges(DEPLOY, "s", "k", 8_192, 0, ranges)])
    assert json.loads(found.details)["partitions"] == 4_096
    assert len(found.details) < 256


async def test_what_was_not_written_is_not_in_the_log(bench: Bench) -> None:
    mark = IdempotencyMark("once", "digest")
    once = replace(bench.request({"a": "1"}), by=DEPLOY, mark=mark)
    link = Bundle()
    refused = [
        replace(bench.request({"b": "1"}), by=DESK, bundle=link),
        replace(bench.request({"nothing": None}, key="nowhere"), by=DESK, bundle=link),
    ]
    await bench.group([once])
    await bench.group([once, *refused])
    assert [entry.principal for entry in await sealed(bench)] == ["local", "deploy"]


async def test_the_life_of_stores_keys_and_roles(bench: Bench, new_store: Any) -> None:
    repo = bench.repo
    await bench.write({"a": "1"})
    await repo.stores.create_store(new_store("t"), DEPLOY)
    await repo.stores.create_store(new_store("t"), DEPLOY)  # it is there
    await repo.stores.update_store("t", 8, DEPLOY)
    await repo.histories.new_history("t", by=DEPLOY)
    for _ in range(2):
        await repo.deletions.delete_key("s", "k", Deletion(1, 1 << 60), DEPLOY)
    await repo.deletions.restore_key("s", "k", 2, DEPLOY)
    await repo.deletions.delete_store("t", Deletion(1, 1 << 60), DEPLOY)
    await repo.deletions.restore_store("t", 2, DEPLOY)
    await repo.deletions.restore_store("t", 2, DEPLOY)
    await repo.deletions.delete_store("t", Deletion(1, 0), DEPLOY)
    await repo.deletions.drop_store("t")
    await repo.deletions.delete_key("s", "k", Deletion(1, 0), DEPLOY)
    while await repo.deletions.purge_rows("s", "k"):
        pass
    await repo.deletions.drop_key("s", "k")
    await repo.roles.grant_role(RoleGrant("deploy", "*", Role.ADMIN, 0, "deploy"), "first")
    await repo.roles.grant_role(RoleGrant("desk", "s", Role.READER, 0, "deploy"))
    await repo.roles.revoke_role("desk", "s", Role.READER, Authorship("deploy", "gone"))
    with pytest.raises(InvalidInputError):
        await repo.roles.revoke_role("deploy", "*", Role.ADMIN, Authorship("deploy"))
    found = (await sealed(bench))[2:]
    assert [(entry.action, entry.store, entry.key) for entry in found] == [
        ("CreateStore", "t", ""),
        ("UpdateStore", "t", ""),
        ("NewHistory", "t", ""),
        ("DeleteKey", "s", "k"),
        ("RestoreKey", "s", "k"),
        ("DeleteStore", "t", ""),
        ("RestoreStore", "t", ""),
        ("DeleteStore", "t", ""),
        ("PurgeStore", "t", ""),
        ("DeleteKey", "s", "k"),
        ("PurgeKey", "s", "k"),
        ("GrantRole", "*", ""),
        ("GrantRole", "s", ""),
        ("RevokeRole", "s", ""),
    ]
    assert {entry.principal for entry in found if not entry.action.startswith("Purge")} == {"deploy"}
    assert [details(entry)["purge"] for entry in found if entry.action.startswith("Delete")] == [
        False,
        False,
        True,
        True,
    ]
    assert (found[-3].reason, found[-1].reason) == ("first", "gone")
    assert not await verify(bench)


async def test_instances_that_seal_at_once_make_one_chain(bench: Bench) -> None:
    """Nothing is lost, nothing is there twice, and what is written meanwhile is found later."""
    others = [make_repository(bench.address) for _ in range(2)]
    for other in others:
        await other.open()
    repos = [bench.repo, *others]

    async def write(number: int) -> None:
        for turn in range(10):
            await repos[number].audit.add([AuditFact("p", "Put", "s", f"{number}-{turn}")])
            await repos[(number + turn) % 3].audit.seal()

    await asyncio.gather(*map(write, range(3)))
    found = await sealed(bench)
    assert [entry.seq for entry in found] == list(range(1, 32))
    assert {entry.key for entry in found[1:]} == {f"{number}-{turn}" for number in range(3) for turn in range(10)}
    for number in range(3):  # those of one instance, one after the other, keep their order
        own = [entry.key for entry in found if entry.key.startswith(f"{number}-")]
        assert own == [f"{number}-{turn}" for turn in range(10)]
    assert not await verify(bench)
    for other in others:
        await other.close()


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE audit_log SET principal = 'x' WHERE seq = 4", "entry 4 does not fit the one before it"),
        ("UPDATE audit_log SET details = '[]' WHERE seq = 11", "entry 11 does not fit"),
        ("UPDATE audit_log SET hash = 'x' WHERE seq = 4", "entry 4 does not fit"),
        ("DELETE FROM audit_log WHERE seq IN (4, 5)", "entries 4 to 5 are missing"),
        ("DELETE FROM audit_log WHERE seq = 1", "entries 1 to 1 are missing"),
        ("DELETE FROM audit_log WHERE seq > 8", "entries 9 to 11, the newest ones, are missing"),
        ("DELETE FROM audit_log", "entries 1 to 11, the newest ones, are missing"),
        ("UPDATE audit_chain SET floor_seq = 3", "entry 4 does not fit"),
    ],
)
async def test_a_change_of_the_log_is_found(bench: Bench, statement: str, problem: str) -> None:
    await fill(bench)
    assert not await verify(bench)
    await bench.execute(statement)
    for size in (3, 1_000):
        assert (await verify(bench, size=size)).startswith(problem)


async def test_entries_that_change_places_are_found(bench: Bench) -> None:
    await fill(bench)
    await bench.execute(
        "UPDATE audit_log SET seq = 99 WHERE seq = 4",
        "UPDATE audit_log SET seq = 4 WHERE seq = 5",
        "UPDATE audit_log SET seq = 5 WHERE seq = 99",
    )
    assert (await verify(bench)).startswith("entry 4 does not fit")


async def test_a_log_whose_newest_entries_and_head_are_removed_is_found_by_an_anchor(bench: Bench) -> None:
    """Whoever can write to the database can make a shorter chain that fits: an anchor kept elsewhere shows it."""
    found = await fill(bench)
    anchor = Link(found[9].seq, found[9].hash)
    assert not await verify(bench, anchor)
    shorter = found[6]
    await bench.execute(
        "DELETE FROM audit_log WHERE seq > 7", f"UPDATE audit_chain SET seq = 7, hash = '{shorter.hash}'"
    )
    assert not await verify(bench)
    assert await verify(bench, anchor) == "entry 10 of the anchor is missing: the newest one is 7"
    await fill(bench, 5)
    assert not await verify(bench)
    assert "entry 10 has another hash than the anchor" in await verify(bench, anchor)


async def test_what_is_past_its_retention_goes_and_the_rest_still_verifies(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MAX_FORGOTTEN", 4)
    found = await fill(bench)
    anchor = Link(9, found[8].hash)
    before_ms = found[-1].at_ms + 1
    assert await bench.repo.audit.forget_audit(await bench.lead(), found[0].at_ms) == 0
    assert [await bench.repo.audit.forget_audit(await bench.lead(), before_ms) for _ in range(2)] == [4, 4]
    left = await sealed(bench)
    assert [entry.seq for entry in left] == [9, 10, 11, 12, 13]
    assert [(entry.action, details(entry)) for entry in left[-2:]] == [
        ("ForgetAudit", {"upto": 4, "entries": 4}),
        ("ForgetAudit", {"upto": 8, "entries": 4}),
    ]
    assert not await verify(bench)
    assert not await verify(bench, anchor)
    assert not await verify(bench, Link(8, found[7].hash))
    assert "entry 8 has another hash" in await verify(bench, Link(8, GENESIS))
    older = await verify(bench, Link(7, found[6].hash))
    assert older.startswith("entry 7 of the anchor is gone, as all before 8 are: nothing shows")
    await bench.execute(
        "DELETE FROM audit_log WHERE seq < 11",
        f"UPDATE audit_chain SET floor_seq = 10, floor_hash = '{left[1].hash}'",
    )
    assert await verify(bench) == ("entries up to 10 are gone, and no entry says that they were past the retention")


async def test_what_goes_while_the_chain_is_verified_is_no_problem(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries go before the one that says so is chained; until then the chain begins somewhere for no reason."""
    found = await fill(bench)
    read, lead = bench.repo.audit.chain_page, await bench.lead()
    gone: list[int] = []

    async def read_later(after: int, limit: int) -> ChainPage:
        if not gone:
            gone.append(await bench.repo.audit.forget_audit(lead, found[-1].at_ms + 1))
        page: ChainPage = await read(after, limit)
        return page

    monkeypatch.setattr(bench.repo.audit, "chain_page", read_later)
    trail = AuditTrail(bench.repo.audit, bench.repo, retention_ms=1)
    checks = [check async for check in trail.verify(None)]
    assert not checks[-1].problem
    assert gone == [11], "the store, too"
    assert [entry.action for entry in await sealed(bench)] == ["ForgetAudit"]


async def test_only_the_oldest_go_however_old_others_are(bench: Bench) -> None:
    await fill(bench)
    await bench.execute("UPDATE audit_log SET at_ms = 1 WHERE seq IN (1, 2, 5)")
    assert await bench.repo.audit.forget_audit(await bench.lead(), 2) == 2
    page = await bench.repo.audit.chain_page(0, 1)
    assert (page.chain.floor.seq, page.entries[0].seq) == (2, 3)


def test_removal_goes_by_days() -> None:
    day = 86_400_000
    assert audit.oldest_kept_ms(400 * day + 5, 365 * day) == 35 * day
    assert audit.oldest_kept_ms(1_007, 100) == 900


async def test_a_list_comes_in_pages(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "SCANNED", 4)
    await fill(bench, 10)
    repo = bench.repo.audit

    async def listed(wanted: AuditFilter, limit: int, *, newest_first: bool) -> tuple[list[int], int]:
        found, after, pages = [], 0, 0
        while True:
            page = await repo.audit_entries(wanted, after, limit, newest_first=newest_first)
            found += [entry.seq for entry in page.entries]
            pages += 1
            if not page.next:
                return found, pages
            after = page.next

    everything = list(range(1, 12))
    for limit in (1, 3, 4, 5, 100):
        assert (await listed(AuditFilter(), limit, newest_first=False))[0] == everything
        assert (await listed(AuditFilter(), limit, newest_first=True))[0] == everything[::-1]
    assert await listed(AuditFilter(action="CreateStore"), 5, newest_first=True) == ([1], 3)
    assert await listed(AuditFilter(action="CreateStore"), 5, newest_first=False) == ([1], 3)
    assert (await listed(AuditFilter(store="s", principal="p"), 5, newest_first=False))[0] == everything[1:]
    assert (await listed(AuditFilter(since_ms=1 << 50), 5, newest_first=False))[0] == []
    assert (await listed(AuditFilter(store="other"), 5, newest_first=True))[0] == []


async def test_an_empty_log_is_whole(bench: Bench) -> None:
    await bench.execute("DELETE FROM audit_pending")
    assert await bench.repo.audit.seal() == 0
    assert not await verify(bench)
    assert (await bench.repo.audit.chain_page(0, 1)).chain.head == START
    page = await bench.repo.audit.audit_entries(AuditFilter(), 0, 5, newest_first=True)
    assert page == ([], 0)


async def test_a_database_without_a_log_gets_one(bench: Bench) -> None:
    await bench.write({"a": "1"})
    await bench.repo.close()
    await bench.make_older(3)
    instances = [make_repository(bench.address) for _ in range(3)]
    await asyncio.gather(*(instance.open() for instance in instances))
    bench.repo = instances[0]
    await bench.write({"b": "1"})
    assert [entry.action for entry in await sealed(bench)] == ["WriteRows"]
    assert not await verify(bench)
    for instance in instances[1:]:
        await instance.close()


@pytest.mark.parametrize("text", ["", "1", f"x:{GENESIS}", "1:abc", f"-1:{GENESIS}", f"{'9' * 19}:{GENESIS}"])
def test_what_is_no_link_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="is not SEQ:HASH"):
        parse_link("anchor", text)
    assert parse_link("anchor", str(Link(7, GENESIS))) == Link(7, GENESIS)
