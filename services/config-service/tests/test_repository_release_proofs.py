"""What proves a release, in each database."""

from __future__ import annotations

from typing import Any, Final, cast

import pytest
from ringcast_config_service.releases.proofs import Proofs
from ringcast_config_service.repository import Authorship, Deletion, Release, RowWrite, StageBatch, StagedRow
from ringcast_core import row_partition
from ringcast_wire import (
    CertifiedWorker,
    ConditionFailedError,
    KeyCertificate,
    ReleaseOutcome,
    ReleaseState,
    check_row,
)
from ringcast_wire.reports import WorkerKind, spans_of

Bench = Any  # of conftest.py

BY: Final = Authorship("alice", "new list")
DAY_MS: Final = 86_400_000


def staged(row_id: str, value: str, base: int, key: str = "k") -> StagedRow:
    size = check_row(row_id, value, None)
    return StagedRow(key, RowWrite(row_partition(row_id, 8), row_id, value, None, size, base))


async def stage(bench: Bench, *rows: StagedRow, stage_id: str = "one") -> Release:
    release: Release = await bench.repo.releases.stage(bench.store, StageBatch(stage_id, 0, rows, True), BY)
    return release


async def work(bench: Bench, number: int) -> None:
    """Takes steps until there is nothing to do."""
    while not (await bench.repo.releases.step("s", number, bench.repo.histories.generation)).done:
        pass


async def test_what_proves_a_release_is_kept_with_it(bench: Bench) -> None:
    await bench.write({"a": "1"})
    await stage(bench, staged("a", "2", 1), staged("b", "1", 0), staged("c", "1", 0, key="k2"))
    releases = bench.repo.releases
    with pytest.raises(ConditionFailedError, match="can't be proven: no row of it was published"):
        await releases.revisions("s", 1)
    await releases.publish("s", 1, DAY_MS, BY)
    with pytest.raises(ConditionFailedError, match="can't be proven: it is publishing"):
        await releases.set_proven("s", 1, [], "i1")
    await work(bench, 1)
    await bench.write({"a": "3"})
    found = await releases.revisions("s", 1)
    by_partition = {row_partition("a", 8): (2, 2), row_partition("b", 8): (1, 1)}
    assert [(each.key, each.ranges) for each in found] == [("k", by_partition), ("k2", {row_partition("c", 8): (1, 1)})]
    assert [await releases.version_of("s", 1, "k", row_id) for row_id in ("a", "b", "other")] == [2, 1, 0]

    worker = CertifiedWorker("w", "i", WorkerKind.APPLICATION, (0, 8))
    keys = [KeyCertificate(each.key, each.history, (1, 1), (2,), (worker,)) for each in found]
    other = [keys[0], KeyCertificate("k2", "another", (), (), ())]
    with pytest.raises(ConditionFailedError, match="key 'k2' has another history by now"):
        await releases.set_proven("s", 1, other, "i1")
    assert await releases.certificate("s", 1) is None
    assert (await releases.get("s", 1)).proven_at_ms == 0
    proven, certificate = await releases.set_proven("s", 1, keys, "i1")
    assert (certificate.instance, list(certificate.keys)) == ("i1", keys)
    assert (proven.proven_at_ms, proven.proven_by) == (certificate.proven_at_ms, "i1") != (0, "i1")
    _, again = await releases.set_proven("s", 1, other, "i2")
    assert again == certificate == await releases.certificate("s", 1)

    await releases.undo("s", 1, BY)
    await work(bench, 1)
    assert (await releases.get("s", 1)).proven_by == "i1", "it was proven before"
    await bench.repo.releases.publish("s", (await stage(bench, staged("b", "2", 0), stage_id="2")).number, DAY_MS, BY)
    await work(bench, 2)
    await releases.undo("s", 2, BY)
    with pytest.raises(ConditionFailedError, match="can't be proven: it is undoing"):
        await releases.set_proven("s", 2, [], "i1")


async def found_at_gate(bench: Bench, number: int) -> list[KeyCertificate]:
    """What a round proves of what is published."""
    worker = CertifiedWorker("w", "i", WorkerKind.APPLICATION, (0, 8))
    return [
        KeyCertificate(each.key, each.history, tuple(spans_of(each.ranges)), tuple(last for _, last in ends), (worker,))
        for each in await bench.repo.releases.revisions("s", number)
        for ends in [each.ranges.values()]
    ]


