"""``ringcast release publish --promql``: a real Prometheus watches the service, a worker and its application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client import CollectorRegistry, Counter, start_http_server
from ringcast import Change
from ringcast_client import ReleaseInfo
from ringcast_testkit import ReservedPort, until
from ringcast_wire import ReleaseGate, ReleaseState

from tests.integration.cli_process import Cli, Result, Servers
from tests.integration.prometheus_server import PrometheusServer
from tests.integration.worker_bench import Bench, worker_bench

ROWS: Final = 40
WORKER: Final = ReservedPort()
# The last that was scraped: where a busy machine lets a scrape take too long, Prometheus has no sample for that moment.
GOOD: Final = "sum(last_over_time(app_errors_total[1m])) < bool 1"
HEALTHY: Final = f"({GOOD}) * (sum(up) == bool 3)"
LONG_MS: Final = 3_600_000


class Application:
    """What has a worker: it counts the rows that are bad for it, and refuses none."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self.errors = Counter("app_errors", "Rows that the application can't work with.", registry=registry)
        self._server, self._thread = start_http_server(0, "127.0.0.1", registry)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self.values: dict[str, str | None] = {}

    async def handler(self, change: Change) -> None:
        self.values[change.row_id] = change.value
        if change.value == "bad":
            self.errors.inc()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(scope="module")
def application() -> Iterator[Application]:
    made = Application()
    yield made
    made.close()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    made = PrometheusServer(tmp_path_factory.mktemp("prometheus"))
    yield made
    made.__exit__(None, None, None)


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory, prometheus: PrometheusServer, application: Application
) -> Iterator[Servers]:
    with Servers(tmp_path_factory.mktemp("cli"), "--prometheus-url", prometheus.url) as started:
        service = started.service.metrics_url.removeprefix("http://").removesuffix("/metrics")
        prometheus.scrape(service=service, worker=WORKER.address, application=application.address)
        prometheus.start()
        yield started


@pytest.fixture
async def bench(
    servers: Servers, cli: Cli, store_name: str, application: Application, prometheus: PrometheusServer
) -> AsyncIterator[Bench]:
    """With a worker that has all rows, and a Prometheus that sees no errors."""
    application.errors.reset()
    application.values.clear()
    if prometheus.process.returncode is None:
        prometheus.resume()
    else:
        prometheus.start()
    async with worker_bench(servers, cli, store_name) as made:
        await made.create()
        await made.worker("a", application.handler, metrics_listen=WORKER.address)
        await made.fill(ROWS)
        await _answers(prometheus, HEALTHY, "1")
        yield made


async def _answers(prometheus: PrometheusServer, expression: str, value: str) -> None:
    """Returns once Prometheus has scraped that."""

    async def answers() -> bool:
        return await asyncio.to_thread(prometheus.ask, expression) == [value]

    await until(answers)


async def _run(bench: Bench, *words: object, code: int = 0) -> Result:
    """The workers of this process answer meanwhile."""
    found = await asyncio.to_thread(bench.cli, "release", *words)
    assert found.code == code, found
    return found


async def _stage(bench: Bench, tmp_path: Path, value: str = "good") -> None:
    file = tmp_path / "rows.csv"
    file.write_text("row_id,value\n" + "".join(f"row{number},{value}\n" for number in range(ROWS)))
    await _run(bench, "stage", bench.store, "--key", f"list={file}")


def _gate(*promql: str, **more: Any) -> ReleaseGate:
    """One that bakes for longer than any test, so that what ends it is the test."""
    return ReleaseGate(**{"bake_ms": LONG_MS, "patience_ms": LONG_MS, "promql": promql, **more})


async def _waits(bench: Bench, for_what: str) -> str:
    """Returns once the first wave waits for this, with the whole sentence."""
    said = ""

    async def waits() -> bool:
        nonlocal said
        rollout = (await bench.client.release(bench.store, 1)).rollout
        assert rollout is not None
        assert (rollout.wave, rollout.failure) == (1, "")
        said = rollout.waits_for
        return for_what in said

    await until(waits)
    return said


async def _undone(bench: Bench) -> ReleaseInfo:
    """The release once the service has undone it after the first of its waves."""
    release = await bench.client.follow_release(bench.store, 1)
    assert release.state is ReleaseState.UNDONE
    assert 0 < release.published == release.undone < ROWS
    assert release.rollout is not None
    assert release.rollout.wave == 1
    rows = await bench.client.get(bench.store, "list", [f"row{number}" for number in range(ROWS)])
    assert {row.value for row in rows} == {"value"}
    return release


async def test_a_release_passes_while_all_conditions_hold(bench: Bench, tmp_path: Path) -> None:
    await _stage(bench, tmp_path)
    watched = [GOOD, "max(config_service_outbox_age_seconds) < bool 60", "sum(config_partitions_owned) == bool 8"]
    options = [word for condition in watched for word in ("--promql", condition)]
    said = await _run(bench, "publish", bench.store, 1, "--waves", "20,100", "--bake", "500ms", *options)
    assert said.out == f"release 1 of {bench.store} is published: {ROWS} rows, {ROWS} published\n"
    shown = (await _run(bench, "show", bench.store, 1)).out
    assert [line for line in shown.splitlines() if line.startswith("condition ")] == [f"condition {c}" for c in watched]
    document = (await _run(bench, "show", bench.store, 1, "--json")).document
    assert document["rollout"]["gate"]["promql"] == watched
    entries = (await asyncio.to_thread(bench.cli.ok, "audit", "list", bench.store, "--json")).out
    assert entries.count('"PassWave"') == 2


