"""Programs that are forked from a process which has imported their modules.

A service imports for one to two seconds of CPU before it does anything, and tests start many hundreds. What they start
is the same either way: a process of its own, which runs the ``__main__`` of the program with the words, variables and
standard streams that it was given.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, ClassVar, Final

from ringcast_testkit._alone import alone, dying_with_us

_MAIN: Final = Path(__file__).with_name("_warm_main.py")
_MAX_PID: Final = 32
_POLL_S: Final = 0.001
_READ_AT_START: Final = ("PYTHON", "LC_", "LANG", "LD_", "GRPC_", "MALLOC_", "PROTOCOL_BUFFERS_")
"""How the names of those variables begin that an interpreter, or a module that is imported, reads once."""


class WarmProcess:
    """A process that was forked for us. It has what tests use of ``subprocess.Popen``, with streams of bytes."""

    def __init__(self, pid: int, status: int, streams: Sequence[IO[bytes] | None]) -> None:
        self.pid = pid
        self.stdin, self.stdout, self.stderr = streams
        self.returncode: int | None = None
        self._status = status
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Exit status, negative for a signal; ``None`` while it runs."""
        with self._lock:
            if self.returncode is None and select.select([self._status], [], [], 0)[0]:
                # Nothing in the pipe: who would have said it has been killed, and the kernel has killed what it forked.
                said = os.read(self._status, 4) or int(signal.SIGKILL).to_bytes(4, sys.byteorder)
                os.close(self._status)
                self.returncode = os.waitstatus_to_exitcode(int.from_bytes(said, sys.byteorder))
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the exit and returns its status.

        Raises:
            subprocess.TimeoutExpired: it still runs after ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if timeout is not None and left is not None and left <= 0:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            with contextlib.suppress(OSError, ValueError):  # another thread has read it, and closed the pipe
                select.select([self._status], [], [], 0.5 if left is None else min(0.5, left))
        return code

    def send_signal(self, number: int) -> None:
        """Sends a signal; one that has ended gets none."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait_stopped(self) -> None:
        """Waits until no thread of it runs any more, after SIGSTOP; returns when it has ended, too."""
        while self.poll() is None:
            with contextlib.suppress(OSError):  # it ends
                stats = [(task / "stat").read_text() for task in Path(f"/proc/{self.pid}/task").iterdir()]
                # After the name, which is in parentheses and may have any character.
                if all(stat.rpartition(")")[2].split()[0] in "TZX" for stat in stats):
                    return
            time.sleep(_POLL_S)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class WarmProgram:
    """A Python program: ``run`` is a module or the path of a file, ``imports`` what is imported before it is forked.

    With ``hides_aiohttp`` it runs as where aiohttp is not installed; see :func:`alone`.
    """

    forks: ClassVar[bool] = False
    """Whether it is forked. The fixtures turn this on: a benchmark starts its processes as users do."""

    def __init__(self, run: str, imports: tuple[str, ...], *, hides_aiohttp: bool = False) -> None:
        self._run = run
        self._imports = imports
        self._hides_aiohttp = hides_aiohttp
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._forks: subprocess.Popen[bytes] | None = None
        self._environment: dict[str, str] = {}

    @property
    def command(self) -> list[str]:
        """The command that runs it without all of this."""
        if self._hides_aiohttp:
            return alone(self._run)
        return [sys.executable, *([] if self._run.endswith(".py") else ["-m"]), self._run]

    def start(
        self, words: Sequence[str], *, stdin: int, stdout: int, stderr: int, env: Mapping[str, str]
    ) -> WarmProcess | subprocess.Popen[bytes]:
        """Starts it, with ``subprocess.PIPE``, ``DEVNULL`` or ``STDOUT`` for its streams.

        By its :attr:`command` where nothing :attr:`forks`, where the variables have something else that is read at the
        start of an interpreter, or where the kernel is not Linux.
        """
        if not self.forks or sys.platform != "linux" or _read_at_start(env) != _read_at_start(os.environ):
            command = dying_with_us([*self.command, *words])
            return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, env=dict(env))
        return self._forked(words, stdin, stdout, stderr, env)

    def run(
        self, words: Sequence[str], *, stdin: bytes, env: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Runs it to its end, and returns its status and what it has written to standard output and error.

        Raises:
            subprocess.TimeoutExpired: it still ran after ``timeout_s``, and was killed.
        """
        process = self.start(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with ThreadPoolExecutor(3) as pool:
            pool.submit(_write_all, process.stdin, stdin)
            out, err = pool.submit(_read_all, process.stdout), pool.submit(_read_all, process.stderr)
            try:
                code = process.wait(timeout_s)
            finally:
                process.kill()
        return subprocess.CompletedProcess(list(words), code, out.result(), err.result())

    def _forked(
        self, words: Sequence[str], stdin: int, stdout: int, stderr: int, env: Mapping[str, str]
    ) -> WarmProcess:
        request = json.dumps({"words": list(words), "environment": dict(env)}).encode()
        with contextlib.ExitStack() as theirs:
            ends = [_stream(theirs, stdin, "wb"), _stream(theirs, stdout, "rb")]
            ends.append((ends[1][0], None) if stderr == subprocess.STDOUT else _stream(theirs, stderr, "rb"))
            status, told = os.pipe()
            theirs.callback(os.close, told)
            with self._lock:
                control = self._serving()
                try:
                    socket.send_fds(control, [request], [*(end for end, _ in ends), told])
                    pid = int(control.recv(_MAX_PID))
                except (OSError, ValueError) as error:  # it has ended
                    self._control = None
                    raise RuntimeError(f"{self._run} can't be forked: standard error says why") from error
        return WarmProcess(pid, status, [ours for _, ours in ends])

    def _serving(self) -> socket.socket:
        """The socket to the process that forks, which is started with the first request."""
        environment = _read_at_start(os.environ)
        if self._control is None or environment != self._environment:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            hidden = "aiohttp" if self._hides_aiohttp else ""
            # It ends when its socket does. The kernel would also tell it of the end of a thread of this process.
            with theirs:
                words = (str(theirs.fileno()), self._run, ",".join(self._imports), hidden)
                # Pipes, so that the streams of what is forked are as they mostly are: no terminals, and not seekable.
                self._forks = subprocess.Popen(
                    [sys.executable, "-c", _MAIN.read_text(), *words],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    pass_fds=[theirs.fileno()],
                )
            self._control, self._environment = ours, environment
        return self._control


def _write_all(stream: IO[bytes], data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), stream:
        stream.write(data)


def _read_all(stream: IO[bytes]) -> bytes:
    with stream:
        return stream.read()


def _stream(theirs: contextlib.ExitStack, kind: int, mode: str) -> tuple[int, IO[bytes] | None]:
    """The descriptor for the process, and our end of it."""
    if kind == subprocess.DEVNULL:
        null = os.open(os.devnull, os.O_RDWR)
        theirs.callback(os.close, null)
        return null, None
    assert kind == subprocess.PIPE, kind
    reads, writes = os.pipe()
    given, kept = (reads, writes) if mode == "wb" else (writes, reads)
    theirs.callback(os.close, given)
    return given, os.fdopen(kept, mode)


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_READ_AT_START)}
