"""Dispatch at the border: what is refused and how, filters beside fnmatch, the router, and threads."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ringcast_core import (
    MAX_CONSUMERS,
    MAX_DISPATCH_WINDOW,
    MAX_KEY_FILTERS,
    MAX_ROW_ID_BYTES,
    Action,
    Dispatcher,
    KeyFilter,
    Ring,
    Router,
)


@given(st.text("ab日[]!*?", min_size=1, max_size=10), st.text("ab日[]!\n", max_size=12))
@example("*a*b*", "xaxb")
@example("?", "\n")
def test_filters_are_those_of_fnmatch_without_brackets(pattern: str, key: str) -> None:
    assert KeyFilter(pattern).accepts(key) == fnmatchcase(key, pattern.replace("[", "[[]"))


def test_actions_can_be_taken_apart_and_compared() -> None:
    dispatcher = Dispatcher(cursor=6)
    one, actions = dispatcher.join("one", now_ms=0)
    assert actions == []
    taken, actions = dispatcher.offer(array("Q", [7, 9]), ["a", "b"], 0)
    assert taken == 2
    match actions:
        case [Action.Deliver(consumer, 7, attempt), Action.Deliver(offset=9)]:
            assert (consumer, attempt) == (one, 1)
        case _:
            pytest.fail(repr(actions))
    assert actions[0] == Action.Deliver(one, 7, 1) != Action.Deliver(one, 7, 2)
    assert repr(actions[1]) == "Action.Deliver(consumer=1, offset=9, attempt=1)"
    counted, actions = dispatcher.acknowledge(one, array("Q", [7, 8]), array("I", [1, 1]), 0)
    assert (counted, actions) == ([True, False], [Action.Advance(7)])
    assert eval(repr(actions[0])) == actions[0]


def test_every_action_says_what_it_is() -> None:
    for action in [
        Action.Deliver(1, 2, 3),
        Action.TimedOut(1, 2, 3),
        Action.DeadLetter(1, 2, "rejected"),
        Action.Drop(1, 2, "timed_out"),
        Action.Block(1, 2, "evicted"),
        Action.Skip(1, 2),
        Action.Evicted(1),
        Action.Left(1),
        Action.Advance(1),
    ]:
        assert eval(repr(action).replace('"', "'")) == action
        assert isinstance(action, Action)


def test_the_limits_that_others_rely_on() -> None:
    assert (MAX_CONSUMERS, MAX_KEY_FILTERS, MAX_DISPATCH_WINDOW) == (1024, 64, 1 << 20)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"window": 0}, "window must be between 1 and 1048576, got 0"),
        ({"window": 2**70}, f"window must be between 1 and 1048576, got {2**70}"),
        ({"consumer_capacity": -1}, "consumer_capacity must be between 1 and 1048576, got -1"),
        ({"ack_timeout_ms": 0}, "ack_timeout_ms must be between 1 and 86400000, got 0"),
        ({"max_tries": 6, "max_deliveries": 5}, "max_tries must be between 1 and 5, got 6"),
        ({"max_deliveries": 1001}, "max_deliveries must be between 1 and 1000, got 1001"),
        ({"backoff_first_ms": 50, "backoff_most_ms": 49}, "backoff_most_ms must be between 50 and 86400000, got 49"),
        ({"evict_after_ms": 86_400_001}, "evict_after_ms must be between 1 and 86400000, got 86400001"),
        ({"orphan_hold_ms": 0}, "orphan_hold_ms must be between 1 and 86400000, got 0"),
        ({"poison": "ignore"}, 'poison must be drop, dead-letter or block, got "ignore"'),
        ({"cursor": -1}, "cursor must be between 0 and 18446744073709551615, got -1"),
    ],
)
def test_a_setting_outside_its_limits_is_named(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Dispatcher(**setting)


Call = Callable[[Dispatcher], object]
REFUSALS: list[tuple[Call, type[Exception], str]] = [
    (lambda it: it.offer([1, 2], ["a"], 0), ValueError, "offsets and keys must be equally long, got 2 and 1"),
    (lambda it: it.offer([1, -2], ["a", "b"], 0), ValueError, r"offsets\[1\] must be between 0 and \d+, got -2"),
    (lambda it: it.offer([1], ["x" * 513], 0), ValueError, "key length in bytes must be between 0 and 512, got 513"),
    (
        lambda it: it.offer([1], ["\ud800"], 0),
        ValueError,
        r"keys\[0\] must be encodable as UTF-8, .*",
    ),
    (lambda it: it.offer([1], [b"a"], 0), TypeError, r"keys\[0\] must be str, got bytes"),  # type: ignore[list-item]
    (lambda it: it.offer([1], "a", 0), TypeError, "keys must be a sequence of str, not one str"),
    (lambda it: it.offer([1], ["a"], -5), ValueError, r"now_ms must be between 0 and \d+, got -5"),
    (lambda it: it.acknowledge(1, [1], [], 0), ValueError, "offsets and attempts must be equally long, got 1 and 0"),
    (
        lambda it: it.reject(1, [1], [2**40], 0),
        ValueError,
        r"attempts\[0\] must be between 0 and 4294967295, .*",
    ),
    (lambda it: it.evict(-1, 0), ValueError, r"consumer must be between 0 and \d+, got -1"),
    (lambda it: it.unblock("x", 0), TypeError, "offset must be int, got str"),  # type: ignore[arg-type]
    (lambda it: it.join("", now_ms=0), ValueError, "consumer name length in bytes must be between 1 and 512, got 0"),
    (
        lambda it: it.join("x", ["a", ""], now_ms=0),
        ValueError,
        "filter length in bytes must be between 1 and 512, got 0",
    ),
    (lambda it: it.join("x", ["a"] * 65, now_ms=0), ValueError, "number of filters must be between 0 and 64, got 65"),
    (lambda it: it.join("x", "a*", now_ms=0), TypeError, "filters must be a sequence of str, not one str"),
    (lambda it: it.join("x", capacity=0, now_ms=0), ValueError, "capacity must be between 1 and 1048576, got 0"),
    (lambda it: it.join("one", now_ms=0), ValueError, 'consumers must not repeat an entry, got "one" twice'),
]


@pytest.mark.parametrize(("call", "kind", "message"), REFUSALS)
def test_what_is_refused_changes_nothing(call: Call, kind: type[Exception], message: str) -> None:
    dispatcher = Dispatcher()
    dispatcher.join("one", now_ms=0)
    with pytest.raises(kind, match=f"^{message}$"):
        call(dispatcher)
    assert [one.name for one in dispatcher.consumers()] == ["one"]
    assert (dispatcher.unsettled, dispatcher.last_offset, dispatcher.cursor) == (0, 0, 0)


def test_keys_go_to_their_owner_on_the_ring() -> None:
    names = ["one", "two", "three"]
    dispatcher, router, ring = Dispatcher(), Router(), Ring(names)
    by_number = {dispatcher.join(name, now_ms=0)[0]: name for name in names}
    queues = {router.join(name, capacity=500, now_ms=0): name for name in names}
    keys = [f"row-{n}" for n in range(300)]
    _, actions = dispatcher.offer(range(1, 301), keys, 0)
    owners = [by_number[one.consumer] for one in actions if isinstance(one, Action.Deliver)]
    assert owners == ring.owners(keys)
    assert [queues[number or 0] for number in router.route(keys)] == owners


def test_the_router_loses_what_does_not_fit_and_forgets_who_is_silent() -> None:
    router = Router(evict_after_ms=100)
    one = router.join("one", ["a*"], capacity=2, now_ms=0)
    assert router.route(["a1", "b1", "a2", "a3"]) == [one, None, one, None]
    assert router.taken(one, 1, 50)
    assert router.route(["a4", "a5"]) == [one, None]
    assert router.counts() == {"queued": 3, "saturated": 2, "unmatched": 1}
    assert router.next_deadline_ms == 100  # a bound from below: the sign of life at 50 is seen to then
    assert router.tick(149) == []
    assert router.next_deadline_ms == 150
    assert router.tick(150) == [one]
    assert not router.heartbeat(one, 150)
    assert not router.leave(one)
    assert Router().next_deadline_ms is None
    with pytest.raises(ValueError, match=r"^capacity must be between 1 and 1048576, got 0$"):
        router.join("two", capacity=0, now_ms=0)
    with pytest.raises(ValueError, match=r"^key length in bytes must be between 0 and 512, got 513$"):
        router.route(["x" * (MAX_ROW_ID_BYTES + 1)])


def test_threads_may_share_a_dispatcher() -> None:
    """Each thread answers what its own calls delivered; together they settle everything, each message once."""
    dispatcher = Dispatcher(window=MAX_DISPATCH_WINDOW, consumer_capacity=MAX_DISPATCH_WINDOW)
    one, _ = dispatcher.join("one", now_ms=0)
    dispatcher.offer(range(1, 20_001), [f"row-{n % 500}" for n in range(20_000)], 0)
    settled: list[int] = []

    def work(first: int) -> None:
        # 500 keys are in flight, 125 to each thread; what an answer sets free is delivered to whoever gave it.
        mine = list(range(first, 501, 4))
        while mine:
            counted, actions = dispatcher.acknowledge(one, mine, [1] * len(mine), 0)
            assert all(counted)
            settled.extend(mine)
            mine = [action.offset for action in actions if isinstance(action, Action.Deliver)]

    threads = [threading.Thread(target=work, args=(first,)) for first in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(settled) == list(range(1, 20_001))
    assert (dispatcher.cursor, dispatcher.unsettled) == (20_000, 0)
