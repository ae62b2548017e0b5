"""How fast the tasks of a job write: by counts over a clock of the test's own, and by the note of a real job."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from pyspark_ringcast._batch.throttle import Reserved, Throttle, Turn
from pyspark_ringcast._client.sink_notes import LEDGER_KEY
from ringcast_testkit import PATIENCE_S
from ringcast_wire.grpc import pb

RATE = 1_000


class VirtualTime:
    """Threads of which one runs at a time, and whose sleeps take no time: it passes when all of them sleep."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0
        self._due: list[tuple[float, int, threading.Event]] = []
        self._numbers = itertools.count()
        self._rests = threading.Semaphore(0)
        self._errors: list[BaseException] = []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        wake = threading.Event()
        heapq.heappush(self._due, (self.now_s + seconds, next(self._numbers), wake))
        self._rests.release()
        assert wake.wait(PATIENCE_S)

    def run(self, *tasks: Callable[[], None]) -> None:
        for task in tasks:
            threading.Thread(target=self._run, args=(task,), daemon=True).start()
            assert self._rests.acquire(timeout=PATIENCE_S)
        while self._due:
            due_s, _, wake = heapq.heappop(self._due)
            self.now_s = max(self.now_s, due_s)
            wake.set()
            assert self._rests.acquire(timeout=PATIENCE_S)
        assert not self._errors, self._errors

    def _run(self, task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001
            self._errors.append(error)
        finally:
            self._rests.release()


class NotesInMemory:
    """Compare-and-set, with a sleep before each call, so that tasks come between each other's."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._turn = Turn(None, 0)
        self.writes = self.conflicts = 0

    def read(self) -> Turn:
        self._time.sleep(0.001)
        return self._turn

    def write(self, reserved: Reserved, version: int) -> int | None:
        self._time.sleep(0.001)
        self.writes += 1
        if version != self._turn.version:
            self.conflicts += 1
            return None
        self._turn = Turn(reserved, version + 1)
        return version + 1


class Job:
    """Tasks that write at one rate; ``sent`` has when how many rows went out."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.notes = NotesInMemory(self.time)
        self.sent: list[tuple[float, int]] = []

    def task(self, rows: int, stalls: dict[int, float] | None = None) -> Callable[[], None]:
        """``stalls``: how many seconds the service takes for a batch, by its number; the others take it 5 ms."""
        throttle = Throttle(RATE, self.notes, clock=self.time.clock, sleep=self.time.sleep)

        def batches() -> Iterator[pb.WriteBatch]:
            for start in range(0, rows, throttle.batch_rows):
                yield pb.WriteBatch(row_ids=["x"] * min(throttle.batch_rows, rows - start))

        def run() -> None:
            for number, batch in enumerate(throttle.paced(batches())):
                self.sent.append((self.time.now_s, len(batch.row_ids)))
                self.time.sleep((stalls or {}).get(number, 0.005))

        return run

    def most_in(self, seconds: float) -> int:
        """Rows that went out in any time so long."""
        return max(sum(rows for at, rows in self.sent if 0 <= at - start < seconds) for start, _ in self.sent)

    @property
    def took_s(self) -> float:
        return max(at for at, _ in self.sent) - min(at for at, _ in self.sent)


@pytest.mark.parametrize("tasks", [1, 3, 40])
def test_all_tasks_together_keep_to_the_rate(tasks: int) -> None:
    job = Job()
    rows = 12_000 // tasks
    job.time.run(*(job.task(rows) for _ in range(tasks)))
    assert sum(count for _, count in job.sent) == rows * tasks
    for seconds in (0.5, 1.0, 3.0, 10.0):
        assert job.most_in(seconds) <= RATE * (seconds + 1)
    assert job.took_s >= rows * tasks / RATE - 1.0
    assert job.took_s <= 2 * rows * tasks / RATE + 1.0, "more than half of the time was wasted"
    assert job.notes.writes - job.notes.conflicts <= 12 + tasks * 6, "turns are not long"
    assert job.notes.conflicts or tasks == 1, "the tasks never met"


def test_what_waited_behind_a_stall_is_no_burst() -> None:
    """The service takes ten seconds for a batch of each task: the turns that they had meanwhile are not made up for."""
    job = Job()
    job.time.run(*(job.task(4_000, {8: 10.0}) for _ in range(5)))
    assert sum(count for _, count in job.sent) == 20_000
    for seconds in (1.0, 5.0):
        assert job.most_in(seconds) <= RATE * (seconds + 1) + 5 * RATE // 20
    assert max(rows for _, rows in job.sent) == RATE // 20


def test_a_job_in_spark(store: Any) -> None:
    """All of its tasks reserve in one note in the store, no faster than the rate."""
    store.write_rows({"old": "1"})
    rows = {f"row-{number}": "1" for number in range(300)}
    rate = 400
    frame = store.frame(rows).repartition(2)
    store.save(frame, mode="overwrite", maxDeleteShare="1", maxRowsPerSecond=str(rate))
    assert store.rows() == rows
    request = pb.HistoryRequest(store=store.name, key=LEDGER_KEY)
    history = [one.row for page in store.stub.History(request) for one in page.revisions]
    assert {row.row_id for row in history} == {f"throttle/{store.key}"}
    notes = [msgspec.json.decode(row.value, type=Reserved) for row in history]
    assert len(notes) >= 3, "two tasks and the deletes of the overwrite have reserved once each"
    assert notes[-1].rows >= 301
    for before, after in itertools.pairwise(notes):
        assert after.until_s - before.until_s >= (after.rows - before.rows) / rate - 1e-6
