"""A TCP proxy between one process and a server: the place where a network is cut, slow, or silent."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

T = TypeVar("T")

_CHUNK: Final = 16 * 1024
_MOST_QUEUED: Final = 64
"""Chunks that one direction queues while they are delayed: 1 MiB; past it the sender has to wait."""
_SLICES_PER_S: Final = 20
_BACKLOG: Final = 128


class _Loop:
    """One event loop in a thread of its own, which all proxies of the process share."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="tcp-proxies", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs ``work`` there and waits for it."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(30)

    def call(self, function: Callable[[], object]) -> None:
        """Calls ``function`` there and waits until it has returned."""

        async def work() -> None:
            function()

        self.run(work())


_shared: list[_Loop] = []


def _loop() -> _Loop:
    if not _shared:
        _shared.append(_Loop())
    return _shared[0]


@dataclass(frozen=True, slots=True)
class _Condition:
    """What a network does to the bytes of each connection."""

    cut: bool = False
    silent: bool = False
    mute: bool = False
    delay_s: float = 0.0
    bytes_per_s: float = 0.0


class _Network:
    """The condition at this moment. ``changed`` is replaced at each change, so that a waiting task looks again."""

    def __init__(self) -> None:
        self.condition = _Condition()
        self.changed = asyncio.Event()

    def set(self, condition: _Condition) -> None:
        """In the loop of the proxies: the condition from now on."""
        self.condition = condition
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class TcpProxy:
    """Listens on a free port of 127.0.0.1 and passes everything on to ``upstream``.

    ``upstream`` is the port of a server on 127.0.0.1, or the path of a Unix socket. The methods that change the network
    may be called from any thread, and are in force when they return. Buffers are bounded: what is not passed on makes
    the sender wait, as a slow network does.
    """

    def __init__(self, upstream: int | Path) -> None:
        self._upstream = upstream
        self._network = _Network()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._port = 0
        self.accepted = 0
        """Connections that were let through so far."""

    @property
    def port(self) -> int:
        """Where it listens; the port stays the same until it is closed."""
        return self._port

    # ---- the network

    def cut(self) -> None:
        """Breaks every connection, and every new one at once, until :meth:`resume`."""
        self._set(_Condition(cut=True))

    def silence(self) -> None:
        """Connections stay open and nothing gets through, as behind a firewall that drops, until :meth:`resume`."""
        self._set(_Condition(silent=True))

    def mute(self) -> None:
        """What the server says is kept back until :meth:`resume`; what it is told gets through."""
        self._set(_Condition(mute=True))

    def delay(self, seconds: float) -> None:
        """Everything arrives later by so much, in each direction."""
        self._set(_Condition(delay_s=seconds))

    def trickle(self, bytes_per_s: float) -> None:
        """No more than so many bytes a second get through, on each connection and in each direction."""
        self._set(_Condition(bytes_per_s=bytes_per_s))

    def resume(self) -> None:
        """The network is well again; what is queued is passed on."""
        self._set(_Condition())

    def redirect(self, upstream: int | Path, *, keep_open: bool = False) -> None:
        """Leads new connections to another server. The open ones break, as with a floating address, or stay where they
        are (``keep_open``), as with a Service of Kubernetes."""

        def change() -> None:
            self._upstream = upstream
            if not keep_open:
                self._abort_all()

        _loop().call(change)

    def sever(self) -> None:
        """Breaks the connections that are open; new ones are welcome."""
        _loop().call(self._abort_all)

    # ---- life

    def start(self) -> None:
        """Begins to listen."""
        _loop().run(self._listen())

    def close(self) -> None:
        """Breaks what is open and stops listening."""
        _loop().run(self._close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _set(self, condition: _Condition) -> None:
        def change() -> None:
            self._network.set(condition)
            if condition.cut:
                self._abort_all()

        _loop().call(change)

    def _abort_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=_BACKLOG)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._abort_all()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            if not self._network.condition.cut:
                await self._join(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # one side is gone: so is the other
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while self._network.condition.silent:
            await self._network.changed.wait()
        if isinstance(self._upstream, Path):
            there, back = await asyncio.open_unix_connection(self._upstream)
        else:
            there, back = await asyncio.open_connection("127.0.0.1", self._upstream)
        self._writers.add(back)
        self.accepted += 1
        try:
            if self._network.condition.cut:
                return
            ways = (
                _Direction(self._network, reader, back, answers=False),
                _Direction(self._network, there, writer, answers=True),
            )
            pumps = [asyncio.create_task(way.run()) for way in ways]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            self._writers.discard(back)
            back.transport.abort()


class _Direction:
    """One direction of one connection: a bounded queue between a task that reads and this one, which passes on."""

    def __init__(
        self, network: _Network, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        self._network = network
        self._answers = answers
        self._reader = reader
        self._writer = writer

    async def run(self) -> None:
        """Passes on what arrives until there is no more, or one side is gone."""
        queued: deque[tuple[float, bytes]] = deque()
        moved = asyncio.Event()
        read = asyncio.create_task(_fill(self._reader, queued, moved))
        try:
            while True:
                while not queued:
                    if read.done():
                        return
                    moved.clear()
                    await moved.wait()
                arrived_at, data = queued[0]
                await self._pass(arrived_at, data)
                queued.popleft()
                moved.set()
        finally:
            read.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await read

    async def _pass(self, arrived_at: float, data: bytes) -> None:
        """Sends one chunk as the network allows it, which may change meanwhile."""
        loop = asyncio.get_running_loop()
        while data:
            condition, changed = self._network.condition, self._network.changed
            rest_s = arrived_at + condition.delay_s - loop.time()
            held = condition.silent or (condition.mute and self._answers)
            if held or rest_s > 0:
                await _changed_within(changed, None if held else rest_s)
                continue
            size = max(1, int(condition.bytes_per_s / _SLICES_PER_S)) if condition.bytes_per_s else len(data)
            self._writer.write(data[:size])
            await self._writer.drain()
            data = data[size:]
            if condition.bytes_per_s:
                await _changed_within(changed, size / condition.bytes_per_s)


async def _changed_within(changed: asyncio.Event, timeout_s: float | None) -> None:
    # By hand: pytest loads this module as a plugin, also where the core that ringcast_wire stands on is not built yet.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await changed.wait()


async def _fill(reader: asyncio.StreamReader, queued: deque[tuple[float, bytes]], moved: asyncio.Event) -> None:
    """Reads as long as there is room; what it sets ``moved`` for is a chunk more, or the end."""
    loop = asyncio.get_running_loop()
    try:
        while data := await reader.read(_CHUNK):
            queued.append((loop.time(), data))
            moved.set()
            while len(queued) >= _MOST_QUEUED:
                moved.clear()
                await moved.wait()
    finally:
        moved.set()