async def test_what_the_last_gate_has_proven_is_stored_as_the_release_passes_it(bench: Bench) -> None:
    await stage(bench, *(staged(row_id, "1", 0) for row_id in "abcdefgh"))
    releases = bench.repo.releases
    await releases.publish("s", 1, DAY_MS, BY, (50, 100))
    await work(bench, 1)
    first = await found_at_gate(bench, 1)
    assert (await releases.pass_gate("s", 1, 1, first, "i1")).proven_at_ms == 0, "it proves the first wave alone"
    await work(bench, 1)
    keys = await found_at_gate(bench, 1)
    assert len(keys[0].revisions) > len(first[0].revisions)
    assert (await releases.pass_gate("s", 1, 1, first, "i1")).proven_at_ms == 0, "it is not at that gate any more"
    passed = await releases.pass_gate("s", 1, 2, keys, "i2")
    assert (passed.state, passed.proven_by) == (ReleaseState.PUBLISHED, "i2")
    certificate = await releases.certificate("s", 1)
    assert (certificate.instance, list(certificate.keys)) == ("i2", keys)
    assert await bench.ask("SELECT count(*) FROM audit_pending WHERE action = 'ProveRelease'") == [(1,)]
    _, again = await releases.set_proven("s", 1, [], "i3")
    assert again == certificate


@pytest.mark.parametrize("why", ["another history", "a deleted key", "a refused row"])
async def test_a_release_passes_its_last_gate_without_a_certificate_that_does_not_hold(bench: Bench, why: str) -> None:
    await stage(bench, staged("a", "1", 0), staged("b", "1", 0))
    releases = bench.repo.releases
    await releases.publish("s", 1, DAY_MS, BY, (100,))
    await work(bench, 1)
    keys = await found_at_gate(bench, 1)
    if why == "another history":
        keys = [KeyCertificate("k", "another", key.spans, key.revisions, key.workers) for key in keys]
    elif why == "a deleted key":
        await bench.repo.deletions.delete_key("s", "k", Deletion(1, 2_000_000_000_000))
    else:
        keys = []  # what a look at the workers gives then
    passed = await releases.pass_gate("s", 1, 1, keys, "i1")
    assert (passed.state, passed.proven_at_ms) == (ReleaseState.PUBLISHED, 0)
    assert await releases.certificate("s", 1) is None


async def test_a_release_that_is_under_way_is_not_proven_and_no_worker_is_asked(bench: Bench) -> None:
    """What is published of it so far may be applied everywhere: that proves a part."""
    without_nats = cast(Any, None)
    proofs, releases = Proofs(without_nats, without_nats, bench.repo, "i1"), bench.repo.releases

    async def lacks() -> str:
        found = await proofs.prove("s", 1)
        assert found.certificate is None
        (lack,) = found.lacks
        return lack.sentence

    await stage(bench, *(staged(row_id, "1", 0) for row_id in "abcdefgh"))
    assert await lacks() == "the release is staged and not published yet"
    await releases.publish("s", 1, DAY_MS, BY, (50, 100))
    await work(bench, 1)
    published = (await releases.get("s", 1)).published
    assert 0 < published < 8
    assert await lacks() == f"the release is still being published: {published} of 8 rows are"
    await releases.set_problem("s", 1, "the store is full")
    assert await lacks() == "the release is publishing and halted: the store is full"
    await releases.undo("s", 1, BY)
    with pytest.raises(ConditionFailedError, match="can't be proven: it is undoing"):
        await proofs.prove("s", 1)


async def test_a_release_whose_rows_are_being_removed_can_not_be_proven(bench: Bench) -> None:
    """What is left of it would prove too little."""
    await stage(bench, staged("a", "1", 0))
    await bench.repo.releases.publish("s", 1, DAY_MS, BY)
    await work(bench, 1)
    assert await bench.repo.releases.expire(DAY_MS, -1_000) is not None
    for _ in range(2):
        with pytest.raises(ConditionFailedError, match="can't be proven: its rows are removed"):
            await bench.repo.releases.revisions("s", 1)
        await work(bench, 1)


async def test_events_and_rows_say_which_release_they_are_of(bench: Bench) -> None:
    await bench.write({"a": "1"})
    releases = bench.repo.releases
    await stage(bench, staged("a", "2", 1), staged("b", "1", 0))
    await stage(bench, staged("a", "3", 1), stage_id="2")
    events = len(await bench.events())
    assert [(each.number, each.state, each.outcome) for each in await releases.of_row("s", "k", "a", 20)] == [
        (2, ReleaseState.STAGED, ReleaseOutcome.WAITING),
        (1, ReleaseState.STAGED, ReleaseOutcome.WAITING),
    ]
    await releases.publish("s", 1, DAY_MS, BY)
    await work(bench, 1)
    assert {event.release for _, event in (await bench.events())[events:]} == {1}
    (_, first) = await releases.of_row("s", "k", "a", 20)
    assert first[:5] == (1, ReleaseState.PUBLISHED, ReleaseOutcome.PUBLISHED, 2, 0)
    assert [each.number for each in await releases.of_row("s", "k", "a", 1)] == [2]
    events = len(await bench.events())
    await releases.undo("s", 1, BY)
    await work(bench, 1)
    await bench.write({"a": "4"})
    assert {event.release for _, event in (await bench.events())[events:]} == {0}
    (_, first) = await releases.of_row("s", "k", "a", 20)
    assert first[:5] == (1, ReleaseState.UNDONE, ReleaseOutcome.UNDONE, 2, 3)
    assert await releases.of_row("s", "k2", "a", 20) == await releases.of_row("s", "k", "other", 20) == []
