"""``ringcast import``."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, Final, TypedDict

import click

from ringcast_cli._common import exit_codes as codes
from ringcast_cli._common.client import service_client
from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.options import settings_of, shared_options
from ringcast_cli._common.output import note, print_json, visible
from ringcast_cli._rows.importing import MAX_SHOWN_SKIPS, Importer, OnError, Summary
from ringcast_cli._rows.reading import Input, input_of, open_input, reading_options


@click.command("import")
@click.argument("store")
@click.argument("key")
@click.argument("file")
@click.option(
    "--on-error",
    type=click.Choice([choice.value for choice in OnError]),
    default="stop",
    show_default=True,
    help="What to do with a malformed line.",
)
@click.option(
    "--skip-unchanged/--write-unchanged",
    default=True,
    show_default=True,
    help="Whether rows that equal FILE stay as they are, or get a new version, which workers receive.",
)
@click.option("--job-id", metavar="TEXT", help="A repetition with the same id writes no batch twice.")
@reading_options
@shared_options("service", "key_ring", "timeout")
@click.pass_context
def import_rows(
    context: click.Context,
    /,
    store: str,
    key: str,
    file: str,
    on_error: str,
    skip_unchanged: bool,
    job_id: str | None,
    **reading: Any,
) -> int:
    """Write the rows of FILE (-: standard input) to KEY in STORE.

    \b
    csv      columns row_id (or id) and value
    jsonl    one object a line: row_id (or id), value, optionally metadata, deleted, if_version and if_absent
    text     one row id a line
    parquet  columns row_id (or id) and value, both strings

    Rows are written in batches of up to 1,000, each of them whole or not at all. A malformed line stops the import,
    or with --on-error skip is reported and left out; the exit code is then 3. Importing the same file again is safe,
    and writes only what differs. Rows that FILE does not have stay: `ringcast sync` deletes them.
    """
    given = input_of(context, file, reading)
    options: _Options = {
        "on_error": OnError(on_error),
        "skip_unchanged": skip_unchanged,
        "job_id": job_id,
    }
    return asyncio.run(_run(settings_of(context), store, key, given, options))


class _Options(TypedDict):
    on_error: OnError
    skip_unchanged: bool
    job_id: str | None


async def _run(config: CliConfig, store: str, key: str, given: Input, options: _Options) -> int:
    with ExitStack() as stack:
        opened = stack.enter_context(open_input(given))
        bar = stack.enter_context(opened.bar(given.progress, config))

        def show(summary: Summary) -> None:
            if bar is not None:
                bar.show_input(summary.rows, summary.rows_per_s)

        async with service_client(config) as client:
            await client.get_store(store)  # an unknown store is found out before the input is read
            importer = Importer(
                client,
                store,
                key,
                **options,
                unit=opened.unit,
                on_progress=show,
                on_skip=_note_skip,
            )
            try:
                await importer.run(opened.parsed)
            except asyncio.CancelledError:
                note(f"ringcast: interrupted; {importer.summary.state()}")
                raise
            finally:
                stack.close()
                _print_summary(importer.summary, config)
    return codes.SKIPPED if importer.summary.skipped else codes.OK


def _note_skip(reason: str) -> None:
    note(f"ringcast: skipped {visible(reason)}")


def _print_summary(summary: Summary, config: CliConfig) -> None:
    if config.json:
        print_json({**asdict(summary), "rows_per_s": round(summary.rows_per_s, 1)})
        return
    if (more := summary.skipped - len(summary.skips)) > 0:
        note(f"ringcast: skipped {more} more (the first {MAX_SHOWN_SKIPS} are listed)")
    if not summary.complete:
        return
    click.echo(
        f"{summary.rows} rows to {summary.store}/{summary.key} in {summary.seconds:.2f} s "
        f"({summary.rows_per_s:,.0f} rows/s): {summary.written} written, {summary.deleted} deleted, "
        f"{summary.unchanged} unchanged, {summary.skipped} skipped"
    )


COMMANDS: Final = {"import": import_rows}
