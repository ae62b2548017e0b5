"""A child process that tests can start, pause, kill and restart, and that never outlives them."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FunctionType, TracebackType
from typing import IO, Final, Self

from ringcast_testkit._alone import dying_with_us
from ringcast_testkit._warm import WarmProcess, WarmProgram

PATIENCE_S: Final = 90.0
"""How long a test waits for what has to come. It tells that something hangs, never that it is slow: a machine that does
ten things at once must not fail a test."""

_LOG_LINES = 400
_POLL_S = 0.005

# gRPC's handlers for fork() close file descriptors in the child between fork() and exec(), which can end it, when other
# threads of this process are in gRPC. They serve those who fork without exec(). gRPC looks when it is first used.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


class ServerFailedError(RuntimeError):
    """A server did not start or stop as it should; the message ends with the last lines of its output."""


def place_of(condition: Callable[..., object]) -> str:
    """Where a condition is written, for messages: lambdas have no name that says what they wait for."""
    code = condition.__code__ if isinstance(condition, FunctionType) else None
    return f"the condition at {code.co_filename}:{code.co_firstlineno}" if code else repr(condition)


class ManagedProcess:
    """Runs one command; its merged output is kept, the last 400 lines of it, in :attr:`log`.

    With ``program``, ``command`` has the words of that. With ``take_line``, its standard output goes there line by
    line, in a thread, and the log has the rest. With ``listens``, it reads from its standard input what :meth:`tell`
    says.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        take_line: Callable[[str], None] | None = None,
        listens: bool = False,
        program: WarmProgram | None = None,
    ) -> None:
        self.name = name
        self.log: deque[str] = deque(maxlen=_LOG_LINES)
        words = [str(part) for part in command]
        start = subprocess.Popen if program is None else program.start
        self._popen = start(
            dying_with_us(words) if program is None else words,
            stdin=subprocess.PIPE if listens else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if take_line is None else subprocess.PIPE,
            env={**os.environ, **(env or {})},
        )
        self._readers = [self._read(self._popen.stdout, take_line or self.log.append)]
        if self._popen.stderr is not None:
            self._readers.append(self._read(self._popen.stderr, self.log.append))

    @property
    def pid(self) -> int:
        """Process id."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; ``None`` while it runs."""
        return self._popen.poll()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to this process."""
        self._popen.send_signal(number)

    def stop(self) -> None:
        """SIGSTOP, and waits until it is in force: a busy machine takes a while to stop every thread."""
        self.signal(signal.SIGSTOP)
        if isinstance(self._popen, WarmProcess):
            self._popen.wait_stopped()
            return
        with contextlib.suppress(ChildProcessError):  # it has ended, and that is known
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def tell(self, line: str) -> None:
        """Writes a line to its standard input; one that is gone is told nothing."""
        assert self._popen.stdin is not None, f"{self.name} reads nothing"
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(f"{line}\n".encode())
            self._popen.stdin.flush()

    def wait(self, timeout_s: float = 15.0) -> int:
        """Waits for the exit and returns its status.

        Raises:
            ServerFailedError: it still runs after ``timeout_s``.
        """
        try:
            code = self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ServerFailedError(self.describe(f"still runs after {timeout_s} s")) from None
        self._join(timeout_s)
        if self._popen.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._popen.stdin.close()
        return code

    def terminate(self, timeout_s: float = PATIENCE_S) -> int:
        """Asks the process to stop (SIGTERM), waits until it has ended, and returns its status.

        An agent may take its ``stop_timeout_s`` in each phase of stopping: a shorter wait would end before it does.

        Raises:
            ServerFailedError: it still runs after ``timeout_s``; the message has its last output.
        """
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGCONT)
            self._popen.terminate()
        return self.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone. Harmless when it is gone already."""
        if self._popen.poll() is None:
            self._popen.kill()
        self.wait()

    def wait_until(self, ready: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        """Waits for a condition that only looking can tell, as long as the process lives.

        Raises:
            ServerFailedError: the process ended, or the time is over.
        """
        deadline = time.monotonic() + timeout_s
        while not ready():
            if self.returncode is not None:
                self._join(5)
                raise ServerFailedError(self.describe(f"ended with {self.returncode} before it was ready"))
            if time.monotonic() > deadline:
                raise ServerFailedError(self.describe(f"does not meet {place_of(ready)} in {timeout_s:g} s"))
            time.sleep(_POLL_S)

    def describe(self, what: str) -> str:
        """One sentence about this process, and its last output."""
        return f"{self.name} (pid {self.pid}) {what}; its last output:\n" + "".join(self.log)

    def _join(self, timeout_s: float) -> None:
        for reader in self._readers:
            reader.join(timeout_s)

    def _read(self, stream: IO[bytes] | None, take_line: Callable[[str], object]) -> threading.Thread:
        assert stream is not None

        def drain() -> None:
            with io.TextIOWrapper(stream, errors="replace") as lines:
                for line in lines:
                    take_line(line)

        thread = threading.Thread(target=drain, name=f"{self.name}-log", daemon=True)
        thread.start()
        return thread


class ManagedServer:
    """What the server launchers share: start on entering, certainly gone on leaving, faults in between.

    Synchronous on purpose: a fixture of any scope and an async test alike can use it.
    """

    _process: ManagedProcess | None = None
    env: Mapping[str, str] = {}
    """Further variables of the next start; ``PYTHONPATH``, say, for another build."""

    def start(self) -> None:
        """Starts the server and returns once it serves."""
        raise NotImplementedError

    @property
    def process(self) -> ManagedProcess:
        """The running child."""
        if self._process is None:
            raise ServerFailedError(f"{type(self).__name__} was not started")
        return self._process

    def terminate(self) -> int:
        """Orderly stop; returns the exit status."""
        return self.process.terminate()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def restart(self) -> None:
        """Starts the same server again, on the same address and data, after :meth:`kill` or :meth:`terminate`."""
        if self.process.returncode is None:
            self.process.kill()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: the process hangs with its connections open. None of its threads runs any more on return."""
        self.process.stop()

    def resume(self) -> None:
        """SIGCONT."""
        self.process.signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
