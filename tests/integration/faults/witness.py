"""What a worker process says of its own calls, a line each in a file, so that a judge has it also when it is killed.

Written by :mod:`tests.integration.faults.witness_worker`. All times are of the machine's monotonic clock, in ns.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

Place = tuple[str, int]
"""Config key and partition."""


class Writer:
    """The file of this process. Each line is written in one call, so that SIGKILL leaves whole lines."""

    def __init__(self, directory: Path, worker_id: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{worker_id}.{os.getpid()}.{time.monotonic_ns()}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)

    def write(self, *words: Any) -> None:
        """Appends one line."""
        os.write(self._file, json.dumps(words).encode() + b"\n")


class Refresh(NamedTuple):
    """A refresh of the session entry that the server has confirmed."""

    sent_ns: int
    answered_ns: int


@dataclass(slots=True)
class Call:
    """A call that was let start, with the ``token`` that it was let start with; or one of the handler, with the token
    of its change. ``ended_ns`` is ``None`` for one that never ended: its process was killed, or it still runs."""

    place: Place
    token: int
    began_ns: int
    ended_ns: int | None = None


@dataclass
class Witness:
    """One process of a worker."""

    worker_id: str
    process: str
    refreshes: list[Refresh] = field(default_factory=list)
    admitted: list[Call] = field(default_factory=list)
    """Calls that were let start. Each begins before its worker has looked whether it may."""
    handled: list[Call] = field(default_factory=list)
    """Calls of the application's handler, as the application sees them."""


def read_witnesses(directory: Path) -> list[Witness]:
    """All processes that have written there, each up to the last line that is whole."""
    return [read_witness(path.name, path.read_text().split("\n")[:-1]) for path in sorted(directory.iterdir())]


def read_witness(process: str, lines: Iterable[str]) -> Witness:
    """One process, by the name of its file."""
    found = Witness(process.split(".")[0], process)
    calls: dict[tuple[str, int], Call] = {}
    for line in lines:
        match json.loads(line):
            case ["refreshed", sent_ns, answered_ns]:
                found.refreshes.append(Refresh(sent_ns, answered_ns))
            case ["admitted" | "handling" as what, number, key, partition, token, began_ns]:
                call = Call((key, partition), token, began_ns)
                calls[what, number] = call
                (found.admitted if what == "admitted" else found.handled).append(call)
            case ["ended", number, ended_ns]:
                calls["admitted", number].ended_ns = ended_ns
            case ["handled", number, ended_ns]:
                calls["handling", number].ended_ns = ended_ns
            case other:
                raise ValueError(f"a witness says {other}")
    return found
