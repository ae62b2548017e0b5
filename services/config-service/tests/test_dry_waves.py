"""What the answers of the workers say of a dry wave, and what the service gives to workers of a staged release."""

from __future__ import annotations

from typing import Any

import grpc.aio
import pytest
from ringcast_config_service.releases.dry_waves import Judged, judged_by
from ringcast_config_service.releases.fleet import FleetRound
from ringcast_config_service.releases.proof import Fleet, Registration
from ringcast_wire import (
    WIRE_VERSION,
    ConditionFailedError,
    InvalidInputError,
    ProtocolError,
    StoreDeletedError,
    UnknownStoreError,
    limits,
)
from ringcast_wire.grpc import error_from_rpc, pb
from ringcast_wire.reports import (
    DryRefusal,
    DryWaveReport,
    DryWaveRequest,
    DryWaveState,
    ReportRound,
    StagedRequest,
    WorkerKind,
    WorkerReport,
    decode_staged_reply,
    encode_staged,
    spans_of,
)

LABEL = "site=test"
ID = "0123456789abcdef"
ASKED = DryWaveRequest(ID, 7, LABEL, [0, 3])
PARTITIONS = 8


def report(*owned: int, label: bool = True, dry_wave: DryWaveReport | None = None) -> WorkerReport:
    words = WIRE_VERSION, "0" * 16, "i", "0", 1, WorkerKind.APPLICATION, "one", "h"
    labels = [LABEL] if label else []
    return WorkerReport(*words, spans_of(sorted(owned)), [0] * len(owned), labels=labels, dry_wave=dry_wave)


def asked(**reports: WorkerReport | None) -> FleetRound:
    """A round in which all take part and answer, but for those without a report."""
    workers = {name: Registration(name, 1) for name in reports}
    fleet = Fleet(workers, dict.fromkeys(reports, "i"))
    answers = {name: each for name, each in reports.items() if each is not None}
    return FleetRound(fleet, ReportRound(answers, (), {}, 0, 0.0), fleet)


def said(*judged: int, state: DryWaveState = DryWaveState.JUDGED, rows: int = 0, **facts: Any) -> DryWaveReport:
    return DryWaveReport(facts.pop("id", ID), state, spans_of(sorted(judged)), rows, **facts)


BAD = DryRefusal("bad", "why")


@pytest.mark.parametrize(
    ("reports", "judged"),
    [
        (
            {
                "a": report(0, 2, 7, dry_wave=said(0, 2, rows=5)),
                "b": report(1, dry_wave=said(1, rows=2, refused=1, refusals=[BAD])),
                "c": report(3, 4, label=False),
                "d": report(5, dry_wave=said(state=DryWaveState.UNABLE)),
            },
            Judged(7, 1, (("b", BAD),)),
        ),
        (
            {"a": report(0, 1, 2, dry_wave=said(0, 1, 2, state=DryWaveState.JUDGING, rows=3))},
            Judged(3, 0, waits_for="worker a has judged 3 rows"),
        ),
        ({"a": report(0, 1, dry_wave=said(0, 1))}, Judged(waits_for="no worker has judged partition 2")),
        ({}, Judged(waits_for="no worker is registered and alive")),
        (
            {"a": report(0, 1, 2, dry_wave=said(0, 1, 2, rows=3)), "b": None},
            Judged(3, 0, waits_for="worker b does not answer"),
        ),
    ],
)
def test_how_far_the_workers_are(reports: dict[str, WorkerReport | None], judged: Judged) -> None:
    assert judged_by("k", ASKED, *asked(**reports)) == judged


@pytest.mark.parametrize(
    ("worker", "failed", "impossible"),
    [
        (report(2, label=False), "partition 2 has gone to worker b, which has not the label", ""),
        (report(2, dry_wave=said()), "partition 2 has come to worker b meanwhile", ""),
        (
            report(2, dry_wave=said(2, state=DryWaveState.FAILED, why="it is gone")),
            "worker b has not judged them: 'it is gone'",
            "",
        ),
        (
            report(2, dry_wave=said(state=DryWaveState.UNABLE)),
            "",
            "the application of worker b has no validate",
        ),
        (report(2), "", "worker b is of an older build, which knows no dry waves"),
        (report(2, dry_wave=said(2, id="f" * 16)), "", "worker b is of an older build, which knows no dry waves"),
    ],
)
def test_what_ends_it(worker: WorkerReport, failed: str, impossible: str) -> None:
    found = judged_by("k", ASKED, *asked(a=report(0, 1, dry_wave=said(0, 1)), b=worker))
    assert (found.failed, found.impossible) == (failed, impossible)