async def test_a_list_that_makes_the_application_fail_is_undone_within_its_first_wave(
    bench: Bench, application: Application, tmp_path: Path
) -> None:
    """No handler refuses anything: only what Prometheus has read of the application tells."""
    await _stage(bench, tmp_path, "bad")
    words = ["--waves", "20,100", "--bake", "1h", "--promql", GOOD]
    said = await _run(bench, "publish", bench.store, 1, *words, code=1)
    assert "the gate of wave 1 of 2 (20 %) failed, so the service undid the release: " in said.err
    assert f"PromQL condition '{GOOD}' is not met: it is 0" in said.err
    await _undone(bench)
    await until(lambda: len(application.values) == ROWS and set(application.values.values()) == {"value"})


async def test_it_is_said_what_a_wave_waits_for_and_what_prometheus_answers(
    bench: Bench, application: Application, tmp_path: Path
) -> None:
    await _stage(bench, tmp_path)
    seen = "max(app_seen) == bool 1"
    await bench.client.publish_release(bench.store, 1, waves=[20, 100], gate=_gate(GOOD, seen))
    await _waits(bench, f"PromQL condition 2 '{seen}': it has no sample")
    rows = [row async for row in bench.client.release_rows(bench.store, 1)]
    waiting = next(row.row_id for row in rows if not row.version)

    async def all_say_it() -> bool:
        """Now and then Prometheus has not read the application in time, and the first condition waits."""
        shown = (await _run(bench, "show", bench.store, 1)).out
        why = (await asyncio.to_thread(bench.cli, "why", bench.store, "list", waiting)).out
        return all(f"waits for its gate: PromQL condition 2 '{seen}': it has no sample" in out for out in (shown, why))

    await until(all_say_it)
    other = await _run(bench, "publish", bench.store, 1, "--waves", "20,100", code=1)
    assert "is publishing with another gate: " in other.err
    assert "2 PromQL conditions" in other.err
    application.errors.inc()
    assert (await _undone(bench)).rollout.failure == f"PromQL condition 1 '{GOOD}' is not met: it is 0"  # type: ignore[union-attr]


async def test_no_sample_within_the_patience_undoes_the_release(bench: Bench, tmp_path: Path) -> None:
    await _stage(bench, tmp_path)
    gate = _gate("max(app_seen) == bool 1", patience_ms=1_500)
    await bench.client.publish_release(bench.store, 1, waves=[20, 100], gate=gate)
    failure = (await _undone(bench)).rollout.failure  # type: ignore[union-attr]
    assert failure == "not met within 1.5 s: PromQL condition 'max(app_seen) == bool 1': it has no sample"


@pytest.mark.parametrize(
    ("fault", "why"),
    [("kill", "Prometheus can't be reached"), ("pause", "Prometheus does not answer within 2 s")],
)
async def test_without_prometheus_a_wave_waits_and_is_undone_after_its_patience(
    bench: Bench, prometheus: PrometheusServer, tmp_path: Path, fault: str, why: str
) -> None:
    await _stage(bench, tmp_path)
    gate = _gate(GOOD, patience_ms=4_000)
    await bench.client.publish_release(bench.store, 1, waves=[20, 100], gate=gate)
    await _waits(bench, "; PromQL: 1 of 1 met")
    getattr(prometheus, fault)()
    failure = (await _undone(bench)).rollout.failure  # type: ignore[union-attr]
    assert failure == f"not met within 4 s: PromQL condition '{GOOD}': {why}"


async def test_a_wave_goes_on_when_prometheus_is_back_within_the_patience(
    bench: Bench, prometheus: PrometheusServer, application: Application, tmp_path: Path
) -> None:
    await _stage(bench, tmp_path)
    await bench.client.publish_release(bench.store, 1, waves=[20, 100], gate=_gate(GOOD))
    await _waits(bench, "bake time: ")
    prometheus.kill()
    await _waits(bench, "Prometheus can't be reached")
    assert (await bench.client.release(bench.store, 1)).state is ReleaseState.PUBLISHING
    prometheus.start()
    await _waits(bench, "bake time: ")
    application.errors.inc()
    await _undone(bench)


async def test_what_can_not_be_met_is_refused_and_nothing_is_published(
    bench: Bench, prometheus: PrometheusServer, application: Application, tmp_path: Path
) -> None:
    await _stage(bench, tmp_path)

    async def refused(condition: str, *words: object) -> str:
        options = ["--waves", "20,100", "--bake", "1h", "--promql", condition, *words]
        said = await _run(bench, "publish", bench.store, 1, *options, code=1)
        assert "Traceback" not in said.err
        return said.err

    assert "PromQL condition 'sum(up': Prometheus refuses it: " in await refused("sum(up")
    assert "PromQL condition 'up': it has 3 samples, and one is allowed" in await refused("up")
    assert "PromQL condition 'count(up)': its value is 3, and only 1 and 0 are allowed" in await refused("count(up)")
    found = await refused("1 == bool 1", "--promql", "up[1m]")
    assert "PromQL condition 2 'up[1m]': its result is a 'matrix', and one number is allowed" in found
    application.errors.inc()
    await _answers(prometheus, GOOD, "0")
    assert f"can't be published: PromQL condition '{GOOD}' is not met: it is 0" in await refused(GOOD)
    prometheus.kill()
    assert "Prometheus can't be reached" in await refused("1 == bool 1", "--timeout", "1")
    release = await bench.client.release(bench.store, 1)
    assert (release.state, release.published) == (ReleaseState.STAGED, 0)
