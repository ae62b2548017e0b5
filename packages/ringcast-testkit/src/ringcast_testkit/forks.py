"""A Python whose programs are forked from a process that has imported what they need.

For programs that others start, a shell or Spark; :class:`ringcast_testkit.WarmProgram` is for those that a test starts.
What starts them starts a small process, which lasts as long as what is forked in its place.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ringcast_testkit._alone import dying_with_us

_MAX_PACKET: Final = 1 << 20
_MAX_WAITING: Final = 64
_STATUS_BYTES: Final = 4
_PR_SET_PDEATHSIG: Final = 1

_EXECUTABLE: Final = """#!/bin/sh
if [ "$1" = -m ]; then
  case "$2" in
    {programs}) exec {python} -I -S -c {asks} {address} "$@" ;;
  esac
fi
exec {python} "$@"
"""
_ASKS: Final = """
import json, os, socket, sys
address, *words = sys.argv[1:]
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
    control.connect(address)
    request = {"words": words, "environment": dict(os.environ), "directory": os.getcwd()}
    socket.send_fds(control, [json.dumps(request).encode()], [0, 1, 2])
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    status = control.recv(4)
code = os.waitstatus_to_exitcode(int.from_bytes(status, sys.byteorder)) if status else 1
sys.exit(code if code >= 0 else 128 - code)
"""
"""What is started: its streams are those of a process that is forked. It ends with that, and takes it along."""


@contextmanager
def forking(executable: Path, programs: Sequence[str], imports: Sequence[str], **env: str) -> Iterator[Path]:
    """Makes a Python at that path that forks these modules, started with ``-m``, while the context lasts.

    ``imports`` are imported before, under the variables of this process and ``env``. What is forked is a child of the
    process that forks, not of the one that started it.
    """
    with (
        tempfile.TemporaryDirectory(prefix="rc-") as directory,  # a short path: an address has a hundred bytes
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        address = Path(directory) / "forks"
        listener.bind(str(address))
        listener.listen(_MAX_WAITING)
        names = {"python": sys.executable, "asks": _ASKS, "address": str(address)}
        quoted = {name: shlex.quote(text) for name, text in names.items()}
        executable.write_text(_EXECUTABLE.format(programs=" | ".join(programs), **quoted))
        executable.chmod(0o755)
        words = (str(listener.fileno()), ",".join(imports))
        process = subprocess.Popen(
            dying_with_us([sys.executable, "-c", f"from {__name__} import main; main()", *words]),
            env={**os.environ, **env},
            pass_fds=[listener.fileno()],
        )
        listener.close()  # who asks is refused once that process has ended
        try:
            yield executable
        finally:
            process.kill()
            process.wait()


def _import_all(modules: Sequence[str]) -> None:
    """Import what is needed.

    Raises:
        SystemExit: An import started a thread. A forked process has only the thread that forked, and the locks of the
            others as they were.
    """
    for module in modules:
        importlib.import_module(module)
    threads = Path("/proc/self/task")
    if threads.exists() and len(names := [(task / "comm").read_text() for task in threads.iterdir()]) > 1:
        raise SystemExit(f"forks: an import started a thread before a fork: {names}")
    gc.collect()
    gc.freeze()


def _become(packet: bytes, descriptors: list[int]) -> list[str]:
    """Makes of a forked process what it would be had it been started; returns its words."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    request = json.loads(packet)
    if request["environment"].get("PYTHONUNBUFFERED"):
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    return list(request["words"])


def _reap(running: dict[int, socket.socket | None]) -> None:
    """Says of each process that has ended how it has, unless who asked for it has ended before."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        if control := running.pop(pid):
            with control, suppress(OSError):
                control.send(status.to_bytes(_STATUS_BYTES, sys.byteorder))


def _serve(listener: socket.socket) -> list[str]:
    """Returns in a forked process the words of its program; in this one it never returns."""
    running: dict[int, socket.socket | None] = {}
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([listener, woken, *filter(None, running.values())], [], [])
        if woken in ready:
            woken.recv(_MAX_PACKET)
            _reap(running)
        for pid, asked in running.items():
            if asked in ready and asked is not None:  # it never says more: it has ended
                asked.close()
                running[pid] = None
                os.kill(pid, signal.SIGTERM)
        if listener not in ready:
            continue
        control, _ = listener.accept()
        packet, descriptors, _, _ = socket.recv_fds(control, _MAX_PACKET, 3)
        if not packet:
            control.close()
            continue
        pid = os.fork()
        if not pid:
            for left in (listener, woken, wakes, control, *filter(None, running.values())):
                left.close()
            return _become(packet, descriptors)
        running[pid] = control
        for descriptor in descriptors:
            os.close(descriptor)


def main() -> None:
    """Import, and fork one process after another from this one."""
    descriptor, imports = sys.argv[1:]
    listener = socket.socket(fileno=int(descriptor))
    listener.set_inheritable(False)
    _import_all(imports.split(","))
    _, program, *words = _serve(listener)
    sys.argv = [program, *words]
    if not hasattr(sys.modules.get(program), "__path__"):
        sys.modules.pop(program, None)  # imported for what it imports
    runpy.run_module(program, run_name="__main__", alter_sys=True)
