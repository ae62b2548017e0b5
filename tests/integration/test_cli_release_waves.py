"""``ringcast release publish --waves`` with real workers: what passes a gate, what is undone, and what is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from ringcast import Change, Mode, PoisonPolicy
from ringcast_testkit import PATIENCE_S, until
from ringcast_wire import ConditionFailedError, ReleaseGate, ReleaseState

from tests.integration.cli_process import Cli, Result, Servers
from tests.integration.worker_bench import PARTITIONS, Bench, worker_bench

ROWS = 40


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


async def test_a_good_release_passes_all_gates(bench: Bench, tmp_path: Path) -> None:
    await bench.create()
    for name in "ab":
        await bench.worker(name)
    await bench.fill(ROWS)
    await _stage(bench, tmp_path)
    said = await _run(bench, "publish", bench.store, 1, "--waves", "10,50,100", "--bake", "200ms")
    assert said.out == f"release 1 of {bench.store} is published: {ROWS} rows, {ROWS} published\n"
    (info,) = [each async for each in bench.client.releases(bench.store)]
    assert info.rollout is not None
    assert (info.rollout.wave, info.rollout.partitions[-1]) == (3, PARTITIONS)
    entries = await asyncio.to_thread(bench.cli.ok, "audit", "list", bench.store, "--json")
    assert entries.out.count('"PassWave"') == 3
    certificate = await bench.client.release_certificate(bench.store, 1)
    (key,) = certificate.keys
    assert {each.worker_id for each in key.workers} == {f"{bench.store}-{name}" for name in "ab"}
    assert sum(key.spans[1::2]) == PARTITIONS, "nobody has to wait for it"


async def test_a_release_that_a_handler_refuses_is_undone_after_its_first_wave(bench: Bench, tmp_path: Path) -> None:
    await bench.create()
    values: dict[str, str | None] = {}

    async def handler(change: Change) -> None:
        if change.value == "new":
            raise ValueError("not this one")
        values[change.row_id] = change.value

    await bench.worker("a", handler, handler_tries=1, poison_policy=PoisonPolicy.DEAD_LETTER)
    await bench.fill(ROWS)
    await _stage(bench, tmp_path)
    said = await _run(bench, "publish", bench.store, 1, "--waves", "10,100", "--patience", PATIENCE_S, code=1)
    assert said.out.startswith(f"release 1 of {bench.store} is undone: ")
    assert "the gate of wave 1 of 2 (10 %) failed, so the service undid the release: " in said.err
    assert "ValueError('not this one')" in said.err
    release = await bench.client.release(bench.store, 1)
    assert 0 < release.published == release.undone < ROWS
    assert release.changed_by == "local"
    assert "the gate of wave 1" in (await _run(bench, "show", bench.store, 1)).out
    rows = await bench.client.get(bench.store, "list", [f"row{number}" for number in range(ROWS)])
    assert {row.value for row in rows} == {"value"}
    await until(lambda: len(values) == ROWS and set(values.values()) == {"value"})
    entries = (await asyncio.to_thread(bench.cli.ok, "audit", "list", bench.store, "--json")).out
    assert '"FailGate"' in entries


async def test_a_release_that_a_handler_never_gives_up_is_undone_once_the_patience_is_over(
    bench: Bench, tmp_path: Path
) -> None:
    """It has more tries than fit the patience: nothing is refused, and nothing is applied."""
    await bench.create()
    values: dict[str, str | None] = {}
    broken = True

    async def handler(change: Change) -> None:
        if change.value == "new" and broken:
            raise ValueError("not yet")
        values[change.row_id] = change.value

    worker = await bench.worker("a", handler, handler_tries=100, poison_policy=PoisonPolicy.DEAD_LETTER)
    await bench.fill(ROWS)
    await _stage(bench, tmp_path)
    said = await _run(bench, "publish", bench.store, 1, "--waves", "10,100", "--patience", 5, code=1)
    assert "the gate of wave 1 of 2 (10 %) failed" in said.err
    assert "not proven within 5 s: list: worker" in said.err
    assert "has applied partition" in said.err
    assert worker.stats().poisoned == 0
    release = await bench.client.release(bench.store, 1)
    assert 0 < release.published == release.undone < ROWS
    broken = False
    await until(lambda: len(values) == ROWS and set(values.values()) == {"value"})


@pytest.mark.parametrize(("most", "passes"), [(20, True), (10, False)])
async def test_a_gate_counts_all_rows_that_a_worker_has_refused(
    bench: Bench, tmp_path: Path, most: int, passes: bool
) -> None:
    """Also those that its report does not name."""
    await bench.create()
    bad = {f"row{number}" for number in range(12)}

    async def handler(change: Change) -> None:
        if change.value == "new" and change.row_id in bad:
            raise ValueError("not this one")

    await bench.worker("a", handler, handler_tries=1, poison_policy=PoisonPolicy.DROP)
    await bench.fill(ROWS)
    await _stage(bench, tmp_path)
    limits = ("--max-refused", most, "--patience", PATIENCE_S)
    said = await _run(bench, "publish", bench.store, 1, "--waves", 100, *limits, code=0 if passes else 1)
    if passes:
        assert f"is published: {ROWS} rows, {ROWS} published" in said.out
        with pytest.raises(ConditionFailedError, match="is not proven"):
            await bench.client.release_certificate(bench.store, 1)
    else:
        assert "12 rows are refused, and 10 may be: list: row 'row" in said.err


async def test_a_wave_that_waits_for_its_gate_says_so_and_can_be_paused_and_stopped(
    bench: Bench, tmp_path: Path
) -> None:
    await bench.create()
    await bench.fill(ROWS)
    await _stage(bench, tmp_path)
    gate = ReleaseGate(patience_ms=86_400_000)
    await bench.client.publish_release(bench.store, 1, waves=[10, 100], gate=gate)

    async def waits() -> bool:
        rollout = (await bench.client.release(bench.store, 1)).rollout
        return rollout is not None and bool(rollout.waits_for)

    await until(waits)
    shown = (await _run(bench, "show", bench.store, 1)).out
    assert "wave 1 is published, and waits for its gate: proof: list: no worker is registered and alive" in shown
    assert "publishing, wave 1 of 2 (10 %)" in (await _run(bench, "list", bench.store)).out
    rows = [row async for row in bench.client.release_rows(bench.store, 1)]
    waiting = next(row.row_id for row in rows if not row.version)
    why = (await asyncio.to_thread(bench.cli, "why", bench.store, "list", waiting)).out
    assert "it has not changed the row yet, which is in wave 2 of 2 (100 %); wave 1 is published, and waits for" in why
    assert "is paused, wave 1 of 2 (10 %): " in (await _run(bench, "pause", bench.store, 1)).out
    assert "release resume" in (await _run(bench, "publish", bench.store, 1, code=1)).err
    await bench.client.resume_release(bench.store, 1)
    await until(waits)
    assert "is stopped in wave 1 of 2 (10 %): " in (await _run(bench, "stop", bench.store, 1)).out
    assert "it is stopped" in (await _run(bench, "publish", bench.store, 1, code=1)).err
    await _run(bench, "undo", bench.store, 1)
    release = await bench.client.release(bench.store, 1)
    assert (release.state, release.undone) == (ReleaseState.UNDONE, release.published)
    found = await _run(bench, "publish", bench.store, 1, "--waves", "5,3", code=2)
    assert "waves 5,3 are not allowed" in found.err


async def test_in_a_full_store_each_wave_waits_for_every_worker(bench: Bench, tmp_path: Path) -> None:
    await bench.create(mode=Mode.FULL)
    held: dict[str, dict[str, str | None]] = {"a": {}, "b": {}}
    goes_on = asyncio.Event()

    def handler(name: str) -> Callable[[Change], Awaitable[None]]:
        async def take(change: Change) -> None:
            if name == "b" and change.value == "new":
                await goes_on.wait()
            held[name][change.row_id] = change.value

        return take

    for name in held:
        await bench.worker(name, handler(name))
    await bench.fill(ROWS)
    await _stage(bench, tmp_path)
    gate = ReleaseGate(patience_ms=86_400_000)
    await bench.client.publish_release(bench.store, 1, waves=[10, 100], gate=gate)

    async def waits_for_b() -> bool:
        rollout = (await bench.client.release(bench.store, 1)).rollout
        return rollout is not None and f"worker {bench.store}-b has applied" in rollout.waits_for

    await until(waits_for_b)
    wave = {row.row_id async for row in bench.client.release_rows(bench.store, 1) if row.version}
    assert 0 < len(wave) < ROWS
    await until(lambda: {row_id for row_id, value in held["a"].items() if value == "new"} == wave)
    assert set(held["b"].values()) == {"value"}
    goes_on.set()
    proof = await bench.client.wait_for_release(bench.store, 1, timeout_s=PATIENCE_S)
    assert proof.certificate is not None
    (key,) = proof.certificate.keys
    everything = {f"{bench.store}-{name}": (0, PARTITIONS) for name in held}
    assert {each.worker_id: each.spans for each in key.workers} == everything
    assert held["a"] == held["b"] == {f"row{number}": "new" for number in range(ROWS)}


async def test_in_a_full_store_one_worker_that_refuses_a_row_takes_the_wave_back_from_all(
    bench: Bench, tmp_path: Path
) -> None:
    await bench.create(mode=Mode.FULL)
    held: dict[str, str | None] = {}

    async def takes(change: Change) -> None:
        held[change.row_id] = change.value

    async def refuses(change: Change) -> None:
        if change.value == "new":
            raise ValueError("not this one")

    await bench.worker("a", takes)
    await bench.worker("b", refuses, handler_tries=1, poison_policy=PoisonPolicy.DROP)
    await bench.fill(ROWS)
    await _stage(bench, tmp_path)
    said = await _run(bench, "publish", bench.store, 1, "--waves", "10,100", "--patience", PATIENCE_S, code=1)
    assert "the gate of wave 1 of 2 (10 %) failed, so the service undid the release: " in said.err
    assert f"was dropped at worker {bench.store}-b: ValueError('not this one')" in said.err
    release = await bench.client.release(bench.store, 1)
    assert 0 < release.published == release.undone < ROWS
    await until(lambda: len(held) == ROWS and set(held.values()) == {"value"})
