"""Who is there, as tools and clients see it, and what they may want."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from ringcast_wire import ConditionFailedError, InvalidInputError, ProtocolError, shown

from ringcast_meta._members import (
    STALE_S,
    WISHES,
    DrainWish,
    MemberKind,
    MemberRecord,
    MemberState,
    decode_member,
    prefix_of,
    wish_key,
)
from ringcast_meta._store import MetadataStore
from ringcast_meta._types import Entry


@dataclass(frozen=True, slots=True)
class Member:
    """One process. ``record`` is ``None`` where this build can't read it, and ``problem`` says why."""

    kind: MemberKind
    id: str
    record: MemberRecord | None
    problem: str
    report_age_s: float
    """By the clocks of both hosts; 0 where theirs is ahead."""
    drain_wanted: bool

    @property
    def stale(self) -> bool:
        """Whether nothing is known of how it is now."""
        return self.record is None or self.report_age_s > STALE_S


def members_of(entries: Mapping[str, Entry], *, now_s: float | None = None) -> list[Member]:
    """The processes in what stands in a store, by kind and id."""
    now_s = time.time() if now_s is None else now_s
    found: list[Member] = []
    for kind in MemberKind:
        prefix = prefix_of(kind)
        for key in sorted(key for key in entries if key.startswith(prefix)):
            member_id, record, problem, age_s = key.removeprefix(prefix), None, "", 0.0
            try:
                record = decode_member(key, entries[key].value)
                age_s = max(0.0, now_s - record.reported_at_ms / 1000)
            except ProtocolError as error:
                problem = str(error)
            found.append(Member(kind, member_id, record, problem, age_s, f"{WISHES}{key}" in entries))
    return found


def member_named(members: Iterable[Member], member_id: str) -> Member:
    """The one process with an id.

    Raises:
        InvalidInputError: there is none, or a service and an agent have it.
    """
    members = list(members)
    found = [member for member in members if member.id == member_id]
    if len(found) == 1:
        return found[0]
    if found:
        raise InvalidInputError(f"id {shown(member_id)} is that of a service and of an agent", field="id")
    known = ", ".join(member.id for member in members[:8]) or "none"
    raise InvalidInputError(f"no process {shown(member_id)} is there: there are {known}", field="id")


def service_addresses(entries: Mapping[str, Entry]) -> list[str]:
    """Where the config services are that take calls: those of which nothing new is known come last."""
    found = [
        member
        for member in members_of(entries)
        if member.kind is MemberKind.SERVICE
        and member.record is not None
        and member.record.state is MemberState.ACTIVE
        and not member.drain_wanted
    ]
    return [member.record.address for member in sorted(found, key=lambda each: each.stale) if member.record is not None]


async def find_services(store: MetadataStore) -> list[str]:
    """Reads what :func:`service_addresses` gives; this takes less rights than a watch.

    Raises:
        RingcastError: as the store raises it.
    """
    prefix = prefix_of(MemberKind.SERVICE)
    found = [*await store.read(prefix), *await store.read(f"{WISHES}{prefix}")]
    return service_addresses({entry.key: entry for entry in found})


def absent_agents(entries: Mapping[str, Entry]) -> list[str]:
    """The ids of agents that are to drain, and are not there: their ids come back."""
    prefix = f"{WISHES}{prefix_of(MemberKind.AGENT)}"
    wishes = (key for key in entries if key.startswith(prefix) and key.removeprefix(WISHES) not in entries)
    return sorted(key.removeprefix(prefix) for key in wishes)


async def want_drain(store: MetadataStore, kind: MemberKind, member_id: str, reason: str = "") -> bool:
    """Writes the wish that a process drains; false where it stands there already.

    Raises:
        RingcastError: as the store raises it.
    """
    wish = DrainWish(at_ms=int(time.time() * 1000), reason=reason)
    try:
        await store.create(wish_key(kind, member_id), msgspec.json.encode(wish))
    except ConditionFailedError:
        return False
    return True


async def want_active(store: MetadataStore, kind: MemberKind, member_id: str) -> bool:
    """Takes the wish back; false where there is none.

    Raises:
        RingcastError: as the store raises it.
    """
    key = wish_key(kind, member_id)
    with suppress(ConditionFailedError):
        entry = await store.get(key)
        if entry is not None:
            await store.delete(key, last=entry.revision)
            return True
    return False


async def forget_wishes(store: MetadataStore, entries: Mapping[str, Entry]) -> None:
    """Removes the wishes for services that are gone: their ids never come back."""
    prefix = f"{WISHES}{prefix_of(MemberKind.SERVICE)}"
    for key, entry in list(entries.items()):
        if key.startswith(prefix) and key.removeprefix(WISHES) not in entries:
            with suppress(ConditionFailedError):
                await store.delete(key, last=entry.revision)
