"""Workers that die, hang and are cut off, under load: nothing is lost, nothing stale, nothing falls."""

from __future__ import annotations

from tests.integration.faults.conftest import Start
from tests.integration.faults.kinds import KINDS

MOST_S = 30.0
"""Far above what a recovery takes, and far below what waiting for a time-out would."""


async def test_a_worker_that_is_killed_and_comes_back(start: Start) -> None:
    async with start() as run:
        assert await run.fault(KINDS["worker_killed"]) < MOST_S
        assert await run.fault(KINDS["worker_replaced"]) < MOST_S


async def test_a_worker_that_hangs_for_longer_than_its_lease(start: Start) -> None:
    async with start() as run:
        assert await run.fault(KINDS["worker_paused"]) < MOST_S
        reports = run.arena.history.reports()
        paused, resumed = (r for r in reports if r.event in ("paused", "resumed"))
        others = [r for r in reports if r.worker_id != paused.worker_id]
        took = [r for r in others if r.event == "assigned" and paused.at_ns < r.at_ns < resumed.at_ns]
        gave = [r for r in others if r.event == "revoked" and r.at_ns > resumed.at_ns]
        assert sum(len(r.fields["partitions"]) for r in took) == sum(len(r.fields["partitions"]) for r in gave) > 0


async def test_a_dead_worker_whose_lease_disappears_without_a_word(start: Start) -> None:
    """A cluster that changes its leader may drop an expired lease without the marker that watchers wait for."""
    async with start() as run:
        assert await run.fault(KINDS["lease_lost_silently"]) < MOST_S


async def test_a_worker_that_is_cut_off_goes_on_with_what_it_has(start: Start) -> None:
    async with start() as run:
        assert await run.fault(KINDS["worker_cut_off"]) < MOST_S
        assert not any(report.event == "failed" for report in run.arena.history.reports())


async def test_networks_that_are_slow_silent_or_a_trickle(start: Start) -> None:
    async with start() as run:
        for kind in ("link_slow", "link_trickles", "link_cut", "service_link_silent"):
            assert await run.fault(KINDS[kind]) < MOST_S


async def test_what_the_server_forgets_is_made_again(start: Start) -> None:
    async with start() as run:
        for kind in ("consumer_deleted", "stream_purged", "stream_deleted", "lease_deleted", "events_repeated"):
            assert await run.fault(KINDS[kind]) < MOST_S


async def test_what_one_worker_may_write_harms_no_other(start: Start) -> None:
    async with start() as run:
        for kind in (
            "slots_claimed",
            "buckets_rolled_up",
            "others_told_dead",
            "records_that_are_none",
            "slots_claimed",
        ):
            assert await run.fault(KINDS[kind]) < MOST_S


async def test_workers_that_hold_everything(start: Start) -> None:
    async with start(full=True, workers=2) as run:
        for kind in ("nats_killed", "stream_deleted", "consumer_deleted", "service_killed", "nats_lost_its_disk"):
            assert await run.fault(KINDS[kind]) < MOST_S
