"""Config services and agents, as they say in the metadata store that they are there."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec
from ringcast_wire import InvalidInputError

from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.metadata import opened_store
from ringcast_cli._common.output import visible

if TYPE_CHECKING:
    from ringcast_meta import Entry, LocalCache, MetadataStore
    from ringcast_meta.cluster import AgentLoad, Member, ServiceLoad

MEMBER_COLUMNS: Final = ["kind", "id", "state", "address", "version", "up", "reported", "load"]


@asynccontextmanager
async def opened_cluster(config: CliConfig) -> AsyncIterator[tuple[MetadataStore, LocalCache]]:
    """The store, and all that stands in it, as it changes."""
    from ringcast_meta import LocalCache

    async with opened_store(config, _cluster_store(config)) as store:
        await store.get("services.~")  # a watch goes on trying where no server answers; a read says so
        async with LocalCache(store) as cache:
            await cache.wait_complete(config.timeout_s)
            yield store, cache


async def read_cluster(config: CliConfig) -> dict[str, Entry]:
    """All that stands in the store, once: the user ``tools`` of NATS may do that, and may not watch."""
    async with opened_store(config, _cluster_store(config)) as store:
        return {entry.key: entry for entry in await store.read()}


def _cluster_store(config: CliConfig) -> str:
    if not config.cluster_store:
        raise InvalidInputError(
            "cluster_store is not given: --cluster-store or RINGCAST_CLUSTER_STORE names the metadata store that config"
            " services and agents register in",
            field="cluster_store",
        )
    return config.cluster_store


def members_headline(cache: LocalCache, members: list[Member]) -> str:
    """How many there are, and whether that is how things are now."""
    unknown = sum(member.stale for member in members)
    if not cache.fresh:
        return f"STALE: the metadata store has not answered for {cache.stale_s:.0f} s; this is what it said before"
    if unknown:
        return f"{len(members)} processes, {unknown} of them in an unknown state"
    return f"{len(members)} processes"


def member_warnings(members: list[Member]) -> list[str]:
    """What is not as it should be, in sentences."""
    found = [
        f"{member.kind} {member.id} has not reported for {_time(member.report_age_s)}: how it is now is not known"
        for member in members
        if member.record is not None and member.stale
    ]
    found += [f"{member.kind} {member.id}: {member.problem}" for member in members if member.problem]
    return [visible(sentence) for sentence in found]


def member_document(member: Member) -> dict[str, Any]:
    """As JSON."""
    said = {} if member.record is None else msgspec.to_builtins(member.record)
    return {
        **said,
        "kind": str(member.kind),
        "id": member.id,
        "state": member_state(member),
        "last_state": said.get("state"),
        "report_age_s": round(member.report_age_s, 1),
        "stale": member.stale,
        "drain_wanted": member.drain_wanted,
        "problem": member.problem or None,
    }


def member_state(member: Member) -> str:
    """What it does at the moment, as far as it is known."""
    return "unknown" if member.stale or member.record is None else str(member.record.state)


def member_row(member: Member) -> list[str]:
    """By :data:`MEMBER_COLUMNS`."""
    record = member.record
    if record is None:
        return [str(member.kind), member.id, "unknown", "", "", "", "", member.problem]
    state = f"unknown (was {record.state})" if member.stale else str(record.state)
    if record.leads and not member.stale:
        state += ", leads"
    up_s = max(0.0, time.time() - record.started_at_ms / 1000)
    return [
        *(str(member.kind), member.id, state, record.address, record.version),
        *(_time(up_s), f"{_time(member.report_age_s)} ago", _load(record.load)),
    ]


def _load(load: ServiceLoad | AgentLoad) -> str:
    from ringcast_meta.cluster import ServiceLoad

    if isinstance(load, ServiceLoad):
        outbox = f"outbox {load.outbox_events} ({_time(load.outbox_age_s)})"
        waits = f"{load.waiting_fetches} fetches wait"
        return f"{load.writes_per_s:g} writes/s, {outbox}, {waits}, {load.open_calls} calls, cpu {load.cpu:.0%}"
    groups = f"{load.groups} groups, {load.consumers} consumers, lag {load.lag}"
    return f"{groups}, {load.subscriptions} subscriptions, {load.workers} workers, cpu {load.cpu:.0%}"


def _time(seconds: float) -> str:
    """In two units at most."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3_600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3_600}h{whole % 3_600 // 60:02}m" if whole < 86_400 else f"{whole // 86_400}d"
