"""Signals that come while an event loop runs."""

from __future__ import annotations

import asyncio
import signal
from types import FrameType

import pytest

from benchmarks.envelope.loops import run_coroutine


class RaisedError(Exception):
    """What the handler raises."""


def test_returns_what_the_coroutine_does() -> None:
    async def answer() -> int:
        return 42

    assert run_coroutine(answer()) == 42


def test_a_signal_is_handled_once_the_coroutine_has_ended() -> None:
    steps: list[str] = []

    def handler(_number: int, _frame: FrameType | None) -> None:
        steps.append("handled")
        raise RaisedError

    async def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            steps.append("ended")

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(RaisedError):
            run_coroutine(work())
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert steps == ["ended", "handled"]
