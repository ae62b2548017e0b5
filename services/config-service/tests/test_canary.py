"""Which partitions the workers with a label own, by one round of reports; and what is refused, with all that lacks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import grpc.aio
import pytest
from ringcast_config_service.releases import canaries
from ringcast_config_service.releases.canaries import Canaries
from ringcast_config_service.releases.canary import LabelledOwners, labelled_owners
from ringcast_config_service.releases.fleet import FleetRound
from ringcast_config_service.releases.proof import Fleet, Registration
from ringcast_config_service.repository import Canary, Release
from ringcast_wire import (
    WIRE_VERSION,
    ConditionFailedError,
    InvalidInputError,
    LimitExceededError,
    Mode,
    ReleaseState,
    UnavailableError,
    limits,
)
from ringcast_wire.grpc import error_from_rpc, pb
from ringcast_wire.reports import ReportRound, WorkerKind, WorkerReport, spans_of

LABEL = "site=test"


def report(*owned: int, labels: tuple[str, ...] = (), **facts: Any) -> WorkerReport:
    said = {"kind": WorkerKind.APPLICATION, "assignment": "one", **facts}
    spans, applied = spans_of(sorted(owned)), [0] * len(owned)
    return WorkerReport(
        WIRE_VERSION, "0" * 16, "i", "0", 1, history="h", spans=spans, applied=applied, labels=list(labels), **said
    )


def asked(table: int = 0, **reports: WorkerReport | None) -> FleetRound:
    """A round in which all take part and answer, but for those without a report."""
    workers = {name: Registration(name, 1) for name in reports}
    fleet = Fleet(workers, dict.fromkeys(reports, "i"), table=table)
    answers = {name: each for name, each in reports.items() if each is not None}
    return FleetRound(fleet, ReportRound(answers, (), {}, 0, 0.0), fleet)


def owners(found: FleetRound, partitions: range = range(4)) -> LabelledOwners:
    return labelled_owners(LABEL, "k", partitions, *found)


def test_the_partitions_of_workers_with_the_label_are_found() -> None:
    found = asked(
        a=report(0, 3, labels=("rack=r1", LABEL)),
        b=report(1, labels=("site=tests",)),
        c=report(2),  # of an older build, which has no labels
        d=report(4, 5, labels=(LABEL,)),
    )
    assert owners(found) == LabelledOwners(("a", "d"), frozenset({0, 3}), shared=True)
    assert owners(found, range(5)).partitions == {0, 3, 4}
    assert owners(asked(a=report(*range(4), labels=(LABEL,)), b=report())) == LabelledOwners(
        ("a",), frozenset(range(4)), shared=False
    ), "a worker without partitions is spared nothing"
    assert owners(asked()) == LabelledOwners(), "a key without workers"


@pytest.mark.parametrize(
    ("found", "lack"),
    [
        (asked(a=report(0, 1, labels=(LABEL,)), b=None), "worker b does not answer"),
        (asked(a=report(0, 1), b=report(2, 3, assignment="two")), "workers a and b share the partitions out in two"),
        (asked(a=report(0, 1, 2, 3, assignment="")), "worker a knows of no assignment of the partitions yet"),
        (asked(a=report(0, 1, 2)), "no worker owns partition 3"),
        (asked(a=report(0, 1, 2), b=report(2, 3)), "more than one worker owns partition 2"),
        (asked(table=7, a=report(0, 1, 2, 3, assignment="epoch 6")), "do not go by the table of owners 7"),
    ],
)
def test_owners_that_are_not_certain_are_none(found: FleetRound, lack: str) -> None:
    said = owners(found)
    assert said.lack is not None
    assert lack in said.lack.sentence
    assert (said.workers, said.partitions) == ((), frozenset())


def test_a_worker_that_comes_meanwhile_makes_it_uncertain() -> None:
    found = asked(a=report(0, 1, 2, 3, labels=(LABEL,)))
    after = Fleet({**found.after.workers, "b": Registration("b", 2)}, {"a": "i", "b": "i"})
    said = owners(found._replace(after=after))
    assert said.lack is not None
    assert said.lack.sentence == "worker b has come, gone or started again meanwhile"
    unreadable = replace(found.before, workers={}, leases={}, unreadable=("k.b",))
    said = owners(found._replace(before=unreadable))
    assert said.lack is not None
    assert said.lack.sentence == "what NATS has under k.b can't be read"


@dataclass
class System:
    """A store, the keys of a release, and what a round with the workers of each says."""

    keys: dict[str, set[int]]
    rounds: dict[str, FleetRound]
    mode: Mode = Mode.PARTITIONED
    asked: list[str] = field(default_factory=list)
    rows: int = 10
    bytes: int = 100

    @property
    def stores(self) -> System:
        return self

    @property
    def releases(self) -> System:
        return self

    @property
    def settings_now(self) -> System:
        return self

    async def get_record(self, _store: str) -> System:
        return self

    async def key_partitions(self, _store: str, _number: int) -> dict[str, set[int]]:
        return self.keys

    async def ask_fleet(self, _nc: Any, _js: Any, _store: Any, key: str) -> FleetRound:
        self.asked.append(key)
        return self.rounds[key]

    async def find(self, monkeypatch: pytest.MonkeyPatch) -> Canary:
        monkeypatch.setattr(canaries, "ask_fleet", self.ask_fleet)
        none: Any = None
        me: Any = self
        counts = (self.rows, self.bytes, 1, 0, 0, 0, 0)
        words = ("s", 1, "one", ReleaseState.STAGED, "", True, *counts, "alice", "", "", "", "", 0, 0, 0)
        return await Canaries(none, none, me).find(Release(*words), LABEL)


MIXED = asked(a=report(0, 1, labels=(LABEL,)), b=report(2, 3))
OTHERWISE = asked(a=report(1, 2, labels=(LABEL,)), b=report(0, 3))
NOBODY = asked(a=report(0, 1), b=report(2, 3))


async def test_a_partition_is_in_if_its_owners_have_the_label_in_each_key_that_is_written_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await System({"k": {0, 2, 3}}, {"k": MIXED}).find(monkeypatch) == Canary(LABEL, frozenset({0}))
    both = {"k": MIXED, "l": OTHERWISE}
    assert (await System({"k": {0, 1, 2}, "l": {1, 2}}, both).find(monkeypatch)).partitions == {0, 1}
    system = System({"k": {0, 1}, "l": {3}}, {"k": MIXED, "l": asked()})
    assert (await system.find(monkeypatch)).partitions == {0, 1}, "a key without workers has none"
    assert sorted(system.asked) == ["k", "l"]


@pytest.mark.parametrize(
    ("keys", "rounds", "why"),
    [
        ({"k": {0}}, {"k": NOBODY}, "no worker of its keys has this label"),
        ({"k": {0}}, {"k": asked()}, "no worker of its keys has this label"),
        ({"k": {2}}, {"k": MIXED}, "no partition that it writes to has an owner with this label"),
        (
            {"k": {0}, "l": {0}},
            {"k": MIXED, "l": OTHERWISE},
            "no partition that it writes to has an owner with this label, in each key that it writes to there",
        ),
        (
            {"k": {0}},
            {"k": asked(a=report(0, 1, labels=(LABEL,)))},
            "workers with this label own all partitions of its keys, so nobody would be spared",
        ),
    ],
)
async def test_what_can_be_no_canary_is_refused(
    keys: dict[str, set[int]], rounds: dict[str, FleetRound], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConditionFailedError) as caught:
        await System(keys, rounds).find(monkeypatch)
    assert str(caught.value) == f"release 1 of store 's' can't be published with the canary {LABEL}: {why}"
    assert caught.value.field == "canary"


EVERYWHERE = asked(a=report(0, 1, labels=(LABEL,), assignment=""), b=report(0, 1, assignment=""))


async def test_in_mode_full_no_partition_is_the_canarys_and_its_workers_lay_the_rows_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = System({"k": {0}, "l": {1}}, {"k": EVERYWHERE, "l": EVERYWHERE}, Mode.FULL)
    assert await system.find(monkeypatch) == Canary(LABEL, frozenset(), provisional=True)


@pytest.mark.parametrize(
    ("rounds", "why"),
    [
        ({"k": NOBODY, "l": NOBODY}, "no worker of its keys has this label"),
        ({"k": EVERYWHERE, "l": NOBODY}, "no worker of its key 'l' has this label"),
        ({"k": EVERYWHERE, "l": asked()}, "no worker of its key 'l' has this label"),
        (
            dict.fromkeys("kl", asked(a=report(0, 1, labels=(LABEL,)))),
            "workers with this label own all partitions of its keys, so nobody would be spared",
        ),
    ],
)
async def test_what_can_be_no_canary_of_mode_full_is_refused(
    rounds: dict[str, FleetRound], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConditionFailedError) as caught:
        await System({"k": {0}, "l": {0}}, rounds, Mode.FULL).find(monkeypatch)
    assert str(caught.value) == f"release 1 of store 's' can't be published with the canary {LABEL}: {why}"
    silent = asked(a=report(0, 1, labels=(LABEL,)), b=None)
    with pytest.raises(UnavailableError, match="worker b does not answer"):
        await System({"k": {0}}, {"k": silent}, Mode.FULL).find(monkeypatch)


@pytest.mark.parametrize(("rows", "size"), [(100_001, 100), (10, 64 * limits.MIB + 1)])
async def test_what_workers_do_not_lay_over_is_refused_before_they_are_asked(
    monkeypatch: pytest.MonkeyPatch, rows: int, size: int
) -> None:
    system = System({"k": {0}}, {}, Mode.FULL, rows=rows, bytes=size)
    with pytest.raises(LimitExceededError) as caught:
        await system.find(monkeypatch)
    what = f"it has {rows} rows, the limit is 100000" if rows > 10 else f"it has {size} bytes, the limit is 67108864"
    place = "release 1 of store 's' can't be published with a canary in a store of mode FULL"
    assert str(caught.value) == f"{place}: {what}"
    assert (caught.value.field, system.asked) == ("canary", [])


async def test_who_does_not_answer_is_named_and_it_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = asked(a=report(0, 1, labels=(LABEL,)), b=None)
    with pytest.raises(UnavailableError, match="who owns what of 'k' is not known: worker b does not answer"):
        await System({"k": {0}}, {"k": silent}).find(monkeypatch)


async def test_the_place_of_a_canary_among_the_waves_is_a_0(service: Any, store_name: str) -> None:
    """A service that knows of no canary refuses the 0, and so never publishes to others than were asked for."""
    await service.create(store_name)
    for waves in ([], [10, 100], [100]):
        request = pb.PublishReleaseRequest(store=store_name, number=1, waves=waves, canary=LABEL)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.stub.PublishRelease(request)
        error = error_from_rpc(caught.value)
        assert isinstance(error, InvalidInputError)
        assert error.field == "waves"
        assert str(error) == "waves must begin with 0 where there is a canary: that is its wave"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.stub.PublishRelease(pb.PublishReleaseRequest(store=store_name, number=1, waves=[0, 10, 100]))
    assert "waves 0,10,100 are not allowed" in str(error_from_rpc(caught.value))
