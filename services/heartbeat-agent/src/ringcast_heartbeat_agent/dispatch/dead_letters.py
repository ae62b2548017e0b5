"""Dead letters of groups: the same subject, stream and form as those of the worker SDK."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from typing import Final

import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from ringcast import Change, DeadLetter
from ringcast_wire import Backoff, EventLog, ReplayRequest, dead_letter_id, encode_dead_letter, limits, names

log = EventLog(logging.getLogger(__name__))

_TIMEOUT_S: Final = 5.0


class DeadLetterPublisher:
    """Publishes dead letters, each until the stream has it."""

    def __init__(self, nc: Client, js: JetStreamContext) -> None:
        self._nc = nc
        self._js = js
        self._nonce = secrets.token_hex(8)
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
        subject = names.dead_subject(change.store, change.key, change.partition)
        letter = DeadLetter(
            store=change.store,
            key=change.key,
            partition=change.partition,
            row_id=change.row_id,
            version=change.version,
            value=change.value,
            deleted=change.deleted,
            metadata=change.metadata,
            error=why,
            worker_id=worker_id,
            tries=tries,
            at_ms=int(time.time() * 1000),
            group=group,
            replays=0 if replayed is None else replayed.replays + 1,
        )
        body = encode_dead_letter(letter, self._nc.max_payload - limits.CHUNK_HEADROOM_BYTES)
        message_id = dead_letter_id(letter, self._nonce, "" if replayed is None else replayed.id)
        backoff = Backoff(random.random, first_s=0.5)
        while True:
            try:
                await self._js.publish(subject, body, headers={names.HEADER_MSG_ID: message_id}, timeout=_TIMEOUT_S)
            except (nats.errors.Error, TimeoutError, OSError) as error:
                self.failures += 1
                log.warning("dead_letter.not_stored", subject=subject, error=error)
                await asyncio.sleep(backoff.next_s())
            else:
                return
