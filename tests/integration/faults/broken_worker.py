"""The process behind a :class:`~ringcast_testkit.WorkerProcess` with something of the worker taken out of it.

Run as a program with the name of what is missing before the arguments of the usual one.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from nats.aio.client import Client
from ringcast import Change
from ringcast._bus.consumers import Consumers
from ringcast._bus.nats_client import WorkerClient
from ringcast._common.process import Process
from ringcast._coordination.sticky import ownership
from ringcast._coordination.sticky.ownership import KeyOwnership
from ringcast._delivery.handler import Applier
from ringcast._protocol.sticky.fence import Fence
from ringcast._worker.anti_entropy import AntiEntropy
from ringcast_testkit._worker_main import main

from tests.simulation.sticky_variants import ActivatesEarly, ResumesItsToken


def loses_cancelled_calls() -> None:
    """Takes a call that raises ``CancelledError`` for one that has taken its change."""
    attach = Applier.attach

    def attach_forgiving(self: Applier, handler: Any, **more: Any) -> None:
        async def waits(change: Change) -> None:
            with suppress(asyncio.CancelledError):
                await handler(change)

        def plain(change: Change) -> None:
            with suppress(asyncio.CancelledError):
                handler(change)

        attach(self, waits if inspect.iscoroutinefunction(handler) else plain, **more)

    Applier.attach = attach_forgiving  # type: ignore[method-assign]


def knows_no_forks() -> None:
    """Takes a child for the process that it was forked from."""
    Process.check = lambda *_: None  # type: ignore[method-assign]


def ends_with_its_connection() -> None:
    """Gives up where the server ends its connection."""

    async def gives_up(self: Client) -> None:
        self._closing = asyncio.create_task(self._close(Client.CLOSED))  # type: ignore[attr-defined]

    WorkerClient._attempt_reconnect = gives_up  # type: ignore[method-assign]


def makes_no_consumer_again() -> None:
    """Does without a consumer that is gone, and does not compare head revisions."""
    Consumers._lost = lambda *_: None  # type: ignore[method-assign]

    async def nothing(*_: object) -> None:
        await asyncio.Event().wait()

    AntiEntropy.run = nothing  # type: ignore[method-assign,assignment]


def starts_calls_past_its_fence() -> None:
    """Goes on for as long as nobody tells it to stop."""
    Fence.passed = lambda *_: False  # type: ignore[method-assign]
    _watch_no_fence()


def activates_before_released() -> None:
    """Takes a partition up as soon as its owner was told to stop."""
    ownership.Ownership = ActivatesEarly  # type: ignore[attr-defined]


def resumes_its_token() -> None:
    """Starts no call past its fence, and goes on with what it had once a refresh succeeds."""
    ownership.Ownership = ResumesItsToken  # type: ignore[attr-defined]
    _watch_no_fence()


def _watch_no_fence() -> None:
    async def nothing(*_: object) -> None:
        await asyncio.Event().wait()

    KeyOwnership.watch_fence = nothing  # type: ignore[method-assign,assignment]


BROKEN: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        loses_cancelled_calls,
        knows_no_forks,
        ends_with_its_connection,
        makes_no_consumer_again,
        starts_calls_past_its_fence,
        activates_before_released,
        resumes_its_token,
    )
}

if __name__ == "__main__":
    BROKEN[sys.argv.pop(1)]()
    asyncio.run(main())
