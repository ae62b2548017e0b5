"""Two hosts of a group in one process: seals in memory, leases that end when the test says so."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from ringcast.hosting import SealEntry
from ringcast_testkit import until
from ringcast_wire import GroupSeal, limits, names

KEY = names.seal_key("list", "g", 0)


def sealed(hosts: Any) -> tuple[int, tuple[int, ...]]:
    seal = hosts.bucket.entries[KEY].seal
    return seal.revision, seal.pending


async def test_a_row_that_is_read_does_not_come_as_one_that_is_there_too(hosts: Any) -> None:
    host, record = hosts("one", owns=True, with_rows=True), hosts.record
    host.take(record.write("a", "1"))  # the partition is not held yet: what has changed is read once it is
    assert await host.hears(1) == [("a", 1)]
    host.answer(host.told[0])
    host.take(record.write("b", "1"))
    await host.hears(2)
    host.answer(host.told[1])
    await until(lambda: host.group.figures().lag == 0)
    assert await host.hears(2) == [("a", 1), ("b", 2)]


async def test_the_next_host_waits_for_what_is_in_flight(hosts: Any) -> None:
    one, two = hosts("one", owns=True), hosts("two", owns=False)
    await one.holds()
    for row_id in ("a", "b"):
        one.take(hosts.record.write(row_id, "1"))
    await one.hears(1)  # of one at a time
    await until(partial(lambda: sealed(hosts) == (2, (1, 2))))
    one.move(owns=False)
    two.revision = 2
    two.move(owns=True)
    await until(lambda: one._keeper.seals.leaving() and two._keeper.seals.waiting())
    two.take(hosts.record.write("a", "2"))
    hosts.record.write("c", None)
    one.answer(one.told[0])
    assert await two.hears(1) == [("b", 2)]
    two.answer(two.told[0])
    await two.hears(2)
    two.answer(two.told[1])
    assert await two.hears(3) == [("b", 2), ("a", 3), ("c", 4)]
    assert await one.hears(1) == [("a", 1)]


async def test_a_partition_that_goes_while_it_is_read_takes_the_answers_along(hosts: Any) -> None:
    hosts.record.write("old", "1")
    hosts.bucket.entries[KEY] = SealEntry(1, GroupSeal(history="h", revision=1))
    hosts.record.answers.clear()
    one, two = hosts("one", owns=False), hosts("two", owns=False)
    one.revision = 0  # its worker lags
    one.move(owns=True)
    await one.holds()
    for row_id in ("a", "b", "c"):
        one.take(hosts.record.write(row_id, "1"))
    for number in range(2):
        await one.hears(number + 1)
        if not number:
            one.answer(one.told[number])
    one.move(owns=False)
    await until(lambda: one._keeper.seals.leaving())
    one.answer(one.told[1])
    await until(lambda: hosts.bucket.entries[KEY].seal.holder == "")
    assert sealed(hosts) == (3, ())
    hosts.record.answers.set()
    two.revision = 4
    two.move(owns=True)
    assert await two.hears(1) == [("c", 4)]
    two.answer(two.told[0])
    await until(lambda: sealed(hosts) == (4, ()))
    assert len(two.told) == 1


async def test_a_partition_without_a_seal_that_goes_while_it_is_read_counts_only_answers(hosts: Any) -> None:
    for row_id in ("a", "b"):
        hosts.record.write(row_id, "1")
    hosts.record.answers.clear()
    one = hosts("one", owns=True)
    one.take(hosts.record.write("c", "1"))  # it is not held yet: it is read
    await one.holds()
    one.take(hosts.record.write("d", "1"))
    await one.hears(1)
    one.answer(one.told[0])
    one.move(owns=False)
    await until(lambda: hosts.bucket.entries[KEY].seal.holder == "")
    assert sealed(hosts) == (4, (1, 2, 3))


async def test_answers_count_although_the_history_was_not_known_when_the_partition_came(hosts: Any) -> None:
    """The key had no revision then. The partition goes before it was looked how far the group has come."""
    one = hosts("one", owns=True)
    one.history = ""
    await one.holds()
    one.history = "h"
    one.take(hosts.record.write("a", "1"))
    await one.hears(1)
    one.answer(one.told[0])
    one.move(owns=False)
    await until(lambda: hosts.bucket.entries[KEY].seal.holder == "")
    seal = hosts.bucket.entries[KEY].seal
    assert (seal.history, seal.revision, seal.pending) == ("h", 1, ())


@pytest.mark.parametrize("history", ["", "h"])
async def test_a_seal_by_which_nothing_is_settled_hides_no_deletion(hosts: Any, history: str) -> None:
    """Its host may have delivered the row."""
    hosts.record.write("a", "1")
    hosts.bucket.entries[KEY] = SealEntry(1, GroupSeal(history=history, revision=0))
    one = hosts("one", owns=False)
    hosts.record.write("a", None)
    one.revision = 2
    one.move(owns=True)
    assert await one.hears(1) == [("a", 2)]


@pytest.mark.parametrize("revision", [0, 1])
async def test_a_row_that_is_deleted_while_the_worker_loads_is_told_as_deleted(hosts: Any, revision: int) -> None:
    """The worker never had it. So what is read before it has loaded the partition does not count."""
    hosts.record.write("a", "1")
    hosts.bucket.entries[KEY] = SealEntry(1, GroupSeal(history="h", revision=revision))
    one = hosts("one", owns=False)
    one.is_loaded, one.revision = False, 0
    one.move(owns=True)
    steps = one.pace.steps
    await until(lambda: one.pace.steps > steps + 1)
    assert one.group.status()["partitions_held"] == 0
    hosts.record.write("a", None)
    one.is_loaded, one.revision = True, 2
    assert await one.hears(1) == [("a", 2)]


async def test_a_partition_that_was_gone_for_a_moment_is_begun_anew(hosts: Any) -> None:
    """Its worker has loaded it again before the keeper of the seals looks, and has not told what was deleted."""
    one = hosts("one", owns=True)
    await one.holds()
    one.take(hosts.record.write("a", "1"))
    await one.hears(1)
    one.answer(one.told[0])
    one.move(owns=False)
    hosts.record.write("a", None)
    one.revision = 2
    one.move(owns=True)
    assert (await one.hears(2))[1:] == [("a", 2)]


async def test_what_was_not_delivered_since_the_partition_had_gone_is_not_settled(hosts: Any) -> None:
    """Its turn comes after the partition has gone, and before the keeper of the seals looks."""
    one, two = hosts("one", owns=True), hosts("two", owns=False)
    await one.holds()
    for row_id in ("a", "b"):
        one.take(hosts.record.write(row_id, "1"))
    await one.hears(1)
    await until(partial(lambda: sealed(hosts) == (2, (1, 2))))
    one.move(owns=False)
    one.answer(one.told[0])
    await until(lambda: hosts.bucket.entries[KEY].seal.holder == "")
    assert sealed(hosts) == (2, (2,))
    two.revision = 2
    two.move(owns=True)
    assert await two.hears(1) == [("b", 2)]


async def test_seals_are_written_while_a_partition_is_read(hosts: Any) -> None:
    """It may take long: what is settled meanwhile does not come again if the partition is another host's then."""
    first, most = 2 * limits.MAX_SEAL_PENDING, limits.MAX_SEAL_PENDING
    for number in range(first):
        hosts.record.write("a", str(number))
    for number in range(300):  # more than the group has room for
        hosts.record.write(f"b{number}", "1")
    hosts.bucket.entries[KEY] = SealEntry(1, GroupSeal(history="h", revision=0))
    one = hosts("one", owns=True)
    for number in range(2):
        assert (await one.hears(number + 1))[number][1] == first + number
        one.answer(one.told[number])
    pending = tuple(range(first + 2, first + 2 + most))  # as many as a seal has room for
    await until(partial(lambda: sealed(hosts) == (pending[-1], pending)))
    assert one.group.status()["partitions_unread"] == 1


