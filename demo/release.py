"""The demo of releases: a bad list is refused, a worse one is undone by itself, and a good one is proven.

`make demo-release` runs it; build/demo-release.json has the figures. Exit status 1 unless all of that happens within
60 s, and every worker holds what the service has.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from ringcast_client import ConfigServiceClient

from demo.__main__ import Ringcast, running_system
from demo.fleet import Fleet
from demo.judge import Held, Verdict, judge
from demo.release_lists import BACKENDS, GONE, TENANTS, write_routes, write_schema
from demo.screen import Screen, figures_table, fleet_table

STORE: Final = "gateway"
KEY: Final = "routes"
PARTITIONS: Final = 64
WORKERS: Final = ("w1", "w2", "w3")
WAVES: Final = "5,25,100"
WITHIN_S: Final = 60.0
"""The whole demo is to take no longer, on a machine without other work."""


class Story:
    """The demo, part by part, and the figures that it collects."""

    def __init__(
        self, ringcast: Ringcast, fleet: Fleet, client: ConfigServiceClient, screen: Screen, directory: Path
    ) -> None:
        self._ringcast = ringcast
        self._fleet = fleet
        self._client = client
        self._screen = screen
        self._directory = directory
        self.figures: dict[str, Any] = {}

    async def begin(self) -> None:
        """A list with a schema, and workers that share it out."""
        self._screen.step(f"Create a store with a schema of its values, import {TENANTS:,} routes, start routers")
        self._ringcast("store", "create", STORE, "--partitions", str(PARTITIONS))
        self._ringcast("schema", "register", STORE, KEY, write_schema(self._directory / "route.json"))
        self._ringcast("import", STORE, KEY, write_routes(self._directory / "routes.csv"))
        for worker_id in WORKERS:
            await self._fleet.start(worker_id)
        await self._fleet.wait_settled()
        self._screen.show(fleet_table(self._fleet, PARTITIONS))
        self.figures |= {"rows": TENANTS, "partitions": PARTITIONS, "workers": len(WORKERS)}

    def stage_bad(self) -> None:
        """A list that breaks the schema does not even become a release."""
        self._screen.step("Stage a bad list: its weights are words")
        bad = write_routes(self._directory / "bad.csv", weight="all")
        self._screen.say(self._ringcast.refused("release", "stage", STORE, "--key", f"{KEY}={bad}"))
        releases = self._ringcast("release", "list", STORE, lines=True)
        self.figures["bad_list_refused"] = not any(release["state"] == "staged" for release in releases)

    async def publish_worse(self) -> None:
        """A list that no schema finds wrong: the routers refuse some of it, in the first wave."""
        self._screen.step(f"Publish a worse list in waves of {WAVES} %: every fourth backend in it is gone")
        before = {row.row_id: row.version async for row in self._client.list(STORE, KEY)}
        number = self._stage(write_routes(self._directory / "worse.csv", backends=(*BACKENDS, GONE), weight=50))
        began = time.monotonic_ns()
        # In a thread, as below: what the routers say is read meanwhile, or they would wait for that.
        publish = ("release", "publish", STORE, str(number), "--waves", WAVES)
        self._screen.say(await asyncio.to_thread(self._ringcast.refused, *publish))
        release = self._ringcast("release", "show", STORE, str(number))
        last_ns = began
        async for row in self._client.list(STORE, KEY):
            if row.version != before[row.row_id]:
                _, at_ns = await self._fleet.wait_heard(KEY, row.row_id, row.version)
                last_ns = max(last_ns, at_ns)
        self.figures |= {
            "worse_rows_staged": release["rows"],
            "worse_rows_published": release["published"],
            "worse_rows_undone": release["undone"],
            "publish_to_undone_at_routers_s": round((last_ns - began) / 1e9, 2),
        }
        self._screen.say(
            f"{release['published']:,} of {release['rows']:,} rows were out; "
            f"{self.figures['publish_to_undone_at_routers_s']} s after the command was given every router had its old "
            "routes again"
        )

    async def publish_good(self) -> None:
        """A good list goes through all waves, each of which is proven."""
        self._screen.step("Publish a good list in the same waves")
        number = self._stage(write_routes(self._directory / "good.csv", weight=50))
        began = time.monotonic_ns()
        await asyncio.to_thread(self._ringcast, "release", "publish", STORE, str(number), "--waves", WAVES)
        await asyncio.to_thread(self._ringcast, "release", "wait", STORE, str(number))
        release = self._ringcast("release", "show", STORE, str(number))
        self.figures["good_release_proven"] = release["state"] == "published" and bool(release["certificate"])
        self.figures["publish_to_proven_s"] = round((time.monotonic_ns() - began) / 1e9, 2)
        self._screen.say(
            f"{release['published']:,} rows; proven after {self.figures['publish_to_proven_s']} s: every router had "
            "applied all of it"
        )

    async def prove(self) -> None:
        """Compares what the workers hold with what the service has."""
        self._screen.step("Compare what the routers hold with the system of record")
        await self._fleet.dump()
        truth: Held = {
            row.row_id: (row.value, row.version, row.partition) async for row in self._client.list(STORE, KEY)
        }
        members = self._fleet.members.items()
        held = {worker_id: member.dump.get(KEY, {}) for worker_id, member in members}
        owned = {worker_id: member.owned.get(KEY, frozenset()) for worker_id, member in members}
        verdict: Verdict = judge(truth, held, owned)
        self._screen.say(
            f"{len(truth):,} rows; {verdict.lost_rows} lost, {verdict.misplaced_rows} misplaced, "
            f"{verdict.stale_rows} stale"
        )
        self.figures |= asdict(verdict)

    def _stage(self, path: Path) -> int:
        staged = self._ringcast("release", "stage", STORE, "--key", f"{KEY}={path}")
        number = int(staged["release"]["number"])
        self._screen.say(f"release {number} is staged")
        return number


async def tell(directory: Path, screen: Screen) -> dict[str, Any]:
    """Runs the whole demo and returns its figures."""
    screen.step("Start everything on this machine: `ringcast up`")
    async with (
        running_system(directory) as ringcast,
        ConfigServiceClient(ringcast.service) as client,
        Fleet(ringcast.servers, STORE, [KEY], PARTITIONS, "demo.router") as fleet,
    ):
        screen.say(f"NATS at {ringcast.servers}, config service at {ringcast.service}")
        fleet.on_update = screen.follow(fleet, PARTITIONS)
        story = Story(ringcast, fleet, client, screen, directory)
        await story.begin()
        story.stage_bad()
        await story.publish_worse()
        await story.publish_good()
        await story.prove()
        return story.figures


def failed(figures: dict[str, Any], within_s: float = WITHIN_S) -> str:
    """What of the promise was broken; empty: nothing."""
    if not figures["bad_list_refused"]:
        return "the bad list was staged"
    if not 0 < figures["worse_rows_published"] == figures["worse_rows_undone"] < figures["worse_rows_staged"]:
        return "the worse list was not undone after its first waves"
    if not figures["good_release_proven"]:
        return "the good list was not proven"
    if figures["lost_rows"] or figures["misplaced_rows"] or figures["stale_rows"]:
        return "rows are lost, misplaced or stale"
    if figures["total_s"] > within_s:
        return f"it took longer than {within_s:g} s: {figures['total_s']} s"
    return ""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="demo.release", description="Publish a bad, a worse and a good list.")
    parser.add_argument(
        "--output", type=Path, default=Path("build/demo-release.json"), help="figures (default: %(default)s)"
    )
    parser.add_argument("--picture", type=Path, help="write what is shown as an SVG picture")
    parser.add_argument(
        "--within",
        type=float,
        metavar="SECONDS",
        default=WITHIN_S,
        help="fail where it takes longer (default: %(default)g)",
    )
    options = parser.parse_args()
    began_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="ringcast-demo-") as directory,
        Screen(picture=options.picture, title="make demo-release") as screen,
    ):
        figures = asyncio.run(tell(Path(directory), screen))
        figures["total_s"] = round(time.monotonic() - began_s, 1)
        screen.show(figures_table(figures))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(figures, indent=2) + "\n")
    if problem := failed(figures, options.within):
        sys.exit(f"demo: FAILED: {problem}")


if __name__ == "__main__":
    main()
