"""A child process of ``ringcast up``: its output goes to a file, and it never outlives its parent."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ringcast_wire import RingcastError

_PR_SET_PDEATHSIG: Final = 1
_LAST_LOG_BYTES: Final = 2000
_LAST_LOG_LINES: Final = 5
_POLL_S: Final = 0.02


class Child:
    """One running child."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path, log_start: int) -> None:
        self.name = name
        self._process = process
        self._log = log
        self._log_start = log_start

    @classmethod
    async def start(cls, name: str, command: Sequence[str], log: Path) -> Child:
        """Starts ``command`` in a session of its own, so that Ctrl-C reaches only the parent, which stops in order."""
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),
            )
            return cls(name, process, log, output.tell())

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it is gone."""
        return self._process.returncode is not None

    async def wait(self) -> None:
        """Returns when it has ended."""
        await self._process.wait()

    async def wait_until(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Waits for a sign that only looking can tell.

        Raises:
            RingcastError: the child ended first, or the time is over.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not ready():
                    if self.ended:
                        raise RingcastError(self.describe_end("did not start"))
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise RingcastError(f"{self.name} was not ready within {timeout_s:g} s; see {self._log}") from None

    def describe_end(self, what: str) -> str:
        """Says that and how the child ended, with its last words."""
        code = self._process.returncode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        words = self._last_words()
        return f"{self.name} {what} ({how})" + (f": {words}" if words else "") + f" [log: {self._log}]"

    async def stop(self, grace_s: float, kill_now: asyncio.Event) -> bool:
        """Stops it; kills it after ``grace_s`` or once ``kill_now`` is set. Returns whether it stopped by itself."""
        if self.ended:
            return True
        self._process.terminate()
        waits = {asyncio.create_task(self._process.wait()), asyncio.create_task(kill_now.wait())}
        _, pending = await asyncio.wait(waits, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        if self.ended:
            return True
        self._process.kill()
        await self._process.wait()
        return False

    def _last_words(self) -> str:
        with self._log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, size - _LAST_LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        return " | ".join(line.strip() for line in lines[-_LAST_LOG_LINES:] if line.strip())


def _die_with(parent: int) -> Callable[[], None] | None:
    """What the child runs before exec: the kernel kills it when its parent dies, however that happens (Linux)."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died in between
            os._exit(1)

    return before_exec
