"""The parts of a hand-over to the application, each by itself: attempts, callbacks, and what is done of a delivery."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

import pytest
from ringcast import Change
from ringcast._common.cancellation import Stopping
from ringcast._common.config import WorkerConfig
from ringcast._common.log import worker_log
from ringcast._common.measures import KeyMeasures, NoMetrics
from ringcast._common.stats import Stats
from ringcast._delivery.attempts import Attempts
from ringcast._delivery.callbacks import Listeners, OwnershipCallbacks
from ringcast._delivery.calls import HandlerCall
from ringcast._delivery.dead_letters import DeadLetterSender, dead_letter_of
from ringcast._delivery.progress import DeliveryProgress
from ringcast_testkit import PATIENCE_S
from ringcast_wire import DeadLetter, UnavailableError, decode_dead_letter, names

LOG = worker_log(logging.getLogger("ringcast"))


def change(partition: int = 0, version: int = 1) -> Change:
    return Change(store="s", key="k", partition=partition, row_id="r", version=version, value="v", deleted=False)


class Tries:
    """Attempts with a handler that fails as often as it is told."""

    def __init__(self, failures: int, *, tries: int = 3) -> None:
        config = WorkerConfig(store="s", keys=("k",), servers=(), worker_id="w", handler_tries=tries)
        self.stats = Stats()
        self.attempts = Attempts(config, self.stats, LOG, stopping=Stopping(), measures=KeyMeasures(NoMetrics()))
        self.call = HandlerCall(change())
        self.calls = 0
        self._failures = failures

    def handler(self, _: Change) -> None:
        self.calls += 1
        if self.calls <= self._failures:
            raise LookupError(self.calls)

    async def run(self) -> BaseException | None:
        return await self.attempts.run(self.handler, self.call)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def pause(self: HandlerCall, delay_s: float) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(HandlerCall, "pause", pause)


@pytest.mark.parametrize(("failures", "calls"), [(0, 1), (2, 3), (3, 3)])
async def test_a_handler_is_called_until_it_succeeds_or_has_had_its_tries(failures: int, calls: int) -> None:
    tries = Tries(failures)
    error = await tries.run()
    assert (tries.calls, tries.stats.handler_failures) == (calls, failures)
    assert isinstance(error, LookupError) is (failures == 3)


async def test_a_lost_partition_ends_the_tries() -> None:
    tries = Tries(3)
    tries.call.lose()
    assert isinstance(await tries.run(), LookupError)
    assert tries.calls == 1


async def test_the_first_call_may_have_been_made_already() -> None:
    tries = Tries(0)
    failed = LookupError("first")
    assert await tries.attempts.run(tries.handler, tries.call, failed) is None
    assert tries.calls == 1

    async def begun() -> None:
        raise failed

    only = Tries(0, tries=1)
    assert await only.attempts.run(only.handler, only.call, begun()) is failed
    assert only.calls == 0


async def test_a_call_that_takes_too_long_is_cancelled_and_fails() -> None:
    tries = Tries(0, tries=1)
    tries.attempts.timeout_s = 0.01

    async def hang(_: Change) -> None:
        await asyncio.Event().wait()

    error = await asyncio.wait_for(tries.attempts.run(hang, tries.call), PATIENCE_S)
    assert isinstance(error, TimeoutError)
    assert tries.stats.handler_timeouts == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
async def test_what_ends_the_process_is_no_failure(error: type[BaseException]) -> None:
    def end(_: Change) -> Awaitable[None] | None:
        raise error

    tries = Tries(0)
    with pytest.raises(error):
        await tries.attempts.run(end, tries.call)
    assert tries.stats.handler_failures == 0


async def test_callbacks_run_one_at_a_time_and_may_fail() -> None:
    calls: list[str] = []
    free = asyncio.Event()

    async def assigned(key: str, partitions: frozenset[int]) -> None:
        calls.append(f"{key} begins {sorted(partitions)}")
        await free.wait()
        calls.append("ends")
        raise LookupError("by mistake")

    def revoked(key: str, partitions: frozenset[int]) -> None:
        calls.append(f"{key} loses {sorted(partitions)}")

    stats = Stats()
    callbacks = OwnershipCallbacks(Listeners(assigned, revoked), stopping=Stopping(), stats=stats, log=LOG)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(callbacks.call("k", True, frozenset({1, 2})))
        await asyncio.sleep(0)
        tasks.create_task(callbacks.call("k", False, frozenset({2})))
        await asyncio.sleep(0.001)
        assert callbacks.running_s > 0
        free.set()
    assert calls == ["k begins [1, 2]", "ends", "k loses [2]"]
    assert (stats.callback_failures, callbacks.running_s) == (1, 0.0)


async def test_a_callback_that_is_not_there_is_not_called() -> None:
    callbacks = OwnershipCallbacks(Listeners(), stopping=Stopping(), stats=Stats(), log=LOG)
    await callbacks.call("k", True, frozenset({1}))
    assert callbacks.running_s == 0


async def test_a_stop_ends_a_callback_and_any_other_cancellation_is_its_failure() -> None:
    async def cancelled(key: str, partitions: frozenset[int]) -> None:
        raise asyncio.CancelledError

    stats, stopping = Stats(), Stopping()
    callbacks = OwnershipCallbacks(Listeners(cancelled), stopping=stopping, stats=stats, log=LOG)
    await asyncio.create_task(callbacks.call("k", True, frozenset({1})))
    assert stats.callback_failures == 1
    stopping.begin()
    with pytest.raises(asyncio.CancelledError):
        await callbacks.call("k", True, frozenset({1}))


def test_partitions_of_a_delivery_are_finished_once_their_changes_are_done() -> None:
    progress = DeliveryProgress()
    progress.done(1)
    assert progress.take_finished() == set(), "nothing is counted"
    progress.expect([change(1), change(1), change(2)])
    progress.done(1)
    progress.done(2)
    assert progress.take_finished() == {2}
    assert progress.take_finished() == set()
    progress.done(1)
    progress.reset()
    assert progress.take_finished() == set()


class Stream:
    """A stream of dead letters that fails as often as it is told."""

    max_bytes = 1_000_000

    def __init__(self, failures: int) -> None:
        self.sent: list[tuple[str, bytes, str]] = []
        self.failed: list[tuple[int, str]] = []
        self.pauses: list[float] = []
        self.sender = DeadLetterSender(self, self._note)
        self._failures = failures

    def _note(self, letter: DeadLetter, error: Exception) -> None:
        self.failed.append((letter.partition, str(error)))

    async def publish(self, subject: str, body: bytes, message_id: str) -> None:
        self.sent.append((subject, body, message_id))
        if len(self.sent) <= self._failures:
            raise UnavailableError("no answer")

    async def pause(self, delay_s: float) -> None:
        self.pauses.append(delay_s)

    async def send(self, *, most: int = 10) -> bool:
        """Sends one that is void after so many failures."""
        letter = dead_letter_of(change(0, 7), error="bad", worker_id="w", tries=3, group="g", replays=1)
        return await self.sender.send(
            letter, replay_id="again", pause=self.pause, is_void=lambda: len(self.failed) >= most
        )


async def test_a_dead_letter_is_sent_under_one_id_until_the_stream_has_it() -> None:
    stream = Stream(failures=2)
    assert await stream.send()
    (subject, body, message_id), *others = stream.sent
    assert [sent[::2] for sent in others] == [(subject, message_id)] * 2
    assert subject == names.dead_subject("s", "k", 0)
    assert message_id.endswith(".again")
    letter = decode_dead_letter(body, "k", 0, 1)
    assert (letter.row_id, letter.version, letter.value, letter.error, letter.tries) == ("r", 7, "v", "bad", 3)
    assert (letter.worker_id, letter.group, letter.replays, letter.observer) == ("w", "g", 1, False)
    assert stream.failed == [(0, "no answer")] * 2
    first_s, second_s = stream.pauses
    assert 0.25 <= first_s <= 0.5 <= second_s <= 1.0


async def test_a_dead_letter_is_not_sent_on_once_its_partition_is_lost() -> None:
    stream = Stream(failures=10)
    assert not await stream.send(most=2)
    assert (len(stream.sent), len(stream.failed)) == (2, 2)
