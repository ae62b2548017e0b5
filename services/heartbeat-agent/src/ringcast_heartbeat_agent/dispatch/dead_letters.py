"""Dead letters of groups: the same subject, stream and form as those of the worker SDK."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from typing import Final

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from ringcast import Change, DeadLetter
from ringcast_wire import ReplayRequest, limits, names

log = logging.getLogger(__name__)

_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 30.0
_TIMEOUT_S: Final = 5.0


class Letters:
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
        row = hashlib.blake2b(change.row_id.encode(), digest_size=12).hexdigest()
        # With the group: each of several may have given the change up. And with what nobody else can know: the stream
        # drops the second message of an id, whoever sent the first.
        place = f"{change.store}.{change.key}.{change.partition}.{change.version}.{row}"
        message_id = f"dead.{place}.{group}.{self._nonce}"
        if replayed is not None:
            message_id += f".{replayed.id}"
        replays = 0 if replayed is None else replayed.replays + 1
        body = self._body(change, group=group, worker_id=worker_id, why=why, tries=tries, replays=replays)
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                await self._js.publish(subject, body, headers={names.HEADER_MSG_ID: message_id}, timeout=_TIMEOUT_S)
            except (nats.errors.Error, TimeoutError, OSError) as error:
                self.failures += 1
                log.warning("dead letter on %s was not taken, it is sent again: %r", subject, error)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
            else:
                return

    def _body(self, change: Change, *, group: str, worker_id: str, why: str, tries: int, replays: int) -> bytes:
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
            replays=replays,
        )
        body = msgspec.json.encode(letter)
        if len(body) > self._nc.max_payload - limits.CHUNK_HEADROOM_BYTES:
            body = msgspec.json.encode(msgspec.structs.replace(letter, value=None, metadata=None, left_out=True))
        return body
