"""The life of a worker object: started once, stopped once, and the error that ends it in between."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ringcast_wire import EventLog, InvalidInputError, UnavailableError, shown

from ringcast._common.config import WorkerConfig
from ringcast._common.process import this_process
from ringcast._delivery.iterator import ChangeStream
from ringcast._worker.runtime import Runtime
from ringcast._worker.session import KeySession


class WorkerLife:
    """``runtime`` is ``None`` before the start. After a fatal error the body of ``async with`` is interrupted."""

    def __init__(self, config: WorkerConfig, log: EventLog) -> None:
        self.runtime: Runtime | None = None
        self.stream: ChangeStream | None = None
        """What iterates over changes, to be closed at the end."""
        self._config = config
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._body: asyncio.Task[object] | None = None
        self._interrupted = False
        self._forks = this_process.forks

    async def start(self, runtime: Runtime) -> None:
        """Runs the worker in a task of its own; returns once it has started. Cancelling leaves nothing behind.

        Raises:
            UnavailableError: it took longer than ``start_timeout_s``, or was stopped meanwhile.
            RingcastError: what makes starting impossible.
        """
        self._forks = this_process.forks
        self.runtime = runtime
        self._task = asyncio.create_task(runtime.run(), name=f"ringcast-worker-{self._config.worker_id}")
        started = asyncio.create_task(runtime.started.wait())
        try:
            await self._wait_started(runtime, self._task, started)
        except BaseException:
            # Both: the NATS client can swallow a cancellation (wait_for on Python 3.11); then it starts, and stops.
            runtime.stopping.set()
            self._task.cancel()
            await asyncio.wait({self._task})
            raise
        finally:
            started.cancel()
        if self._task.done():
            self._task.result()
            raise UnavailableError("the worker stopped while it was starting")
        self._task.add_done_callback(self._on_done)

    async def _wait_started(self, runtime: Runtime, *tasks: asyncio.Task[Any]) -> None:
        limit_s = self._config.start_timeout_s
        done, _ = await asyncio.wait(tasks, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            why = runtime.failing_because or "NATS does not answer"
            raise UnavailableError(f"the worker did not start within {limit_s:g} s: {why}")

    async def stop(self) -> None:
        """Has the worker end, and waits for that; harmless before the start and after the end."""
        if self.runtime is None or self._task is None:
            return
        self.check_process()
        self.runtime.stopping.set()
        try:
            await asyncio.wait({self._task})
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait({self._task})
            raise

    async def wait_closed(self) -> None:
        """Waits until the worker has ended; raises the fatal error that ended it, if any."""
        if self._task is not None:
            self.check_process()
            await asyncio.wait({self._task})
            if (fatal := self.fatal) is not None:
                raise fatal

    def enter_body(self) -> None:
        """The calling task is in the body of ``async with``: a fatal error cancels it."""
        self._body = asyncio.current_task()

    async def leave_body(self, error: BaseException | None) -> None:
        """The body has ended, with this error or without: stops the worker, and raises what ended it, if anything."""
        body, self._body = self._body, None
        await self.stop()
        fatal = self.fatal
        if self._interrupted and body is not None:
            body.uncancel()
        if fatal is not None and error is not fatal and (error is None or self._interrupted):
            raise fatal

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._task is not None and not self._task.done()

    @property
    def fatal(self) -> BaseException | None:
        """The error that ended the worker, if one did."""
        if self._task is None or not self._task.done() or self._task.cancelled():
            return None
        return self._task.exception()

    def _on_done(self, _task: asyncio.Task[None]) -> None:
        """The worker has ended: iterators over changes end, and a fatal error interrupts the body."""
        fatal = self.fatal
        if self.stream is not None:
            self.stream.close(fatal)
        if fatal is None:
            return
        self._log.error("worker.failed", error=fatal)
        if self._body is not None and not self._body.done():
            self._interrupted = True
            self._body.cancel()

    # ---- what runs

    def check_process(self) -> None:
        """Refuses to go on in a child that was forked off.

        Raises:
            RuntimeError: the worker was started in another process.
        """
        if self._forks != this_process.forks:
            this_process.check(self._forks, f"worker {self._config.worker_id}")

    def sessions(self) -> Mapping[str, KeySession]:
        """The sessions by config key.

        Raises:
            RuntimeError: the worker has not started, or was started in another process.
        """
        if self.runtime is None or not self.runtime.sessions:
            raise RuntimeError("the worker has not started")
        self.check_process()
        return MappingProxyType(self.runtime.sessions)

    def session(self, key: str) -> KeySession:
        """The session of a config key.

        Raises:
            InvalidInputError: it is no key of this worker.
            RuntimeError: as for :meth:`sessions`.
        """
        session = self.sessions().get(key)
        if session is None:
            raise InvalidInputError(f"key {shown(key)} is not among the worker's keys {self._config.keys}", field="key")
        return session
