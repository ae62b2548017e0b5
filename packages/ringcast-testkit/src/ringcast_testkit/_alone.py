"""Commands that run a program as an install of its distribution alone has it, and that never outlive us."""

from __future__ import annotations

import shutil
import sys
from typing import Final

_RUN: Final = """\
import runpy, sys
sys.modules["aiohttp"] = None
del sys.argv[0]
if sys.argv[0].endswith(".py"):
    runpy.run_path(sys.argv[0], run_name="__main__")
else:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def alone(program: str, *words: str) -> list[str]:
    """The command that runs a module, as ``python -m`` does, or a file, but without aiohttp.

    nats-py imports aiohttp where it is installed, for connections over WebSocket, which no test has. That would take a
    fifth of the start. Of our distributions only the agent and the config service bring it.
    """
    return [sys.executable, "-c", _RUN, program, *words]


def dying_with_us(command: list[str]) -> list[str]:
    """The command, started so that the kernel kills it when this process dies (Linux).

    By a program and not by a ``preexec_fn``: with that Python forks, and gRPC's handlers can abort a fork when threads
    are at work.
    """
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--", *command] if setpriv else command