async def test_a_paused_host_leads_no_row_back(hosts: Any) -> None:
    """It still has an old change of a row that another host has had newer ones of."""
    one, two = hosts("one", owns=True), hosts("two", owns=False)
    await one.holds()
    for row_id in ("a", "b", "c"):
        one.take(hosts.record.write(row_id, "1"))
    await one.hears(1)
    await until(lambda: sealed(hosts) == (3, (1, 2, 3)))
    one.lease.end()
    two.revision = 3
    two.move(owns=True)
    for number in range(3):
        await two.hears(number + 1)
        two.answer(two.told[number])
    two.take(hosts.record.write("b", "2"))
    await two.hears(4)
    two.answer(two.told[3])
    await until(lambda: sealed(hosts) == (4, ()))
    one.answer(one.told[0])  # late: the next message may not be delivered
    one.lease.regrant()
    await until(lambda: not one._keeper.seals.is_taken(0))
    assert sealed(hosts) == (4, ())
    two.move(owns=False)
    await one.holds()
    one.revision = 4
    one.take(hosts.record.write("c", "2"))
    assert (await one.hears(2))[1:] == [("c", 5)]


async def test_a_doubt_that_was_unfounded_repeats_nothing(hosts: Any) -> None:
    one = hosts("one", owns=True)
    await one.holds()
    for row_id in ("a", "b", "c"):
        one.take(hosts.record.write(row_id, "1"))
    await one.hears(1)
    one.lease.end()
    one.answer(one.told[0])  # b is its turn now, and let go
    one.take(hosts.record.write("d", "1"))
    one.lease.regrant()
    for number in range(1, 4):
        await one.hears(number + 1)
        one.answer(one.told[number])
    await until(lambda: sealed(hosts) == (4, ()))
    assert sorted(await one.hears(4)) == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]


