"""``ringcast release publish --dry-wave`` with real workers: their own code judges a release before a row of it is
published."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import nats
import pytest
from ringcast import Change, Worker
from ringcast._worker import dry_waves, reports
from ringcast_core import row_partition
from ringcast_testkit import PATIENCE_S, until
from ringcast_wire import LimitExceededError, ReleaseState, Strategy
from ringcast_wire.grpc import ConfigServiceStub, error_from_rpc, pb
from ringcast_wire.reports import (
    DryWaveReport,
    DryWaveRequest,
    DryWaveState,
    ReportAsker,
    ReportRequest,
    WorkerReport,
    encode_report,
)

from tests.integration.cli_process import Cli, Result, Servers
from tests.integration.worker_bench import Bench, report_before, worker_bench

PARTITIONS = 32
ROWS = 40
SITE = "site=test"
WORDS = ("--waves", "100", "--canary", SITE, "--dry-wave", "--patience", PATIENCE_S)


@pytest.fixture
async def bench(servers: Servers, cli: Cli, store_name: str) -> AsyncIterator[Bench]:
    async with worker_bench(servers, cli, store_name) as made:
        yield made


async def _run(bench: Bench, *words: object, code: int = 0) -> Result:
    """The workers of this process answer meanwhile."""
    found = await asyncio.to_thread(bench.cli, "release", *words)
    assert found.code == code, found
    return found


async def _stage(bench: Bench, tmp_path: Path, *, rows: int = ROWS) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("row_id,value\n" + "".join(f"row{number},new\n" for number in range(1, rows)))
    await _run(bench, "stage", bench.store, "--key", f"list={file}", "--max-delete-share", 1)


async def _shared(*workers: Worker) -> None:
    """Each of them has partitions, and all have all."""
    await until(lambda: all(worker.owned("list") for worker in workers))
    await until(lambda: sum(len(worker.owned("list")) for worker in workers) == PARTITIONS)


def _rows_of(worker: Worker, *, rows: int = ROWS) -> set[str]:
    names = (f"row{number}" for number in range(rows))
    return {row_id for row_id in names if row_partition(row_id, PARTITIONS) in worker.owned("list")}


async def _is_staged(bench: Bench) -> bool:
    release = await bench.client.release(bench.store, 1)
    return (release.state, release.published) == (ReleaseState.STAGED, 0)


@pytest.mark.parametrize("strategy", [Strategy.JUMP, Strategy.STICKY])
async def test_a_row_that_the_application_refuses_refuses_the_release(
    bench: Bench, tmp_path: Path, strategy: Strategy
) -> None:
    """The workers with the label judge what is theirs, deletions too; nobody's handler gets a row of it."""
    await bench.create(partition_count=PARTITIONS, strategy=strategy)
    await bench.fill(ROWS)
    judged: dict[str, Change] = {}
    handled: list[Change] = []
    bad: set[str] = set()

    async def validate(change: Change) -> str | None:
        judged[change.row_id] = change
        return "not in our list" if change.row_id in bad else None

    def others(change: Change) -> str | None:
        raise AssertionError("it has not the label")

    first = await bench.worker("a", handled.append, labels=SITE, validate=validate)
    other = await bench.worker("b", handled.append, validate=others)
    await _shared(first, other)
    await until(lambda: {change.row_id for change in handled} == {f"row{number}" for number in range(ROWS)})
    await _stage(bench, tmp_path)
    wave = _rows_of(first)
    assert wave
    bad |= set(sorted(wave)[:5])
    said = await _run(bench, "publish", bench.store, 1, *WORDS, code=1)
    assert said.err.startswith(
        f"ringcast: release 1 of store '{bench.store}' can't be published: in its dry wave 5 rows were refused of "
        f"{len(wave)}: list/'row"
    )
    assert said.err.count(f" by worker {bench.store}-a: 'not in our list'") == 3
    assert said.err.endswith("; and 2 more\n")
    assert judged.keys() == wave
    for row_id, change in judged.items():
        new = None if row_id == "row0" else "new"
        assert (change.value, change.deleted, change.release) == (new, new is None, 1)
        assert change.version > 0, "that of the row which it would replace"
    assert await _is_staged(bench)
    assert {change.value for change in handled} == {"value"}

    bad.clear()
    said = await _run(bench, "publish", bench.store, 1, *WORDS)
    assert said.out == f"release 1 of {bench.store} is published: {ROWS} rows, {ROWS} published\n"


