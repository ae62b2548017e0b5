"""``ringcast release publish --canary`` with real workers: who gets a release first, and what can be no canary."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from ringcast import Change, PoisonPolicy, Worker
from ringcast._worker import reports
from ringcast_client._releases import releases as client_releases
from ringcast_core import row_partition
from ringcast_testkit import PATIENCE_S, until
from ringcast_wire import ReleaseGate, ReleaseState, Strategy, UnavailableError
from ringcast_wire.reports import ReportRequest, WorkerReport, encode_report

from tests.integration.cli_process import Cli, Result, Servers
from tests.integration.worker_bench import Bench, report_before, worker_bench

PARTITIONS = 32
ROWS = 40
SITE = "site=test"
LONG = ReleaseGate(bake_ms=86_400_000, patience_ms=86_400_000)
"""Of a wave that stays at its gate until the test goes on."""


class Received:
    """What the handlers of workers got of the release, by worker."""

    def __init__(self) -> None:
        self.rows: dict[str, set[str]] = defaultdict(set)

    def handler(self, name: str) -> Callable[[Change], Awaitable[None]]:
        async def take(change: Change) -> None:
            if change.value == "new":
                self.rows[name].add(change.row_id)

        return take


@pytest.fixture
async def bench(servers: Servers, cli: Cli, store_name: str) -> AsyncIterator[Bench]:
    async with worker_bench(servers, cli, store_name) as made:
        yield made


async def _run(bench: Bench, *words: object, code: int = 0) -> Result:
    """The workers of this process answer meanwhile."""
    found = await asyncio.to_thread(bench.cli, "release", *words)
    assert found.code == code, found
    return found


async def _stage(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("row_id,value\n" + "".join(f"row{number},new\n" for number in range(ROWS)))
    await _run(bench, "stage", bench.store, "--key", f"list={file}")


async def _shared(*workers: Worker) -> None:
    """Each of them has partitions, and all have all."""
    await until(lambda: all(worker.owned("list") for worker in workers))
    await until(lambda: sum(len(worker.owned("list")) for worker in workers) == PARTITIONS)


def _rows_of(partitions: frozenset[int]) -> set[str]:
    names = (f"row{number}" for number in range(ROWS))
    return {row_id for row_id in names if row_partition(row_id, PARTITIONS) in partitions}


async def _published(bench: Bench) -> set[str]:
    return {row.row_id async for row in bench.client.release_rows(bench.store, 1) if row.version}


async def _waits_for(bench: Bench, wave: int, words: str) -> bool:
    rollout = (await bench.client.release(bench.store, 1)).rollout
    return rollout is not None and rollout.wave == wave and rollout.waits_for.startswith(words)


def _as_older_builds_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker without labels answers as one of a build that knows of none."""

    def encode(report: WorkerReport | ReportRequest) -> bytes:
        if isinstance(report, WorkerReport) and not report.labels:
            return report_before("labels", report)
        return encode_report(report)

    monkeypatch.setattr(reports, "encode_report", encode)


