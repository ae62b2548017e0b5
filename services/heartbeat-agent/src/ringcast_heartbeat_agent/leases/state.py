"""What an agent leaves to the next one beside its socket: the lease and the registered workers. A lock guards it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import grp
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Final

import msgspec
from ringcast_service import ConfigError

from ringcast_heartbeat_agent.leases.registry import Registration

_POLL_S: Final = 0.05
_LEASE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\.[0-9a-f]{16}", re.ASCII)
_MAX_STATE_BYTES: Final = 16 * 1024 * 1024


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The lease of a host, and the workers that named it. What a newer agent leaves besides is passed over: without its
    lease every worker of the host would have to register again."""

    lease: str
    incarnation: str
    registrations: tuple[Registration, ...] = ()
    users: dict[str, int] = msgspec.field(default_factory=dict)
    """The user that each worker id belongs to."""

    @classmethod
    def fresh(cls, agent_id: str) -> State:
        """One that no agent had before, so that no record of a dead worker comes to life with it.

        The id begins with the agent's, as a token of its own: permissions can be given for it.
        """
        return cls(lease=f"{agent_id}.{secrets.token_hex(8)}", incarnation=secrets.token_hex(8))


class SocketPlace:
    """A socket's path, and the two files beside it: ``.lock`` and ``.state``."""

    def __init__(self, path: Path, *, mode: int, group: str) -> None:
        self.path = path
        self._mode = mode
        self._group = group
        self._descriptor: int | None = None
        self._lock = path.with_name(path.name + ".lock")
        self._state = path.with_name(path.name + ".state")

    async def lock(self, patience_s: float) -> None:
        """Keeps other agents off the socket until :meth:`unlock`; waits for one that is just ending.

        Raises:
            ConfigError: it lives on, or the directory can't be written to, or something else is at the path.
        """
        try:
            self._descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"lease_socket {self.path} can't be used: {error}") from error
        await self._take(self._descriptor, patience_s)
        self._check()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def unlock(self) -> None:
        """Lets the next agent have it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def bound(self) -> None:
        """Gives the new socket its group and mode.

        Raises:
            ConfigError: there is no such group, or this user may not give the socket to it.
        """
        try:
            if self._group:
                os.chown(self.path, -1, grp.getgrnam(self._group).gr_gid)
            os.chmod(self.path, self._mode)
        except (KeyError, OSError) as error:
            raise ConfigError(f"lease_socket {self.path} can't be given to group {self._group!r}: {error}") from error

    def read(self) -> State | None:
        """What the agent before left, or ``None``."""
        try:
            with self._state.open("rb") as file:
                state = msgspec.json.decode(file.read(_MAX_STATE_BYTES), type=State)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None  # nothing, or nothing of use: a new lease does as well
        return state if _LEASE.fullmatch(state.lease) else None

    def write(self, state: State) -> None:
        """Leaves it to the next one: whole, or nothing.

        With what was true before, that one would keep a lease alive whose workers it does not know.

        Raises:
            OSError: it can't be written, and nothing is left.
        """
        temporary = self._state.with_name(f"{self._state.name}.{os.getpid()}.tmp")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(state))
            temporary.replace(self._state)
        except OSError:
            for path in (temporary, self._state):
                with contextlib.suppress(OSError):
                    path.unlink()
            raise

    async def _take(self, descriptor: int, patience_s: float) -> None:
        try:
            async with asyncio.timeout(patience_s):
                while True:
                    with contextlib.suppress(BlockingIOError):
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        return
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            who = os.pread(descriptor, 20, 0).decode(errors="replace") or "another process"
            raise ConfigError(f"lease_socket {self.path} is served by process {who}") from None

    def _check(self) -> None:
        """A socket there is a dead agent's, since the lock is ours; anything else is not touched."""
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode):
            raise ConfigError(f"lease_socket {self.path} exists and is no socket")
        self.path.unlink()
