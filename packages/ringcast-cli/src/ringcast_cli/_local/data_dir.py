"""The data directory of ``ringcast up``: its layout, and the lock that keeps a second one out."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ringcast_wire import InUseError, RingcastError

MAX_LOG_BYTES: Final = 10 * 1024 * 1024


class DataDir:
    """Where things are below the data directory."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.lock = self.path / "ringcast.lock"
        self.database = self.path / "ringcast.db"
        self.streams = self.path / "nats"
        self.run = self.path / "run"
        self.logs = self.path / "logs"

    def log(self, name: str) -> Path:
        """The log of a child; past 10 MiB the old one is set aside first."""
        path = self.logs / f"{name}.log"
        if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
        return path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the directory ready, and holds its lock.

        Raises:
            InUseError: another ``ringcast up`` holds it.
            RingcastError: the directory can't be made or written.
        """
        try:
            for directory in (self.path, self.streams, self.run, self.logs):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = self.lock.open("a+", encoding="utf-8")
        except OSError as error:
            raise RingcastError(
                f"data directory {self.path} can't be used: {error.strerror}", field="data_dir"
            ) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read(32).strip() or "unknown"
                raise InUseError(
                    f"data directory {self.path} is in use by process {holder}: "
                    "stop that `ringcast up`, or give another --data-dir",
                    field="data_dir",
                ) from None
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            self._clear_run()
            yield

    def _clear_run(self) -> None:
        """Removes what a killed predecessor left behind."""
        for leftover in self.run.iterdir():
            leftover.unlink()


def write_atomically(path: Path, document: dict[str, Any]) -> None:
    """Writes JSON so that a reader sees all of it or nothing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(document) + "\n", encoding="utf-8")
    temporary.replace(path)
