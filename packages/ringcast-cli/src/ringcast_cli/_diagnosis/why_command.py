"""``ringcast why``."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import click
from msgspec.structs import asdict
from ringcast.fleet import DEFAULT_PATIENCE_S, FleetReader, RowAnswers
from ringcast_client import RevisionRecord, RowReleaseInfo
from ringcast_wire import ReleaseState, UnavailableError

from ringcast_cli._common.client import service_client
from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.options import patience_option, settings_of, shared_options
from ringcast_cli._common.output import print_json, print_table, visible
from ringcast_cli._diagnosis.why import RowFacts, Stored, concerned, conclude
from ringcast_cli._fleet.lag_command import seconds
from ringcast_cli._releases.release_words import approval_words, gate_words, state_words, wave_words

_COLUMNS: Final = ["worker", "owns", "heard", "applied", "handler", "failed", "since", "error"]


@click.command()
@click.argument("store")
@click.argument("key")
@click.argument("row_id")
@patience_option(60, DEFAULT_PATIENCE_S, "How long the answers of the workers are waited for.")
@shared_options("servers", "service", "timeout")
@click.pass_context
def why(context: click.Context, store: str, key: str, row_id: str, patience: float) -> None:
    """Show how far the row ROW_ID of KEY in STORE has come, and where it is stuck.

    The config service says what is stored, NATS what is published, and each worker what it has heard of, applied, and
    not taken. The last line names the place where the row is stuck, and what to do next. Config service or NATS may be
    away.
    """
    config = settings_of(context)
    facts = asyncio.run(_facts(config, store, key, row_id, patience))
    if config.json:
        print_json(_document(facts))
    else:
        _print(facts)


async def _facts(config: CliConfig, store: str, key: str, row_id: str, patience_s: float) -> RowFacts:
    # What is stored first: what is published and applied after that can't look behind.
    stored, answers, service_problem, bus_problem = None, None, "", ""
    releases: list[RowReleaseInfo] = []
    try:
        stored, releases = await _stored(config, store, key, row_id)
    except UnavailableError as error:
        service_problem = str(error)
    try:
        async with FleetReader.open(config.servers, timeout_s=config.timeout_s) as reader:
            answers = await reader.row(store, key, row_id, patience_s=patience_s)
    except UnavailableError as error:
        if service_problem:
            raise
        bus_problem = str(error)
    return RowFacts(store, key, row_id, stored, answers, service_problem, bus_problem, tuple(releases))


async def _stored(config: CliConfig, store: str, key: str, row_id: str) -> tuple[Stored | None, list[RowReleaseInfo]]:
    """The newest write to the row, and the releases that have it. Of a row that lives its version says from where on
    its history is to be read."""
    newest: RevisionRecord | None = None
    async with service_client(replace(config, key_ring="")) as client:  # nobody needs its value
        rows = await client.get(store, key, [row_id])
        since = rows[0].version - 1 if rows else 0
        async with aclosing(client.history(store, key, row_id, since=since)) as revisions:
            async for newest in revisions:  # noqa: B007
                pass
        releases = await client.row_releases(store, key, row_id)
    if newest is None:
        return None, releases
    row = newest.row
    return Stored(row.version, row.deleted, newest.written_at_ms, newest.author, newest.reason), releases


def _document(facts: RowFacts) -> dict[str, Any]:
    found = {
        "store": facts.store,
        "key": facts.key,
        "row_id": facts.row_id,
        "conclusion": conclude(facts),
        "stored": facts.stored,
        "release": facts.release,
        "awaited_releases": facts.awaited,
        "problems": [each for each in (facts.service_problem, facts.bus_problem) if each],
    }
    answers = facts.answers
    if answers is None:
        return found
    rows = {worker_id: report.row for worker_id, report in answers.round.reports.items()}
    return {
        **found,
        "partition": answers.partition,
        "owner": answers.topology.owners[answers.partition],
        "published": answers.published,
        "unread_event": answers.unread,
        "silent": answers.round.silent,
        "workers": [
            {"worker_id": worker_id, "row": asdict(row) if (row := rows.get(worker_id)) is not None else None}
            for worker_id in concerned(answers)
        ],
    }


def _print(facts: RowFacts) -> None:
    click.echo(f"stored     {_stored_line(facts)}")
    for line in _release_lines(facts):
        click.echo(f"release    {line}")
    if facts.answers is not None:
        click.echo(visible(f"published  {_published_line(facts.answers)}"))
        if rows := [_row(facts.answers, worker_id) for worker_id in concerned(facts.answers)]:
            print_table(_COLUMNS, rows, right=frozenset({2, 3, 4}))
        for line in _provisional_lines(facts.answers):
            click.echo(line)
    click.echo(visible(conclude(facts).sentence))


def _stored_line(facts: RowFacts) -> str:
    stored = facts.stored
    if stored is None:
        return "not known" if facts.service_problem else "no"
    at = datetime.fromtimestamp(stored.written_at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    what = "deleted" if stored.deleted else "written"
    reason = f": {stored.reason}" if stored.reason else ""
    return f"revision {stored.version}, {what} {at} by {visible(stored.author + reason)}"


def _awaited(release: RowReleaseInfo) -> str:
    """How far a release is that is to change the row."""
    rollout, not_yet = release.rollout, "it has not changed the row yet"
    if release.state is ReleaseState.STAGED and (waits := approval_words(release.approvals, release.approvals_needed)):
        return f"{release.state}: {not_yet}; {waits}"
    if rollout is None or not release.wave:
        return f"{release.state}: {not_yet}"
    words = f"{state_words(release.state, rollout)}: {not_yet}"
    if release.wave > rollout.wave:
        words += f", which is in {wave_words(rollout, release.wave)}"
    return f"{words}; {waits}" if (waits := gate_words(rollout)) else words


def _release_lines(facts: RowFacts) -> list[str]:
    found = []
    if (release := facts.release) is not None:
        undone = facts.stored is not None and facts.stored.version == release.undo_version
        proven = ", proven" if release.proven_at_ms and not undone else ""
        found.append(f"{release.number}, {'undone by this write' if undone else release.state}{proven}")
    found += [f"{each.number}, {_awaited(each)}" for each in facts.awaited]
    return found


def _provisional_lines(answers: RowAnswers) -> list[str]:
    """The workers that show the row as a release would make it, which is not published yet."""
    reports = sorted(answers.round.reports.items())
    return [
        f"{visible(worker_id)} shows the row of release {report.row.provisional} in its place, which is provisional"
        for worker_id, report in reports
        if report.row is not None and report.row.provisional
    ]


def _published_line(answers: RowAnswers) -> str:
    at = f"partition {answers.partition}"
    if answers.published is None:
        return f"{at} is not known: {answers.unread}" if answers.unread else f"{at} has no event"
    words = f"{at} up to revision {answers.published}"
    return f"{words} (its newest event can't be read: {answers.unread})" if answers.unread else words


def _row(answers: RowAnswers, worker_id: str) -> list[str]:
    report = answers.round.reports.get(worker_id)
    if report is None or report.row is None:
        why = "its answer can't be read" if worker_id in answers.round.unreadable else "it does not answer"
        return [worker_id, "-", "-", "-", "-", "-", "-", why]
    row = report.row
    return [
        worker_id,
        "yes" if row.owned else "no",
        str(row.heard),
        str(row.applied),
        seconds(row.calling_ms / 1000),
        f"{row.failure} at {row.failed_version}" if row.failure is not None else "-",
        seconds(row.failed_ms / 1000) if row.failure is not None else "-",
        row.error or "-",
    ]


COMMANDS: Final = {"why": why}
