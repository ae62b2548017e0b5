"""How full NATS is, and how its copies are, as far as the config service may see.

The provisioner looks at every stream of every store at each of its checks: what it finds is kept here, for metrics and
for the call `GetServiceStatus`. The account is asked as often.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.js.api import DiscardPolicy, StreamConfig, StreamInfo
from ringcast_wire import EventLog, field_text, names
from ringcast_wire.buckets import stream_of
from ringcast_wire.permissions import API

from ringcast_config_service.broker_state import DEFAULT_CONSUMER_LIMIT, AccountState, StreamState
from ringcast_config_service.nats import streams

log = EventLog(logging.getLogger(__name__))

NEAR: Final = 0.9
"""From this share of a limit on the log says so."""
NO_LEADER: Final = "it has no leader: most of the servers that keep it are away"
_ANSWER_S: Final = 5.0
_KINDS: Final = {
    names.notify_stream(""): "events",
    names.dead_stream(""): "dead_letters",
    **{
        stream_of(make("")): kind
        for kind, make in {
            "settings": names.meta_bucket,
            "members": names.nodes_bucket,
            "groups": names.groups_bucket,
            "owners": names.owners_bucket,
            "wishes": names.wishes_bucket,
        }.items()
    },
}
"""What a stream is for, by how its name begins; the name of the store follows."""
_LEASES: Final = stream_of(names.LEASES_BUCKET)


class _Refusal(msgspec.Struct):
    description: str = "NATS does not say how its account is"


class _AccountAnswer(AccountState):
    """Where the server refuses, as while it has no leader of JetStream, there is an error, and no number counts."""

    error: _Refusal | None = None


class _NearLimits:
    """Says once that a limit is near, and once that it is not any more."""

    def __init__(self) -> None:
        self._near: set[tuple[str, str]] = set()

    def check(self, stream: str, what: str, used: int, limit: int) -> None:
        near, place = limit > 0 and used >= NEAR * limit, (stream, what)
        if near and place not in self._near:
            self._near.add(place)
            log.warning("broker.near_limit", stream=stream or None, what=what, used=used, limit=limit)
        elif not near and place in self._near:
            self._near.discard(place)
            log.info("broker.below_limit", stream=stream or None, what=what, used=used, limit=limit)

    def forget(self, stream: str) -> None:
        """The stream is gone."""
        self._near = {place for place in self._near if place[0] != stream}


class StreamStates:
    """Every stream as it was found last. May be read from any thread."""

    def __init__(self) -> None:
        self._states: dict[str, StreamState] = {}
        self._limits = _NearLimits()

    def __call__(self) -> list[StreamState]:
        """All streams that were looked at, by name."""
        return [state for _, state in sorted(self._states.copy().items())]

    def saw(self, wanted: StreamConfig, info: StreamInfo) -> None:
        """A stream was looked at."""
        found, state = info.config, info.state
        assert wanted.name is not None
        store, kind = _place(wanted.name)
        limit = found.max_consumers or -1
        self._states[wanted.name] = new = StreamState(
            wanted.name,
            store,
            kind,
            bytes=state.bytes,
            max_bytes=max(found.max_bytes or 0, 0),
            wanted_bytes=max(wanted.max_bytes or 0, 0),
            messages=state.messages,
            consumers=state.consumer_count,
            consumer_limit=limit if limit > 0 else DEFAULT_CONSUMER_LIMIT,
            replicas=found.num_replicas or 1,
            replicas_behind=_behind(info),
            refuses=found.discard is DiscardPolicy.NEW,
            differs=tuple(sorted(streams.differences(wanted, found))),
            problem=NO_LEADER if info.cluster is not None and not info.cluster.leader else "",
            found_at_s=time.monotonic(),
        )
        self._limits.check(new.name, "consumers", new.consumers, new.consumer_limit)
        if new.refuses:
            self._limits.check(new.name, "bytes", new.bytes, new.max_bytes)

    def could_not_see(self, name: str, error: Exception) -> None:
        """A stream does not answer, or can't be made."""
        before = self._states.get(name) or StreamState(name, *_place(name))
        self._states[name] = replace(before, problem=field_text(error))

    def keep(self, stores: AbstractSet[str]) -> None:
        """Only these stores are there."""
        for name, state in list(self._states.items()):
            if state.store and state.store not in stores:
                del self._states[name]
                self._limits.forget(name)


class AccountWatch:
    """The account of the config service, as it was read last. May be read from any thread."""

    def __init__(self, nc: Client, *, interval_s: float) -> None:
        self._nc = nc
        self._interval_s = interval_s
        self._limits = _NearLimits()
        self._read_at: float | None = None
        self.state: AccountState | None = None
        """``None``: it was never read."""
        self.problem = "it was not read yet"
        """Why it can't be read, or nothing."""

    @property
    def age_s(self) -> float:
        """How old :attr:`state` is; without end if it was never read."""
        return float("inf") if self._read_at is None else time.monotonic() - self._read_at

    async def run(self) -> None:
        """Reads it at intervals."""
        while True:
            await self.read()
            await asyncio.sleep(self._interval_s)

    async def read(self) -> None:
        """Reads it once."""
        try:
            reply = await self._nc.request(f"{API}.INFO", timeout=_ANSWER_S)
            account = msgspec.json.decode(reply.data, type=_AccountAnswer)
        except (nats.errors.Error, TimeoutError, OSError, msgspec.DecodeError) as error:
            self.problem = field_text(error)
            return
        if account.error is not None:
            self.problem = field_text(account.error.description)
            return
        self.state, self.problem, self._read_at = account, "", time.monotonic()
        most = account.limits
        self._limits.check("", "storage", account.reserved_storage, most.max_storage)
        self._limits.check("", "streams", account.streams, most.max_streams)
        self._limits.check("", "consumers", account.consumers, most.max_consumers)


def _place(name: str) -> tuple[str, str]:
    """The store of a stream, and what it is for."""
    if name == _LEASES:
        return "", "leases"
    return next((name.removeprefix(head), kind) for head, kind in _KINDS.items() if name.startswith(head))


def _behind(info: StreamInfo) -> int:
    """Copies that are not there, or not up to date."""
    wanted, cluster = info.config.num_replicas or 1, info.cluster
    if wanted == 1 or cluster is None:
        return 0
    good = sum(1 for peer in cluster.replicas or () if peer.current and not peer.offline)
    return max(0, wanted - good - (1 if cluster.leader else 0))
