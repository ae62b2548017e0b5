"""The process behind :class:`ringcast_testkit.WarmProgram`: has imported what a program needs, and forks it on request.

Its source is run by ``python -c``, so that the directory to import from is the current one, as for ``python -m``. It
imports nothing of this package, since the program must find only what it imports itself.

Arguments: the file descriptor of a socket of packets; the program, a module or a file; the modules to import, separated
by commas; the modules to hide. A packet has the words and the variables of one process as JSON, and four descriptors:
standard input, output, error, and a pipe to which its status goes when it has ended (four bytes, as ``waitpid`` has
it). The answer is its process id. At the end of the socket this process ends, and with it those that it has forked.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from pathlib import Path

_MAX_PACKET = 1 << 20
_PR_SET_PDEATHSIG = 1


def _import_all(modules: list[str], hidden: list[str]) -> None:
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    for name in modules:
        if name.endswith(".py"):
            runpy.run_path(name, run_name="__imported__")
        else:
            importlib.import_module(name)
    threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    if len(threads) > 1:
        # A forked process has only the thread that forked, and the locks of the others as they were.
        raise SystemExit(f"the imports of {', '.join(modules)} start threads: {', '.join(threads)}")
    gc.collect()
    gc.freeze()


def _reap(statuses: dict[int, int]) -> None:
    """Says of each process that has ended how it has."""
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        pipe = statuses.pop(pid)
        os.write(pipe, status.to_bytes(4, sys.byteorder))
        os.close(pipe)


def _become(parent: int, descriptors: list[int], environment: dict[str, str]) -> None:
    """Makes of a forked process what it would be had it been started by itself."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)


def _serve(control: socket.socket) -> list[str] | None:
    """Returns in a forked process the words of its program, and ``None`` in this one at the end of the socket."""
    statuses: dict[int, int] = {}
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            woken.recv(_MAX_PACKET)
            _reap(statuses)
        if control not in ready:
            continue
        packet, descriptors, _, _ = socket.recv_fds(control, _MAX_PACKET, 4)
        if not packet:
            return None
        request = json.loads(packet)
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            for left in (control, woken, wakes):
                left.close()
            for pipe in statuses.values():
                os.close(pipe)
            _become(parent, descriptors, request["environment"])
            return list(request["words"])
        statuses[pid] = descriptors.pop()
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(str(pid).encode())


def main() -> None:
    """Import, and serve until nobody asks any more."""
    descriptor, program, modules, hidden = sys.argv[1:]
    control = socket.socket(fileno=int(descriptor))
    control.set_inheritable(False)
    _import_all([name for name in modules.split(",") if name], [name for name in hidden.split(",") if name])
    words = _serve(control)
    if words is None:
        return
    sys.argv = [program, *words]
    sys.modules.pop(f"{program}.__main__", None)  # imported for what it imports
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


main()
