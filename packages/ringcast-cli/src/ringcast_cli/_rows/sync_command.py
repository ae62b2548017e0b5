"""``ringcast sync``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final, TypeVar

import click
from ringcast_client import (
    DEFAULT_FIRST_ROWS,
    DEFAULT_MAX_DELETE_SHARE,
    InvalidRowError,
    RowWrite,
    SyncPhase,
    SyncProgress,
    SyncRefusedError,
    SyncResult,
)
from ringcast_wire import RingcastError

from ringcast_cli._common import exit_codes as codes
from ringcast_cli._common.client import service_client
from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.options import settings_of, shared_options
from ringcast_cli._common.output import note, print_json, visible
from ringcast_cli._rows.formats import Parsed
from ringcast_cli._rows.reading import Bar, Input, OpenInput, input_of, open_input, reading_options
from ringcast_cli._rows.source import BadLineError, InputError

F = TypeVar("F", bound=Callable[..., Any])

_DIFFERENCE_OPTIONS: Final = (
    click.option(
        "--max-delete-share",
        type=float,
        default=DEFAULT_MAX_DELETE_SHARE,
        show_default=True,
        metavar="SHARE",
        help="Refuse to delete more than this share of the rows of a key, 0 to 1.",
    ),
    click.option("--allow-empty", is_flag=True, help="Let a FILE without rows delete every row of its key."),
    click.option(
        "--show",
        "first_rows",
        type=click.IntRange(0, 1_000),
        default=DEFAULT_FIRST_ROWS,
        show_default=True,
        metavar="N",
        help="How many rows of each kind a dry run, and --json, names.",
    ),
)


def difference_options(command: F) -> F:
    """Adds the options of what compares a FILE with a key, by the names that the client has for them."""
    for option in reversed(_DIFFERENCE_OPTIONS):
        command = option(command)
    return command


@click.command("sync")
@click.argument("store")
@click.argument("key")
@click.argument("file")
@click.option("--dry-run", is_flag=True, help="Print the difference and write nothing.")
@difference_options
@click.option("--reseal", is_flag=True, help="Write rows again that another key than the active one encrypts.")
@reading_options
@shared_options("service", "key_ring", "timeout")
@click.pass_context
def sync(
    context: click.Context,
    /,
    store: str,
    key: str,
    file: str,
    dry_run: bool,
    max_delete_share: float,
    allow_empty: bool,
    first_rows: int,
    reseal: bool,
    **reading: Any,
) -> int:
    """Make KEY in STORE equal to FILE (-: standard input): add, change and delete what differs.

    FILE is read as `ringcast import` reads it, and compared as a whole before anything is written; the comparison takes
    about twice its size in the directory for temporary files (TMPDIR). Rows that are the same are left alone, and
    workers receive only the difference. A malformed line ends the sync before anything is written. After an
    interruption, run it again: it finishes what is left. Rows that another client changes meanwhile stay as they are
    and named; the exit code is then 1.
    """
    options = {
        "dry_run": dry_run,
        "max_delete_share": max_delete_share,
        "allow_empty": allow_empty,
        "first_rows": first_rows,
        "reseal": reseal,
    }
    return asyncio.run(_run(settings_of(context), store, key, input_of(context, file, reading), options))


async def _run(config: CliConfig, store: str, key: str, given: Input, options: dict[str, Any]) -> int:
    started = time.monotonic()
    with open_input(given) as opened:
        rows = InputRows(opened)
        with opened.bar(given.progress, config) as bar:
            progress = _Progress(bar)
            async with service_client(config) as client:
                try:
                    result = await client.sync(store, key, rows, on_progress=progress.update, **options)
                except InvalidRowError as error:
                    raise InputError(
                        f"{opened.unit} {rows.line}: {error}; nothing is written", field=error.field
                    ) from None
                except BadLineError as error:
                    raise InputError(f"{error}; nothing is written", field=error.field) from None
                except SyncRefusedError as error:
                    option = f"--{(error.field or '').replace('_', '-')}"
                    raise SyncRefusedError(f"{error}: nothing is written (see {option})", field=error.field) from None
                except asyncio.CancelledError:
                    note(f"ringcast: interrupted; {progress.state()}")
                    raise
                except RingcastError as error:
                    raise progress.stopped(error) from error
    _print(result, time.monotonic() - started, config)
    if result.refusal is not None:
        note(f"ringcast: {result.refusal}: without --dry-run this is refused")
    if result.conflicts:
        named = ", ".join(map(visible, result.first_conflicts))
        more = " …" if result.conflicts > len(result.first_conflicts) else ""
        note(
            f"ringcast: {result.conflicts} rows were changed by another client meanwhile, and stay as they are: "
            f"{named}{more}; run it again to compare again"
        )
    return codes.FAILED if result.refusal is not None or result.conflicts else codes.OK


class InputRows:
    """The rows of an input; ``line`` is that of the last one. Iterated over in the reading thread."""

    def __init__(self, opened: OpenInput) -> None:
        self._parsed: Iterator[Parsed] = opened.parsed
        self.line = 0
        self.ended = False

    def __iter__(self) -> Iterator[RowWrite]:
        for item in self._parsed:
            if isinstance(item, BadLineError):
                raise item
            self.line, row = item
            yield row
        self.ended = True


_DOING: Final = {SyncPhase.COMPARING: "comparing", SyncPhase.WRITING: "writing"}


class _Progress:
    """Shows how far a sync is, and knows what is written when it ends early."""

    def __init__(self, bar: Bar | None) -> None:
        self._bar = bar
        self._last: SyncProgress | None = None
        self._began = time.monotonic()

    def update(self, progress: SyncProgress) -> None:
        if self._last is None or progress.phase is not self._last.phase:
            self._began = time.monotonic()
        self._last = progress
        if self._bar is None:
            return
        seconds = time.monotonic() - self._began
        rate = progress.done / seconds if seconds else 0.0
        if progress.phase is SyncPhase.READING:
            self._bar.show_input(progress.done, rate)
        else:
            self._bar.show_rows(_DOING[progress.phase], progress.done, progress.total, rate)

    def state(self) -> str:
        """A clause that says what is written."""
        last = self._last
        if last is None or last.phase is not SyncPhase.WRITING:
            return "nothing is written"
        return f"{last.done} of {last.total} rows that differ are known to be written; run it again to finish"

    def stopped(self, error: RingcastError) -> RingcastError:
        """The error with what is written, if anything may be."""
        if self._last is None or self._last.phase is not SyncPhase.WRITING:
            return error
        stopped = RingcastError(f"{error}; {self.state()}", field=error.field)
        stopped.code = error.code  # type: ignore[misc]  # a sync fails with the code of what stopped it
        return stopped


def _print(result: SyncResult, seconds: float, config: CliConfig) -> None:
    if config.json:
        print_json({**asdict(result), "seconds": round(seconds, 3)})
        return
    if not result.written:
        _print_rows("+", result.first_added, result.added)
        _print_rows("~", result.first_changed, result.changed)
        _print_rows("-", result.first_deleted, result.deleted)
    did, end = ("would be ", " (dry run: nothing is written)") if not result.written else ("", f" in {seconds:.2f} s")
    click.echo(
        f"{result.store}/{result.key}: {result.added} {did}added, {result.changed} {did}changed, "
        f"{result.deleted} {did}deleted, {result.unchanged} unchanged{end}"
    )


def _print_rows(sign: str, row_ids: tuple[str, ...], count: int) -> None:
    for row_id in row_ids:
        click.echo(f"{sign} {visible(row_id)}")
    if (more := count - len(row_ids)) > 0 and row_ids:
        click.echo(f"{sign} … {more} more")


COMMANDS: Final[dict[str, Callable[..., Any]]] = {"sync": sync}
