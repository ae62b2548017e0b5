"""A small disk that can be full: a tmpfs in a mount namespace of its own, which only chosen processes see."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ringcast_testkit._process import ManagedProcess, ServerFailedError

_BLOCK: Final = 64 * 1024
_HOLD = "mount -t tmpfs -o size={size} tmpfs {path} && echo mounted && exec sleep infinity"


class SmallDisk:
    """``size_bytes`` of storage at ``path`` for every command that is started with :attr:`prefix` in front.

    A write past its end fails with ENOSPC, as on a real disk. The contents live as long as this object, whatever
    happens to the processes that use it. Needs Linux, and the right to make a mount namespace: see :func:`supported`.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path.resolve()
        self._size = size_bytes
        self._holder: ManagedProcess | None = None

    @staticmethod
    def supported() -> bool:
        """Whether this process may make a mount namespace."""
        if sys.platform != "linux" or not shutil.which("unshare") or not shutil.which("nsenter"):
            return False
        tried = subprocess.run(
            [*_unshare(), "sh", "-c", "mount -t tmpfs -o size=64k tmpfs /mnt"], capture_output=True, check=False
        )
        return tried.returncode == 0

    @property
    def prefix(self) -> tuple[str, ...]:
        """Put in front of a command, it runs where the disk is mounted."""
        user = () if os.geteuid() == 0 else ("-U", "--preserve-credentials")
        return ("nsenter", "-t", str(self._pid), *user, "-m", "--")

    @property
    def free_bytes(self) -> int:
        """What can still be written."""
        found = os.statvfs(self._outside)
        return found.f_bavail * found.f_frsize

    def fill(self) -> int:
        """Writes until nothing more fits, and returns how many bytes those were."""
        written = 0
        with (self._outside / "filler").open("ab", buffering=0) as file:
            for size in (_BLOCK, 4096, 1):
                try:
                    while True:
                        written += file.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
        return written

    def free(self) -> None:
        """Gives back what :meth:`fill` took."""
        (self._outside / "filler").unlink(missing_ok=True)

    def empty(self) -> None:
        """Deletes everything on it."""
        for entry in self._outside.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def start(self) -> None:
        """Mounts it."""
        self.path.mkdir(parents=True, exist_ok=True)
        command = _HOLD.format(size=self._size, path=self.path)
        self._holder = ManagedProcess("small-disk", [*_unshare(), "sh", "-c", command])
        self._holder.wait_until(lambda: any("mounted" in line for line in list(self._holder.log)))  # type: ignore[union-attr]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._holder is not None:
            with contextlib.suppress(ServerFailedError):
                self._holder.kill()

    @property
    def _pid(self) -> int:
        if self._holder is None:
            raise ServerFailedError("the small disk is not mounted")
        return self._holder.pid

    @property
    def _outside(self) -> Path:
        """The disk as seen from here, where it is not mounted."""
        return Path(f"/proc/{self._pid}/root") / self.path.relative_to("/")


def _unshare() -> list[str]:
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--mount"]
