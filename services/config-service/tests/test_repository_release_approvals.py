"""Approvals of releases in each database: four eyes on exactly what is staged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from ringcast_config_service.repository import (
    Authorship,
    PolicyChange,
    Release,
    Repository,
    RowWrite,
    StageBatch,
    StagedRow,
    make_repository,
)
from ringcast_core import row_partition
from ringcast_wire import (
    ConditionFailedError,
    LimitExceededError,
    PermissionDeniedError,
    ReleaseState,
    StorePolicy,
    UnavailableError,
    check_row,
)

Bench = Any  # of conftest.py

ALICE, BOB, CAROL, DAVE = (Authorship(name, f"{name} says") for name in ("alice", "bob", "carol", "dave"))
DAY_MS = 86_400_000


@pytest.fixture
def bench(any_bench: Bench) -> Bench:
    return any_bench


def staged(row_id: str, value: str | None = "1", base: int = 0, metadata: Any = None, key: str = "k") -> StagedRow:
    size = check_row(row_id, value or "", metadata)
    return StagedRow(key, RowWrite(row_partition(row_id, 8), row_id, value, metadata, size, base))


async def stage(bench: Bench, stage_id: str, *batches: Sequence[StagedRow], by: Authorship = ALICE) -> Release:
    for number, rows in enumerate(batches):
        batch = StageBatch(stage_id, number, rows, number == len(batches) - 1)
        release: Release = await bench.repo.releases.stage(bench.store, batch, by)
    return release


async def wants(repo: Repository, approvals: int) -> None:
    await repo.policies.set_policy("s", PolicyChange(StorePolicy(approvals=approvals)))


def names(release: Release) -> list[str]:
    return [approval.principal for approval in release.approvals]


async def test_a_release_is_published_once_enough_others_have_approved_it(bench: Bench, another: Repository) -> None:
    releases = bench.repo.releases
    await wants(bench.repo, 2)
    release = await stage(bench, "one", [staged("a")])
    said = "release 1 of store 's' can't be published: the policy approvals of its store wants 2, and it has 0: other "
    with pytest.raises(ConditionFailedError, match=said):
        await another.releases.publish("s", 1, DAY_MS, ALICE)
    approved = await releases.approve("s", 1, BOB, release.digest or "")
    assert (names(approved), approved.approvals_needed) == (["bob"], 2)
    assert (await releases.approve("s", 1, Authorship("bob", "again"))).approvals == approved.approvals, "counts once"
    with pytest.raises(ConditionFailedError, match=r"wants 2, and it has 1 \(of 'bob'\)"):
        await releases.publish("s", 1, DAY_MS, ALICE, (10, 100))
    await another.releases.approve("s", 1, CAROL)
    assert names(await releases.revoke("s", 1, BOB)) == ["carol"]
    assert names(await releases.revoke("s", 1, BOB)) == ["carol"], "there is none any more"
    with pytest.raises(ConditionFailedError, match=r"wants 2, and it has 1 \(of 'carol'\)"):
        await releases.publish("s", 1, DAY_MS, BOB)
    await releases.approve("s", 1, BOB)
    (row,) = await releases.of_row("s", "k", "a", 20)
    assert (row.approvals, row.approvals_needed) == (2, 2)
    found = await releases.get("s", 1)
    assert {each.principal: each.reason for each in found.approvals} == {"carol": "carol says", "bob": "bob says"}
    by_time = sorted(found.approvals, key=lambda each: (each.approved_at_ms, each.principal))
    assert list(found.approvals) == by_time, "of one millisecond by their names"
    assert all(abs(each.approved_at_ms - found.staged_at_ms) < DAY_MS for each in found.approvals)

    assert (await releases.publish("s", 1, DAY_MS, ALICE)).state is ReleaseState.PUBLISHING
    for call in (releases.approve("s", 1, DAVE), releases.revoke("s", 1, BOB)):
        with pytest.raises(ConditionFailedError, match="it is publishing"):
            await call
    await wants(bench.repo, 3)  # what has begun goes on
    assert (await releases.publish("s", 1, DAY_MS, ALICE)).state is ReleaseState.PUBLISHING
    while not (await releases.step("s", 1, bench.repo.histories.generation)).done:
        pass
    assert await bench.live() == {"a": "1"}
    assert sorted(names(await releases.get("s", 1))) == ["bob", "carol"]
    await releases.undo("s", 1, DAVE)  # needs none
    while not (await releases.step("s", 1, bench.repo.histories.generation)).done:
        pass
    assert await bench.live() == {}


async def test_who_may_not_approve(bench: Bench) -> None:
    releases = bench.repo.releases
    await stage(bench, "one", [staged("a")])
    await stage(bench, "two", [staged("a")], by=Authorship("host:10.0.0.1"))
    for number, by, said in (
        (1, ALICE, "release 1 of store 's' was staged by 'alice', and has to be approved by another principal"),
        (1, Authorship("host:10.0.0.1"), "release 1 of store 's' can't be approved by a client without a credential"),
        (2, BOB, "release 2 of store 's' can't be approved: it was staged without a credential"),
        (2, Authorship("host:10.0.0.2"), "release 2 of store 's' can't be approved by a client without a credential"),
    ):
        with pytest.raises(PermissionDeniedError, match=said):
            await releases.approve("s", number, by)
        assert (await releases.get("s", number)).approvals == ()


async def test_an_approval_is_of_exactly_what_is_staged(bench: Bench) -> None:
    releases = bench.repo.releases
    await wants(bench.repo, 1)
    await releases.stage(bench.store, StageBatch("half", 0, [staged("z")], False), ALICE)
    with pytest.raises(ConditionFailedError, match="can't be approved: it is staging"):
        await releases.approve("s", 1, BOB)
    first = await stage(bench, "one", [staged("a")])
    assert first.digest is not None
    await releases.approve("s", 2, BOB, first.digest)
    second = await stage(bench, "two", [staged("a", "2")])
    assert names(await releases.get("s", second.number)) == [], "what is staged again is another release"
    with pytest.raises(ConditionFailedError, match=r"has the digest 1-.*, not '1-.*': look at it again") as caught:
        await releases.approve("s", second.number, BOB, first.digest)
    assert caught.value.field == "digest"
    with pytest.raises(ConditionFailedError, match="wants 1, and it has 0"):
        await releases.publish("s", second.number, DAY_MS, BOB)
    # What an approval was for counts, not that there is one.
    await bench.execute(
        "UPDATE release_rows SET value = 'x' WHERE number = 2", "UPDATE releases SET digest = '1-00' WHERE number = 2"
    )
    assert names(await releases.get("s", 2)) == []
    with pytest.raises(ConditionFailedError, match="wants 1, and it has 0"):
        await releases.publish("s", 2, DAY_MS, BOB)


async def test_the_digest_is_that_of_the_rows_however_they_came(bench: Bench) -> None:
    rows = [staged("a", "1", metadata={"x": "1", "y": "2"}), staged("b", None, 3), staged("c", "", key="k2")]
    one = await stage(bench, "one", rows)
    three = await stage(bench, "three", *([row] for row in rows))
    turned = await stage(bench, "turned", [staged("a", "1", metadata={"y": "2", "x": "1"}), *rows[1:]])
    assert one.digest == three.digest == turned.digest
    assert one.digest is not None
    assert one.digest.startswith("3-")
    assert len(one.digest) == 66
    others = [
        [staged("a", "2", metadata={"x": "1", "y": "2"}), *rows[1:]],
        [staged("a", "1", metadata={"x": "1"}), *rows[1:]],
        [rows[0], staged("b", None, 4), rows[2]],
        [rows[0], staged("b", "", 3), rows[2]],
        [*rows[:2], staged("c", "", key="k3")],
        [rows[1], rows[0], rows[2]],
        rows[:2],
    ]
    found = [(await stage(bench, f"other-{number}", other)).digest for number, other in enumerate(others)]
    assert len({one.digest, *found}) == 8


async def test_a_batch_that_comes_again_counts_once(bench: Bench) -> None:
    batch = StageBatch("one", 0, [staged("a")], False)
    for _ in range(2):
        await bench.repo.releases.stage(bench.store, batch, ALICE)
    last = StageBatch("one", 1, [staged("b")], True)
    digests = {(await bench.repo.releases.stage(bench.store, last, ALICE)).digest for _ in range(2)}
    assert digests == {(await stage(bench, "two", [staged("a"), staged("b")])).digest}


@pytest.mark.parametrize("digest", ["NULL", "'1-00'"])
async def test_what_an_older_build_has_staged_has_no_digest(bench: Bench, digest: str) -> None:
    """Of a release that it has begun there is no digest, of one that it has ended that of fewer rows."""
    await stage(bench, "one", [staged("a"), staged("b")])
    await bench.execute(f"UPDATE releases SET digest = {digest}")
    with pytest.raises(ConditionFailedError, match=r"an older build of the service has staged it, .* stage it again"):
        await bench.repo.releases.approve("s", 1, BOB)
    await wants(bench.repo, 1)
    with pytest.raises(ConditionFailedError, match="wants 1, and it has 0"):
        await bench.repo.releases.publish("s", 1, DAY_MS, BOB)
    await bench.execute("UPDATE releases SET state = 'staging', digest = NULL", "DELETE FROM release_keys")
    ended = await bench.repo.releases.stage(bench.store, StageBatch("one", 1, [staged("c")], True), ALICE)
    assert (ended.state, ended.digest) == (ReleaseState.STAGED, None)


async def test_as_many_as_may_be_approve_a_release(bench: Bench) -> None:
    await stage(bench, "one", [staged("a")])
    for number in range(20):
        await bench.repo.releases.approve("s", 1, Authorship(f"p{number}"))
    with pytest.raises(LimitExceededError, match="release 1 of store 's' has 20 approvals, the limit is 20"):
        await bench.repo.releases.approve("s", 1, BOB)
    await wants(bench.repo, 20)
    assert (await bench.repo.releases.publish("s", 1, DAY_MS, ALICE)).state is ReleaseState.PUBLISHING


async def test_many_approve_and_publish_at_once(bench: Bench, another: Repository) -> None:
    """No approval is lost or counted twice, and nothing is published with fewer than the store wants."""
    repos = (bench.repo, another)

    async def approve(repo: Repository, by: Authorship) -> bool:
        return await again(lambda: repo.releases.approve("s", number, by))

    async def publish(repo: Repository) -> bool:
        return await again(lambda: repo.releases.publish("s", number, DAY_MS, ALICE))

    async def again(call: Any) -> bool:
        while True:
            try:
                await call()
            except UnavailableError:
                continue
            except ConditionFailedError:
                return False
            return True

    await wants(bench.repo, 3)
    for number in range(1, 7):
        await stage(bench, f"r{number}", [staged(f"row{number}")])
        calls = [approve(repos[turn % 2], (BOB, CAROL, DAVE)[turn % 3]) for turn in range(6)]
        outcomes = await asyncio.gather(*calls[:3], publish(repos[0]), *calls[3:], publish(repos[1]))
        release = await another.releases.get("s", number)
        early = release.state is ReleaseState.STAGED
        assert early == (not outcomes[3] and not outcomes[7])
        assert sorted(names(release)) == ["bob", "carol", "dave"]
        assert await publish(repos[number % 2])
        actions = [
            (entry[0], entry[1])
            for entry in await bench.ask(
                "SELECT principal, action FROM audit_pending WHERE action IN ('ApproveRelease', 'PublishRelease') "
                f"AND details LIKE '%\"number\":{number}%' ORDER BY id"
            )
        ]
        assert sorted(actions[:3]) == [(who, "ApproveRelease") for who in ("bob", "carol", "dave")]
        assert actions[3:] == [("alice", "PublishRelease")]


async def test_a_policy_that_rises_counts_for_what_has_not_begun(bench: Bench, another: Repository) -> None:
    async def publish(number: int) -> bool:
        try:
            await bench.repo.releases.publish("s", number, DAY_MS, ALICE)
        except ConditionFailedError:
            return False
        return True

    async def rise(number: int) -> bool:
        """Whether the release was staged when the policy was set, and therefore must stay so."""
        await wants(another, 1)
        return (await another.releases.get("s", number)).state is ReleaseState.STAGED

    for number in range(1, 9):
        await wants(bench.repo, 0)
        await stage(bench, f"r{number}", [staged(f"row{number}")])
        published, was_staged = await asyncio.gather(publish(number), rise(number))
        assert published != was_staged


async def test_a_purge_takes_approvals_along(bench: Bench) -> None:
    from ringcast_config_service.repository import Deletion

    await stage(bench, "one", [staged("a")])
    await bench.repo.releases.approve("s", 1, BOB)
    assert len(await bench.ask("SELECT principal FROM release_approvals")) == 1
    await bench.repo.deletions.delete_store("s", Deletion(1, 0))
    while await bench.repo.deletions.purge_rows("s", None):
        pass
    await bench.repo.deletions.drop_store("s")
    assert await bench.ask("SELECT principal FROM release_approvals") == []


async def test_a_database_of_the_schema_before_gets_approvals(bench: Bench) -> None:
    await stage(bench, "one", [staged("a")])
    await bench.repo.close()
    await bench.make_older(11)
    bench.repo = make_repository(bench.address)
    await bench.repo.open()
    with pytest.raises(ConditionFailedError, match="an older build"):
        await bench.repo.releases.approve("s", 1, BOB)
    await stage(bench, "two", [staged("a")])
    await wants(bench.repo, 1)
    await bench.repo.releases.approve("s", 2, BOB)
    assert (await bench.repo.releases.publish("s", 2, DAY_MS, ALICE)).state is ReleaseState.PUBLISHING
