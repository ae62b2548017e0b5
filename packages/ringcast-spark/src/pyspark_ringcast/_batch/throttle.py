"""A bound on the rows a second of all tasks that write to a key, wherever they run.

Tasks share nothing but the store. So a row of it says until when the rate is taken: a task reserves the time that its
next rows need, by compare-and-set, behind what others have reserved, and sends them batch by batch in that time. Tasks
take turns in this way, and their number does not matter.

Bounds: in any ``t`` seconds no more than ``rate * (t + 1)`` rows are sent (a batch is sent at the beginning of its
time, and one that is a second late, behind a stall, is not sent before time is reserved again). A task that ends leaves
at most as much time unused as it has used. A node whose clock is behind by ``s`` seconds sends its turns ``s`` seconds
late, beside those of others.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

import msgspec
from ringcast_wire import ConditionFailedError
from ringcast_wire.grpc import pb

from pyspark_ringcast._client.sink_notes import read_note, write_note
from pyspark_ringcast._common.options import Options

_BATCHES_A_SECOND: Final = 20
"""Small batches hold up other clients for less time each than large ones do."""
_LONGEST_TURN_S: Final = 1.0
_LATE_S: Final = 1.0
_RETRY_S: Final = 0.05


class Reserved(msgspec.Struct, frozen=True):
    """What is taken of the rate: ``rows`` in all, since ``began_s``, until ``until_s`` (Unix time)."""

    rows: float
    began_s: float
    until_s: float


class Turn(NamedTuple):
    """The note as it was found, and the version of its row; none, and 0, where there is no row."""

    reserved: Reserved | None
    version: int


class Notes(Protocol):
    """Where the tasks of all jobs find what is reserved."""

    def read(self) -> Turn:
        """The note as it is."""

    def write(self, reserved: Reserved, version: int) -> int | None:
        """Replaces the note of ``version``; its new version, or ``None`` if another task was faster."""


class StoreNotes:
    """The note as a row of the sinks' own key."""

    def __init__(self, options: Options) -> None:
        """Asks for nothing yet."""
        self._options = options
        self._row_id = f"throttle/{options.key}"

    def read(self) -> Turn:
        """Raises ``RingcastError`` if the service refuses or stays away."""
        found = read_note(self._options, self._row_id, Reserved)
        return Turn(*found) if found else Turn(None, 0)

    def write(self, reserved: Reserved, version: int) -> int | None:
        """Raises as :meth:`read`."""
        condition = {"if_version": version} if version else {"if_absent": True}
        try:
            return write_note(self._options, self._row_id, reserved, **condition)
        except ConditionFailedError:
            return None


class Throttle:
    """Lets the batches of one task through at their times."""

    def __init__(
        self,
        rate: int,
        notes: Notes,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``rate``: rows a second. ``clock``: Unix time, by which all tasks go."""
        self._rate = rate
        self._notes = notes
        self._clock = clock
        self._sleep = sleep
        self._found: Turn | None = None
        self._next_s = self._end_s = 0.0
        self._turn_rows = 0.0

    @property
    def batch_rows(self) -> int:
        """How many rows a batch should have at most: a twentieth of a second."""
        return max(1, self._rate // _BATCHES_A_SECOND)

    def paced(self, batches: Iterator[pb.WriteBatch]) -> Iterator[pb.WriteBatch]:
        """The same batches, each when it is due.

        Raises:
            RingcastError: the service refused, or did not answer in time.
        """
        for batch in batches:
            self._wait(len(batch.rows) + len(batch.row_ids))
            yield batch

    def _wait(self, rows: int) -> None:
        needed_s = rows / self._rate
        while True:
            late = self._clock() - self._next_s > _LATE_S
            if late or self._next_s + needed_s > self._end_s + 1e-6:
                self._reserve(rows)
            self._sleep_until(self._next_s)
            if self._clock() - self._next_s <= _LATE_S:
                self._next_s += needed_s
                return

    def _reserve(self, rows: int) -> None:
        """The next turn: twice as long as the one before, so that the last one wastes no more than was used."""
        self._turn_rows = max(rows, min(2 * self._turn_rows, self._rate * _LONGEST_TURN_S))
        found = self._found or self._notes.read()
        while True:
            now = self._clock()
            before = found.reserved or Reserved(0, now, now)
            start_s = max(now, before.until_s)
            wanted = Reserved(before.rows + self._turn_rows, before.began_s, start_s + self._turn_rows / self._rate)
            version = self._notes.write(wanted, found.version)
            if version is not None:
                self._found = Turn(wanted, version)
                self._next_s, self._end_s = start_s, wanted.until_s
                return
            self._sleep(random.uniform(0.0, _RETRY_S))  # noqa: S311
            found = self._notes.read()

    def _sleep_until(self, due_s: float) -> None:
        while (left_s := due_s - self._clock()) > 0:
            self._sleep(left_s)
