"""Where the token of a host's agent lies: for the agent, which makes it, and for its callers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

VARIABLE: Final = "RINGCAST_AGENT_TOKEN_FILE"
"""Names the file, for the agent and for its callers."""
SOCKET_VARIABLE: Final = "RINGCAST_AGENT"
OFF: Final = "off"
SUFFIX: Final = ".token"
NAME: Final = "agent.token"
MAX_BYTES: Final = 1_024
_RUN: Final = Path("/run/ringcast-agent")


def place_of_agent(lease_socket: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Where an agent keeps its token unless told: beside its socket, or in the directory of its service or user."""
    if lease_socket:
        return Path(lease_socket + SUFFIX)
    if directory := environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]:
        return Path(directory) / NAME
    return _of_user(environ)


def find(environ: Mapping[str, str] = os.environ) -> str:
    """The token of this host's agent, for a caller; nothing if no file of one can be read."""
    for path in _places(environ):
        try:
            with path.open("rb") as file:
                token = file.read(MAX_BYTES).decode().strip()
        except (OSError, UnicodeDecodeError):
            continue
        if token:
            return token
    return ""


def _places(environ: Mapping[str, str]) -> Iterator[Path]:
    if named := environ.get(VARIABLE, ""):
        if named != OFF:
            yield Path(named)
        return
    if socket := environ.get(SOCKET_VARIABLE, ""):
        yield Path(socket + SUFFIX)
    yield _RUN / f"leases.sock{SUFFIX}"
    yield _RUN / NAME
    yield _of_user(environ)


def _of_user(environ: Mapping[str, str]) -> Path:
    if directory := environ.get("XDG_RUNTIME_DIR", ""):
        return Path(directory) / "ringcast" / NAME
    return Path("~/.ringcast").expanduser() / NAME
