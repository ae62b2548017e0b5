"""``ringcast release stage|list|show|diff|approve|revoke|publish|pause|resume|stop|wait|undo|rollback|drop``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, aclosing
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import click
from ringcast_client import (
    ConfigServiceClient,
    InvalidRowError,
    ReleaseCertificate,
    ReleaseInfo,
    ReleaseProof,
    StagedRelease,
    SyncRefusedError,
)
from ringcast_wire import (
    DEFAULT_GATE,
    GATE_RANGES,
    InvalidInputError,
    ReleaseGate,
    ReleaseState,
    check_canary,
    check_gate,
)

from ringcast_cli._common import exit_codes as codes
from ringcast_cli._common.client import service_client
from ringcast_cli._common.options import Duration, patience_option, settings_of, shared_options
from ringcast_cli._common.output import note, print_json, print_table, visible
from ringcast_cli._releases.approval_commands import approve, revoke
from ringcast_cli._releases.pin_commands import pin, unpin
from ringcast_cli._releases.release_output import document, print_release, print_row, proven_words, say, time_words
from ringcast_cli._releases.release_words import Waves, failure_words, state_words
from ringcast_cli._releases.rollback_command import rollback
from ringcast_cli._rows.reading import input_of, open_input, reading_options
from ringcast_cli._rows.source import BadLineError, InputError
from ringcast_cli._rows.sync_command import InputRows, difference_options


@click.group()
@shared_options("service", "key_ring", "timeout")
def release() -> None:
    """Stage changes of several keys, publish them together, undo them."""


@release.command()
@click.argument("store")
@click.option(
    "--key", "files", multiple=True, required=True, metavar="KEY=FILE", help="A key and its file; may be repeated."
)
@difference_options
@reading_options
@shared_options("service", "key_ring", "timeout")
@click.pass_context
def stage(
    context: click.Context,
    /,
    store: str,
    files: tuple[str, ...],
    max_delete_share: float,
    allow_empty: bool,
    first_rows: int,
    **reading: Any,
) -> int:
    """Stage what makes each KEY in STORE equal to its FILE, deletions included, as one release.

    Each FILE is read and compared as `ringcast sync` does it. The difference goes to the service, where no worker and
    no reader sees it until the release is published. Prints the number of the release.
    """
    config = settings_of(context)
    inputs = {key: input_of(context, path, reading) for key, path in _pairs(context, files).items()}

    async def run() -> StagedRelease:
        with ExitStack() as stack:
            opened = {key: stack.enter_context(open_input(given)) for key, given in inputs.items()}
            rows = {key: InputRows(source) for key, source in opened.items()}
            async with service_client(config) as client:
                try:
                    return await client.stage_release(
                        store,
                        rows,
                        max_delete_share=max_delete_share,
                        allow_empty=allow_empty,
                        first_rows=first_rows,
                    )
                except InvalidRowError as error:
                    source = next(key for key, read in rows.items() if not read.ended)
                    raise InputError(
                        f"{source}: {opened[source].unit} {rows[source].line}: {error}; nothing is staged",
                        field=error.field,
                    ) from None
                except BadLineError as error:
                    raise InputError(f"{error}; nothing is staged", field=error.field) from None
                except SyncRefusedError as error:
                    option = f"--{(error.field or '').replace('_', '-')}"
                    raise SyncRefusedError(f"{error}: nothing is staged (see {option})", field=error.field) from None

    staged = asyncio.run(run())
    if config.json:
        print_json(staged)
        return codes.OK
    for found in staged.differences:
        click.echo(
            f"{found.store}/{found.key}: {found.added} to add, {found.changed} to change, {found.deleted} to delete, "
            f"{found.unchanged} unchanged"
        )
    if staged.release is None:
        click.echo("nothing differs: no release is staged")
    else:
        click.echo(f"release {staged.release.number} of {store} is staged")
    return codes.OK


def _pairs(context: click.Context, files: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in files:
        key, equals, path = pair.partition("=")
        if not equals or not key or not path:
            raise click.BadParameter(f"{pair!r} is not KEY=FILE", context, param_hint="--key")
        if key in found:
            raise click.BadParameter(f"key {key!r} is there twice", context, param_hint="--key")
        found[key] = path
    if sum(path == "-" for path in found.values()) > 1:
        raise click.BadParameter("standard input can be read once", context, param_hint="--key")
    return found


@release.command("list")
@click.argument("store")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="Only the newest N.")
@shared_options("service", "timeout")
@click.pass_context
def list_releases(context: click.Context, store: str, limit: int) -> None:
    """List the releases of STORE, the newest first."""
    config = settings_of(context)

    async def run() -> list[ReleaseInfo]:
        async with service_client(config) as client, aclosing(client.releases(store, limit=limit)) as found:
            return [one async for one in found]

    found = asyncio.run(run())
    if config.json:
        for one in found:
            print_json(one)
        return
    rows = []
    for one in found:
        state = state_words(one.state, one.rollout) + (", pinned" if one.pinned else "")
        rows.append([str(one.number), state, str(one.rows), time_words(one.staged_at_ms), one.author, one.reason])
    print_table(["release", "state", "rows", "staged", "by", "reason"], rows, right=frozenset({0, 2}))


@release.command()
@click.argument("store")
@click.argument("number", type=click.IntRange(1))
@shared_options("service", "timeout")
@click.pass_context
def show(context: click.Context, store: str, number: int) -> None:
    """Show a release: its state, its keys, who staged and who changed it, and whether it is proven.

    With --json the certificate too: what proves that every worker has applied it.
    """
    config = settings_of(context)

    async def run() -> tuple[ReleaseInfo, ReleaseCertificate | None]:
        async with service_client(config) as client:
            info = await client.release(store, number)
            wanted = config.json and info.proven_at_ms
            return info, await client.release_certificate(store, number) if wanted else None

    print_release(*asyncio.run(run()), config)


@release.command()
@click.argument("store")
@click.argument("number", type=click.IntRange(1))
@click.option("--conflicts", is_flag=True, help="Only rows that others have written since.")
@shared_options("service", "key_ring", "timeout")
@click.pass_context
def diff(context: click.Context, store: str, number: int, conflicts: bool) -> None:
    """Print each row of a release: what it adds (+), changes (~) and deletes (-).

    A row that another writer changed since it was staged, or since it was published, is marked with "!".
    """
    config = settings_of(context)

    async def run() -> None:
        async with (
            service_client(config) as client,
            aclosing(client.release_rows(store, number, conflicts_only=conflicts)) as rows,
        ):
            async for row in rows:
                if config.json:
                    print_json({**asdict(row), "conflict": row.conflict})
                else:
                    print_row(row)

    asyncio.run(run())


release.add_command(approve)
release.add_command(revoke)
release.add_command(pin)
release.add_command(unpin)
release.add_command(rollback)


@release.command()
@click.argument("store")
@click.argument("number", type=click.IntRange(1))
@click.option(
    "--waves",
    type=Waves(),
    default=(),
    metavar="PERCENTS",
    help="Publish it in waves: so many percent of its partitions are in after each one, for example 1,10,100.",
)
@click.option(
    "--canary",
    default="",
    metavar="NAME=VALUE",
    help="A label of workers: a wave of the partitions that these own comes first, and --waves follow. In a store of "
    "mode FULL they lay the rows over, and nothing is published in it.",
)
@click.option(
    "--dry-wave",
    is_flag=True,
    help="Let the applications of the canary's workers judge their rows before, within --patience and at most 60 s.",
)
@click.option(
    "--bake", type=Duration(), default="0s", metavar="DURATION", help="How long to watch each wave once it is proven."
)
@click.option(
    "--max-refused",
    type=click.IntRange(0, GATE_RANGES["max_refused"][1]),
    default=0,
    show_default=True,
    metavar="N",
    help="How many of its rows handlers may drop, dead-letter or block.",
)
@patience_option(86_400, 60.0, "How long each wave may take until it is proven, or a condition be without an answer.")
@click.option(
    "--promql",
    multiple=True,
    metavar="EXPRESSION",
    help="What Prometheus has to answer with 1, such as `sum(rate(errors_total[1m])) < bool 5`; may be repeated.",
)
@shared_options("service", "timeout")
@click.pass_context
def publish(
    context: click.Context,
    store: str,
    number: int,
    waves: tuple[int, ...],
    canary: str,
    dry_wave: bool,
    bake: int,
    max_refused: int,
    patience: float,
    promql: tuple[str, ...],
) -> int:
    """Publish a staged release, and wait until it is done.

    It is refused if one of its rows was written since it was staged: `ringcast release diff --conflicts` names them.
    Once it has begun, the service goes on without this command; the same command again waits for the rest. A row that
    is written meanwhile stays as it is and is counted as skipped; the exit code is then 1. It is 1 too if the release
    is paused, stopped or undone meanwhile.

    After each wave its gate has to be passed: within --patience it is proven that every worker has applied all of it,
    no more than --max-refused rows are refused, and both still hold after --bake. If not, the service undoes the
    release. Each --promql has to be answered with 1 all the time: 0 undoes the release at once, and any other answer,
    or none, after --patience. It needs --waves and --bake.
    """
    try:
        gate = ReleaseGate(bake, max_refused, round(1000 * patience), promql) if waves or promql else DEFAULT_GATE
        check_gate(gate, waves)
        check_canary(canary, waves, dry_wave=dry_wave)
    except InvalidInputError as error:
        raise click.UsageError(str(error)) from error
    change = partial(ConfigServiceClient.publish_release, waves=waves, gate=gate, canary=canary, dry_wave=dry_wave)
    return _change(context, store, number, change, ReleaseState.PUBLISHED)


@release.command()
@click.argument("store")
@click.argument("number", type=click.IntRange(1))
@shared_options("service", "timeout")
@click.pass_context
def pause(context: click.Context, store: str, number: int) -> int:
    """Publish no more rows of a release that is being published in waves, until it is resumed.

    What is published stays. It may be the half of a wave: `ringcast release diff` says it of each row.
    """
    config = settings_of(context)

    async def run() -> ReleaseInfo:
        async with service_client(config) as client:
            return await client.pause_release(store, number)

    say(asyncio.run(run()), config)
    return codes.OK


@release.command()
@click.argument("store")
@click.argument("number", type=click.IntRange(1))
@shared_options("service", "timeout")
@click.pass_context
def resume(context: click.Context, store: str, number: int) -> int:
    """Let a release go on that was paused, and wait until it is published."""
    return _change(context, store, number, ConfigServiceClient.resume_release, ReleaseState.PUBLISHED)


@release.command()
@click.argument("store")
@click.argument("number", type=click.IntRange(1))
@shared_options("service", "timeout")
@click.pass_context
def stop(context: click.Context, store: str, number: int) -> int:
    """Publish no more rows of a release that is being published in waves, for ever.

    What is published stays, until `ringcast release undo`.
    """
    return _change(context, store, number, ConfigServiceClient.stop_release, ReleaseState.STOPPED)


@release.command()
@click.argument("store")
@click.argument("number", type=click.IntRange(1))
@patience_option(86_400, 600.0, "How long to wait at most.")
@shared_options("service", "timeout")
@click.pass_context
def wait(context: click.Context, store: str, number: int, patience: float) -> int:
    """Wait until it is proven that every worker has applied a release.

    It may be called before the release is published. The exit code is 1 if it is not proven in time; what lacks is then
    named: workers that do not answer or are not far enough, and rows that a handler has refused.
    """
    config = settings_of(context)

    async def run() -> ReleaseProof:
        async with service_client(config) as client:
            return await client.wait_for_release(store, number, timeout_s=patience)

    proof = asyncio.run(run())
    if config.json:
        print_json(document(proof.release, proof.certificate) | {"lacks": proof.lacks, "more_lacks": proof.more_lacks})
    elif proof.certificate is not None:
        click.echo(proven_words(proof.release, proof.certificate))
    if proof.certificate is not None:
        return codes.OK
    note(f"ringcast: release {number} of {visible(store)} is not proven within {patience:g} s:")
    for lack in proof.lacks:
        note(visible(f"{lack.key}: {lack.sentence}" if lack.key else lack.sentence))
    if proof.more_lacks:
        note(f"and {proof.more_lacks} more")
    return codes.FAILED


@release.command()
@click.argument("store")
@click.argument("number", type=click.IntRange(1))
@shared_options("service", "timeout")
@click.pass_context
def undo(context: click.Context, store: str, number: int) -> int:
    """Write back what the rows were before a release, and wait until it is done.

    A row that was written since it was published stays as it is and is counted as skipped; the exit code is
    then 1. A release that is undone can't be published again.
    """
    return _change(context, store, number, ConfigServiceClient.undo_release, ReleaseState.UNDONE)


@release.command()
@click.argument("store")
@click.argument("number", type=click.IntRange(1))
@shared_options("service", "timeout")
@click.pass_context
def drop(context: click.Context, store: str, number: int) -> int:
    """Drop a release that is not published."""
    return _change(context, store, number, ConfigServiceClient.drop_release, ReleaseState.DROPPED)


def _change(
    context: click.Context,
    store: str,
    number: int,
    change: Callable[..., Awaitable[ReleaseInfo]],
    wanted: ReleaseState,
) -> int:
    config = settings_of(context)
    started_s = time.monotonic()

    async def run() -> ReleaseInfo:
        async with service_client(config) as client:
            await change(client, store, number)
            return await client.follow_release(store, number)

    done = asyncio.run(run())
    say(done, config, seconds=round(time.monotonic() - started_s, 3))
    if done.problem:
        note(f"ringcast: halted, and tried again by the service: {done.problem}")
        return codes.FAILED
    if done.is_paused:
        note(f"ringcast: it is paused: `ringcast release resume {done.store} {done.number}` lets it go on")
        return codes.FAILED
    if done.rollout is not None and done.rollout.failure:
        note(f"ringcast: {failure_words(done.rollout)}")
        return codes.FAILED if wanted is not done.state or wanted is ReleaseState.PUBLISHED else codes.OK
    if done.state is not wanted:
        note(f"ringcast: {visible(done.changed_by) or 'another client'} has changed the release meanwhile")
        return codes.FAILED
    if done.skipped:
        note(
            f"ringcast: {done.skipped} rows were written by another client, and stay as they are: "
            f"`ringcast release diff {done.store} {done.number} --conflicts` names them"
        )
        return codes.FAILED
    return codes.OK


COMMANDS: Final = {"release": release}
