"""The decisions about the partitions that a group holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from ringcast_heartbeat_agent.dispatch.seals import LOOK_S, RENEW_S, SETTLE_S, Outcome, Seals, Settled, Write
from ringcast_wire import GroupSeal, encode_record, limits

START = Settled("h", 3)


def seal(revision: int = 7, pending: tuple[int, ...] = (), *, holder: str = "", history: str = "h") -> GroupSeal:
    """One as it may stand in the bucket."""
    lease = "w" if holder else None
    return GroupSeal(history=history, revision=revision, pending=pending, holder=holder, lease=lease)


def write_of(seals: Seals) -> Write:
    """The one write that is due."""
    (write,) = seals.writes.due()
    return write


def holding(found: GroupSeal | None = None) -> Seals:
    """Partition 0 is held, at revision 5 of its record."""
    seals = Seals("me", "mine")
    seals.own([0], 0.0)
    assert seals.reads.due(0.0) == [0]
    assert seals.reads.found(0, 4, found, lives=False, start=START, now=0.0) is Outcome.NONE
    assert not seals.is_held(0)
    assert seals.writes.written(write_of(seals), 5, 0.0) is Outcome.TAKEN
    assert seals.is_held(0)
    assert not seals.writes.due()
    return seals


def test_a_partition_without_a_seal_begins_where_the_group_does() -> None:
    assert holding().reads.begins_with(0) == (START, False)


def test_a_partition_that_was_given_up_or_whose_holder_died_goes_on_from_its_seal() -> None:
    for found in (seal(7, (2, 5)), seal(7, (2, 5), holder="dead")):
        assert holding(found).reads.begins_with(0) == (Settled("h", 7, (2, 5)), True)


def test_a_partition_is_waited_for_while_its_holder_lives() -> None:
    seals = Seals("me", "mine")
    seals.own([0], 0.0)
    assert seals.reads.found(0, 4, seal(holder="other"), lives=True, start=START, now=1.0) is Outcome.NONE
    assert (seals.waiting(), seals.writes.due(), seals.reads.due(1.0 + LOOK_S - 0.01)) == ([0], [], [])
    assert seals.reads.due(1.0 + LOOK_S) == [0]
    seals.reads.found(0, 6, seal(9), lives=False, start=START, now=2.0)
    write = write_of(seals)
    assert (write.last, write.seal.holder, write.seal.lease, write.seal.revision) == (6, "me", "mine", 9)


def test_of_two_hosts_that_claim_a_partition_one_gets_it() -> None:
    seals = Seals("me", "mine")
    seals.own([0], 0.0)
    seals.reads.found(0, 4, None, lives=False, start=START, now=0.0)
    seals.writes.refused(write_of(seals), 0.0)
    assert seals.reads.due(0.0) == [0]
    seals.reads.found(0, 5, seal(holder="other"), lives=True, start=START, now=0.0)
    assert not seals.is_held(0)
    assert not seals.writes.due()


def test_a_settlement_is_written_once_and_renewed_after_a_day() -> None:
    seals = holding()
    seals.writes.settle(0, Settled("h", 9, (8,)), 1.0)
    write = write_of(seals)
    assert write == Write(
        0, seal(9, (8,), holder="me").__class__(history="h", revision=9, pending=(8,), holder="me", lease="mine"), 5
    )
    seals.writes.settle(0, Settled("h", 10), 1.0)  # while the write is on its way
    assert seals.writes.written(write, 6, 1.0) is Outcome.NONE
    write = write_of(seals)
    assert (write.last, write.seal.revision) == (6, 10)
    seals.writes.written(write, 7, 1.0)
    seals.writes.settle(0, Settled("h", 10), RENEW_S)
    assert not seals.writes.due()
    seals.writes.settle(0, Settled("h", 10), 1.0 + RENEW_S)
    assert write_of(seals).last == 7


def test_a_late_settlement_is_refused_and_the_partition_lost() -> None:
    seals = holding()
    seals.writes.settle(0, Settled("h", 9), 20.0)
    seals.writes.refused(write_of(seals), 20.0)
    assert not seals.is_held(0)
    assert seals.is_taken(0)
    assert seals.reads.found(0, 8, seal(9, holder="other"), lives=True, start=START, now=20.0) is Outcome.LOST
    assert not seals.is_taken(0)
    seals.reads.found(0, 9, seal(12), lives=False, start=START, now=21.0)
    assert seals.writes.written(write_of(seals), 10, 21.0) is Outcome.TAKEN
    assert seals.reads.begins_with(0) == (Settled("h", 12), True)


def test_a_write_whose_answer_was_lost_costs_nothing() -> None:
    seals = holding()
    seals.writes.settle(0, Settled("h", 9), 1.0)
    seals.writes.refused(write_of(seals), 1.0)
    own = GroupSeal(history="h", revision=9, holder="me", lease="mine")
    assert seals.reads.found(0, 6, own, lives=True, start=START, now=1.0) is Outcome.NONE
    assert seals.writes.written(write_of(seals), 7, 1.0) is Outcome.RESUMED
    seals.writes.settle(0, Settled("h", 11), 2.0)
    assert write_of(seals).last == 7


def test_a_lease_that_may_have_ended_puts_every_partition_in_doubt() -> None:
    for found in (seal(3, holder="other"), seal(0, history="")):  # another has it, or it was reset
        seals = holding()
        seals.reads.doubt(30.0)
        assert not seals.is_held(0)
        assert seals.reads.found(0, 5, found, lives=True, start=START, now=30.0) is Outcome.LOST
        assert not seals.is_held(0)


def test_after_a_doubt_a_partition_is_held_again_once_its_seal_is_written() -> None:
    """Another host may have found the lease ended, and be about to claim it: the one that writes first has it."""
    own = GroupSeal(history="h", revision=3, holder="me", lease="mine")
    seals = holding()
    seals.reads.doubt(30.0)
    assert seals.reads.found(0, 5, own, lives=True, start=START, now=30.0) is Outcome.NONE
    assert not seals.is_held(0)
    write = write_of(seals)
    assert (write.seal, write.last) == (own, 5)
    seals.writes.refused(write, 30.0)
    assert seals.reads.found(0, 6, seal(3, holder="other"), lives=True, start=START, now=30.0) is Outcome.LOST
    seals = holding()
    seals.reads.doubt(30.0)
    seals.reads.found(0, 5, own, lives=True, start=START, now=30.0)
    assert seals.writes.written(write_of(seals), 6, 30.0) is Outcome.RESUMED
    assert seals.is_held(0)


def test_a_seal_that_another_process_wrote_is_seen_by_a_check() -> None:
    for revision, held in ((5, True), (4, True), (6, False), (0, False)):
        seals = holding()
        seals.reads.checked(0, revision, 1.0)
        assert seals.is_held(0) is held
        assert seals.reads.due(1.0) == ([] if held else [0])


def test_a_bucket_that_was_deleted_is_filled_again() -> None:
    seals = holding(seal(7, (2,)))
    seals.reads.doubt(1.0)
    assert seals.reads.found(0, 0, None, lives=False, start=START, now=1.0) is Outcome.NONE
    write = write_of(seals)
    assert (write.last, write.seal.revision, write.seal.pending) == (0, 7, (2,))
    assert seals.writes.written(write, 1, 1.0) is Outcome.RESUMED


def test_a_partition_is_given_up_once_nothing_of_it_is_in_flight() -> None:
    seals = holding()
    assert seals.give_up([0, 1]) == [0]
    assert not seals.is_held(0)
    assert not seals.writes.due()
    seals.release(0, Settled("h", 9, (4,)))
    write = write_of(seals)
    assert (write.seal, write.last) == (seal(9, (4,)), 5)
    seals.writes.written(write, 6, 1.0)
    assert len(seals) == 0


def test_a_partition_that_comes_back_while_it_is_given_up_is_asked_for_again() -> None:
    seals = holding()
    seals.give_up([0])
    seals.own([0], 1.0)
    seals.release(0, Settled("h", 9))
    seals.writes.written(write_of(seals), 6, 1.0)
    assert seals.reads.due(1.0) == [0]


def test_a_claim_that_may_have_landed_is_taken_back() -> None:
    seals = Seals("me", "mine")
    seals.own([0], 0.0)
    seals.reads.found(0, 4, seal(), lives=False, start=START, now=0.0)
    claim = write_of(seals)
    assert seals.give_up([0]) == []
    seals.writes.written(claim, 5, 0.0)
    write = write_of(seals)
    assert (write.seal, write.last) == (seal(), 5)
    seals.writes.refused(write, 0.0)
    assert (seals.writes.due(), seals.reads.due(0.0)) == ([], [0])
    seals.reads.found(0, 8, claim.seal, lives=True, start=START, now=0.0)
    assert write_of(seals).last == 8
    seals.writes.refused(write_of(seals), 0.0)
    seals.reads.found(0, 9, seal(holder="other"), lives=True, start=START, now=0.0)
    assert len(seals) == 0


def test_a_partition_that_was_lost_is_given_up_without_a_word() -> None:
    """A process that was paused for longer than its lease leaves alone the seal of the one that has it now."""
    seals = holding()
    seals.reads.doubt(1.0)
    assert seals.reads.found(0, 8, seal(9, holder="other"), lives=True, start=START, now=1.0) is Outcome.LOST
    assert seals.give_up([0]) == []
    assert not seals.writes.due()
    assert seals.reads.due(1.0) == [0]
    seals.reads.found(0, 8, seal(9, holder="other"), lives=True, start=START, now=1.0)
    assert (seals.writes.due(), len(seals)) == ([], 0)


def test_a_claim_that_is_found_after_all_is_given_up_where_it_stands() -> None:
    """A server that lags had shown the seal of the process before."""
    seals = holding()
    seals.reads.doubt(1.0)
    seals.reads.found(0, 4, seal(6, holder="other"), lives=True, start=START, now=1.0)
    seals.give_up([0])
    seals.reads.found(0, 5, seal(9, (8,), holder="me"), lives=True, start=START, now=1.0)
    assert write_of(seals) == Write(0, seal(9, (8,)), 5)


def test_what_was_not_claimed_yet_is_forgotten() -> None:
    seals = Seals("me", "mine")
    seals.own([0, 1], 0.0)
    seals.reads.found(1, 4, None, lives=False, start=START, now=0.0)
    assert seals.give_up([0, 1]) == []
    assert len(seals) == 0


@given(st.sets(st.integers(1, 10_000), max_size=400), st.integers(0, 10_000))
def test_a_bounded_settlement_is_never_ahead(pending: set[int], revision: int) -> None:
    settled = Settled.bounded("h", revision, pending)
    assert settled.revision <= revision
    assert settled.pending == tuple(sorted(version for version in pending if version <= settled.revision))
    assert len(settled.pending) <= limits.MAX_SEAL_PENDING
    below = {version for version in pending if version <= revision}
    if len(below) <= limits.MAX_SEAL_PENDING:
        assert (settled.revision, set(settled.pending)) == (revision, below)


def test_the_largest_seal_fits_into_a_record() -> None:
    pending = tuple(range(2**63 - limits.MAX_SEAL_PENDING, 2**63))
    largest = GroupSeal(
        history="h" * 64,
        revision=2**63 - 1,
        pending=pending,
        holder="i" * 16,
        lease=f"{'w' * 64}.{'w' * 64}",
        sealed_at_ms=2**53,
    )
    assert len(encode_record(largest)) < limits.MAX_RECORD_BYTES - 300  # its subject and headers


def test_claims_and_hand_overs_come_before_settlements_and_count_for_none() -> None:
    seals = Seals("me", "mine")
    seals.own(range(6), 0.0)
    for partition in range(5):
        seals.reads.found(partition, 4, None, lives=False, start=START, now=0.0)
    for number, write in enumerate(seals.writes.due()):
        seals.writes.written(write, 5, float(number))
    seals.reads.found(5, 4, None, lives=False, start=START, now=9.0)
    for partition in range(5):
        seals.writes.settle(partition, Settled("h", 9), 9.0)
    seals.give_up([4])
    seals.release(4, Settled("h", 9))
    assert [write.partition for write in seals.writes.due(9.0, 32, 0)] == [4, 5]
    assert [write.partition for write in seals.writes.due(9.0, 3, 32)] == [4, 5, 0]
    assert [write.partition for write in seals.writes.due(9.0, 32, 2)] == [4, 5, 0, 1]  # the longest ago first
    assert [write.partition for write in seals.writes.due(9.0, 1, 2)] == [4]


def test_a_partition_is_sealed_at_most_once_in_an_interval_and_then_with_the_newest() -> None:
    seals = holding()
    seals.writes.settle(0, Settled("h", 9), SETTLE_S / 2)
    assert not seals.writes.due(SETTLE_S / 2)
    seals.writes.settle(0, Settled("h", 10), SETTLE_S)
    (write,) = seals.writes.due(SETTLE_S)
    assert write.seal.revision == 10
    seals.writes.written(write, 6, SETTLE_S)
    seals.writes.settle(0, Settled("h", 11), SETTLE_S)
    assert not seals.writes.due(SETTLE_S * 1.5)
    seals.give_up([0])
    seals.release(0, Settled("h", 11))
    assert seals.writes.due(SETTLE_S * 1.5)  # a hand-over does not wait
