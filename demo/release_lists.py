"""The routes of the demo of releases: a list that is in use, and three that are to take its place."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Final

BACKENDS: Final = ("eu-1", "eu-2", "us-1")
"""The backends that there are."""
GONE: Final = "us-2"
"""One that was switched off."""
TENANTS: Final = 2_000
SCHEMA: Final = {
    "type": "object",
    "required": ["backend", "weight"],
    "properties": {
        "backend": {"type": "string", "pattern": "^[a-z]{2}-[0-9]$"},
        "weight": {"type": "integer", "minimum": 0, "maximum": 100},
    },
    "additionalProperties": False,
}


def write_schema(path: Path) -> Path:
    """What a route has to be; any backend that looks like one will do."""
    path.write_text(json.dumps(SCHEMA))
    return path


def write_routes(path: Path, *, weight: object = 100, backends: tuple[str, ...] = BACKENDS) -> Path:
    """A route for each tenant."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("row_id", "value"))
        for number in range(TENANTS):
            route = {"backend": backends[number % len(backends)], "weight": weight}
            rows.writerow((f"tenant-{number:04}", json.dumps(route)))
    return path
