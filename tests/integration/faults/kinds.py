"""The kinds of faults, by name. Each is a function that does it, holds it, and undoes it.

A fault that lasts is held until what it is made for has happened, or for a time that the seed decides. Faults of one
``group`` never overlap, those of different groups may. A function may return what is to be done once the system has
recovered, such as bringing a dead worker back.
"""

from __future__ import annotations

from tests.integration.faults import (  # noqa: F401  # each registers its kinds
    application_faults,
    bus_faults,
    database_faults,
    dispatch_faults,
    process_faults,
    record_faults,
    release_faults,
    server_faults,
    sticky_faults,
    user_faults,
)
from tests.integration.faults.fault import KINDS, Kind

__all__ = ["KINDS", "Kind"]
