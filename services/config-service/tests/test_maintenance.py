"""An instance leads maintenance until it stops, drains, or the database says that another one does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from ringcast_config_service.maintenance import Maintenance, Term
from ringcast_config_service.repository import LostLeadError
from ringcast_config_service.telemetry import Measures
from ringcast_testkit import until
from ringcast_wire import UnavailableError

Bench = Any  # of conftest.py
LEASE_MS = 600
PATIENT_MS = 60_000


class Away:
    """The lead of a database that can't be reached at times."""

    def __init__(self, lead: Any) -> None:
        self._lead = lead
        self.away = False

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any) -> Any:
            if self.away:
                raise UnavailableError("the database is away")
            return await getattr(self._lead, name)(*args)

        return call


class Instance:
    """One that has a single duty, which ends when it is told to."""

    def __init__(self, lead: Any, name: str, lease_ms: int = LEASE_MS) -> None:
        self.measures = Measures()
        self.terms: list[Term] = []
        self.change: Any = None
        duties = ({"duty": self._duty},)
        self.maintenance = Maintenance(lead, name, self.measures, lease_ms=lease_ms, every_s=0.01, duties=duties)

    async def _duty(self, term: Term) -> None:
        if term not in self.terms:
            self.terms.append(term)
        if self.change is not None:
            await self.change(term)

    @asynccontextmanager
    async def runs(self) -> AsyncIterator[Instance]:
        task = asyncio.create_task(self.maintenance.run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line.getMessage() for line in caplog.records if line.name == "ringcast_config_service.maintenance"]


async def test_one_leads_until_it_leaves(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    one, two = Instance(bench.repo.lead, "one", PATIENT_MS), Instance(bench.repo.lead, "two")
    async with one.runs():
        await until(lambda: one.terms)
        async with two.runs():
            assert one.maintenance.leads
            await one.maintenance.withdraw()
            assert not one.maintenance.leads
            await until(lambda: two.terms)
            assert len(one.terms) == 1
            with pytest.raises(LostLeadError):
                await bench.repo.maintenance.forget_marks(one.terms[0].lead, 1, 1)
            assert one.measures.lead_changes == {"taken": 1, "lost": 0, "resigned": 1}
    assert lines(caplog)[:3] == [
        'event=maintenance.lead_taken token=1 before=""',
        "event=maintenance.lead_resigned token=1",
        "event=maintenance.lead_taken token=3 before=one",
    ]


async def test_a_duty_that_is_refused_ends_all_of_them_with_one_line(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    one = Instance(bench.repo.lead, "one", PATIENT_MS)

    async def change(term: Term) -> None:
        await bench.repo.maintenance.forget_marks(term.lead, 1, 1)

    one.change = change
    async with one.runs():
        await until(lambda: one.terms)
        await bench.execute("UPDATE maintenance SET token = token + 1, holder = 'another' WHERE duty = 'lead'")
        await until(lambda: not one.maintenance.leads)
        assert lines(caplog) == ["event=maintenance.lead_lost token=1 refused=duty"]
        with pytest.raises(LostLeadError):
            one.terms[0].check()
    assert one.measures.lead_changes == {"taken": 1, "lost": 1, "resigned": 0}


async def test_a_leader_that_does_not_reach_the_database_stops_when_its_lease_is_over(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """What is outside the database, nobody refuses. When the database is back it leads again."""
    lead = Away(bench.repo.lead)
    one = Instance(lead, "one")
    async with one.runs():
        await until(lambda: one.terms)
        lead.away = True
        await until(lambda: "event=maintenance.take_postponed" in "".join(lines(caplog)))
        with pytest.raises(LostLeadError):
            one.terms[0].check()
        lead.away = False
        await until(lambda: len(one.terms) == 2)
    found = lines(caplog)
    assert len(found) == 2, "a line for the lead, and one for the outage"
    assert found[0].startswith("event=maintenance.lead_lost token=1 refused=")
