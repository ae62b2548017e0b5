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
    WorkerRegistry,
)

SILENCE_TICKS = round(SILENCE_S / TICK_S)
RETURN_TICKS = round(RETURN_S / TICK_S)


def of(worker_id: str, *, pid: int = 1, store: str = "s", keys: tuple[str, ...] = ("k",), uid: int = 7) -> Registration:
    return Registration(
        worker_id=worker_id, incarnation=f"i{pid}", pid=pid, store=store, keys=keys, since_ms=1, uid=uid
    )


def test_who_lives_is_who_registered_and_has_not_left_or_closed() -> None:
    registry = WorkerRegistry(10)
    a, b = registry.register(of("a", keys=("k", "l")), 1), registry.register(of("b"), 2)
    registry.register(of("a", store="t"), 3)
    assert registry.living("s") == frozenset({("k", "a"), ("l", "a"), ("k", "b")})
    assert registry.living("t") == frozenset({("k", "a")})
    registry.left(b)
    assert not registry.closed(b)
    assert registry.closed(a)
    assert (registry.living("s"), registry.living("t")) == (frozenset(), frozenset({("k", "a")}))
    assert registry.given_up == {CLOSED: 1, SILENT: 0, NOT_BACK: 0}


def test_a_second_process_is_refused_and_named_until_the_first_is_gone() -> None:
    registry = WorkerRegistry(10)
    first = registry.register(of("a", pid=41), 1)
    for store in ("s", "t"):
        with pytest.raises(InUseError, match="worker id 'a' is in use by process 41 on this host"):
            registry.register(of("a", pid=42, store=store), 2)
    registry.closed(first)
    registry.register(of("a", pid=42), 2)


def test_the_later_stream_of_a_worker_counts() -> None:
    registry = WorkerRegistry(1)
    first, second = registry.register(of("a"), 1), registry.register(of("a"), 2)
    assert not registry.closed(first)
    assert registry.living("s") == frozenset({("k", "a")})
    assert registry.closed(second)


def test_one_worker_too_many_is_refused() -> None:
    registry = WorkerRegistry(2)
    registry.register(of("a"), 1)
    registry.register(of("b"), 2)
    with pytest.raises(LimitExceededError, match="holds 2 registrations: at most 2 are allowed"):
        registry.register(of("c"), 3)


def test_silence_is_counted_in_ticks_of_the_agent() -> None:
    registry = WorkerRegistry(10)
    quiet, loud = registry.register(of("quiet"), 1), registry.register(of("loud"), 2)
    for _ in range(SILENCE_TICKS - 1):
        registry.seen(loud)
        assert registry.tick() == []
    registry.seen(loud)
    assert registry.tick() == [quiet]
    assert not registry.closed(quiet)
    assert registry.given_up == {CLOSED: 0, SILENT: 1, NOT_BACK: 0}
    assert registry.living("s") == frozenset({("k", "loud")})


def test_workers_of_the_agent_before_are_waited_for() -> None:
    """And until then nobody's records are touched; their ids are theirs."""
    registry = WorkerRegistry(10)
    registry.restore([of("back", pid=7), of("lost", pid=8)])
    assert registry.waiting
    assert registry.living("s") is None
    with pytest.raises(InUseError, match="process 7"):
        registry.register(of("back", pid=9), 1)
    worker = registry.register(of("back", pid=7), 1)
    gone = []
    for _ in range(RETURN_TICKS):
        registry.seen(worker)
        gone += [one.registration.worker_id for one in registry.tick()]
    assert gone == ["lost"]
    assert not registry.waiting
    assert registry.living("s") == frozenset({("k", "back")})
    assert registry.given_up[NOT_BACK] == 1


def test_no_more_is_restored_than_may_register() -> None:
    registry = WorkerRegistry(3)
    registry.restore([of(f"w{number}") for number in range(5)])
    assert len(registry.registrations) == 3


def test_a_worker_id_belongs_to_the_user_who_had_it_first() -> None:
    registry = WorkerRegistry(2)
    registry.left(registry.register(of("a", uid=7), 1))
    with pytest.raises(InUseError, match="worker id 'a' belongs to user 7 on this host"):
        registry.register(of("a", uid=8), 2)
    registry.left(registry.register(of("a", uid=0), 3))  # root may
    with pytest.raises(InUseError, match="belongs to user 7"):
        registry.register(of("a", uid=8), 4)
    after = WorkerRegistry(2)
    after.restore([], registry.users)
    with pytest.raises(InUseError, match="belongs to user 7"):
        after.register(of("a", uid=8), 5)
    for number in range(32):  # ids are remembered for a while
        after.left(after.register(of(f"w{number}", uid=8), 6))
    after.register(of("a", uid=8), 7)
    assert len(after.users) == 32


def test_one_user_has_a_share() -> None:
    registry = WorkerRegistry(4, most_of_user=2)
    for name in "ab":
        registry.register(of(name, uid=7), 1)
    with pytest.raises(LimitExceededError, match="user 7 has 2 registrations: at most 2 are allowed to one"):
        registry.register(of("c", uid=7), 1)
    registry.register(of("a", uid=7), 2)  # again
    registry.register(of("d", uid=8), 1)
