"""``ringcast release publish --canary`` in a store of mode FULL: workers with the label lay its rows over theirs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from ringcast import Change, Mode, PoisonPolicy, Worker
from ringcast._worker import provisional
from ringcast.metrics import PrometheusMetrics
from ringcast_testkit import PATIENCE_S, TcpProxy, until
from ringcast_wire import ReleaseGate, ReleaseState, Row

from tests.integration.cli_process import Cli, Result, Servers
from tests.integration.worker_bench import Bench, worker_bench

SITE = "site=test"
NEVER_S = 86_400
"""A worker with such ``heads_s`` learns only from the service that a release has ended."""
LONG = ReleaseGate(bake_ms=86_400_000, patience_ms=86_400_000)
"""Of a wave that stays at its gate until the test goes on."""
BASE = {"a": "old", "b": "old", "c": "old"}
AFTER = {"a": "new", "c": "old", "d": "new"}
"""What the release makes of them: one changed, one deleted, one left, one added."""


class Taken:
    """What a handler got, in order, and what an application that follows it has."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.rows: dict[str, str] = {}
        self.refuses: set[str] = set()

    async def handler(self, change: Change) -> None:
        if change.row_id in self.refuses and change.provisional:
            raise ValueError("not this one")
        self.changes.append(change)
        if change.value is None:
            self.rows.pop(change.row_id, None)
        else:
            self.rows[change.row_id] = change.value

    def of(self, row_id: str) -> list[tuple[str | None, bool]]:
        return [(change.value, change.provisional) for change in self.changes if change.row_id == row_id]


@pytest.fixture
async def bench(servers: Servers, cli: Cli, store_name: str) -> AsyncIterator[Bench]:
    async with worker_bench(servers, cli, store_name) as made:
        await made.create(mode=Mode.FULL)
        for row_id, value in BASE.items():
            await made.client.put(made.store, "list", row_id, value)
        yield made


async def _run(bench: Bench, *words: object, code: int = 0) -> Result:
    """The workers of this process answer meanwhile."""
    found = await asyncio.to_thread(bench.cli, "release", *words)
    assert found.code == code, found
    return found


