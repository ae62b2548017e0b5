"""The parts of a session and of a running worker, each by itself."""

from __future__ import annotations

import asyncio

import pytest
from ringcast._protocol.actions import Ack, FetchFull
from ringcast._protocol.outbox import Outbox
from ringcast._protocol.partition import Partition
from ringcast._worker.subjects import KeySubjects
from ringcast._worker.tasks import WorkerTasks
from ringcast._worker.wake_timer import WakeTimer
from ringcast_testkit import PATIENCE_S
from ringcast_wire import names


class Subjects:
    """The subjects of a key with four partitions, of which some are owned."""

    def __init__(self, *owned: int) -> None:
        self.partitions = {number: Partition(number, lambda: 0.5) for number in owned}
        self.key = KeySubjects("s", "k", 4, self.partitions)
        self.wanted = self.key.assign(frozenset(owned))

    def deliver(self, *numbers: int) -> None:
        for number in numbers:
            self.partitions[number].confirm_filter()


def test_each_partition_has_a_subject_and_all_of_them_have_one() -> None:
    some, every = Subjects(0, 2), Subjects(0, 1, 2, 3)
    assert some.wanted == {names.notify_subject("s", "k", 0), names.notify_subject("s", "k", 2)}
    assert every.wanted == {names.notify_key_subjects("s", "k")}


def test_partitions_are_ready_once_their_subjects_are_confirmed() -> None:
    subjects = Subjects(0, 2)
    first, second = (names.notify_subject("s", "k", number) for number in (0, 2))
    assert subjects.key.confirmed({first}) == ([0], False)
    subjects.deliver(0)
    assert subjects.key.confirmed({first, second}) == ([2], False)


def test_going_over_to_one_subject_for_all_is_a_reason_to_compare_once() -> None:
    subjects = Subjects(0, 1, 2, 3)
    assert subjects.key.confirmed(subjects.wanted) == ([0, 1, 2, 3], True)
    subjects.deliver(0, 1, 2, 3)
    assert subjects.key.confirmed(subjects.wanted) == ([], False)


def test_what_was_loaded_without_events_is_compared_when_they_come() -> None:
    subjects = Subjects(0, 2)
    late = frozenset({names.notify_subject("s", "k", 2)})
    assert subjects.key.lacks(late, withdrawn=False)
    assert subjects.key.do_without(late) == [2]
    subjects.deliver(0, 2)
    assert subjects.key.lacks(late, withdrawn=False)
    assert subjects.key.do_without(late) == []
    assert subjects.key.confirmed(late) == ([], True)
    assert not subjects.key.lacks(late, withdrawn=False)


def test_events_that_came_and_do_not_any_more_are_lacked_until_they_do() -> None:
    subjects = Subjects(0, 2)
    first, second = (frozenset({names.notify_subject("s", "k", number)}) for number in (0, 2))
    subjects.deliver(0, 2)
    assert not subjects.key.lacks(second, withdrawn=False)  # what can't be added: the server delivers what it did
    assert subjects.key.lose(second)
    assert subjects.key.lacks(second, withdrawn=False)
    assert not subjects.key.lacks(first, withdrawn=False)
    assert not subjects.key.lose(second)
    assert subjects.key.confirmed(second) == ([], True)
    assert not subjects.key.lacks(second, withdrawn=False)


def test_a_key_that_was_left_to_others_still_lacks_what_it_wants() -> None:
    subjects = Subjects(0, 2)
    late = frozenset({names.notify_subject("s", "k", 2)})
    assert subjects.key.narrow(late) == late
    subjects.partitions.clear()
    assert subjects.key.lacks(late, withdrawn=True)
    assert not subjects.key.lacks(frozenset({"other"}), withdrawn=True)


def test_actions_are_given_once_and_numbers_rise() -> None:
    outbox = Outbox()
    outbox.ack([])
    outbox.put(FetchFull(outbox.number()))
    outbox.ack(["t"])
    assert outbox.drain() == [FetchFull(1), Ack(["t"])]
    outbox.put(FetchFull(outbox.number()))
    assert outbox.drain() == [FetchFull(2)]
    assert outbox.drain() == []
    assert outbox.last_number == 2


async def test_a_timer_wakes_at_the_time_that_was_set_last() -> None:
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    timer = WakeTimer(woken.set)
    timer.set(loop.time() + 3600)
    timer.set(loop.time())
    async with asyncio.timeout(PATIENCE_S):
        await woken.wait()
    woken.clear()
    timer.set(loop.time())
    timer.cancel()
    await asyncio.sleep(0.01)
    assert not woken.is_set()


async def test_a_timer_may_be_set_twice_for_a_time_that_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loops of uvloop call at once then: their handle does not say when."""
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    timer = WakeTimer(woken.set)
    with monkeypatch.context() as patched:
        patched.setattr(loop, "call_at", lambda _at, call: loop.call_soon(call))
        for at in (1.0, 1.0, 2.0):
            timer.set(at)
    async with asyncio.timeout(PATIENCE_S):
        await woken.wait()


async def test_tasks_end_together_and_none_begins_after_that() -> None:
    begun: list[str] = []

    async def run(name: str) -> None:
        begun.append(name)
        await asyncio.Event().wait()

    async with asyncio.timeout(PATIENCE_S), WorkerTasks() as tasks:
        tasks.spawn(run("one"))
        tasks.keep("does the other thing", lambda: run("other"))
        await asyncio.sleep(0)
        tasks.end()
        tasks.spawn(run("late"))
    assert begun == ["one", "other"]


async def test_a_task_that_must_not_end_ends_all() -> None:
    async def ends() -> None:
        pass

    async def run() -> None:
        async with WorkerTasks() as tasks:
            tasks.keep("is kept", ends)
            tasks.spawn(asyncio.sleep(3600))

    with pytest.raises(BaseExceptionGroup) as raised:
        await asyncio.wait_for(run(), PATIENCE_S)
    assert "is kept has ended" in str(raised.value.exceptions[0])
