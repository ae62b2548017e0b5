"""The demo: real lists, real processes, a killed worker, and a proof at the end that no row was lost.

`make demo` runs it; build/demo.json has the figures. Exit status 1 unless no row is lost, misplaced or stale.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ringcast_client import ConfigServiceClient

from demo.fleet import Fleet
from demo.judge import Held, Verdict, judge
from demo.lists import SourceList, write_lists
from demo.screen import Screen, figures_table, fleet_table

STORE = "gateway"
PARTITIONS = 256
SINGLE_CHANGES = 240
OUTAGE_CHANGES = 20
SHOWN_CHANGES = 6
SEED = 20


class Ringcast:
    """The `ringcast` command, pointed at the system that the demo started."""

    def __init__(self, servers: str, service: str) -> None:
        self.servers = servers
        self.service = service
        self._environment = {**os.environ, "RINGCAST_SERVERS": servers, "RINGCAST_SERVICE": service}

    def __call__(self, *words: str | Path, lines: bool = False) -> Any:
        """Runs one command with --json and returns what it said; with ``lines``, a list of what each line said."""
        done = self._run(*words, "--json")
        if done.returncode != 0:
            raise SystemExit(f"demo: `ringcast {' '.join(map(str, words))}` failed: {done.stderr.strip()}")
        return [json.loads(line) for line in done.stdout.splitlines()] if lines else json.loads(done.stdout)

    def refused(self, *words: str | Path) -> str:
        """Runs a command that has to fail, and returns why it did."""
        done = self._run(*words)
        if done.returncode == 0:
            raise SystemExit(f"demo: `ringcast {' '.join(map(str, words))}` was to fail: {done.stdout.strip()}")
        return done.stderr.strip()

    def _run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ringcast_cli", *map(str, words)]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)  # noqa: S603


@asynccontextmanager
async def running_system(directory: Path) -> AsyncIterator[Ringcast]:
    """`ringcast up` on free ports, with its data below ``directory``."""
    ready = directory / "ready.json"
    words = ["up", "--data-dir", directory / "data", "--nats-port", "0", "--grpc-port", "0", "--ready-file", ready]
    log = (directory / "up.log").open("wb")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ringcast_cli", *map(str, words), stdout=log, stderr=log
    )
    try:
        while not ready.exists():
            if process.returncode is not None:
                raise SystemExit(f"demo: `ringcast up` failed: {(directory / 'up.log').read_text()}")
            await asyncio.sleep(0.02)
        addresses = json.loads(ready.read_text())
        yield Ringcast(addresses["nats"], addresses["service"])
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        log.close()


class Story:
    """The demo, part by part, and the figures that it collects."""

    def __init__(self, ringcast: Ringcast, fleet: Fleet, client: ConfigServiceClient, screen: Screen) -> None:
        self._ringcast = ringcast
        self._fleet = fleet
        self._client = client
        self._screen = screen
        self._random = random.Random(SEED)  # noqa: S311  # repeatable, not secret
        self.figures: dict[str, Any] = {}

    def load(self, lists: list[SourceList]) -> None:
        """Creates the store and imports both lists with the command line."""
        self._screen.step(f"Create store {STORE} with {PARTITIONS} partitions, and import two real lists")
        self._ringcast("store", "create", STORE, "--partitions", str(PARTITIONS))
        rows = seconds = 0.0
        for source in lists:
            summary = self._ringcast("import", STORE, source.key, source.path)
            rows, seconds = rows + summary["written"], seconds + summary["seconds"]
            self._screen.say(f"{source.key}: {summary['written']:,} rows in {summary['seconds']:.2f} s")
        self.figures |= {"rows": int(rows), "partitions": PARTITIONS, "load_rows_per_s": round(rows / seconds)}

    async def share_out(self, workers: list[str]) -> None:
        """Starts the workers; each takes its part."""
        self._screen.step(f"Start {len(workers)} worker processes: they share {PARTITIONS} partitions of each list out")
        for worker_id in workers:
            await self._fleet.start(worker_id)
        await self._fleet.wait_settled()
        self.figures["workers"] = len(workers)
        self._show_fleet()

    async def change(self, lists: list[SourceList]) -> None:
        """Changes and deletes single rows, one at a time, and times each from the call to the owner's handler."""
        self._screen.step(f"Change {SINGLE_CHANGES} single rows: only the owner hears of each")
        key = lists[0].key
        domains = lists[0].path.read_text(encoding="utf-8").split()
        times_ms = []
        changes = []
        for number, row_id in enumerate(self._random.sample(domains, SINGLE_CHANGES)):
            delete = number % 4 == 3
            started = time.monotonic_ns()
            if delete:
                version = (await self._client.delete(STORE, key, row_id)).version
            else:
                version = (await self._client.put(STORE, key, row_id, f"changed {number}")).version
            worker_id, at_ns = await self._fleet.wait_heard(key, row_id, version)
            times_ms.append((at_ns - started) / 1e6)
            if number < SHOWN_CHANGES:
                verb = "deleted" if delete else "changed"
                self._screen.say(f"{verb} {row_id}: heard by {worker_id} after {times_ms[-1]:.1f} ms")
            changes.append((key, row_id, version))
        for change in changes:
            if len(heard_by := self._fleet.hearers(*change)) != 1:
                raise SystemExit(f"demo: the change {change} was heard by {heard_by}")
        self.figures["changes"] = SINGLE_CHANGES
        self.figures["change_p50_ms"] = round(statistics.median(times_ms), 2)
        self.figures["change_p99_ms"] = round(statistics.quantiles(times_ms, n=100)[98], 2)
        self._screen.say(
            f"… {SINGLE_CHANGES} in all, each heard by one worker: "
            f"p50 {self.figures['change_p50_ms']} ms, p99 {self.figures['change_p99_ms']} ms"
        )

    async def lose_a_worker(self, worker_id: str, key: str) -> None:
        """Kills a worker, writes to its rows while nobody owns them, and waits for the others to take over."""
        self._screen.step(f"Kill {worker_id} with SIGKILL, and change {OUTAGE_CHANGES} rows before anyone has noticed")
        before = self._fleet.owners()
        orphaned, killed_at = await self._fleet.kill(worker_id)
        for number in range(OUTAGE_CHANGES):
            await self._client.put(STORE, key, f"written-in-the-outage-{number}.example", "still here")
        recovered_at = await self._fleet.wait_settled()
        after = self._fleet.owners()
        self.figures["moved_on_leave"] = sum(after[place] != owner for place, owner in before.items())
        self.figures["ideal_moved_on_leave"] = sum(map(len, orphaned.values()))
        self.figures["recovery_s"] = round((recovered_at - killed_at) / 1e9, 2)
        self._screen.say(
            f"{self.figures['moved_on_leave']} partitions moved ({self.figures['ideal_moved_on_leave']} were its own), "
            f"all owned and loaded again after {self.figures['recovery_s']} s"
        )
        self._show_fleet()

    async def gain_a_worker(self, worker_id: str) -> None:
        """Adds a worker."""
        self._screen.step(f"Add {worker_id}")
        before = self._fleet.owners()
        started = time.monotonic_ns()
        await self._fleet.start(worker_id)
        settled = await self._fleet.wait_settled()
        after = self._fleet.owners()
        self.figures["moved_on_join"] = sum(after[place] != owner for place, owner in before.items())
        self._screen.say(f"{self.figures['moved_on_join']} partitions moved, {(settled - started) / 1e9:.2f} s")
        self._show_fleet()

    async def prove(self) -> Verdict:
        """Compares what the workers hold with what the service has."""
        self._screen.step("Compare what the workers hold with the system of record")
        await self._fleet.dump()
        verdict = Verdict(0, 0, 0)
        for key in self._fleet.keys:
            truth: Held = {
                row.row_id: (row.value, row.version, row.partition) async for row in self._client.list(STORE, key)
            }
            held = {worker_id: member.dump.get(key, {}) for worker_id, member in self._fleet.members.items()}
            owned = {worker_id: member.owned.get(key, frozenset()) for worker_id, member in self._fleet.members.items()}
            result = judge(truth, held, owned)
            verdict += result
            self._screen.say(
                f"{key}: {len(truth):,} live rows; {result.lost_rows} lost, "
                f"{result.misplaced_rows} misplaced, {result.stale_rows} stale"
            )
        self.figures |= asdict(verdict)
        return verdict

    def _show_fleet(self) -> None:
        self._screen.show(fleet_table(self._fleet, PARTITIONS))


