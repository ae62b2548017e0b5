"""Running a coroutine in a program whose signal handlers raise."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs it in an event loop of its own. A signal cancels it, and is handled once it has ended.

    A handler that raises in the middle of the loop would do so in code that expects no exception: gRPC aborts the
    process then.
    """
    handlers = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
        if callable(handler := signal.getsignal(number))
    }
    came: list[signal.Signals] = []

    async def main() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(coroutine)

        def on_signal(number: signal.Signals) -> None:
            came.append(number)
            task.cancel()

        for number in handlers:
            loop.add_signal_handler(number, on_signal, number)
        try:
            return await task
        finally:
            for number, handler in handlers.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    try:
        return asyncio.run(main())
    finally:
        if came:
            handlers[came[0]](came[0], None)
