"""Dead letters of groups: the same subject, stream and form as those of the worker SDK."""

from __future__ import annotations

import logging
from typing import Final

import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from ringcast import Change, DeadLetter, UnavailableError
from ringcast.hosting import DeadLetterSender, dead_letter_of
from ringcast_wire import EventLog, ReplayRequest, limits, names

log = EventLog(logging.getLogger(__name__))

_TIMEOUT_S: Final = 5.0


class GroupDeadLetters:
    """Publishes the dead letters of groups, each until the stream has it."""

    def __init__(self, nc: Client, js: JetStreamContext) -> None:
        self._sender = DeadLetterSender(_Stream(nc, js), self._failed)
        self.failures = 0

    async def publish(
        self,
        change: Change,
        *,
        group: str,
        worker_id: str,
        why: str,
        tries: int,
        replayed: ReplayRequest | None = None,
    ) -> None:
        """Returns when the stream has it; tries for ever. ``replayed``: what the change was handed over again for."""
        letter = dead_letter_of(
            change,
            error=why,
            worker_id=worker_id,
            tries=tries,
            group=group,
            replays=0 if replayed is None else replayed.replays + 1,
        )
        await self._sender.send(letter, replay_id="" if replayed is None else replayed.id)

    def _failed(self, letter: DeadLetter, error: Exception) -> None:
        self.failures += 1
        subject = names.dead_subject(letter.store, letter.key, letter.partition)
        log.warning("dead_letter.not_stored", subject=subject, error=error)


class _Stream:
    """Where they go: the streams of the stores, over the connection of the agent."""

    def __init__(self, nc: Client, js: JetStreamContext) -> None:
        self._nc = nc
        self._js = js

    async def publish(self, subject: str, body: bytes, message_id: str) -> None:
        """Returns when the stream has it."""
        try:
            await self._js.publish(subject, body, headers={names.HEADER_MSG_ID: message_id}, timeout=_TIMEOUT_S)
        except nats.errors.Error as error:
            raise UnavailableError(str(error) or type(error).__name__) from error

    @property
    def max_bytes(self) -> int:
        """What the server takes, less room for the headers."""
        return self._nc.max_payload - limits.CHUNK_HEADROOM_BYTES
