"""``ringcast import``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from ringcast_cli import _exit_codes as codes
from ringcast_cli._client import service_client
from ringcast_cli._config import CliConfig
from ringcast_cli._formats import SUFFIXES, Format, Layout, Parsed, format_of, read_csv, read_jsonl, read_text
from ringcast_cli._import import MAX_SHOWN_SKIPS, Importer, OnError, Summary
from ringcast_cli._options import settings_of, shared_options
from ringcast_cli._output import note, print_json, visible
from ringcast_cli._source import STANDARD_INPUT, Source, open_source

if TYPE_CHECKING:
    from ringcast_cli._parquet import ParquetInput

_READERS: Final = {Format.CSV: read_csv, Format.JSONL: read_jsonl, Format.TEXT: read_text}


@click.command("import")
@click.argument("store")
@click.argument("key")
@click.argument("file")
@click.option(
    "--format",
    "kind",
    type=click.Choice([kind.value for kind in Format]),
    help="Format of FILE [default: by its suffix].",
)
@click.option(
    "--on-error",
    type=click.Choice([choice.value for choice in OnError]),
    default="stop",
    show_default=True,
    help="What to do about a malformed line.",
)
@click.option("--id-column", metavar="NAME", help="Column of the row id [default: row_id or id].")
@click.option("--value-column", metavar="NAME", help="Column of the value [default: value].")
@click.option(
    "--metadata-column",
    "metadata_columns",
    multiple=True,
    metavar="NAME",
    help="A column that becomes metadata; may be repeated.",
)
@click.option("--value", metavar="TEXT", help="One value for every row, instead of a column [text: empty].")
@click.option(
    "--header/--no-header",
    default=True,
    show_default=True,
    help="CSV: whether the first line names the columns. Without, they are named 1, 2, 3 …",
)
@click.option("--delimiter", metavar="CHAR", help="CSV: what stands between columns [default: comma; tab for .tsv].")
@click.option(
    "--comment",
    metavar="PREFIX",
    default="#",
    show_default=True,
    help="Text: lines that begin so are left out; empty: none.",
)
@click.option(
    "--skip-unchanged/--write-unchanged",
    default=True,
    show_default=True,
    help="Whether rows that are as FILE has them are left alone, or get a new version, of which workers hear.",
)
@click.option("--progress/--no-progress", default=None, help="Show a progress bar [default: on a terminal].")
@shared_options("service", "timeout")
@click.pass_context
def import_rows(
    context: click.Context,
    store: str,
    key: str,
    file: str,
    kind: str | None,
    on_error: str,
    id_column: str | None,
    value_column: str | None,
    metadata_columns: tuple[str, ...],
    value: str | None,
    header: bool,
    delimiter: str | None,
    comment: str,
    skip_unchanged: bool,
    progress: bool | None,
) -> int:
    """Write the rows of FILE (-: standard input) to KEY in STORE.

    \b
    csv      columns row_id (or id) and value
    jsonl    one object a line: row_id (or id), value, optionally metadata and deleted
    text     one row id a line
    parquet  columns row_id (or id) and value, both strings

    Rows are written in batches of up to 1,000, each of them whole or not at all. A malformed line stops the import,
    or with --on-error skip is reported and left out; the exit code is then 3. Importing the same file again
    is safe, and writes what differs only. Rows that FILE does not have stay: `ringcast sync` deletes them.
    """
    chosen = _format(context, file, kind)
    delimiter = delimiter or ("\t" if file.lower().endswith(".tsv") else ",")
    if len(delimiter) != 1 or delimiter in '\r\n"':
        raise click.BadParameter(f"{delimiter!r} is not one character", context, param_hint="--delimiter")
    layout = Layout(id_column, value_column, metadata_columns, value, header, delimiter, comment)
    config = settings_of(context)
    return asyncio.run(_run(config, store, key, file, chosen, OnError(on_error), skip_unchanged, layout, progress))


def _format(context: click.Context, file: str, kind: str | None) -> Format:
    if kind is not None:
        return Format(kind)
    if found := format_of(file):
        return found
    if file == STANDARD_INPUT:
        raise click.UsageError("give the --format of standard input", context)
    known = ", ".join(SUFFIXES)
    raise click.UsageError(f"the suffix of {file!r} says nothing about its format ({known} do): give --format", context)


async def _run(
    config: CliConfig,
    store: str,
    key: str,
    file: str,
    kind: Format,
    on_error: OnError,
    skip_unchanged: bool,
    layout: Layout,
    progress: bool | None,
) -> int:
    with ExitStack() as stack:
        source = stack.enter_context(open_source(file))
        unit, parsed, position = _open(stack, source, kind, layout)
        if progress is None:
            progress = sys.stderr.isatty() and not config.json
        show = stack.enter_context(_progress_bar(source, position)) if progress else _no_progress
        async with service_client(config) as client:
            await client.get_store(store)  # an unknown store is found out before the input is read
            importer = Importer(
                client,
                store,
                key,
                on_error=on_error,
                skip_unchanged=skip_unchanged,
                unit=unit,
                on_progress=show,
                on_skip=_note_skip,
            )
            try:
                await importer.run(parsed)
            except asyncio.CancelledError:
                note(f"ringcast: interrupted; {importer.summary.state()}")
                raise
            finally:
                stack.close()
                _print_summary(importer.summary, config)
    return codes.SKIPPED if importer.summary.skipped else codes.OK


def _open(
    stack: ExitStack, source: Source, kind: Format, layout: Layout
) -> tuple[str, Iterator[Parsed], Callable[[], tuple[int, int | None]]]:
    """What a line is called, the rows, and how far reading has come: done and total."""
    if kind is Format.PARQUET:
        from ringcast_cli._parquet import open_parquet

        parquet: ParquetInput = stack.enter_context(open_parquet(source, layout))
        return "row", parquet.parsed(), lambda: (parquet.read_rows, parquet.rows)
    return "line", _READERS[kind](source, layout), lambda: (source.read_bytes, source.size)


def _no_progress(_: Summary) -> None:
    pass


@contextmanager
def _progress_bar(
    source: Source, position: Callable[[], tuple[int, int | None]]
) -> Iterator[Callable[[Summary], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]:,} rows  {task.fields[rate]:,.0f} rows/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        _, total = position()
        task = bar.add_task(visible(source.name), total=total, rows=0, rate=0.0)

        def show(summary: Summary) -> None:
            done, _ = position()
            bar.update(task, completed=done, rows=summary.rows, rate=summary.rows_per_s)

        yield show


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
