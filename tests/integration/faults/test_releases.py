"""Config services that die in the middle of publishing a release and of undoing one, under load, with workers."""

from __future__ import annotations

from tests.integration.faults.conftest import Start
from tests.integration.faults.histories import Findings
from tests.integration.faults.kinds import KINDS
from tests.integration.faults.record import record_of
from tests.integration.faults.release_faults import LARGE
from tests.integration.faults.release_judge import judge_releases
from tests.integration.faults.run import Run

MOST_S = 40.0


async def test_services_are_killed_in_the_middle_of_publish_and_undo(start: Start) -> None:
    async with start(releases=True, workers=2, partitions=8, keys=("routes", "rules")) as run:
        assert await run.fault(KINDS["publisher_killed"]) < MOST_S
        assert await run.fault(KINDS["undoer_killed"]) < MOST_S
        met = run.arena.met
        assert met["killed_while_publishing"] + met["killed_while_publishing_in_waves"], "no kill met a publish midway"
        assert met["killed_while_undoing"], "no kill met an undo midway"
        await run.load.stop()
        await one_row_less_is_noticed(run)


async def one_row_less_is_noticed(run: Run) -> None:
    """The judge is given the record without one row of a large release, and of one that was undone."""
    found, revisions = await run.releases_at_rest(), await record_of(run.arena.database)
    large = [release for release in found if release.row_count == LARGE and release.published]
    assert len(large) > 1
    assert "undone" in {release.state for release in large}
    for release in large:
        written = [row for row in release.rows if row.version]
        lost = written[len(written) // 2]
        place = (lost.key, lost.partition, lost.undo_version or lost.version)
        findings = Findings()
        judge_releases([release], [each for each in revisions if each[:3] != place], findings)
        assert findings.counts["half_release"] == 1, f"{release.state} without {lost}: {findings.sentences}"
