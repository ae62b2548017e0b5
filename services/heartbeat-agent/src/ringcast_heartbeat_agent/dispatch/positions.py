"""How far groups have come: kept for those that start again, in memory, and on disk where the agent is set up so."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import OrderedDict
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from ringcast_wire import EventLog

log = EventLog(logging.getLogger(__name__))

Place: TypeAlias = tuple[str, str, str]
"""A store, a config key, and a group of it."""
_MOST: Final = 1_000
_MAX_BYTES: Final = 16 * 1024 * 1024


class Away(msgspec.Struct, frozen=True):
    """A consumer that wanted some rows only."""

    name: str
    filters: list[str]


class Position(msgspec.Struct, frozen=True):
    """Every change up to these revisions has been settled, by partition. Another history means: nothing is known."""

    history: str
    revisions: dict[int, int]
    away: list[Away] = []
    """The consumers with filters: what they want is kept for a while, until they are back."""


class Positions:
    """The positions of the groups of this host: of the thousand that were there last.

    A file is written by a thread, whole and then renamed. One that can't be read is as good as none.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._kept: OrderedDict[Place, Position | None] = OrderedDict()
        """The one used last is the last one; nothing: it has not been read yet."""
        self._to_write: dict[Place, bytes] = {}
        self._news = asyncio.Event()
        self._failed = False
        if directory is not None:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in sorted(directory.glob("*.*.*.json"), key=lambda path: path.stat().st_mtime):
                store, key, *group, _ = path.name.split(".")
                if len(group) == 1:
                    self._add((store, key, group[0]), None)

    def get(self, place: Place) -> Position | None:
        """The position of a group, if one is known."""
        if place in self._kept and self._kept[place] is None:
            self._kept[place] = self._read(place)
        return self._kept.get(place)

    def put(self, place: Place, position: Position) -> None:
        """A group has come so far. On disk it is a moment later."""
        if self._kept.get(place) == position:
            return
        self._add(place, position)
        if self._directory is not None:
            self._to_write[place] = msgspec.json.encode(position)
            self._news.set()

    async def run(self) -> None:
        """Writes what is put until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            await self.flush()

    async def flush(self) -> None:
        """Writes what has been put."""
        while self._to_write:
            some, self._to_write = self._to_write, {}
            await asyncio.to_thread(self._write, some)

    def _add(self, place: Place, position: Position | None) -> None:
        self._kept[place] = position
        self._kept.move_to_end(place)
        if len(self._kept) > _MOST:
            oldest, _ = self._kept.popitem(last=False)
            self._to_write.pop(oldest, None)
            if self._directory is not None:
                self._path(oldest).unlink(missing_ok=True)

    def _path(self, place: Place) -> Path:
        assert self._directory is not None
        return self._directory / f"{'.'.join(place)}.json"

    def _read(self, place: Place) -> Position | None:
        path = self._path(place)
        try:
            with path.open("rb") as file:
                return msgspec.json.decode(file.read(_MAX_BYTES), type=Position)
        except (OSError, msgspec.DecodeError) as error:
            log.warning("group.position_unreadable", path=path, error=error)
            return None

    def _write(self, some: dict[Place, bytes]) -> None:
        for place, body in some.items():
            path = self._path(place)
            temporary = path.with_name(f"{path.name}.tmp")
            try:
                with temporary.open("wb") as file:
                    file.write(body)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(path)
                self._failed = False
            except OSError as error:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)
                if not self._failed:
                    log.error("group.position_not_written", path=path, error=error)
                self._failed = True