async def test_what_was_dropped_in_doubt_while_the_partition_is_read_is_read(hosts: Any) -> None:
    """It came as a change, so what is read of its row would not count."""
    hosts.record.write("old", "1")
    hosts.bucket.entries[KEY] = SealEntry(1, GroupSeal(history="h", revision=0))
    hosts.record.answers.clear()
    one = hosts("one", owns=True)
    await one.holds()
    for row_id in ("a", "b"):
        one.take(hosts.record.write(row_id, "1"))
    await one.hears(1)
    one.lease.end()
    one.answer(one.told[0])  # b is its turn now, and let go
    one.lease.regrant()
    await one.holds()
    hosts.record.answers.set()
    for number in range(1, 3):
        await one.hears(number + 1)
        one.answer(one.told[number])
    assert sorted(await one.hears(3)) == [("a", 2), ("b", 3), ("old", 1)]


async def test_a_bucket_that_was_emptied_is_filled_again(hosts: Any) -> None:
    one = hosts("one", owns=True)
    await one.holds()
    one.take(hosts.record.write("a", "1"))
    await one.hears(1)
    await until(lambda: sealed(hosts) == (1, (1,)))
    hosts.bucket.entries.clear()
    one.answer(one.told[0])
    await until(lambda: KEY in hosts.bucket.entries and sealed(hosts) == (1, ()))
    assert await one.hears(1) == [("a", 1)]