async def tell(directory: Path, screen: Screen) -> dict[str, Any]:
    """Runs the whole demo and returns its figures."""
    screen.step("Start everything on this machine: `ringcast up`")
    lists = write_lists(directory / "lists")
    keys = [source.key for source in lists]
    async with running_system(directory) as ringcast, ConfigServiceClient(ringcast.service) as client:
        screen.say(f"NATS at {ringcast.servers}, config service at {ringcast.service}")
        async with Fleet(ringcast.servers, STORE, keys, PARTITIONS) as fleet:
            fleet.on_update = screen.follow(fleet, PARTITIONS)
            story = Story(ringcast, fleet, client, screen)
            story.load(lists)
            await story.share_out(["w1", "w2", "w3", "w4"])
            await story.change(lists)
            await story.lose_a_worker("w2", keys[0])
            await story.gain_a_worker("w5")
            await story.prove()
            return story.figures


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="demo", description="Share two real lists out over worker processes.")
    parser.add_argument("--output", type=Path, default=Path("build/demo.json"), help="figures (default: %(default)s)")
    parser.add_argument("--picture", type=Path, help="write what is shown as an SVG picture")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ringcast-demo-") as directory, Screen(picture=options.picture) as screen:
        figures = asyncio.run(tell(Path(directory), screen))
        screen.show(figures_table(figures))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(figures, indent=2) + "\n")
    if figures["lost_rows"] or figures["misplaced_rows"] or figures["stale_rows"]:
        sys.exit("demo: FAILED: rows are lost, misplaced or stale")


if __name__ == "__main__":
    main()
