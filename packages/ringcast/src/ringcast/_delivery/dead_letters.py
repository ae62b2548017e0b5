"""Dead letters: made of the changes that are given up, and sent until the stream of their store has them."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from ringcast_wire import Backoff, DeadLetter, dead_letter_id, encode_dead_letter, names

from ringcast._bus.bus import TRANSIENT
from ringcast._common.change import Change


class DeadLetters(Protocol):
    """Where dead letters go."""

    async def publish(self, subject: str, body: bytes, message_id: str) -> None:
        """Returns when the stream has it; raises one of ``TRANSIENT`` otherwise."""

    @property
    def max_bytes(self) -> int:
        """How large one may be."""


class DeadLetterSender:
    """Sends dead letters, each until the stream has it. ``failed`` is called whenever that fails, before a pause."""

    def __init__(self, dead_letters: DeadLetters, failed: Callable[[DeadLetter, Exception], None]) -> None:
        self._dead_letters = dead_letters
        self._failed = failed
        self._nonce = secrets.token_hex(8)

    async def send(
        self,
        letter: DeadLetter,
        *,
        replay_id: str = "",
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        is_void: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Sends one until the stream has it, or ``is_void()``; returns whether the stream has it.

        ``replay_id``: of the request to hand the row over again that has failed, if any.
        """
        subject = names.dead_subject(letter.store, letter.key, letter.partition)
        body = encode_dead_letter(letter, self._dead_letters.max_bytes)
        message_id = dead_letter_id(letter, self._nonce, replay_id)
        backoff = Backoff(random.random, first_s=0.5)
        while not is_void():
            try:
                await self._dead_letters.publish(subject, body, message_id)
            except TRANSIENT as error:
                self._failed(letter, error)
                await pause(backoff.next_s())
            else:
                return True
        return False


def dead_letter_of(
    change: Change,
    *,
    error: str,
    worker_id: str,
    tries: int,
    group: str = "",
    observer: bool = False,
    replays: int = 0,
) -> DeadLetter:
    """The dead letter of a change that is given up now."""
    return DeadLetter(
        store=change.store,
        key=change.key,
        partition=change.partition,
        row_id=change.row_id,
        version=change.version,
        value=change.value,
        deleted=change.deleted,
        metadata=change.metadata,
        error=error,
        worker_id=worker_id,
        tries=tries,
        at_ms=int(time.time() * 1000),
        group=group,
        observer=observer,
        replays=replays,
    )
