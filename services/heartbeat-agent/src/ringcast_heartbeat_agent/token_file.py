"""The token that callers must send: given, or made at the first start and kept in a file."""

from __future__ import annotations

import contextlib
import grp
import os
import secrets
import stat
from dataclasses import replace
from pathlib import Path
from typing import Final

from ringcast_service import ConfigError
from ringcast_wire import agent_token

from ringcast_heartbeat_agent.config import Config

_MIN_CHARS: Final = 16


def with_token(config: Config) -> Config:
    """The settings with the token in them that callers must send.

    Raises:
        ConfigError: the file can't be made or read, is not the agent's own, or holds no token.
    """
    if config.api_token or config.token_file == agent_token.OFF:
        return config
    path = Path(config.token_file)
    try:
        token = _read(path)
        if token is None:
            _make(path, config.lease_group, shared=bool(config.lease_socket))
            token = _read(path)
    except (KeyError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"token_file {path} can't be used: {error}") from error
    if token is None or len(token) < _MIN_CHARS or not token.isascii() or not token.isprintable():
        raise ConfigError(f"token_file {path} holds no token of {_MIN_CHARS} or more printable characters")
    return replace(config, api_token=token)


def _read(path: Path) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
            raise ConfigError(f"token_file {path} must be a file that only its owner, the agent's user, may write")
        return file.read(agent_token.MAX_BYTES).decode().strip()


def _make(path: Path, group: str, *, shared: bool) -> None:
    """Makes the file, whole, unless another agent is quicker. The group of the socket may read it."""
    if not path.parent.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32))
            if group:
                os.fchown(file.fileno(), -1, grp.getgrnam(group).gr_gid)
            if group or shared:
                os.fchmod(file.fileno(), 0o640)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()