@pytest.mark.parametrize("strategy", [Strategy.JUMP, Strategy.STICKY])
async def test_workers_with_the_label_get_the_first_wave_and_nobody_else(
    bench: Bench, tmp_path: Path, strategy: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The config service ends and begins in the middle of it, and other workers have the label by then."""
    _as_older_builds_do(monkeypatch)
    await bench.create(partition_count=PARTITIONS, strategy=strategy)
    received = Received()
    first = await bench.worker("a", received.handler("a"), labels=["rack=r1", SITE])
    other = await bench.worker("b", received.handler("b"))
    await _shared(first, other)
    await _stage(bench, tmp_path)
    wave = _rows_of(first.owned("list"))
    assert 0 < len(wave) < ROWS
    begun = await bench.client.publish_release(bench.store, 1, waves=[100], canary=SITE, gate=LONG)
    assert begun.rollout is not None
    partitions = len({row_partition(row_id, PARTITIONS) for row_id in wave})
    assert (begun.rollout.waves, begun.rollout.partitions[0], begun.rollout.canary) == ((0, 100), partitions, SITE)
    await until(lambda: _waits_for(bench, 1, "bake time"))
    assert await _published(bench) == wave == received.rows["a"]
    assert not received.rows["b"]
    shown = (await _run(bench, "show", bench.store, 1)).out
    assert f"publishing, wave 1 of 2 (canary {SITE})" in shown
    assert f"waves canary {SITE} ({partitions} partition" in shown
    waiting = next(f"row{number}" for number in range(ROWS) if f"row{number}" not in wave)
    why = (await asyncio.to_thread(bench.cli, "why", bench.store, "list", waiting)).out
    assert "which is in wave 2 of 2 (100 %)" in why
    entries = (await asyncio.to_thread(bench.cli.ok, "audit", "list", bench.store, "--json")).out
    assert SITE in entries

    # The next instance has the same wave, whoever owns what by now; and so has who asks for it again.
    await asyncio.to_thread(bench.servers.service.kill)
    await asyncio.to_thread(bench.servers.service.start)
    await first.stop()
    again = await bench.client.publish_release(bench.store, 1, waves=[100], canary=SITE, gate=LONG)
    assert again.rollout is not None
    assert (again.rollout.waves, again.rollout.partitions) == (begun.rollout.waves, begun.rollout.partitions)
    await until(lambda: len(other.owned("list")) == PARTITIONS)
    await until(lambda: _waits_for(bench, 1, "bake time"))
    assert await _published(bench) == wave
    refused = await _run(bench, "publish", bench.store, 1, "--waves", "100", "--canary", "site=prod", code=1)
    assert f"is publishing with the canary {SITE}, not with the canary site=prod" in refused.err
    await bench.client.stop_release(bench.store, 1)
    assert f"stopped in wave 1 of 2 (canary {SITE})" in (await _run(bench, "show", bench.store, 1)).out


async def test_a_canary_that_refuses_a_row_has_the_release_undone(bench: Bench, tmp_path: Path) -> None:
    await bench.create(partition_count=PARTITIONS)
    received, values = Received(), dict[str, str | None]()

    async def refuses(change: Change) -> None:
        if change.value == "new":
            raise ValueError("not this one")
        values[change.row_id] = change.value

    first = await bench.worker("a", refuses, labels=SITE, handler_tries=1, poison_policy=PoisonPolicy.DEAD_LETTER)
    await bench.fill(ROWS)
    other = await bench.worker("b", received.handler("b"))
    await _shared(first, other)
    await _stage(bench, tmp_path)
    words = ("--waves", "50,100", "--canary", SITE, "--patience", PATIENCE_S)
    said = await _run(bench, "publish", bench.store, 1, *words, code=1)
    assert f"(canary {SITE}) failed, so the service undid the release: " in said.err
    assert "ValueError('not this one')" in said.err
    release = await bench.client.release(bench.store, 1)
    assert release.state is ReleaseState.UNDONE
    assert 0 < release.published == release.undone <= len(_rows_of(first.owned("list")))
    assert not received.rows["b"]
    rows = await bench.client.get(bench.store, "list", [f"row{number}" for number in range(ROWS)])
    assert {row.value for row in rows} == {"value"}
    await until(lambda: set(values.values()) == {"value"})


async def test_a_good_release_goes_on_behind_its_canary(bench: Bench, tmp_path: Path) -> None:
    await bench.create(partition_count=PARTITIONS)
    received = Received()
    first = await bench.worker("a", received.handler("a"), labels=SITE)
    other = await bench.worker("b", received.handler("b"))
    await _shared(first, other)
    await _stage(bench, tmp_path)
    words = ("--waves", "75,100", "--canary", SITE, "--patience", PATIENCE_S)
    said = await _run(bench, "publish", bench.store, 1, *words)
    assert said.out == f"release 1 of {bench.store} is published: {ROWS} rows, {ROWS} published\n"
    assert received.rows == {"a": _rows_of(first.owned("list")), "b": _rows_of(other.owned("list"))}
    await bench.client.wait_for_release(bench.store, 1, timeout_s=PATIENCE_S)
    lag = await bench.told("lag", bench.store, "list")
    assert {worker["worker_id"][-1]: worker["labels"] for worker in lag["workers"]} == {"a": [SITE], "b": []}


async def test_what_can_be_no_canary_is_refused_before_anything_is_published(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.create(partition_count=PARTITIONS)
    first = await bench.worker("a", labels=SITE)
    await _stage(bench, tmp_path)

    async def refused(canary: str) -> str:
        return (await _run(bench, "publish", bench.store, 1, "--waves", "100", "--canary", canary, code=1)).err

    place = f"ringcast: release 1 of store '{bench.store}' can't be published with the canary"
    assert await refused(SITE) == (
        f"{place} {SITE}: workers with this label own all partitions of its keys, so nobody would be spared\n"
    )
    assert await refused("site=prod") == f"{place} site=prod: no worker of its keys has this label\n"
    monkeypatch.setattr(client_releases, "_ATTEMPTS", 1)
    with bench.process("halted") as process:
        await until(lambda: 0 < len(first.owned("list")) < PARTITIONS)
        process.pause()
        with pytest.raises(UnavailableError, match=f"canary {SITE}: who owns what of 'list' is not known: "):
            await bench.client.publish_release(bench.store, 1, waves=[100], canary=SITE)
        process.resume()
    for words, why in (
        (("--canary", SITE), "canary needs waves: 100 is a single one behind that of the canary"),
        (("--canary", "site", "--waves", "100"), "canary 'site' is not a label: name=value is"),
    ):
        assert why in (await _run(bench, "publish", bench.store, 1, *words, code=2)).err
    release = await bench.client.release(bench.store, 1)
    assert (release.state, release.published) == (ReleaseState.STAGED, 0)


async def test_a_release_of_the_canary_alone_has_one_wave(bench: Bench, tmp_path: Path) -> None:
    await bench.create(partition_count=PARTITIONS)
    first = await bench.worker("a", labels=SITE)
    other = await bench.worker("b")
    await _shared(first, other)
    for number, (worker, wanted) in enumerate(((first, 0), (other, 1)), 1):
        file = tmp_path / "rows.csv"
        row_id = min(_rows_of(worker.owned("list")))
        file.write_text(f"row_id,value\n{row_id},new\n")
        key = ("--key", f"list={file}", "--max-delete-share", 1)
        await _run(bench, "stage", bench.store, *key)
        words = ("--waves", "10,100", "--canary", SITE, "--patience", PATIENCE_S)
        said = await _run(bench, "publish", bench.store, number, *words, code=wanted)
        if wanted:
            assert "no partition that it writes to has an owner with this label" in said.err
            continue
        assert "is published: 1 rows, 1 published" in said.out
        assert f"waves canary {SITE} (1 partition)" in (await _run(bench, "show", bench.store, number)).out
        await bench.client.delete(bench.store, "list", row_id)
