"""``ringcast doctor``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import click
from ringcast.fleet import DEFAULT_PATIENCE_S

from ringcast_cli._common import exit_codes as codes
from ringcast_cli._common.options import patience_option, settings_of, shared_options
from ringcast_cli._common.output import print_json, visible
from ringcast_cli._diagnosis.doctor import diagnose
from ringcast_cli._diagnosis.doctor_facts import gather
from ringcast_cli._diagnosis.doctor_model import Finding, Result

_MARKS: Final = {Result.OK: "ok", Result.WARNING: "WARNING", Result.FAILURE: "FAILURE", Result.UNKNOWN: "UNKNOWN"}
_RUNBOOKS: Final = "docs/runbooks.md#"


@click.command()
@click.argument("store", required=False)
@click.option("--all", "everything", is_flag=True, help="Show what is well, too.")
@patience_option(60, DEFAULT_PATIENCE_S, "How long the answers of the workers are waited for.")
@shared_options("servers", "service", "cluster_store", "agent", "etcd", "timeout")
@click.pass_context
def doctor(context: click.Context, store: str | None, everything: bool, patience: float) -> None:
    """Check a whole deployment, or what concerns STORE, and say what to do.

    Config services (reachable, serving, versions, clocks), NATS (this login, JetStream, streams, room, consumers),
    workers of every key, dead letters, migrations, roles, agents (with --cluster-store), TLS, certificates, and the
    files of this login. Nothing is changed. UNKNOWN is what could not be checked: an admin of '*' sees most. The exit
    code is 0 if all is well, 1 if something has failed, 3 if there are warnings or something could not be checked. With
    --json one document.
    """
    config = settings_of(context)
    found = diagnose(asyncio.run(gather(config, store, patience)))
    counts = {result: sum(finding.result is result for _, finding in found) for result in Result}
    if config.json:
        print_json({"findings": [_document(*each) for each in found], "counts": counts})
    else:
        _print([finding for _, finding in found], counts, everything)
    context.exit(exit_code(counts))


def exit_code(counts: Mapping[Result, int]) -> int:
    """What could not be checked is no success."""
    if counts[Result.FAILURE]:
        return codes.FAILED
    return codes.REMARKS if counts[Result.WARNING] or counts[Result.UNKNOWN] else codes.OK


def _document(check: str, finding: Finding) -> dict[str, Any]:
    return {
        "check": check,
        "result": finding.result,
        "about": finding.about,
        "sentence": finding.sentence,
        "todo": finding.todo or None,
        "runbook": _RUNBOOKS + finding.runbook if finding.runbook else None,
    }


def _print(findings: list[Finding], counts: dict[Result, int], everything: bool) -> None:
    order = (Result.FAILURE, Result.WARNING, Result.UNKNOWN, Result.OK)
    for finding in sorted(findings, key=lambda each: order.index(each.result)):
        if finding.result is Result.OK and not everything:
            continue
        click.echo(visible(f"{_MARKS[finding.result]:<8} {finding.about}: {finding.sentence}"))
        where = f"({_RUNBOOKS}{finding.runbook})" if finding.runbook else ""
        if more := " ".join(part for part in (finding.todo, where) if part):
            click.echo(visible(f"         → {more}"))
    said = ", ".join(f"{counts[each]} {name}" for each, name in _COUNTED.items() if counts[each] or each is Result.OK)
    click.echo(f"checked: {said}")


_COUNTED: Final = {
    Result.OK: "well",
    Result.FAILURE: "failed",
    Result.WARNING: "with a warning",
    Result.UNKNOWN: "could not be checked",
}

COMMANDS: Final = {"doctor": doctor}
