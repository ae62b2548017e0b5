"""The processes of a run: what they say, and what CPU time they take."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
from ringcast_testkit import ManagedProcess, ServerFailedError

ROOT = Path(__file__).resolve().parents[2]


def keep_bytecode() -> None:
    """Has the processes of this run share their compiled modules, where the environment forbids to write them.

    Otherwise each start, of which some are timed, would be mostly Python compiling.
    """
    if sys.dont_write_bytecode:
        os.environ["PYTHONDONTWRITEBYTECODE"] = ""
        os.environ["PYTHONPYCACHEPREFIX"] = str(ROOT / "build/bench-bytecode")


class Child:
    """A module of ours as a process. It takes its settings as JSON, and reports lines of JSON with ``event``."""

    def __init__(self, name: str, module: str, settings: Mapping[str, Any]) -> None:
        self.name = name
        self._said: dict[str, dict[str, Any]] = {}
        self._changed = threading.Condition()
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = ManagedProcess(
            name,
            [sys.executable, "-m", module, json.dumps(settings)],
            env={"PYTHONPATH": path},
            take_line=self._take,
        )

    def said(self, event: str) -> dict[str, Any] | None:
        """The last report of an event."""
        with self._changed:
            return self._said.get(event)

    def wait_for(self, event: str, timeout_s: float) -> dict[str, Any]:
        """Waits for a report.

        Raises:
            ServerFailedError: the process has ended, or ``timeout_s`` is over.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while event not in self._said:
                if self.process.returncode is not None:
                    raise ServerFailedError(self.process.describe(f"ended before it was {event}"))
                if time.monotonic() > deadline:
                    raise ServerFailedError(self.process.describe(f"was not {event} after {timeout_s:g} s"))
                self._changed.wait(0.1)
            return self._said[event]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()

    def _take(self, line: str) -> None:
        fields = json.loads(line)
        with self._changed:
            self._said[fields.pop("event")] = fields
            self._changed.notify_all()


class CpuMeter:
    """CPU seconds that processes, and what they have started, took since the meter was made."""

    def __init__(self, processes: Mapping[str, Iterable[int]]) -> None:
        self._processes = {name: list(pids) for name, pids in processes.items()}
        self._before = self._now()

    def seconds(self) -> dict[str, float]:
        """By the name of the processes. What has ended meanwhile is left out."""
        return {name: round(taken - self._before[name], 3) for name, taken in self._now().items()}

    def _now(self) -> dict[str, float]:
        return {name: sum(map(_cpu_s, pids)) for name, pids in self._processes.items()}


def _cpu_s(pid: int) -> float:
    total = 0.0
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
    return total
