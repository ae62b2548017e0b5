"""Answers NATS servers that ask what a client may do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from ringcast_wire import EventLog, InvalidInputError
from ringcast_wire.permissions import CALLOUT_QUEUE, CALLOUT_REQUESTS

from ringcast_config_service.callout.claims import Request, answer_token, read_request, user_token
from ringcast_config_service.callout.keys import Sealer, Signer
from ringcast_config_service.callout.permits import Permits, RefusedError
from ringcast_config_service.telemetry import Measures

log = EventLog(logging.getLogger(__name__))

ACCOUNT: Final = "WORKERS"
"""Where workers are, as make_accounts.py prints it."""
MAX_REQUEST_BYTES: Final = 64 * 1024
"""NATS takes 4 KiB of a client; the certificates of a client may come on top."""
_XKEY_HEADER: Final = "Nats-Server-Xkey"
_ROOM_BYTES: Final = 4 * 1024
"""Left below the largest message of the server."""
_PATIENCE_S: Final = 2.0
"""How long a server waits that does not say it."""


class _Waiting(NamedTuple):
    message: Msg
    arrived_at: float


class CalloutServer:
    """Answers in the order in which requests come; a bounded number of them waits.

    A request that finds no room is dropped, and so is one that its server has stopped waiting for: the server then
    refuses the client. Nothing here waits for the database. ``chance`` gives numbers from 0 to 1.
    """

    def __init__(
        self,
        nc: Client,
        permits: Permits,
        signer: Signer,
        sealer: Sealer | None,
        measures: Measures,
        *,
        waiting: int,
        valid_s: float,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._nc = nc
        self._permits = permits
        self._signer = signer
        self._sealer = sealer
        self._measures = measures
        self._most_waiting = waiting
        self._valid_s = valid_s
        self._chance = chance
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()

    async def start(self) -> None:
        """Takes its share of requests from now on: all instances are one queue group."""
        await self._nc.subscribe(CALLOUT_REQUESTS, queue=CALLOUT_QUEUE, cb=self._take)
        await self._nc.flush()

    async def run(self) -> None:
        """Answers until it is cancelled."""
        while True:
            await self._arrived.wait()
            while self._waiting:
                await self._serve(*self._waiting.popleft())
                await asyncio.sleep(0)  # what else the process does has its turn
            self._arrived.clear()

    async def _take(self, msg: Msg) -> None:
        if len(self._waiting) >= self._most_waiting:
            self._refused("busy", "", "")
            return
        self._waiting.append(_Waiting(msg, time.monotonic()))
        self._arrived.set()

    async def _serve(self, msg: Msg, arrived_at: float) -> None:
        server_key = (msg.headers or {}).get(_XKEY_HEADER, "")
        try:
            request = self._read(msg.data, server_key)
        except InvalidInputError as error:
            log.debug("callout.malformed", error=error)
            self._refused("malformed", "", "")
            return
        patience_s = request.exp - request.iat if request.exp else _PATIENCE_S
        if time.monotonic() - arrived_at >= patience_s:
            self._refused("late", "", request.nats.client_info.host)
            return
        answer = self._answer(request).encode()
        # Where it can't be sent the server refuses the client, which tries again.
        with contextlib.suppress(nats.errors.Error):
            await self._nc.publish(msg.reply, self._sealer.seal(answer, server_key) if self._sealer else answer)
        self._measures.callout_duration.observe(time.monotonic() - arrived_at)

    def _read(self, data: bytes, server_key: str) -> Request:
        if len(data) > MAX_REQUEST_BYTES:
            raise InvalidInputError(f"the request has {len(data)} bytes, the limit is {MAX_REQUEST_BYTES}")
        if self._sealer is None:
            if server_key:
                raise InvalidInputError("the request is encrypted, and callout_xkey is not set")
            return read_request(data)
        if not server_key:
            raise InvalidInputError("the request is not encrypted, and callout_xkey is set")
        return read_request(self._sealer.open(data, server_key))

    def _answer(self, request: Request) -> str:
        now, question = int(time.time()), request.nats
        try:
            permit = self._permits.permit(question.connect_opts)
            jwt = user_token(
                self._signer,
                user=question.user_nkey,
                name=permit.name,
                account=ACCOUNT,
                publish=permit.publish,
                subscribe=permit.subscribe,
                issued_at=now,
                expires_at=now + max(1, round(self._valid_s * (1 - self._chance() / 10))),
            )
            answer = answer_token(self._signer, request, issued_at=now, jwt=jwt)
            self._check_size(permit.worker_id, len(answer))
        except RefusedError as error:
            self._refused(error.reason, error.worker_id, question.client_info.host)
            return answer_token(self._signer, request, issued_at=now, error=str(error))
        self._measures.callouts["granted"] += 1
        log.debug("callout.granted", worker=permit.worker_id, user=permit.name, host=question.client_info.host)
        return answer

    def _check_size(self, worker_id: str, size: int) -> None:
        if size > (most := self._nc.max_payload - _ROOM_BYTES):
            text = f"the permissions of {worker_id} have {size} bytes, the limit of a message is {most}"
            raise RefusedError("too_large", worker_id, text)

    def _refused(self, reason: str, worker_id: str, host: str) -> None:
        self._measures.callouts[reason] += 1
        self._measures.refusals.worker(reason, worker_id, host)