class Untold(Exception):
    """One that has no words of its own."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


async def test_an_error_of_the_judge_is_a_refusal_and_so_is_no_answer_at_all(bench: Bench, tmp_path: Path) -> None:
    """And a plain function may judge. What it says or raises ends neither the worker nor its handler."""
    await bench.create(partition_count=PARTITIONS)
    answers: list[object] = []

    def validate(change: Change) -> str | None:
        answer = answers[-1]
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[return-value]

    first = await bench.worker("a", labels=SITE, validate=validate)
    await _shared(first, await bench.worker("b"))
    await _stage(bench, tmp_path)
    for answer, why in (
        (ValueError("broken"), "\"ValueError('broken')\""),
        (False, "'validate returned False: None or a reason is wanted'"),
        (asyncio.CancelledError(), "'CancelledError()'"),
        (SystemExit(2), "'SystemExit(2)'"),
        (Untold(), "'Untold'"),
        ("half a pair: \udc80", r"'half a pair: \\udc80'"),
        ("two\nlines \x1b[31m\0", r"'two\nlines \x1b[31m\x00'"),
        ("x" * 1_000_000, f"'{'x' * 126}…"),
    ):
        answers.append(answer)
        said = await _run(bench, "publish", bench.store, 1, *WORDS, code=1)
        assert f" by worker {bench.store}-a: {why}" in said.err
        assert said.err.count("\n") == 1
    assert await _is_staged(bench)
    assert first.health().connected


async def test_a_judge_that_takes_too_long_is_not_waited_for(bench: Bench, tmp_path: Path) -> None:
    """The next dry wave begins anew."""
    await bench.create(partition_count=PARTITIONS)
    hangs, ended = True, 0

    async def validate(_: Change) -> str | None:
        nonlocal ended
        try:
            if hangs:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended += 1
            raise
        return None

    first = await bench.worker("a", labels=SITE, validate=validate)
    await _shared(first, await bench.worker("b"))
    await _stage(bench, tmp_path)
    said = await _run(bench, "publish", bench.store, 1, *WORDS[:-1], 1, code=1)
    assert f"its dry wave is not judged within 1 s: list: worker {bench.store}-a has judged 0 rows\n" in said.err
    assert await _is_staged(bench)
    hangs = False
    await _run(bench, "publish", bench.store, 1, *WORDS)
    await first.stop()
    assert ended == 1, "the one that hangs ends with the worker at the latest"


async def test_workers_that_cannot_judge_refuse_the_release(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.create(partition_count=PARTITIONS)
    first = await bench.worker("a", labels=SITE)
    await _shared(first, await bench.worker("b"))
    await _stage(bench, tmp_path)
    said = await _run(bench, "publish", bench.store, 1, *WORDS, code=1)
    place = f"ringcast: release 1 of store '{bench.store}' can't be published with a dry wave: "
    assert said.err == f"{place}the application of worker {bench.store}-a has no validate\n"

    def encode(report: WorkerReport | ReportRequest) -> bytes:
        return report_before("dry_wave", report) if isinstance(report, WorkerReport) else encode_report(report)

    monkeypatch.setattr(reports, "encode_report", encode)
    said = await _run(bench, "publish", bench.store, 1, *WORDS, code=1)
    assert said.err == f"{place}worker {bench.store}-a is of an older build, which knows no dry waves\n"
    for words, why in (
        (("--dry-wave",), "dry_wave needs a canary: its workers judge the rows"),
        (("--waves", "10,100", "--dry-wave"), "dry_wave needs a canary: its workers judge the rows"),
    ):
        assert why in (await _run(bench, "publish", bench.store, 1, *words, code=2)).err
    assert await _is_staged(bench)


async def test_more_rows_than_a_page_has(bench: Bench, tmp_path: Path) -> None:
    """They come in pages, each behind the one before."""
    await bench.create(partition_count=PARTITIONS)
    judged: list[str] = []

    def validate(change: Change) -> str | None:
        judged.append(change.row_id)
        return None

    first = await bench.worker("a", labels=SITE, validate=validate)
    await _shared(first, await bench.worker("b"))
    await _stage(bench, tmp_path, rows=9_000)
    wave = _rows_of(first, rows=9_000) - {"row0"}
    assert len(wave) > 2_000
    await bench.client.publish_release(bench.store, 1, waves=[100], canary=SITE, dry_wave=True)
    assert sorted(judged) == sorted(wave)
    await bench.client.stop_release(bench.store, 1)


async def test_a_partition_of_a_key_that_was_judged_may_not_go_to_a_worker_that_was_not_asked(
    bench: Bench, tmp_path: Path
) -> None:
    """Of two keys the first is judged at once, and goes to another worker while the second still is."""
    await bench.create(partition_count=PARTITIONS)
    go_on, waits = asyncio.Event(), asyncio.Event()
    handled: list[Change] = []

    async def validate(change: Change) -> str | None:
        if change.key == "slow":
            waits.set()
            await go_on.wait()
        return None

    keys = ["list", "slow"]
    first = await bench.worker("a", labels=SITE, validate=validate, keys=keys)
    await _shared(first, await bench.worker("b", keys=keys))
    file = tmp_path / "rows.csv"
    file.write_text("row_id,value\n" + "".join(f"row{number},new\n" for number in range(ROWS)))
    await _run(bench, "stage", bench.store, "--key", f"list={file}", "--key", f"slow={file}")
    publishing = asyncio.create_task(_run(bench, "publish", bench.store, 1, *WORDS, code=1))
    await waits.wait()
    before = first.owned("list")
    await bench.worker("c", handled.append, labels=SITE, validate=lambda _: "not this one")
    await until(lambda: before - first.owned("list"))
    go_on.set()
    said = await publishing
    assert "refused of " in said.err
    assert f" by worker {bench.store}-c: 'not this one'" in said.err
    assert await _is_staged(bench)
    assert not handled


async def test_a_store_has_one_dry_wave_at_a_time(bench: Bench, tmp_path: Path) -> None:
    """Who asks for another is told when to come again."""
    await bench.create(partition_count=PARTITIONS)
    go_on, waits = asyncio.Event(), asyncio.Event()
    judged: list[Change] = []

    async def validate(change: Change) -> str | None:
        judged.append(change)
        waits.set()
        await go_on.wait()
        return None

    first = await bench.worker("a", labels=SITE, validate=validate)
    await _shared(first, await bench.worker("b"))
    await _stage(bench, tmp_path)
    await _stage(bench, tmp_path)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.client.publish_release(bench.store, 1, waves=[100], canary=SITE, dry_wave=True))
        await waits.wait()
        request = pb.PublishReleaseRequest(store=bench.store, number=2, waves=[0, 0, 100], canary=SITE, dry_wave=True)
        with bench.servers.service.channel() as channel, pytest.raises(grpc.RpcError) as caught:
            await asyncio.to_thread(ConfigServiceStub(channel).PublishRelease, request, timeout=PATIENCE_S)
        refusal: Any = caught.value  # of a call that is not asynchronous, with the same methods
        error = error_from_rpc(refusal)
        assert isinstance(error, LimitExceededError)
        assert str(error) == "a dry wave of the store is under way here: no other is begun"
        assert error.retry_after_s == 1
        go_on.set()
    assert {change.release for change in judged} == {1}


async def test_a_worker_ends_what_nobody_asks_for_and_lets_no_judge_go_on_behind_its_end(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_waves, "FORGOTTEN_AFTER_S", 1.0)
    await bench.create(partition_count=PARTITIONS)
    calls = Counter[object]()
    ended = asyncio.Event()

    async def validate(_: Change) -> str | None:
        calls[asyncio.current_task()] += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:  # as one does who has not read about it
            ended.set()
        return None

    first = await bench.worker("a", labels=SITE, validate=validate)
    await _shared(first, await bench.worker("b"))
    await _stage(bench, tmp_path)
    await _run(bench, "publish", bench.store, 1, *WORDS[:-1], 0.5, code=1)
    async with asyncio.timeout(PATIENCE_S):
        await ended.wait()
    await asyncio.sleep(0)
    assert set(calls.values()) == {1}, "each dry wave has called it once, and ends there"
    assert first.health().connected


async def test_a_worker_is_at_a_few_dry_waves_of_a_key(bench: Bench) -> None:
    """Whoever asks, such as several services: of one more it says that it is not."""
    await bench.create(partition_count=PARTITIONS)
    worker = await bench.worker("a", labels=SITE, validate=lambda _: None)
    await until(lambda: len(worker.owned("list")) == PARTITIONS)
    bus = await nats.connect(bench.servers.nats.url)
    # Of a release that is not there: the fetch fails, and is tried again for a while.
    asker = ReportAsker(bus)

    async def state(number: int) -> DryWaveReport:
        request = DryWaveRequest(f"{number:016x}", 1, SITE, [0, PARTITIONS])
        worker_id = f"{bench.store}-a"
        found = await asker.ask(bench.store, "list", [worker_id], dry_wave=request, timeout_s=PATIENCE_S)
        report = found.reports[worker_id].dry_wave
        assert report is not None
        return report

    await asyncio.to_thread(bench.servers.service.pause)
    try:
        states = [(await state(number)).state for number in range(dry_waves.MAX_DRY_WAVES)]
        assert states == [DryWaveState.JUDGING] * dry_waves.MAX_DRY_WAVES
        refused = await state(99)
        assert (refused.state, refused.why) == (DryWaveState.FAILED, "it is at 4 dry waves of the key already")
        assert (await state(0)).state is DryWaveState.JUDGING
    finally:
        await asyncio.to_thread(bench.servers.service.resume)
    await bus.close()
