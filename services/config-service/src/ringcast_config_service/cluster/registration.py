"""Says in a metadata store that this instance is there, for as long as it serves."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import re
import secrets
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from importlib.metadata import version
from typing import Any, Final

from ringcast_meta import Lease, MetadataStore
from ringcast_wire import (
    Backoff,
    ConditionFailedError,
    EventLog,
    NatsLogin,
    RingcastError,
    event_within,
    field_text,
    without_passwords,
)

from ringcast_config_service.cluster.settings import ClusterSettings

log = EventLog(logging.getLogger(__name__))

PREFIX: Final = "services."
TTL_S: Final = 10
"""How long an instance that was killed still seems to be there."""
_MAX_HOST_CHARS: Final = 48


class Registration:
    """One entry, ``services.<host>-<random>``: JSON with addresses, host, process id, version and start.

    Nothing of the service waits for it. While the store is away the entry goes, and comes back with the store.
    """

    def __init__(self, settings: ClusterSettings, nats_login: NatsLogin, replicas: int) -> None:
        host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:_MAX_HOST_CHARS]
        self.key = f"{PREFIX}{host}-{secrets.token_hex(4)}"
        self._settings = settings
        self._login = nats_login
        self._replicas = replicas
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()

    async def run(self, ready: asyncio.Event, addresses: Callable[[], Mapping[str, str]]) -> None:
        """Registers once the instance is ready, and again after each loss, until :meth:`stop` is called."""
        try:
            await _first(ready.wait(), self._stopping.wait())
            value = _record(addresses()) if ready.is_set() else b""
            backoff = Backoff(random.random, first_s=0.5, most_s=10.0)
            failed = ""
            while not self._stopping.is_set():
                try:
                    async with self._settings.open(self._login, self._replicas) as store, store.lease(TTL_S) as lease:
                        await self._write(store, value, lease)
                        log.info("cluster.registered", key=self.key, store=without_passwords([self._settings.store]))
                        backoff.reset()
                        failed = ""
                        await _first(lease.wait_lost(), self._stopping.wait())
                        if not self._stopping.is_set():
                            log.warning("cluster.registration_lost", key=self.key)
                except RingcastError as error:
                    if field_text(error) != failed:  # it repeats with each attempt
                        log.warning("cluster.registration_failed", key=self.key, error=error)
                    failed = field_text(error)
                await event_within(self._stopping, backoff.next_s())
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """Removes the entry, and returns once :meth:`run` has ended."""
        self._stopping.set()
        await self._ended.wait()

    async def _write(self, store: MetadataStore, value: bytes, lease: Lease) -> None:
        try:
            await store.create(self.key, value, lease=lease)
        except ConditionFailedError as error:
            # Of a lease that was lost and lives on in the store, or of a write that nobody answered.
            await store.put(self.key, value, last=error.found_version or 1, lease=lease)


async def _first(*waits: Coroutine[Any, Any, object]) -> None:
    """Waits until one of them has ended."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _record(addresses: Mapping[str, str]) -> bytes:
    return json.dumps(
        {
            **addresses,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": version("ringcast-config-service"),
            "started_at_ms": int(time.time() * 1000),
        }
    ).encode()
