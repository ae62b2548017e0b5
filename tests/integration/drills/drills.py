"""All drills."""

from __future__ import annotations

from tests.integration.drills import agent_drills, broker_drills, service_drills, sticky_drills, worker_drills
from tests.integration.drills.drill import DRILLS, Drill

MODULES = (worker_drills, sticky_drills, agent_drills, service_drills, broker_drills)
"""Importing them registers the drills."""


def drills_of(words: list[str]) -> list[Drill]:
    """The drills of these names, or that cause these alerts; all of them for no words.

    Raises:
        ValueError: there is no such drill or alert.
    """
    known = {*DRILLS, *(alert for drill in DRILLS.values() for alert in drill.alerts)}
    if unknown := sorted(set(words) - known):
        raise ValueError(f"there is no drill or alert {', '.join(unknown)}: --list shows them")
    return [
        drill for drill in DRILLS.values() if not words or drill.name in words or not {*words}.isdisjoint(drill.alerts)
    ]
