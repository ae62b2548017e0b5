"""The raw files of the Spark demo, and what the pipeline is to make of them.

The ranges are those of GeoLite2 (MaxMind, https://www.maxmind.com), as the package geoip2fast (MIT) ships them.
"""

from __future__ import annotations

import csv
import ipaddress
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from geoip2fast import geoip2fast
from pyspark_ringcast import pipeline

from demo.lists import write_lists

STORE: Final = "lake"
BROKEN: Final = (
    ["10.1.2.3/8", "bits behind the prefix"],
    ["not a network", "text"],
    ["", "no network"],
    ["192.0.2.0/24", ""],
)
"""Lines that no list should have; 192.0.2.0/24 is for documentation and in no real list."""
SEED: Final = 25


class Network(NamedTuple):
    """A range of addresses, and who announces it."""

    network: str
    owner: str


def real_networks(limit: int | None = None) -> list[Network]:
    """IPv4 ranges and the names of their networks, in order; 508,809 of them in geoip2fast 1.2.2."""
    return list(islice(_networks(), limit))


def _networks() -> Iterator[Network]:
    geoip2fast.GeoIP2Fast(geoip2fast_data_file="geoip2fast-asn.dat.gz")
    names = geoip2fast.mainListNamesASN
    # The package has no iterator: its tables, loaded by the line above, are lists of chunks, one beside the other.
    tables = (geoip2fast.mainListFirstIPASN, geoip2fast.mainListNetlengthASN, geoip2fast.mainListIDASN)
    for chunk in zip(*tables, strict=True):
        for first, length, name in zip(*chunk, strict=True):
            yield Network(f"{ipaddress.IPv4Address(first)}/{length}", names[name])


def write_networks(path: Path, networks: list[Network]) -> None:
    """Writes a CSV file, with the broken lines among the others."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Network._fields)
        writer.writerows(networks)
        writer.writerows(BROKEN)


def changed(networks: list[Network], share: float) -> tuple[list[Network], int]:
    """A share of the list changed: a tenth of it deleted, a tenth added, the rest with another owner."""
    count = max(10, int(len(networks) * share))
    chosen = random.Random(SEED).sample(range(len(networks)), count)  # noqa: S311  # repeatable, not secret
    gone, other = set(chosen[: count // 10]), set(chosen[count // 10 : count - count // 10])
    kept = [
        network._replace(owner=f"{network.owner} (moved)") if number in other else network
        for number, network in enumerate(networks)
        if number not in gone
    ]
    added = [Network(f"2001:db8:{number:x}::/48", "new") for number in range(count // 10)]
    return kept + added, len(gone) + len(other) + len(added)


def networks_spec(path: Path, servers: str, service: str) -> pipeline.Spec:
    """Of the CSV file of networks."""
    return pipeline.parse_spec(
        {
            "source": {"paths": [str(path)], "format": "csv", "options": {"escape": '"'}},
            "row": {"row_id": "network", "value": "owner"},
            "columns": {
                "network": {"normalise": ["strip", "lower"], "validate": ["ip_network"]},
                "owner": {"normalise": ["squeeze", "strip", "nfc"], "validate": ["required", {"length": {"max": 200}}]},
            },
            "target": _target("networks", servers, service),
            "guards": {"max_rejected_share": 0.05},
        }
    )


def other_specs(directory: Path, servers: str, service: str) -> list[pipeline.Spec]:
    """Of the lists of the first demo: domains as text, suffixes as JSON lines."""
    columns = {"blocklist": "line", "suffixes": "row_id"}
    values: dict[str, dict[str, Any]] = {"blocklist": {"value_text": "block"}, "suffixes": {"value": "value"}}
    formats = {"blocklist": "text", "suffixes": "json"}
    return [
        pipeline.parse_spec(
            {
                "source": {"paths": [str(source.path)], "format": formats[source.key]},
                "row": {"row_id": columns[source.key], **values[source.key]},
                "columns": {columns[source.key]: {"normalise": ["strip", "lower", "nfc"], "validate": ["required"]}},
                "target": _target(source.key, servers, service),
            }
        )
        for source in write_lists(directory)
    ]


def _target(key: str, servers: str, service: str) -> dict[str, Any]:
    return {"store": STORE, "key": key, "servers": servers, "service": service}