def test_in_mode_full_each_worker_with_the_label_judges_all() -> None:
    whole = [0, 1, 2]
    a, b = (report(*whole, dry_wave=said(*whole, rows=5)) for _ in range(2))
    other = report(*whole, label=False)
    assert judged_by("k", ASKED, *asked(a=a, b=b, c=other), full=True) == Judged(10)
    late = report(*whole, dry_wave=said(*whole, state=DryWaveState.JUDGING, rows=2))
    assert judged_by("k", ASKED, *asked(a=a, b=late, c=other), full=True).waits_for == "worker b has judged 2 rows"
    assert judged_by("k", ASKED, *asked(a=a, c=None), full=True).waits_for == "worker c does not answer"
    gone = judged_by("k", ASKED, *asked(c=other), full=True)
    assert gone.waits_for == "no worker has judged partition 0 and 2 more"


async def test_the_place_of_a_dry_wave_among_the_waves_is_a_second_0(service: Any, store_name: str) -> None:
    """A service that knows of none refuses the waves, and so publishes nothing that was to be judged before."""
    await service.create(store_name)
    for waves, what in (([], "canary"), ([0, 100], "dry wave"), ([100], "canary")):
        request = pb.PublishReleaseRequest(store=store_name, number=1, waves=waves, canary=LABEL, dry_wave=True)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.stub.PublishRelease(request)
        error = error_from_rpc(caught.value)
        assert isinstance(error, InvalidInputError)
        assert str(error) == f"waves must begin with 0 where there is a {what}: that is its wave"
    for label in (LABEL, ""):
        request = pb.PublishReleaseRequest(store=store_name, number=1, waves=[0, 0, 100], canary=label)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.stub.PublishRelease(request)
        assert "are not allowed" in str(error_from_rpc(caught.value))


async def _stage(service: Any, store: str, rows: dict[str, str]) -> int:
    """One row in each batch."""
    for sequence, (name, value) in enumerate(rows.items()):
        write = pb.KeyedWrite(key="k", row=pb.RowWrite(row_id=name, value=value, if_absent=True))
        last = sequence == len(rows) - 1
        request = pb.StageReleaseRequest(store=store, stage_id="one", sequence=sequence, rows=[write], complete=last)
        number = int((await service.stub.StageRelease(request)).number)
    return number


async def _staged(service: Any, store: str, number: int, spans: list[int], after: int = 0, key: str = "k") -> Any:
    payload = encode_staged(StagedRequest(WIRE_VERSION, number, spans, after))
    return decode_staged_reply(await service.fetch(store, "staged", payload, key=key))


async def test_workers_get_what_is_staged_and_only_that(service: Any, store_name: str) -> None:
    """In pages, of the partitions and the key that they ask for, and as long as it is staged."""
    await service.create(store_name, partition_count=PARTITIONS)
    rows = {f"row{number}": "x" * 900_000 for number in range(10)}
    number = await _stage(service, store_name, rows)
    found: list[str] = []
    pages = after = 0
    while True:
        page = await _staged(service, store_name, number, [0, PARTITIONS], after)
        found += [row.row_id for row in page.rows]
        if not page.next:
            break
        assert len(page.rows) * 900_000 <= limits.MAX_BATCH_BYTES
        after, pages = page.next, pages + 1
    assert sorted(found) == sorted(rows)
    assert pages == -(-10 // (limits.MAX_BATCH_BYTES // 900_000))
    some = (await _staged(service, store_name, number, [1, 3])).rows
    assert {row.partition for row in some} <= {1, 2, 3}
    assert len(some) < len(rows)
    assert not (await _staged(service, store_name, number, [])).rows
    assert not (await _staged(service, store_name, number, [0, PARTITIONS], key="other")).rows
    await service.stub.DropRelease(pb.ChangeReleaseRequest(store=store_name, number=number))
    with pytest.raises(ConditionFailedError, match="can't be looked at by workers: it is dropped"):
        await _staged(service, store_name, number, [0, PARTITIONS])
    with pytest.raises(InvalidInputError, match="has no release 99"):
        await _staged(service, store_name, 99, [0, PARTITIONS])
    with pytest.raises(ProtocolError, match="request for staged rows of 0 bytes can't be read"):
        await service.fetch(store_name, "staged", b"")
    with pytest.raises((UnknownStoreError, StoreDeletedError, InvalidInputError)):
        await _staged(service, "nothing", 1, [0, 1])
