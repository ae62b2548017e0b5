"""Key-shared dispatch: messages offered, delivered and acknowledged, beside the same in plain Python.

Aim: a million messages a second through the core, each of them two decisions: to whom it goes and when, and what its
acknowledgement sets free.
"""

from __future__ import annotations

import random
import time
from array import array
from collections import deque
from typing import Any

import pytest
from ringcast_core import Action, Dispatcher, Ring

MESSAGES = 200_000
BATCH = 2_000
WINDOW = 10_000
ROUNDS = 7
KEYS = [f"row-{random.Random(seed).randrange(100_000):06d}" for seed in range(MESSAGES)]
FILTERS = {"no filters": (), "filters": ("row-0*", "*5")}


def dispatch(consumers: int, filters: tuple[str, ...]) -> float:
    """Takes every message through a dispatcher; returns the processor time of its calls in s, crossings included."""
    dispatcher = Dispatcher(window=WINDOW, consumer_capacity=WINDOW)
    for name in range(consumers):
        # One without filters, so that every key has an owner.
        dispatcher.join(f"consumer-{name}", filters if name else (), now_ms=0)
    delivered: dict[int, tuple[array[int], array[int]]] = {}
    spent_s = 0.0
    start, acknowledged = 0, 0
    while acknowledged < MESSAGES:
        offsets = array("Q", range(start + 1, min(start + BATCH, MESSAGES) + 1))
        keys = KEYS[start : start + BATCH]
        before = time.thread_time()
        taken, actions = dispatcher.offer(offsets, keys, start)
        spent_s += time.thread_time() - before
        start += taken
        note(actions, delivered)
        answers, delivered = delivered, {}
        for consumer, (offsets, attempts) in answers.items():
            before = time.thread_time()
            counted, actions = dispatcher.acknowledge(consumer, offsets, attempts, start)
            spent_s += time.thread_time() - before
            acknowledged += len(counted)
            note(actions, delivered)
    assert dispatcher.cursor == MESSAGES
    assert dispatcher.counts()["deliveries"] == dispatcher.counts()["acked"] == MESSAGES
    return spent_s


def note(actions: list[Action], delivered: dict[int, tuple[array[int], array[int]]]) -> None:
    """Sorts deliveries by consumer, for its answer."""
    for action in actions:
        if isinstance(action, Action.Deliver):
            offsets, attempts = delivered.setdefault(action.consumer, (array("Q"), array("I")))
            offsets.append(action.offset)
            attempts.append(action.attempt)


def plain(consumers: int) -> float:
    """The least that Python needs for the same: owner, one in flight a key, contiguous cursor. No clocks, no limits."""
    ring = Ring([f"consumer-{name}" for name in range(consumers)])
    queues: dict[str, deque[int]] = {}
    unsettled: dict[int, None] = {}
    flight: deque[tuple[int, str, str]] = deque()
    cursor = 0
    before = time.thread_time()
    for offset, key in enumerate(KEYS, 1):
        unsettled[offset] = None
        queue = queues.setdefault(key, deque())
        queue.append(offset)
        if len(queue) == 1:
            flight.append((offset, key, str(ring.owner(key))))
        while len(unsettled) >= BATCH or (offset == MESSAGES and unsettled):
            done, key, _ = flight.popleft()
            del unsettled[done]
            cursor = next(iter(unsettled), MESSAGES + 1) - 1
            queue = queues[key]
            queue.popleft()
            if queue:
                flight.append((queue[0], key, str(ring.owner(key))))
            else:
                del queues[key]
    assert cursor == MESSAGES
    return time.thread_time() - before


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("consumers", [8, 50])
def test_dispatch(benchmark: Any, consumers: int, filters: str) -> None:
    spent = [benchmark(lambda: dispatch(consumers, FILTERS[filters]))]
    if benchmark.enabled:
        pairs = [(dispatch(consumers, FILTERS[filters]), plain(consumers)) for _ in range(ROUNDS)]
        spent_s, plain_s = (min(times) for times in zip(*pairs, strict=True))
        benchmark.extra_info.update(
            peer_over_ours=round(plain_s / spent_s, 2), million_messages_per_s=round(MESSAGES / spent_s / 1e6, 2)
        )
        each_ns = spent_s / MESSAGES * 1e9
        ratio = plain_s / spent_s
        print(f"\n{consumers} consumers, {filters}: {each_ns:.0f} ns a message, {ratio:.1f} times plain Python")
    assert spent[0] > 0