async def _stage(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("row_id,value\n" + "".join(f"{row_id},{value}\n" for row_id, value in AFTER.items()))
    await _run(bench, "stage", bench.store, "--key", f"list={file}", "--max-delete-share", 1)


def _rows(worker: Worker) -> dict[str, str]:
    rows = {row.row_id: row.value for row in worker.rows("list")}
    assert len(rows) == worker.row_count("list")
    for row_id in (*BASE, *AFTER):
        row = worker.get("list", row_id)
        assert rows.get(row_id) == (row.value if row is not None else None)
    return rows


async def _begin(bench: Bench) -> None:
    await bench.client.publish_release(bench.store, 1, waves=[100], canary=SITE, gate=LONG)


async def _waits_for(bench: Bench, wave: int, words: str) -> bool:
    rollout = (await bench.client.release(bench.store, 1)).rollout
    return rollout is not None and rollout.wave == wave and rollout.waits_for.startswith(words)


async def _is_laid(bench: Bench) -> None:
    await until(lambda: _waits_for(bench, 1, "bake time"))


def _row(worker: Worker, row_id: str) -> Row:
    row = worker.get("list", row_id)
    assert row is not None
    return row


async def _laid_over(bench: Bench, name: str) -> tuple[int, int]:
    """Of which release a worker says that it has rows laid over, and how many."""
    lag = await bench.told("lag", bench.store, "list")
    (worker,) = (each for each in lag["workers"] if each["worker_id"] == f"{bench.store}-{name}")
    return worker["provisional_release"], worker["provisional_rows"]


def _measured(metrics: PrometheusMetrics, worker: Worker) -> tuple[float | None, float]:
    """How many rows are laid over, and for how long (seconds), by the worker's metrics."""
    labels = {"store": worker.config.store, "key": "list", "worker_id": worker.config.worker_id}
    names = ("config_provisional_rows", "config_provisional_age_seconds")
    rows, age_s = (metrics.registry.get_sample_value(name, labels) for name in names)
    return rows, age_s or 0.0


async def _is_undone(bench: Bench, number: int) -> bool:
    return (await bench.client.release(bench.store, number)).state is ReleaseState.UNDONE


async def _stored(bench: Bench) -> dict[str, str]:
    rows = await bench.client.get(bench.store, "list", [*BASE, *AFTER])
    return {row.row_id: row.value for row in rows if not row.deleted}


async def _stop(bench: Bench) -> None:
    await bench.client.stop_release(bench.store, 1)


async def test_workers_with_the_label_lay_a_release_over_what_they_have(bench: Bench, tmp_path: Path) -> None:
    """Nobody else has a row of it, and nothing that proves a revision counts it. One that comes later has it too."""
    canary, other, metrics = Taken(), Taken(), PrometheusMetrics(CollectorRegistry())
    first = await bench.worker("a", canary.handler, labels=SITE, heads_s=NEVER_S, metrics=metrics)
    second = await bench.worker("b", other.handler, metrics=metrics)
    await until(lambda: canary.rows == other.rows == BASE)
    await _stage(bench, tmp_path)
    assert [_measured(metrics, worker) for worker in (first, second)] == [(0, 0), (0, 0)]
    began_s = time.monotonic()
    applied = first.applied("list")
    await _begin(bench)
    await _is_laid(bench)
    assert _rows(first) == canary.rows == AFTER
    assert _rows(second) == other.rows == BASE == await _stored(bench)
    assert first.applied("list") == applied
    provisional = {change.row_id: change for change in canary.changes if change.provisional}
    assert {row_id: (change.value, change.release) for row_id, change in provisional.items()} == {
        "a": ("new", 1),
        "b": (None, 1),
        "d": ("new", 1),
    }
    assert {row_id: change.version > 0 for row_id, change in provisional.items()} == {"a": True, "b": True, "d": False}
    later = await bench.worker("c", labels=SITE)
    await until(lambda: _rows(later) == AFTER)
    streamed = await bench.worker("d", labels=SITE)
    await until(lambda: _rows(streamed) == AFTER)
    first_changes = {}
    stream: Any = streamed.changes()
    async with aclosing(stream) as changes:
        async for change in changes:
            first_changes[change.row_id] = change.value, change.provisional
            if len(first_changes) == 4:
                break
    assert first_changes == {"a": ("new", True), "b": (None, True), "c": ("old", False), "d": ("new", True)}

    await _is_laid(bench)
    shown = (await _run(bench, "show", bench.store, 1)).out
    assert f"publishing, wave 1 of 2 (canary {SITE}, provisional rows)" in shown
    assert f"waves canary {SITE}, provisional rows, 100 % (3 partitions)" in shown
    assert "wave 1 is laid over, and waits for its gate: bake time" in shown
    why = (await asyncio.to_thread(bench.cli, "why", bench.store, "list", "a")).out
    assert "which is in wave 2 of 2 (100 %); wave 1 is laid over" in why
    assert f"{bench.store}-a shows the row of release 1 in its place, which is provisional" in why
    assert f"{bench.store}-b shows" not in why
    assert [await _laid_over(bench, name) for name in "ab"] == [(1, 3), (0, 0)]
    rows, age_s = _measured(metrics, first)
    assert rows == 3
    assert 0 < age_s < time.monotonic() - began_s
    assert _measured(metrics, second) == (0, 0)
    lag = (await asyncio.to_thread(bench.cli, "lag", bench.store, "list")).out
    assert lag.count("release 1 laid over") == 3

    release = await bench.client.release(bench.store, 1)
    assert (release.state, release.published) == (ReleaseState.PUBLISHING, 0)
    await _stop(bench)
    await until(lambda: _rows(first) == canary.rows == BASE)
    await until(lambda: _rows(later) == BASE)
    assert _measured(metrics, first) == (0, 0)
    back = {change.row_id: change for change in canary.changes[-3:]}
    assert {row_id: (change.value, change.provisional) for row_id, change in back.items()} == {
        "a": ("old", False),
        "b": ("old", False),
        "d": (None, False),
    }
    assert back["a"].version == provisional["a"].version


async def test_what_is_published_takes_the_place_of_what_was_laid_over(bench: Bench, tmp_path: Path) -> None:
    """Without a gap for readers, and the handler gets the same value once more, with its revision."""
    canary, other, read = Taken(), Taken(), set[str]()
    first = await bench.worker("a", canary.handler, labels=SITE)
    second = await bench.worker("b", other.handler)
    await until(lambda: canary.rows == other.rows == BASE)
    await _stage(bench, tmp_path)
    publishing = asyncio.create_task(
        _run(bench, "publish", bench.store, 1, "--waves", "1,50,100", "--canary", SITE, "--patience", PATIENCE_S)
    )
    await until(lambda: _rows(first) == AFTER)
    while not publishing.done():
        await asyncio.wait({publishing}, timeout=0.01)
        read.add(str(sorted(_rows(first).items())))
    said = await publishing
    assert said.out == f"release 1 of {bench.store} is published: 3 rows, 3 published\n"
    assert read == {str(sorted(AFTER.items()))}, "a reader sees nothing else from then on"
    await until(lambda: other.rows == AFTER == _rows(second))
    assert canary.of("a") == [("old", False), ("new", True), ("new", False)]
    assert canary.of("b") == [("old", False), (None, True), (None, False)]
    assert canary.of("d") == [("new", True), ("new", False)]
    assert [change.version for change in canary.changes if change.row_id == "a"][-1] == _row(first, "a").version
    assert not any(change.provisional for change in other.changes)
    await bench.client.wait_for_release(bench.store, 1, timeout_s=PATIENCE_S)
    assert await _laid_over(bench, "a") == (0, 0)


async def test_in_later_waves_it_is_shown_where_it_is_not_published_yet(bench: Bench, tmp_path: Path) -> None:
    """Also by a worker that comes then. If a later gate fails, all of it goes back."""
    canary, go_on = Taken(), asyncio.Event()

    async def slow(change: Change) -> None:
        if change.row_id != "c" and change.value != "old":
            await go_on.wait()
            raise ValueError("not this one")

    first = await bench.worker("a", canary.handler, labels=SITE)
    await bench.worker("b", slow, handler_tries=1, poison_policy=PoisonPolicy.DROP)
    await until(lambda: canary.rows == BASE)
    await _stage(bench, tmp_path)
    gate = ReleaseGate(patience_ms=86_400_000)
    await bench.client.publish_release(bench.store, 1, waves=[1, 100], canary=SITE, gate=gate)
    await until(lambda: _waits_for(bench, 2, "proof: list: worker"))
    (row,) = [row async for row in bench.client.release_rows(bench.store, 1) if row.version]
    await until(lambda: sum(not change.provisional for change in canary.changes) == 4)
    assert canary.of(row.row_id)[-1] == (row.value, False)
    assert _rows(first) == canary.rows == AFTER
    later = await bench.worker("c", labels=SITE)
    await until(lambda: _rows(later) == AFTER)
    assert await _laid_over(bench, "c") == (1, 2)
    go_on.set()
    await until(lambda: _is_undone(bench, 1))
    await until(lambda: canary.rows == BASE == _rows(first) == _rows(later))


async def test_a_key_without_rows_gets_its_first_ones_so(bench: Bench, tmp_path: Path) -> None:
    """And the keys of a release are laid over together."""
    taken = {key: Taken() for key in ("list", "fresh")}

    async def handler(change: Change) -> None:
        await taken[change.key].handler(change)

    keys = list(taken)
    first = await bench.worker("a", handler, keys=keys, labels=SITE)
    await bench.worker("b", keys=keys)
    files = []
    for key in keys:
        file = tmp_path / f"{key}.csv"
        file.write_text("row_id,value\na,new\nd,new\n")
        files += ["--key", f"{key}={file}"]
    await _run(bench, "stage", bench.store, *files, "--max-delete-share", 1)
    await _begin(bench)
    await _is_laid(bench)
    new = {"a": "new", "d": "new"}
    assert {key: each.rows for key, each in taken.items()} == {"list": new, "fresh": new}
    assert {row.row_id: row.value for row in first.rows("fresh")} == new
    await bench.client.put(bench.store, "fresh", "z", "direct")
    await until(lambda: taken["fresh"].rows == new | {"z": "direct"})
    assert first.row_count("fresh") == 3
    await _stop(bench)
    await until(lambda: (taken["list"].rows, taken["fresh"].rows) == (BASE, {"z": "direct"}))


async def test_a_canary_that_refuses_a_row_has_the_release_undone(bench: Bench, tmp_path: Path) -> None:
    """Its reason is named, no poison policy has anything to do, and what was there before comes back."""
    canary, other = Taken(), Taken()
    canary.refuses = {"d"}
    policy = PoisonPolicy.DEAD_LETTER
    first = await bench.worker("a", canary.handler, labels=SITE, heads_s=NEVER_S, handler_tries=1, poison_policy=policy)
    await bench.worker("b", other.handler)
    await until(lambda: canary.rows == other.rows == BASE)
    await _stage(bench, tmp_path)
    words = ("--waves", "100", "--canary", SITE, "--patience", PATIENCE_S)
    said = await _run(bench, "publish", bench.store, 1, *words, code=1)
    assert (
        f"wave 1 of 2 (canary {SITE}, provisional rows) failed, so the service undid the release: 1 row is" in said.err
    )
    assert f"provisional row 'd' was refused at worker {bench.store}-a: \"ValueError('not this one')\"" in said.err
    release = await bench.client.release(bench.store, 1)
    assert (release.state, release.published) == (ReleaseState.UNDONE, 0)
    await until(lambda: _rows(first) == canary.rows == BASE)
    assert other.changes == [change for change in other.changes if change.value == "old"]
    assert first.stats("list").dead_letters == 0
    assert not first.blocked()


async def test_what_another_writer_writes_takes_the_place_of_a_provisional_row(bench: Bench, tmp_path: Path) -> None:
    """The release will skip it, so it is what there is, for readers and for the handler."""
    canary = Taken()
    first = await bench.worker("a", canary.handler, labels=SITE)
    await bench.worker("b")
    await until(lambda: canary.rows == BASE)
    await _stage(bench, tmp_path)
    await _begin(bench)
    await _is_laid(bench)
    await bench.client.put(bench.store, "list", "a", "mended")
    await bench.client.put(bench.store, "list", "d", "mended")
    await bench.client.delete(bench.store, "list", "d")
    mended = {"a": "mended", "c": "old"}
    await until(lambda: _rows(first) == canary.rows == mended)
    await _stop(bench)
    await until(lambda: _rows(first) == canary.rows == mended | {"b": "old"})
    assert canary.of("a") == [("old", False), ("new", True), ("mended", False)]


async def test_a_killed_service_goes_on_with_what_is_laid_over(bench: Bench, tmp_path: Path) -> None:
    canary = Taken()
    first = await bench.worker("a", canary.handler, labels=SITE)
    await bench.worker("b")
    await _stage(bench, tmp_path)
    await _begin(bench)
    await _is_laid(bench)
    await asyncio.to_thread(bench.servers.service.kill)
    await asyncio.to_thread(bench.servers.service.start)
    before = await bench.client.release(bench.store, 1)
    assert before.rollout is not None
    assert _rows(first) == AFTER
    await until(lambda: _waits_for(bench, 1, "bake time: 0 "))  # the next one has begun its judgement over
    assert _rows(first) == canary.rows == AFTER
    again = await bench.client.publish_release(bench.store, 1, waves=[100], canary=SITE, gate=LONG)
    assert again.rollout is not None
    assert again.rollout.waves == before.rollout.waves
    await bench.client.pause_release(bench.store, 1)
    assert _rows(first) == AFTER
    await bench.client.undo_release(bench.store, 1)
    await until(lambda: _rows(first) == canary.rows == BASE)


async def test_a_killed_worker_lays_the_rows_over_again(bench: Bench, tmp_path: Path) -> None:
    """As long as it is gone the gate waits for it, and fails after the patience."""
    await bench.worker("b")
    with bench.process("killed", labels=SITE) as process:
        await until(lambda: process.joined)
        await _stage(bench, tmp_path)
        await _begin(bench)
        await _is_laid(bench)
        process.kill()
        await until(lambda: _waits_for(bench, 1, "proof: list: worker"))
        process.start()
        await _is_laid(bench)
        assert await _laid_over(bench, "killed") == (1, 3)
        await _stop(bench)
        await _stage(bench, tmp_path)
        short = ReleaseGate(bake_ms=86_400_000, patience_ms=2_000)
        await bench.client.publish_release(bench.store, 2, waves=[100], canary=SITE, gate=short)
        process.kill()
        await until(lambda: _is_undone(bench, 2))
    release = await bench.client.release(bench.store, 2)
    assert release.rollout is not None
    assert "not proven within 2 s: list: " in release.rollout.failure


async def test_a_worker_that_is_cut_off_drops_the_rows_and_gets_them_again(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And does not, if the release has ended meanwhile."""
    caplog.set_level(logging.INFO)
    canary = Taken()
    await bench.worker("b")
    with TcpProxy(bench.servers.nats.port) as link:
        servers = f"nats://127.0.0.1:{link.port}"
        words = {"labels": SITE, "heads_s": 0.5}
        first = await bench.worker("a", canary.handler, servers=servers, **words)
        await until(lambda: canary.rows == BASE)
        await _stage(bench, tmp_path)
        await _begin(bench)
        await until(lambda: canary.rows == AFTER == _rows(first))
        link.cut()
        await until(lambda: canary.rows == BASE == _rows(first))
        assert "the service has not confirmed for 1.5 s that the release goes on" in caplog.text
        link.resume()
        await until(lambda: canary.rows == AFTER == _rows(first))
        link.cut()
        await until(lambda: canary.rows == BASE == _rows(first))
        await _stop(bench)
        link.resume()
        await until(lambda: first.health().connected and first.staleness() == 0)
        assert canary.rows == BASE == _rows(first)


async def test_a_worker_learns_by_itself_that_a_release_has_ended(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What the service sends at the end may be lost."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(provisional._Layer, "ask_now", lambda _: None)
    canary = Taken()
    first = await bench.worker("a", canary.handler, labels=SITE, heads_s=3)
    await bench.worker("b")
    await _stage(bench, tmp_path)
    await _begin(bench)
    await _is_laid(bench)
    await _stop(bench)
    await until(lambda: canary.rows == BASE == _rows(first))
    assert "the release is stopped" in caplog.text


async def test_the_cache_on_the_disk_has_nothing_of_it(bench: Bench, tmp_path: Path) -> None:
    """A worker that starts without NATS has what is published."""
    await bench.worker("b")
    words: Any = {"labels": SITE, "cache_dir": tmp_path / "cache"}
    with TcpProxy(bench.servers.nats.port) as link:
        servers = f"nats://127.0.0.1:{link.port}"
        first = await bench.worker("a", servers=servers, **words)
        await _stage(bench, tmp_path)
        await _begin(bench)
        await _is_laid(bench)
        await bench.client.put(bench.store, "list", "c", "newer")  # so that the cache is written meanwhile
        await until(lambda: _rows(first) == AFTER | {"c": "newer"})
        await first.stop()
        link.cut()
        again = Worker(servers=servers, store=bench.store, keys=["list"], worker_id=f"{bench.store}-a", **words)
        async with again:
            assert not again.health().connected
            assert _rows(again) == BASE | {"c": "newer"}
            link.resume()
            await until(lambda: _rows(again) == AFTER | {"c": "newer"})
            await _stop(bench)
            await until(lambda: _rows(again) == BASE | {"c": "newer"})


async def test_a_dry_wave_judges_before_anything_is_laid_over(bench: Bench, tmp_path: Path) -> None:
    canary, judged, bad = Taken(), dict[str, Change](), {"d"}

    def validate(change: Change) -> str | None:
        judged[change.row_id] = change
        return "not in our list" if change.row_id in bad else None

    first = await bench.worker("a", canary.handler, labels=SITE, validate=validate)
    await bench.worker("b", validate=lambda _: "it has not the label")
    await until(lambda: canary.rows == BASE)
    await _stage(bench, tmp_path)
    words = ("--waves", "100", "--canary", SITE, "--dry-wave", "--patience", PATIENCE_S)
    said = await _run(bench, "publish", bench.store, 1, *words, code=1)
    assert said.err == (
        f"ringcast: release 1 of store '{bench.store}' can't be published: in its dry wave 1 row was refused of 3: "
        f"list/'d' by worker {bench.store}-a: 'not in our list'\n"
    )
    assert {row_id: change.value for row_id, change in judged.items()} == {"a": "new", "b": None, "d": "new"}
    release = await bench.client.release(bench.store, 1)
    assert (release.state, release.published) == (ReleaseState.STAGED, 0)
    assert canary.rows == BASE == _rows(first)
    assert not any(change.provisional for change in canary.changes)
    bad.clear()
    said = await _run(bench, "publish", bench.store, 1, *words)
    assert said.out == f"release 1 of {bench.store} is published: 3 rows, 3 published\n"
    await until(lambda: canary.rows == AFTER)


async def test_what_can_be_no_canary_is_refused(bench: Bench, tmp_path: Path) -> None:
    await bench.worker("a", labels=SITE)
    await _stage(bench, tmp_path)
    place = f"ringcast: release 1 of store '{bench.store}' can't be published with the canary"
    said = await _run(bench, "publish", bench.store, 1, "--waves", "100", "--canary", "site=prod", code=1)
    assert said.err == f"{place} site=prod: no worker of its keys has this label\n"
    said = await _run(bench, "publish", bench.store, 1, "--waves", "100", "--canary", SITE, code=1)
    assert said.err.startswith(f"{place} {SITE}: workers with this label own all partitions of its keys, so nobody")
    assert (await bench.client.release(bench.store, 1)).state is ReleaseState.STAGED
