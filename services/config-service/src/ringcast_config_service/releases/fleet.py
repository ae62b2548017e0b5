"""Who works at a key, as NATS has it: registrations and leases, from answers that are not out of date."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Final, NamedTuple

from nats.aio.client import Client
from nats.js import JetStreamContext
from ringcast_wire import LeaseRecord, NodeRecord, ProtocolError, decode_record, names
from ringcast_wire.owner_records import decode_state, decode_table
from ringcast_wire.reports import DryWaveRequest, ProvisionalRequest, ReportAsker, ReportRound

from ringcast_config_service.nats.calls import nats_calls
from ringcast_config_service.nats.latest import read_newest, read_sessions
from ringcast_config_service.releases.proof import Fleet, Registration
from ringcast_config_service.repository import StoreRecord

PATIENCE_S: Final = 2.0
"""How long the answers of workers are waited for."""


class FleetRound(NamedTuple):
    """One round: what NATS has of the workers of a key before and after their answers, and these."""

    before: Fleet
    found: ReportRound
    after: Fleet


async def ask_fleet(
    nc: Client,
    js: JetStreamContext,
    store: StoreRecord,
    key: str,
    ranges: Mapping[int, tuple[int, int]] | None = None,
    dry_wave: DryWaveRequest | None = None,
    provisional: ProvisionalRequest | None = None,
) -> FleetRound:
    """Asks the workers of a key once how far they are, and what of ``ranges`` they have refused.

    ``ranges``: of some partitions the first and the last revision. What follows: as of ``ReportRequest``.

    Raises:
        UnavailableError: NATS does not answer, or only a server that lags behind.
    """
    before = await read_fleet(js, store, key)
    with nats_calls("NATS does not carry questions to workers"):
        # An asker of its own: no answer that was given before the registrations were read.
        ask = partial(
            ReportAsker(nc).ask, store.name, key, dry_wave=dry_wave, provisional=provisional, timeout_s=PATIENCE_S
        )
        found = await ask(list(before.living))
        # Ranges are up to 53 KB, to every worker, and most have refused nothing at all: these need none.
        if ranges and (doubtful := [name for name in before.living if _may_have_refused(found, name)]):
            numbers = [part for each, ends in sorted(ranges.items()) for part in (each, *ends)]
            found = _replaced(found, await ask(doubtful, ranges=numbers), doubtful)
    return FleetRound(before, found, await read_fleet(js, store, key))


def _may_have_refused(found: ReportRound, name: str) -> bool:
    report = found.reports.get(name)
    return report is not None and report.may_have_refused is not False


def _replaced(first: ReportRound, second: ReportRound, workers: Collection[str]) -> ReportRound:
    """The first round, with what the second one has of some workers."""
    kept = {name: report for name, report in first.reports.items() if name not in workers}
    return ReportRound(
        kept | {name: report for name, report in second.reports.items() if name in workers},
        tuple(sorted({*first.silent, *second.silent})),
        {**first.unreadable, **second.unreadable},
        first.left_out + second.left_out,
        first.took_s + second.took_s,
    )


async def read_fleet(js: JetStreamContext, store: StoreRecord, key: str) -> Fleet:
    """The registered workers of a key and the leases that they name: each of the two as of this call or later.

    Raises:
        UnavailableError: NATS does not answer, or only a server that lags behind.
    """
    exclusive = store.settings_now.is_exclusive
    with nats_calls("NATS does not say which workers there are"):
        workers, unreadable, table = await (_states(js, store, key) if exclusive else _nodes(js, store, key))
        named = {worker.lease for worker in workers.values()}
        holders: dict[str, str] = {}
        for lease, data in (await (read_sessions(js, store, named) if exclusive else _leases(js, named))).items():
            try:
                holders[lease] = decode_record(data, LeaseRecord).incarnation
            except ProtocolError:
                unreadable.append(lease)
    if exclusive:  # a state does not say its process; the session does
        workers = {name: each._replace(incarnation=holders.get(each.lease, "")) for name, each in workers.items()}
    return Fleet(workers, holders, tuple(unreadable), table)


async def _leases(js: JetStreamContext, named: Collection[str]) -> dict[str, bytes]:
    found = (await read_newest(js, names.LEASES_BUCKET, among=named)).entries
    return {lease: data for lease, (_, data) in found.items()}


async def _nodes(js: JetStreamContext, store: StoreRecord, key: str) -> tuple[dict[str, Registration], list[str], int]:
    """The registrations where every worker computes the owners."""
    workers, unreadable = {}, []
    for name, (revision, data) in (await read_newest(js, names.nodes_bucket(store.name), f"{key}.*")).entries.items():
        try:
            record = decode_record(data, NodeRecord)
        except ProtocolError:
            unreadable.append(name)
        else:
            workers[name.removeprefix(f"{key}.")] = Registration(record.lease, revision, record.incarnation)
    return workers, unreadable, 0


async def _states(js: JetStreamContext, store: StoreRecord, key: str) -> tuple[dict[str, Registration], list[str], int]:
    """The same where a table has the owners: what each worker says of itself, and the number of the table."""
    workers, unreadable, epoch = {}, [], 0
    states = names.state_key(key, "")
    for name, (_, data) in (await read_newest(js, names.owners_bucket(store.name), f"{key}.>")).entries.items():
        try:
            if name == names.table_key(key):
                epoch = decode_table(data, store.settings.partition_count).epoch
            elif name.startswith(states):
                state = decode_state(data)
                if state.session:
                    workers[name.removeprefix(states)] = Registration(state.lease, state.session)
        except ProtocolError:
            unreadable.append(name)
    return workers, unreadable, epoch
