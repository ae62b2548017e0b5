"""Who is registered, and who is given up: without time or sockets."""

from __future__ import annotations

import pytest
from ringcast import InUseError, LimitExceededError
from ringcast_heartbeat_agent.leases.registry import (
    CLOSED,
    NOT_BACK,
    RETURN_S,
    SILENCE_S,
    SILENT,
    TICK_S,
    Registration,
    Roster,
)

SILENCE_TICKS = round(SILENCE_S / TICK_S)
RETURN_TICKS = round(RETURN_S / TICK_S)


def of(worker_id: str, *, pid: int = 1, store: str = "s", keys: tuple[str, ...] = ("k",), uid: int = 7) -> Registration:
    return Registration(
        worker_id=worker_id, incarnation=f"i{pid}", pid=pid, store=store, keys=keys, since_ms=1, uid=uid
    )


def test_who_lives_is_who_registered_and_has_not_left_or_closed() -> None:
    roster = Roster(10)
    a, b = roster.register(of("a", keys=("k", "l")), 1), roster.register(of("b"), 2)
    roster.register(of("a", store="t"), 3)
    assert roster.living("s") == frozenset({("k", "a"), ("l", "a"), ("k", "b")})
    assert roster.living("t") == frozenset({("k", "a")})
    roster.left(b)
    assert not roster.closed(b)
    assert roster.closed(a)
    assert (roster.living("s"), roster.living("t")) == (frozenset(), frozenset({("k", "a")}))
    assert roster.given_up == {CLOSED: 1, SILENT: 0, NOT_BACK: 0}


def test_a_second_process_is_refused_and_named_until_the_first_is_gone() -> None:
    roster = Roster(10)
    first = roster.register(of("a", pid=41), 1)
    for store in ("s", "t"):
        with pytest.raises(InUseError, match="worker id 'a' is in use by process 41 on this host"):
            roster.register(of("a", pid=42, store=store), 2)
    roster.closed(first)
    roster.register(of("a", pid=42), 2)


def test_the_later_stream_of_a_worker_counts() -> None:
    roster = Roster(1)
    first, second = roster.register(of("a"), 1), roster.register(of("a"), 2)
    assert not roster.closed(first)
    assert roster.living("s") == frozenset({("k", "a")})
    assert roster.closed(second)


def test_one_worker_too_many_is_refused() -> None:
    roster = Roster(2)
    roster.register(of("a"), 1)
    roster.register(of("b"), 2)
    with pytest.raises(LimitExceededError, match="holds 2 registrations: at most 2 are allowed"):
        roster.register(of("c"), 3)


def test_silence_is_counted_in_ticks_of_the_agent() -> None:
    roster = Roster(10)
    quiet, loud = roster.register(of("quiet"), 1), roster.register(of("loud"), 2)
    for _ in range(SILENCE_TICKS - 1):
        roster.heard(loud)
        assert roster.tick() == []
    roster.heard(loud)
    assert roster.tick() == [quiet]
    assert not roster.closed(quiet)
    assert roster.given_up == {CLOSED: 0, SILENT: 1, NOT_BACK: 0}
    assert roster.living("s") == frozenset({("k", "loud")})


def test_workers_of_the_agent_before_are_waited_for() -> None:
    """And until then nobody's records are touched; their ids are theirs."""
    roster = Roster(10)
    roster.restore([of("back", pid=7), of("lost", pid=8)])
    assert roster.waiting
    assert roster.living("s") is None
    with pytest.raises(InUseError, match="process 7"):
        roster.register(of("back", pid=9), 1)
    held = roster.register(of("back", pid=7), 1)
    gone = []
    for _ in range(RETURN_TICKS):
        roster.heard(held)
        gone += [one.registration.worker_id for one in roster.tick()]
    assert gone == ["lost"]
    assert not roster.waiting
    assert roster.living("s") == frozenset({("k", "back")})
    assert roster.given_up[NOT_BACK] == 1


def test_no_more_is_restored_than_may_register() -> None:
    roster = Roster(3)
    roster.restore([of(f"w{number}") for number in range(5)])
    assert len(roster.registrations) == 3


def test_a_worker_id_belongs_to_the_user_who_had_it_first() -> None:
    roster = Roster(2)
    roster.left(roster.register(of("a", uid=7), 1))
    with pytest.raises(InUseError, match="worker id 'a' belongs to user 7 on this host"):
        roster.register(of("a", uid=8), 2)
    roster.left(roster.register(of("a", uid=0), 3))  # root may
    with pytest.raises(InUseError, match="belongs to user 7"):
        roster.register(of("a", uid=8), 4)
    after = Roster(2)
    after.restore([], roster.users)
    with pytest.raises(InUseError, match="belongs to user 7"):
        after.register(of("a", uid=8), 5)
    for number in range(32):  # ids are remembered for a while
        after.left(after.register(of(f"w{number}", uid=8), 6))
    after.register(of("a", uid=8), 7)
    assert len(after.users) == 32


def test_one_user_has_a_share() -> None:
    roster = Roster(4, most_of_user=2)
    for name in "ab":
        roster.register(of(name, uid=7), 1)
    with pytest.raises(LimitExceededError, match="user 7 has 2 registrations: at most 2 are allowed to one"):
        roster.register(of("c", uid=7), 1)
    roster.register(of("a", uid=7), 2)  # again
    roster.register(of("d", uid=8), 1)
