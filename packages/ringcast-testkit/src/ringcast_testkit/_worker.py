"""A worker as a process of its own, which can be killed, stopped and started again, and says what it does."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ringcast_testkit._history import History, Report
from ringcast_testkit._process import PATIENCE_S, ManagedProcess, ManagedServer, ServerFailedError
from ringcast_testkit._warm import WarmProgram

_MAIN: Final = Path(__file__).with_name("_worker_main.py")
"""Run as a file: as a module of this package it would import all of it, which takes as long as the SDK."""
_PROGRAM: Final = WarmProgram(str(_MAIN), (str(_MAIN), "encodings.idna"), hides_aiohttp=True)


class WorkerProcess(ManagedServer):
    """Runs :mod:`ringcast_testkit._worker_main`; what it reports goes to ``history``.

    ``settings`` are further arguments of :class:`ringcast.Worker`, such as ``heads_s``. With ``handler_delay_s`` the
    handler waits about so long for each change, and with ``handler_fails`` it raises with that probability, but never
    as often in a row as a worker tries. ``prefix`` is a command that runs the process, for a :class:`SmallDisk`, and
    ``words`` what Python runs, with the same arguments, for a test that breaks something in it. Each start is another
    life.
    :meth:`start` does not wait for the worker: see :meth:`wait_ready`.
    """

    def __init__(
        self,
        worker_id: str,
        *,
        servers: str,
        store: str,
        keys: tuple[str, ...],
        history: History,
        handler_delay_s: float = 0.0,
        handler_fails: float = 0.0,
        prefix: tuple[str, ...] = (),
        words: tuple[str, ...] = (),
        **settings: Any,
    ) -> None:
        self.worker_id = worker_id
        self.history = history
        self.life = 0
        self.paused = False
        self._ready: set[int] = set()
        self._joined: set[int] = set()
        worker = {"worker_id": worker_id, "servers": servers, "store": store, "keys": list(keys), **settings}
        self._program = None if prefix or words else _PROGRAM
        command = [sys.executable, *words] if words else _PROGRAM.command
        self._words = [json.dumps(worker), str(handler_delay_s), str(handler_fails)]
        if self._program is None:
            self._words = [*prefix, *command, *self._words]

    @property
    def running(self) -> bool:
        """Whether it lives, and is not stopped."""
        return self._process is not None and self._process.returncode is None and not self.paused

    @property
    def joined(self) -> bool:
        """Whether this life has owned anything yet; one that ends before has only refused to start."""
        return self.life in self._joined

    def start(self) -> None:
        """Starts a life."""
        self.life += 1
        self.paused = False
        life = self.life
        self._say(life, "started", {})
        self._process = ManagedProcess(
            f"worker {self.worker_id}",
            self._words,
            env=self.env,
            take_line=lambda line: self._take(life, line),
            listens=True,
            program=self._program,
        )

    def kill(self) -> None:
        """SIGKILL."""
        if self.process.returncode is None:
            super().kill()
            self._say(self.life, "killed", {})

    def terminate(self) -> int:
        """Orderly stop: it gives its partitions up."""
        status = super().terminate()
        self._say(self.life, "ended", {"status": status})
        return status

    def pause(self) -> None:
        """SIGSTOP."""
        super().pause()
        self.paused = True
        self._say(self.life, "paused", {})

    def resume(self) -> None:
        """SIGCONT."""
        self._say(self.life, "resumed", {})
        self.paused = False
        super().resume()

    def cancel_calls(self, share: float) -> None:
        """From now on, in this life, so large a share of the calls of its handler, and every call of its ownership
        callbacks, raises ``CancelledError``; 0: none."""
        self.process.tell(f"cancel {share}")

    def fork(self, timeout_s: float = PATIENCE_S) -> Report:
        """Has it fork a child, which tries to go on with its worker and to start one of the same id, says what became
        of both, and keeps its copies of all that the parent has open until it is killed, for two minutes at most.

        Returns:
            The report of the child: ``pid``, ``uses`` and ``starts``.
        """
        since, life = len(self.history.reports()), self.life
        found: list[Report] = []

        def said() -> bool:
            reports = self.history.reports(since)
            found[:] = [r for r in reports if (r.worker_id, r.life, r.event) == (self.worker_id, life, "child")]
            return bool(found)

        self.process.tell("fork")
        self._wait(said, timeout_s, "has no child that says anything")
        return found[0]

    def dump(self, timeout_s: float = PATIENCE_S) -> Mapping[str, Mapping[str, tuple[str, int, int]]]:
        """All that the application in this process holds: key → row id → value, version, partition."""
        since, life = len(self.history.reports()), self.life

        def said() -> list[Report]:
            return [
                report
                for report in self.history.reports(since)
                if (report.worker_id, report.life) == (self.worker_id, life)
            ]

        self.process.signal(signal.SIGUSR1)
        self._wait(lambda: any(r.event == "dumped" for r in said()), timeout_s, "said nothing of what it holds")
        found: dict[str, dict[str, tuple[str, int, int]]] = {}
        for report in said():
            if report.event == "dumped":
                break
            if report.event == "dump":
                rows = found.setdefault(report.fields["key"], {})
                rows.update((row_id, tuple(row)) for row_id, row in report.fields["rows"].items())
        return found

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Waits until this life has loaded all that it owns for the first time."""
        self._wait(lambda: self.life in self._ready, timeout_s, "is not ready")

    def _wait(self, condition: Callable[[], bool], timeout_s: float, otherwise: str) -> None:
        def over() -> bool:
            return condition() or self.process.returncode is not None

        if not self.history.wait(over, timeout_s) or not condition():
            raise ServerFailedError(self.process.describe(f"{otherwise} (waited {timeout_s:g} s)"))

    def _take(self, life: int, line: str) -> None:
        fields = json.loads(line)
        if fields["event"] == "ready":
            self._ready.add(life)
        elif fields["event"] == "assigned":
            self._joined.add(life)
        self.history.add(Report(self.worker_id, life, fields.pop("event"), fields.pop("at_ns"), fields))

    def _say(self, life: int, event: str, fields: dict[str, Any]) -> None:
        """What this side did to the worker belongs to the history too."""
        self.history.add(Report(self.worker_id, life, event, time.monotonic_ns(), fields))
