"""Where ``ringcast why`` says that a row is stuck, by what is known of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from ringcast.fleet import RowAnswers
from ringcast.topology import Member, Topology
from ringcast_cli._diagnosis.why import Place, RowFacts, Stored, concerned, conclude
from ringcast_wire import WIRE_VERSION, Mode, NodePhase, StoreSettings
from ringcast_wire.reports import ReportRound, RowFailure, RowReport, WorkerKind, WorkerReport

PARTITION = 7
VERSION = 12
STORED = Stored(VERSION, False, 1_700_000_000_000, "host:10.0.0.1")
DELETED = replace(STORED, deleted=True)
ROUND = "0" * 16
UNREAD = "event has wire version 3: this build speaks 1; upgrade it"


def _report(row: dict[str, Any] | None = None, **settings: Any) -> WorkerReport:
    """By default of an owner that has applied the row."""
    facts = {"owned": True, "state": "live", "delivered": True, "heard": VERSION, "applied": VERSION, **(row or {})}
    made: dict[str, Any] = {"kind": WorkerKind.APPLICATION, "history": "h", **settings}
    spans: dict[str, Any] = {"spans": [], "applied": []}
    if facts["owned"]:
        spans = {"spans": [PARTITION, 1], "applied": [facts["applied"]]}
    return WorkerReport(
        WIRE_VERSION,
        ROUND,
        incarnation="i",
        build="0.1.0",
        clock_ms=0,
        assignment="",
        row=RowReport(PARTITION, **facts),
        **spans,
        **made,
    )


@dataclass(frozen=True)
class Case:
    """What is known: by default one owner `w-1`, that has applied the row."""

    place: Place
    sentence: str
    stored: Stored | None = STORED
    reports: dict[str, WorkerReport] = field(default_factory=lambda: {"w-1": _report()})
    published: int | None = VERSION
    owner: str | None = "w-1"
    alive: bool = True
    phase: NodePhase = NodePhase.ACTIVE
    members: tuple[str, ...] = ("w-1", "w-2")
    mode: Mode = Mode.PARTITIONED
    published_history: str = "h"
    unread: str = ""
    unreadable: dict[str, str] = field(default_factory=dict)
    service_problem: str = ""
    bus_problem: str = ""

    @property
    def answers(self) -> RowAnswers | None:
        if self.bus_problem:
            return None
        settings = StoreSettings(partition_count=8, mode=self.mode)
        members = self.members
        owners = [None] * 8 if self.owner is None or self.mode is Mode.FULL else [self.owner] * 8
        topology = Topology(
            "s",
            "k",
            settings,
            tuple(Member(name, 0, self.alive, "host-1", 4711, (), self.phase) for name in members),
            tuple(owners),
        )
        silent = tuple(sorted({*members} - self.reports.keys() - self.unreadable.keys()))
        answered = ReportRound(self.reports, silent, self.unreadable, 0, 0.01)
        return RowAnswers(topology, PARTITION, answered, self.published, self.published_history, "h", self.unread)

    @property
    def facts(self) -> RowFacts:
        return RowFacts("s", "k", "row 1", self.stored, self.answers, self.service_problem, self.bus_problem)


def _owner(row: dict[str, Any], **settings: Any) -> dict[str, WorkerReport]:
    return {"w-1": _report({"applied": VERSION - 1, **row}, **settings), "w-2": _report({"owned": False, "state": ""})}


def _failed(what: RowFailure, **row: Any) -> dict[str, WorkerReport]:
    failed = {"failure": what, "failed_version": VERSION, "failed_ms": 61_000, "error": "ValueError('no')"}
    return _owner({"applied": VERSION, **failed, **row})


CASES = {
    "applied": Case(Place.NOWHERE, "applied by w-1 at revision 12: nothing is stuck"),
    "service away": Case(
        Place.SERVICE,
        "it is not known whether the row is written: no answer; see whether it runs, and whether --service is right",
        stored=None,
        service_problem="no answer",
    ),
    "never written": Case(
        Place.NO_ROW,
        "no such row: it was never written, or deleted longer ago than the config service remembers",
        stored=None,
    ),
    "deleted": Case(
        Place.NO_ROW, "no such row: deleted at revision 12 by host:10.0.0.1, applied by w-1", stored=DELETED
    ),
    "deletion not heard of": Case(
        Place.EVENT,
        "w-1 has not heard of the deletion at revision 12: it knows of partition 7 up to revision 11, "
        "and fetches what it missed when it next asks the config service",
        stored=DELETED,
        reports=_owner({"heard": 11}),
    ),
    "NATS away": Case(
        Place.NATS,
        "revision 12 is written, and waits in the outbox if NATS is away: refused",
        bus_problem="refused",
    ),
    "not published": Case(
        Place.PUBLISH,
        "revision 12 is not published: the outbox of the config service waits for NATS "
        "(the newest event of partition 7 is of revision 11); see the log of the service",
        reports=_owner({"heard": 11}),
        published=11,
    ),
    "not published and no owner": Case(
        Place.PUBLISH,
        "revision 12 is not published: the outbox of the config service waits for NATS "
        "(the newest event of partition 7 is of revision 11); see the log of the service",
        reports={},
        owner=None,
        published=11,
    ),
    "no event at all": Case(
        Place.PUBLISH,
        "revision 12 is not published: the outbox of the config service waits for NATS "
        "(partition 7 has no event); see the log of the service",
        reports=_owner({"heard": 0, "applied": 0}),
        published=None,
    ),
    "event of another history": Case(
        Place.PUBLISH,
        "revision 12 is not published: the outbox of the config service waits for NATS "
        "(the newest event of partition 7 is of another history of the key); see the log of the service",
        reports=_owner({"heard": 3}),
        published=40,
        published_history="old",
    ),
    "fetched before it was published": Case(
        Place.NOWHERE, "applied by w-1 at revision 12: nothing is stuck", published=11
    ),
    "an event of a newer build, by its message id": Case(
        Place.PUBLISH,
        "revision 12 is not published: the outbox of the config service waits for NATS "
        "(the newest event of partition 7 is of revision 11); see the log of the service",
        reports=_owner({"heard": 11}),
        published=11,
        unread=UNREAD,
    ),
    "an event of a newer build, without one": Case(
        Place.UNREAD,
        f"it is not known whether revision 12 is published: {UNREAD}",
        reports=_owner({"heard": 11}),
        published=None,
        unread=UNREAD,
    ),
    "an event of a newer build that is not needed": Case(
        Place.NOWHERE, "applied by w-1 at revision 12: nothing is stuck", published=None, unread=UNREAD
    ),
    "event expired": Case(Place.NOWHERE, "applied by w-1 at revision 12: nothing is stuck", published=None),
    "no owner": Case(
        Place.OWNER,
        "no worker owns partition 7: start a worker of key k",
        reports={},
        owner=None,
        members=(),
        published=None,
    ),
    "owner joins": Case(
        Place.OWNER,
        "no worker owns partition 7: w-1 is about to; look again in a moment",
        reports={},
        owner=None,
        phase=NodePhase.JOINING,
    ),
    "lease ended": Case(
        Place.OWNER,
        "the lease of w-1, which owns partition 7, has ended: another one gets the partition once that is proved",
        reports={},
        alive=False,
    ),
    "handed over": Case(
        Place.OWNER,
        "w-1 is to own partition 7 and does not yet: it is being handed over; look again in a moment",
        reports={"w-1": _report({"owned": False, "state": ""}), "w-2": _report()},
    ),
    "silent": Case(
        Place.WORKER,
        "w-1, which owns partition 7, does not answer: "
        "see whether process 4711 on host host-1 is halted, or cut off from NATS",
        reports={"w-2": _report({"owned": False, "state": ""})},
    ),
    "unreadable": Case(
        Place.WORKER, "the answer of w-1 can't be read: nonsense", reports={}, unreadable={"w-1": "nonsense"}
    ),
    "refused": Case(
        Place.WORKER,
        "w-1 refuses what the config service has: the database is empty",
        reports=_owner({}, refused="the database is empty"),
    ),
    "another history": Case(
        Place.WORKER,
        "w-1 has another history of the key than the config service: it has to fetch all rows again",
        reports=_owner({"applied": 40, "heard": 40}, history="old"),
    ),
    "no events": Case(
        Place.EVENT,
        "w-1 has not heard of revision 12: its consumer can't be made",
        reports=_owner({"heard": 11}, failing="its consumer can't be made"),
    ),
    "loading": Case(
        Place.EVENT,
        "w-1 does not have revision 12: it still loads partition 7; see whether the config service answers it",
        reports=_owner({"heard": 0, "applied": 0, "state": "loading"}),
    ),
    "loading, heard": Case(
        Place.EVENT,
        "w-1 does not have revision 12: it still loads partition 7; see whether the config service answers it",
        reports=_owner({"heard": 12, "applied": 0, "state": "loading_afresh"}),
    ),
    "not delivered": Case(
        Place.EVENT,
        "w-1 has not heard of revision 12: NATS does not deliver the events of partition 7 to it yet; "
        "look again in a moment",
        reports=_owner({"heard": 11, "delivered": False}),
    ),
    "stale": Case(
        Place.EVENT,
        "w-1 has not heard of revision 12: it knows of partition 7 up to revision 11 and is stale for 35 s: "
        "see its connection to NATS",
        reports=_owner({"heard": 11}, stale_ms=35_000),
    ),
    "handler runs": Case(
        Place.HANDLER,
        "w-1 has a handler call of row row 1 that runs for 41 s: see what its handler waits for",
        reports=_owner({"calling_ms": 41_000}),
    ),
    "behind another": Case(
        Place.HANDLER,
        "w-1 has a handler call of row other that runs for 4.1 s, and revision 12 waits behind it: "
        "see what its handler waits for",
        reports=_owner({"ahead": "other", "ahead_ms": 4_100}),
    ),
    "heard": Case(
        Place.HANDLER,
        "w-1 has heard of revision 12 and not applied it: partition 7 is applied up to revision 11; "
        "look again in a moment",
        reports=_owner({}),
    ),
    "retrying": Case(
        Place.HANDLER,
        "the handler of w-1 fails with the row, and is called again: ValueError('no')",
        reports=_failed(RowFailure.RETRYING, applied=11, calling_ms=500),
    ),
    "blocked": Case(
        Place.BLOCKED,
        "w-1 blocks the row since 61 s: ValueError('no'); mend the handler, then call Worker.unblock",
        reports=_failed(RowFailure.BLOCKED),
    ),
    "dead letter": Case(
        Place.DEAD_LETTERED,
        "it was dead-lettered by w-1 61 s ago: ValueError('no'); "
        "see ringcast dead-letters list s --key k --row 'row 1'",
        reports=_failed(RowFailure.DEAD_LETTERED),
    ),
    "dead letter not taken": Case(
        Place.DEAD_LETTERED,
        "w-1 gave it up 61 s ago, and NATS does not take the dead letter: ValueError('no'); see whether NATS is full",
        reports=_failed(RowFailure.SENDING, applied=11),
    ),
    "dropped": Case(
        Place.DROPPED,
        "it was dropped by w-1 61 s ago: ValueError('no'); mend the handler, then write the row again",
        reports=_failed(RowFailure.DROPPED),
    ),
    "dead letter of an earlier write": Case(
        Place.NOWHERE,
        "applied by w-1 at revision 12: nothing is stuck",
        reports=_failed(RowFailure.DEAD_LETTERED, failed_version=11),
    ),
    "agent": Case(
        Place.NOWHERE,
        "w-1 has it at revision 12: how far its groups are, says ringcast groups list s k",
        reports={"w-1": _report(kind=WorkerKind.GROUPS)},
    ),
    "full, one behind": Case(
        Place.EVENT,
        "w-2 has not heard of revision 12: it knows of partition 7 up to revision 11, "
        "and fetches what it missed when it next asks the config service",
        reports={"w-1": _report(), "w-2": _report({"applied": 11, "heard": 11})},
        mode=Mode.FULL,
    ),
    "full, all applied": Case(
        Place.NOWHERE,
        "applied by w-1 and 1 more at revision 12: nothing is stuck",
        reports={"w-1": _report(), "w-2": _report()},
        mode=Mode.FULL,
    ),
    "full, nobody": Case(
        Place.OWNER,
        "no worker answers: see whether one runs and is not halted",
        reports={"looks": _report({"owned": True}, kind=WorkerKind.OBSERVER)},
        members=(),
        mode=Mode.FULL,
    ),
    "full, one silent": Case(
        Place.WORKER,
        "w-2, which has every partition, does not answer: see whether process 4711 on host host-1 is halted, or cut "
        "off from NATS",
        mode=Mode.FULL,
    ),
    "full, all silent": Case(
        Place.WORKER,
        "w-1, which has every partition, does not answer: see whether process 4711 on host host-1 is halted, or cut "
        "off from NATS",
        reports={},
        mode=Mode.FULL,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_place_where_a_row_is_stuck(case: Case) -> None:
    found = conclude(case.facts)
    assert (found.sentence, found.place) == (case.sentence, case.place)


def test_each_place_has_a_case() -> None:
    assert {case.place for case in CASES.values()} == {*Place}


def test_an_owner_that_is_silent_is_among_those_concerned() -> None:
    answers = CASES["silent"].answers
    assert answers is not None
    assert concerned(answers) == ("w-1",)
