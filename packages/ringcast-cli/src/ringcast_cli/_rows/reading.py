"""What commands that read rows from a file share: the options, opening it, the bar that shows how far they are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.output import visible
from ringcast_cli._rows.formats import SUFFIXES, Format, Layout, Parsed, format_of, read_csv, read_jsonl, read_text
from ringcast_cli._rows.source import STANDARD_INPUT, Source, open_source

if TYPE_CHECKING:
    from ringcast_cli._rows.parquet import ParquetInput

F = TypeVar("F", bound=Callable[..., Any])

_READERS: Final = {Format.CSV: read_csv, Format.JSONL: read_jsonl, Format.TEXT: read_text}
_OPTIONS: Final = (
    click.option(
        "--format",
        "kind",
        type=click.Choice([kind.value for kind in Format]),
        help="Format of FILE [default: by its suffix].",
    ),
    click.option("--id-column", metavar="NAME", help="Column of the row id [default: row_id or id]."),
    click.option("--value-column", metavar="NAME", help="Column of the value [default: value]."),
    click.option(
        "--metadata-column",
        "metadata_columns",
        multiple=True,
        metavar="NAME",
        help="A column that becomes metadata; may be repeated.",
    ),
    click.option("--value", metavar="TEXT", help="One value for every row, instead of a column [text: empty]."),
    click.option(
        "--header/--no-header",
        default=True,
        show_default=True,
        help="CSV: whether the first line names the columns. Without, they are named 1, 2, 3 …",
    ),
    click.option(
        "--delimiter", metavar="CHAR", help="CSV: the character between columns [default: comma; tab for .tsv]."
    ),
    click.option(
        "--comment",
        metavar="PREFIX",
        default="#",
        show_default=True,
        help="Text: lines that begin with this are left out; empty: none.",
    ),
    click.option("--progress/--no-progress", default=None, help="Show a progress bar [default: on a terminal]."),
)


def reading_options(command: F) -> F:
    """Adds the options that say how FILE is read. They come to the command as what :func:`input_of` takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Input:
    """A file to read, and how."""

    path: str
    kind: Format
    layout: Layout
    progress: bool | None


def input_of(context: click.Context, path: str, options: dict[str, Any]) -> Input:
    """From the arguments of a command with :func:`reading_options`.

    Raises:
        click.UsageError: they make no sense together.
    """
    kind = _format(context, path, options["kind"])
    delimiter = options["delimiter"] or ("\t" if path.lower().endswith(".tsv") else ",")
    if len(delimiter) != 1 or delimiter in '\r\n"':
        raise click.BadParameter(f"{delimiter!r} is not one character", context, param_hint="--delimiter")
    layout = Layout(
        options["id_column"],
        options["value_column"],
        options["metadata_columns"],
        options["value"],
        options["header"],
        delimiter,
        options["comment"],
    )
    return Input(path, kind, layout, options["progress"])


def _format(context: click.Context, file: str, kind: str | None) -> Format:
    if kind is not None:
        return Format(kind)
    if found := format_of(file):
        return found
    if file == STANDARD_INPUT:
        raise click.UsageError("give the --format of standard input", context)
    known = ", ".join(SUFFIXES)
    raise click.UsageError(f"the suffix of {file!r} is unknown (known are {known}): give --format", context)


class OpenInput:
    """An open input: its rows, what one of its lines is called, and how far reading has come."""

    def __init__(
        self, source: Source, unit: str, parsed: Iterator[Parsed], position: Callable[[], tuple[int, int | None]]
    ) -> None:
        self.name = source.name
        self.unit = unit
        self.parsed = parsed
        self.position = position
        """What is read, and all that there is to read if that is known: bytes, or rows in Parquet."""

    @contextmanager
    def bar(self, wanted: bool | None, config: CliConfig) -> Iterator[Bar | None]:
        """A progress bar on standard error, or ``None`` where none is wanted."""
        if wanted is None:
            wanted = sys.stderr.isatty() and not config.json
        if not wanted:
            yield None
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[rows]:,} rows  {task.fields[rate]:,.0f} rows/s"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            yield Bar(progress, self)


class Bar:
    """A progress bar."""

    def __init__(self, progress: Any, opened: OpenInput) -> None:
        self._progress = progress
        self._opened = opened
        self._name = visible(opened.name)
        self._task = progress.add_task(self._name, total=opened.position()[1], rows=0, rate=0.0)

    def show_input(self, rows: int, rate: float) -> None:
        """How much of the input is read."""
        done, total = self._opened.position()
        self._progress.update(self._task, description=self._name, completed=done, total=total, rows=rows, rate=rate)

    def show_rows(self, what: str, rows: int, total: int | None, rate: float) -> None:
        """How many rows of a step are done."""
        self._progress.update(
            self._task, description=f"{self._name}: {what}", completed=rows, total=total, rows=rows, rate=rate
        )


@contextmanager
def open_input(given: Input) -> Iterator[OpenInput]:
    """Opens the file.

    Raises:
        InputError: it can't be opened, or is not of its format.
    """
    with ExitStack() as stack:
        source = stack.enter_context(open_source(given.path))
        if given.kind is Format.PARQUET:
            from ringcast_cli._rows.parquet import open_parquet

            parquet: ParquetInput = stack.enter_context(open_parquet(source, given.layout))
            yield OpenInput(source, "row", parquet.parsed(), lambda: (parquet.read_rows, parquet.rows))
            return
        lines = _READERS[given.kind](source, given.layout)
        yield OpenInput(source, "line", lines, lambda: (source.read_bytes, source.size))
