"""One run of the harness: what it may still do, what it has found, and how it tells."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.envelope.results import Case, Results

_NOTE_LENGTH = 400


class StoppedError(KeyboardInterrupt):
    """Someone asked the run to stop. A KeyboardInterrupt, since nothing else gets through a running event loop."""


class OutOfTimeError(KeyboardInterrupt):
    """A scenario has used its time up."""


@dataclass(slots=True)
class Run:
    """What a scenario is given. ``quick``: sizes that only prove that it works; their figures mean nothing."""

    results: Results
    quick: bool

    def say(self, text: str) -> None:
        """Progress, for people."""
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
        sys.stderr.flush()

    def size(self, full: int, quick: int) -> int:
        """The one or the other."""
        return quick if self.quick else full

    @contextmanager
    def directory(self) -> Iterator[Path]:
        """A directory that is gone afterwards."""
        path = Path(tempfile.mkdtemp(prefix="rc-bench-"))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def case(self, scenario: str, name: str, params: Mapping[str, Any]) -> Iterator[Case]:
        """Measures one case, which the block fills in. One that fails is kept as failed, and the run goes on."""
        began_s = time.monotonic()
        case = Case(scenario, name, dict(params))
        try:
            self.say(f"{scenario}: {name} …")  # in here: whoever reads it may ask at once to stop, and the case is kept
            yield case
        except OutOfTimeError:
            case.status, case.note = "out of time", "its scenario had used its time up"
            raise
        except StoppedError:
            case.status = "stopped"
            raise
        except Exception as error:  # noqa: BLE001  # whatever it was, the other cases are worth having
            case.status, case.note = "failed", _in_short(error)
        finally:
            self.results.add(case)
            told = ", ".join(f"{label} {figure.value:.4g} {figure.unit}" for label, figure in _first(case).items())
            self.say(f"{scenario}: {name}: {case.status} ({time.monotonic() - began_s:.1f} s) {told or case.note}")

    def skip(self, scenario: str, name: str, why: str) -> None:
        """Keeps that a case could not be measured here, and why."""
        self.results.add(Case(scenario, name, status="skipped", note=why))
        self.say(f"{scenario}: {name}: skipped: {why}")


def _in_short(error: Exception) -> str:
    """For the results; a server's last output can be long."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= _NOTE_LENGTH else f"{text[:_NOTE_LENGTH]} …"


def _first(case: Case) -> dict[str, Any]:
    return dict(list(case.figures.items())[:4])


@dataclass(frozen=True, slots=True)
class Scenario:
    """A part of the envelope. ``limit_s`` is the most time that it may take in full."""

    name: str
    about: str
    limit_s: float
    measure: Callable[[Run], None]


def perform(run: Run, scenario: Scenario) -> None:
    """Measures a scenario, within its time.

    Raises:
        StoppedError: SIGINT or SIGTERM came. Everything that was started is gone by then.
    """

    def out_of_time(_signal: int, _frame: FrameType | None) -> None:
        raise OutOfTimeError(f"{scenario.name} took more than {scenario.limit_s:g} s")

    before = signal.signal(signal.SIGALRM, out_of_time)
    signal.setitimer(signal.ITIMER_REAL, scenario.limit_s)
    try:
        scenario.measure(run)
    except OutOfTimeError as error:
        run.say(f"{error}: the rest of it is left out")
    except Exception as error:  # noqa: BLE001  # a server that did not start, say: the other scenarios go on
        run.results.add(Case(scenario.name, "set-up", status="failed", note=_in_short(error)))
        run.say(f"{scenario.name}: failed: {error}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGINT and SIGTERM raise :class:`StoppedError` in the block, once: what it started is then stopped in peace."""

    def stop(number: int, _frame: FrameType | None) -> None:
        for other in (signal.SIGINT, signal.SIGTERM):
            signal.signal(other, signal.SIG_IGN)
        raise StoppedError(signal.Signals(number).name)

    before = [(number, signal.signal(number, stop)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