async def test_a_full_bucket_is_written_to_again_when_there_is_room(
    hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringcast_heartbeat_agent.dispatch.seal_keeper._AGAIN_S", 0.05)
    hosts.bucket.full = True
    one = hosts("one", owns=True)
    await until(lambda: one.warnings)
    one.take(hosts.record.write("a", "1"))
    await one.hears(1)
    one.answer(one.told[0])
    hosts.bucket.full = False
    await until(lambda: KEY in hosts.bucket.entries and sealed(hosts) == (1, ()))
    one.take(hosts.record.write("a", "2"))
    assert await one.hears(2) == [("a", 1), ("a", 2)]
    assert {one.warnings[0], one.warnings[-1]} == {"the bucket of groups takes no seal: maximum bytes exceeded", ""}


async def test_a_partition_that_another_process_has_when_seals_work_again_is_waited_for(
    hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringcast_heartbeat_agent.dispatch.seal_keeper._AGAIN_S", 0.05)
    hosts.bucket.full = True
    one = hosts("one", owns=True)
    await until(lambda: one.warnings)
    hosts.bucket.leases["other"] = "other"
    hosts.bucket.entries[KEY] = SealEntry(1, GroupSeal(history="h", revision=0, holder="other", lease="other"))
    hosts.bucket.full = False
    await until(lambda: one.warnings[-1] == "")
    assert one.group.status()["partitions_awaited"] == 1
    one.take(hosts.record.write("a", "1"))
    assert not one.told
    del hosts.bucket.leases["other"]
    assert await one.hears(1) == [("a", 1)]


async def test_a_group_that_ends_gives_up_what_it_holds(hosts: Any) -> None:
    one = hosts("one", owns=True)
    await one.holds()
    for row_id in ("a", "b"):
        one.take(hosts.record.write(row_id, "1"))
    await one.hears(1)
    await one.close()
    seal = hosts.bucket.entries[KEY].seal
    assert (seal.holder, seal.revision, seal.pending) == ("", 2, (1, 2))
    two = hosts("two", owns=True)
    await two.hears(1)
    two.answer(two.told[0])
    assert await two.hears(2) == [("a", 1), ("b", 2)]


async def test_another_history_means_every_row(hosts: Any) -> None:
    for row_id in ("a", "b"):
        hosts.record.write(row_id, "1")
    hosts.bucket.entries[KEY] = SealEntry(1, GroupSeal(history="before", revision=90))
    one = hosts("one", owns=True)
    await one.hears(1)
    one.answer(one.told[0])
    assert await one.hears(2) == [("a", 1), ("b", 2)]
    one.answer(one.told[1])
    await until(lambda: sealed(hosts) == (2, ()))
    assert hosts.bucket.entries[KEY].seal.history == "h"


async def test_a_group_that_ended_without_its_lease_does_not_keep_its_partitions(hosts: Any) -> None:
    """Its process lives on, with the lease: others would wait for the partition for ever."""
    one = hosts("one", owns=True)
    await one.holds()
    one.take(hosts.record.write("a", "1"))
    await one.hears(1)
    await until(lambda: sealed(hosts) == (1, (1,)))
    one.lease.end()
    await one.close_group()
    one.lease.regrant()
    two = hosts("two", owns=True)
    assert await two.hears(1) == [("a", 1)]


async def test_a_group_that_ended_while_the_bucket_was_full_does_not_keep_its_partitions(
    hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringcast_heartbeat_agent.dispatch.seal_keeper._AGAIN_S", 0.05)
    one = hosts("one", owns=True)
    await one.holds()
    hosts.bucket.full = True
    one.take(hosts.record.write("a", "1"))
    await until(lambda: one.warnings)
    await one.close_group()
    hosts.bucket.full = False
    two = hosts("two", owns=True)
    assert await two.hears(1) == [("a", 1)]


async def test_a_seal_ahead_of_the_service_means_every_row(hosts: Any) -> None:
    """The database was restored, and nobody noticed: its history is the same."""
    hosts.record.write("a", "1")
    hosts.bucket.entries[KEY] = SealEntry(1, GroupSeal(history="h", revision=90, pending=(7,)))
    one = hosts("one", owns=True)
    assert await one.hears(1) == [("a", 1)]
    one.answer(one.told[0])
    one.take(hosts.record.write("b", "1"))
    assert await one.hears(2) == [("a", 1), ("b", 2)]
    one.answer(one.told[1])
    await until(lambda: sealed(hosts) == (2, ()))


async def test_a_row_that_was_blocked_when_its_partition_went_is_not_blocked_when_it_comes_back(hosts: Any) -> None:
    one = hosts("one", owns=True, policy="block")
    await one.holds()
    one.take(hosts.record.write("a", "1"))
    for number in range(6):
        if one.group.status()["blocked"]:
            break
        await until(partial(lambda n: len(one.told) > n or one.group.status()["blocked"], number))
        if len(one.told) > number:
            one.reject(one.told[number])
    await until(lambda: one.group.status()["blocked"])
    one.move(owns=False)
    two = hosts("two", owns=True, policy="block")
    await two.hears(1)
    two.answer(two.told[0])
    await until(lambda: sealed(hosts) == (1, ()))
    await until(lambda: not one.group.status()["blocked"])
    two.move(owns=False)
    one.move(owns=True)
    await one.holds()
    count = len(one.told)
    one.take(hosts.record.write("a", "2"))
    assert (await one.hears(count + 1))[count:] == [("a", 2)]


@pytest.mark.parametrize("lives", [True, False])
async def test_a_record_that_cannot_be_read_still_names_its_holder(hosts: Any, lives: bool) -> None:
    """Without one that lives every row comes: what was settled is not known."""
    hosts.record.write("a", "1")
    if lives:
        hosts.bucket.leases["other"] = "other"
    hosts.bucket.entries[KEY] = SealEntry(1, GroupSeal(history="", revision=0, holder="other", lease="other"), True)
    one = hosts("one", owns=True)
    await until(lambda: one._keeper is not None and (one._keeper.seals.waiting() or one.told))
    if lives:
        assert not one._keeper.is_held(0)
        del hosts.bucket.leases["other"]
    assert await one.hears(1) == [("a", 1)]


async def test_a_record_that_was_damaged_is_written_again_by_its_holder(hosts: Any) -> None:
    one = hosts("one", owns=True)
    await one.holds()
    one.take(hosts.record.write("a", "1"))
    await one.hears(1)
    one.answer(one.told[0])
    await until(lambda: sealed(hosts) == (1, ()))
    entry = hosts.bucket.entries[KEY]
    hosts.bucket.entries[KEY] = SealEntry(entry.revision + 1, GroupSeal(history="", revision=0), True)
    one.take(hosts.record.write("b", "1"))
    await one.hears(2)
    one.answer(one.told[1])
    await until(lambda: sealed(hosts) == (2, ()))
    assert await one.hears(2) == [("a", 1), ("b", 2)]
