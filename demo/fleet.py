"""The worker processes of the demo: starting, killing and hearing them."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LINE_LIMIT = 64 << 20  # a dump of all rows of a list is one line
Owned = dict[str, frozenset[int]]


class Member:
    """One worker process, and what it last said."""

    def __init__(self, worker_id: str, process: Process, number: int) -> None:
        self.worker_id = worker_id
        self.number = number
        self.process = process
        self.owned: Owned = {}
        self.rows: Counter[str] = Counter()
        self.heard = 0
        self.dump: dict[str, dict[str, tuple[str, int, int]]] = {}
        self.dumped = asyncio.Event()
        self.reader: asyncio.Task[None] | None = None

    def tell(self, command: str) -> None:
        """Sends a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n".encode())


class Fleet:
    """All worker processes of a store; use as an async context manager."""

    def __init__(
        self, servers: str, store: str, keys: list[str], partition_count: int, application: str = "demo.worker"
    ) -> None:
        self.members: dict[str, Member] = {}
        self.on_update: Callable[[], None] = lambda: None
        self.failure: str | None = None
        self.changed = asyncio.Condition()
        self.keys = keys
        self._started = 0
        self._everything = frozenset(range(partition_count))
        self._words = [servers, store]
        self._application = application
        self._heard: dict[tuple[str, str, int], list[tuple[str, int]]] = {}

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self.members.values():
            if member.process.returncode is None:
                member.tell("stop")
        for member in list(self.members.values()):
            await self._gone(member)

    async def start(self, worker_id: str) -> None:
        """Starts a worker process; it owns nothing yet when this returns."""
        servers, store = self._words
        words = ["-m", self._application, servers, worker_id, store, *self.keys]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdin=PIPE, stdout=PIPE, limit=_LINE_LIMIT, cwd=Path(__file__).parents[1]
        )
        member = self.members[worker_id] = Member(worker_id, process, self._started)
        self._started += 1
        member.reader = asyncio.create_task(self._read(member))

    async def kill(self, worker_id: str) -> tuple[Owned, int]:
        """SIGKILL; returns what the worker owned, and when it was killed (monotonic, ns)."""
        member = self.members.pop(worker_id)
        killed_at = time.monotonic_ns()
        member.process.kill()
        await self._gone(member)
        return member.owned, killed_at

    def owners(self) -> dict[tuple[str, int], str]:
        """Who says that it owns which partition of which key, loaded and live."""
        return {
            (key, partition): member.worker_id
            for member in self.members.values()
            for key, partitions in member.owned.items()
            for partition in partitions
        }

    def settled(self) -> bool:
        """Whether every worker has something, and every partition exactly one owner."""
        for key in self.keys:
            claims = [member.owned.get(key, frozenset()) for member in self.members.values()]
            if not all(claims) or sum(map(len, claims)) != len(self._everything):
                return False
            if frozenset().union(*claims) != self._everything:
                return False
        return True

    def _shares(self) -> str:
        """How many partitions of each key every worker says that it owns."""
        return ", ".join(
            f"{worker_id} has " + (" and ".join(f"{len(has)} of {key}" for key, has in member.owned.items()) or "none")
            for worker_id, member in self.members.items()
        )

    async def wait_settled(self, timeout_s: float = 120.0) -> int:
        """Waits until the partitions are shared out and loaded; returns when that was (monotonic, ns).

        So long because of machines that are busy: each worker is a Python process that starts.
        """
        await self._wait(self.settled, timeout_s, lambda: f"the partitions were not shared out: {self._shares()}")
        return time.monotonic_ns()

    async def wait_heard(self, key: str, row_id: str, version: int, timeout_s: float = 15.0) -> tuple[str, int]:
        """Waits until a worker's handler has had that version; returns the worker, and when (monotonic, ns)."""
        what = (key, row_id, version)
        await self._wait(lambda: what in self._heard, timeout_s, lambda: f"nobody heard of {row_id} version {version}")
        return self._heard[what][0]

    def hearers(self, key: str, row_id: str, version: int) -> list[str]:
        """Every worker that heard of a version."""
        return [worker_id for worker_id, _ in self._heard.get((key, row_id, version), [])]

    async def dump(self) -> None:
        """Has every worker say all that it holds."""
        for member in self.members.values():
            member.dumped.clear()
            member.tell("dump")
        for member in self.members.values():
            await asyncio.wait_for(member.dumped.wait(), 30)

    async def _wait(self, condition: Callable[[], bool], timeout_s: float, otherwise: Callable[[], str]) -> None:
        try:
            async with asyncio.timeout(timeout_s), self.changed:
                await self.changed.wait_for(lambda: self.failure is not None or condition())
        except TimeoutError:
            raise SystemExit(f"demo: after {timeout_s:g} s {otherwise()}") from None
        if self.failure is not None:
            raise SystemExit(f"demo: {self.failure}")

    async def _read(self, member: Member) -> None:
        assert member.process.stdout is not None
        async for line in member.process.stdout:
            async with self.changed:
                self._take(member, json.loads(line))
                self.changed.notify_all()
            self.on_update()
        if self.members.get(member.worker_id) is member and await member.process.wait() != 0:
            self.failure = f"worker {member.worker_id} ended with {member.process.returncode}"
            async with self.changed:
                self.changed.notify_all()

    def _take(self, member: Member, message: dict[str, Any]) -> None:
        match message["event"]:
            case "owned":
                member.owned = {key: frozenset(partitions) for key, partitions in message["owned"].items()}
                member.rows = Counter(message["rows"])
            case "heard":
                member.heard += 1
                what = (message["key"], message["row_id"], message["version"])
                self._heard.setdefault(what, []).append((member.worker_id, message["at_ns"]))
            case "dump":
                rows = message["rows"]
                member.dump[message["key"]] = {row_id: tuple(row) for row_id, row in rows.items()}
            case "dumped":
                member.dumped.set()

    async def _gone(self, member: Member) -> None:
        """Waits for the end of a process that was told or made to end."""
        try:
            await asyncio.wait_for(member.process.wait(), 15)
        except TimeoutError:
            member.process.kill()
            await member.process.wait()
        if member.reader is not None:
            await member.reader
