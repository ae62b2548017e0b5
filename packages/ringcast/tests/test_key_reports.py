"""What a key reports of itself: how late it may be, and the lines of its log."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from ringcast._common.log import worker_log
from ringcast._common.measures import KeyMeasures, NoMetrics
from ringcast._common.stats import Trigger
from ringcast._protocol.actions import HistoryChanged, MissedEvents, Restored
from ringcast._protocol.key import KeyMachine
from ringcast._protocol.key_history import Refusal
from ringcast._protocol.snapshots import CachedPartition
from ringcast._worker.journal import KeyJournal
from ringcast._worker.staleness import KeyStaleness
from ringcast._worker.telemetry import KeyTelemetry
from ringcast_wire import ProtocolError, Row

REFUSAL = Refusal(history="h2", gone=9, rows=10, live=1, heads=4)


@dataclass
class Parts:
    """What the staleness of a key is read from: the bus, fetches, anti-entropy, the handler and the vitals in one."""

    lost_for_s: float = 0.0
    failing_since: float | None = None
    unanswered_since: float | None = None
    oldest_s: float = 0.0
    callback_running_s: float = 0.0
    failing_for_s: float = 0.0

    @property
    def calls(self) -> Parts:
        return self


@dataclass
class Key:
    """A key of four partitions at a time that the test sets."""

    parts: Parts = field(default_factory=Parts)
    machine: KeyMachine = field(
        default_factory=lambda: KeyMachine("s", "k", full=False, partition_count=4, random=lambda: 0.5)
    )

    def __post_init__(self) -> None:
        parts = cast(Any, self.parts)
        self.staleness = KeyStaleness(
            parts,
            self.machine,
            fetches=parts,
            anti_entropy=parts,
            applier=parts,
            vitals=parts,
            handler_stall_s=30.0,
        )


class Clock:
    """The event loop's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)


async def test_nothing_is_late_at_first() -> None:
    assert Key().staleness.total_s == 0


@pytest.mark.parametrize(
    ("parts", "total_s"),
    [
        (Parts(lost_for_s=3), 3),
        (Parts(failing_since=96.0), 4),
        (Parts(unanswered_since=95.0), 5),
        (Parts(oldest_s=29.0), 0),
        (Parts(oldest_s=31.0), 31),
        (Parts(callback_running_s=32.0), 32),
        (Parts(failing_for_s=6), 6),
        (Parts(lost_for_s=3, failing_since=91.0, failing_for_s=6), 9),
    ],
)
async def test_the_longest_counts(parts: Parts, total_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    assert Key(parts).staleness.total_s == total_s


async def test_a_partition_without_rows_is_late_from_the_time_it_was_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, key = Clock(monkeypatch), Key()
    key.machine.assign(frozenset({1}))
    key.staleness.owned({1})
    clock.now += 5
    key.machine.assign(frozenset({1, 2}))
    key.staleness.owned({1, 2})
    clock.now += 1
    assert key.staleness.unloaded_for_s == 6, "being assigned again changes nothing"
    key.machine.assign(frozenset({2}))
    key.staleness.owned({2})
    assert key.staleness.unloaded_for_s == 1


async def test_rows_from_the_disk_are_as_old_as_the_disk_says(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    key = Key()
    rows = {"a": Row("a", "1", 1)}
    key.machine.restore(
        [CachedPartition(n, 1, rows, {}, as_of) for n, as_of in ((0, 70.0), (1, 40.0))], hand_over=False
    )
    assert key.staleness.cached_age_s == 60
    assert key.staleness.unloaded_for_s == 0


async def test_a_refused_history_is_late_until_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, key = Clock(monkeypatch), Key()
    key.staleness.refused()
    clock.now += 5
    assert key.staleness.refused_for_s == 0
    monkeypatch.setattr(key.machine.history, "refusal", REFUSAL)
    assert key.staleness.refused_for_s == 5


class Journal:
    """A journal, and the events that it has logged."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, "ringcast")
        self._caplog = caplog
        self.measures = KeyMeasures(NoMetrics())
        self.journal = KeyJournal(KeyTelemetry(worker_log(logging.getLogger("ringcast")), self.measures), 0.5)

    def lines(self) -> list[tuple[str, str]]:
        return [(record.levelname, record.getMessage()) for record in self._caplog.records]


def test_a_rebalance_names_every_partition_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(caplog)
    journal.journal.rebalanced(Trigger.JOIN, frozenset({3, 1}), frozenset({2}), 5)
    assert journal.measures.rebalances[Trigger.JOIN] == 1
    assert journal.lines() == [
        ("INFO", f"event=assignment.changed trigger={Trigger.JOIN} gained=2 lost=1 owned=5"),
        ("INFO", "event=partition.released partition=2"),
        ("INFO", "event=partition.acquired partition=1"),
        ("INFO", "event=partition.acquired partition=3"),
    ]


def test_what_went_wrong_is_logged_with_its_facts(caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(caplog)
    journal.journal.unreadable(2, ProtocolError("cut"))
    journal.journal.missed(MissedEvents(3))
    journal.journal.history_changed(HistoryChanged("h1", "h2"))
    journal.journal.restored(Restored(1, 9, 4))
    journal.journal.refused(REFUSAL)
    assert journal.lines() == [
        ("ERROR", "event=event.unreadable partition=2 error=cut"),
        ("WARNING", "event=events.missed partition=3"),
        ("WARNING", "event=history.changed before=h1 after=h2"),
        ("ERROR", "event=partition.revision_went_back partition=1 applied=9 head=4"),
        ("ERROR", "event=history.refused history=h2 missing=9 held=10 max_delete_share=0.5"),
    ]


def test_a_refusal_has_a_reason_and_no_refusal_has_none(caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(caplog).journal
    assert journal.reason(None) == ""
    assert journal.reason(REFUSAL).startswith("9 of 10 rows are missing in the service's new history")
