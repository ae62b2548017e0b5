"""What worker processes have reported, in one list, with a way to wait for more of it."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Report:
    """One line of a worker process. ``life`` tells its processes apart; ``at_ns`` is the machine's monotonic clock."""

    worker_id: str
    life: int
    event: str
    at_ns: int
    fields: dict[str, Any]


class History:
    """Reports in the order of their arrival; safe for use by several threads."""

    def __init__(self) -> None:
        self._reports: list[Report] = []
        self._listeners: list[Callable[[Report], None]] = []
        self._grown = threading.Condition()

    def listen(self, listener: Callable[[Report], None]) -> None:
        """Calls ``listener`` with each report from now on, in the thread that brought it, one at a time."""
        with self._grown:
            self._listeners.append(listener)

    def add(self, report: Report) -> None:
        """Appends a report."""
        with self._grown:
            self._reports.append(report)
            for listener in self._listeners:
                listener(report)
            self._grown.notify_all()

    def reports(self, since: int = 0) -> list[Report]:
        """All that came so far, but for the first ``since``."""
        with self._grown:
            return self._reports[since:]

    def wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Waits until ``condition()``, looked at after each report, is true; returns whether it became so in time."""
        deadline = time.monotonic() + timeout_s
        with self._grown:
            while not condition():
                rest_s = deadline - time.monotonic()
                if rest_s <= 0:
                    return False
                self._grown.wait(min(rest_s, 1.0))
        return True

    def check_tokens(self) -> int:
        """Looks whether calls of handlers kept to exclusive ownership; returns how many there were.

        In the order of time no call of a partition has a lower token than one before, and each token is one process's.
        A call within which its process was halted is excepted, for handlers that run one at a time: it was let start
        before, and says only afterwards that it runs.

        Raises:
            AssertionError: one did not.
        """
        reports = sorted(self.reports(), key=lambda report: report.at_ns)
        calls = [report for report in reports if report.event == "row"]
        halted = _halted_within(reports)
        newest: dict[int, int] = defaultdict(int)
        holders: dict[tuple[int, int], tuple[str, int]] = {}
        for call in calls:
            partition, token = call.fields["partition"], call.fields["token"]
            if id(call) not in halted:
                assert token >= newest[partition] > -1, f"a call after the next owner's: {call}"
                newest[partition] = token
            assert holders.setdefault((partition, token), (call.worker_id, call.life)) == (call.worker_id, call.life)
        return len(calls)


def _halted_within(reports: Iterable[Report]) -> set[int]:
    """The ids of the calls that may have begun before their process was halted: what it reports first when it is back.

    ``reports``: in the order of time.
    """
    found: set[int] = set()
    back: set[str] = set()
    for report in reports:
        if report.event == "resumed":
            back.add(report.worker_id)
        elif report.worker_id in back:
            back.remove(report.worker_id)
            if report.event == "row":
                found.add(id(report))
    return found
