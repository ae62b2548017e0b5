"""The command ``ringcast-pipeline``: one sentence for an error, an exit code, no traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import click
from ringcast_wire import RingcastError

from pyspark_ringcast.pipeline._commands import COMMANDS
from pyspark_ringcast.pipeline._plan import PlanRefusedError, StalePlanError
from pyspark_ringcast.pipeline._session import clear_error
from pyspark_ringcast.pipeline._settings import variable

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
REFUSED: Final = 4
INTERRUPTED: Final = 130

_EPILOG = """\b
A flag wins over the environment (RINGCAST_PIPELINE_<OPTION>, e.g. RINGCAST_PIPELINE_STORE),
and that over the specification. `check` shows what comes of it.
\b
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done and rows were rejected,
4 a plan was refused or the store moved on, 130 interrupted.
\b
On a cluster:
  spark-submit ... "$(python -c 'from pyspark_ringcast.pipeline import __main__ as m; print(m.__file__)')" run SPEC
"""


@click.group(
    commands=COMMANDS,
    epilog=_EPILOG,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
    },
)
@click.option(
    "--master",
    envvar=variable("master"),
    help="Where Spark runs, e.g. spark://host:7077. [default: local[*], or what spark-submit says]",
)
@click.option(
    "--json", "as_json", is_flag=True, envvar=variable("json"), help="Print results, and errors, as one JSON document."
)
@click.option(
    "--progress/--no-progress",
    default=None,
    envvar=variable("progress"),
    help="Show what is going on. [default: on a terminal]",
)
@click.pass_context
def cli(context: click.Context, master: str | None, as_json: bool, progress: bool | None) -> None:
    """Turn raw files into a released Ringcast list, and back into tables.

    A specification (TOML) says what is read, what a row is, what must hold for it, and where it goes.
    `plan` compares it with the live store and saves what would be written; `show` prints that for review;
    `apply` writes it and reads it back; `run` does all three at once.
    """
    context.obj = {
        "master": master,
        "json": as_json,
        "progress": sys.stderr.isatty() if progress is None else progress,
    }


def run(args: Sequence[str]) -> int:
    """Runs one command line and returns the exit code."""
    try:
        result = cli.main(list(args), prog_name="ringcast-pipeline", standalone_mode=False)
        return result if isinstance(result, int) else OK
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.UsageError as error:
        error.show()
        return USAGE
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("RINGCAST_DEBUG"):
            raise
        return _fail(clear_error(error) or _unexpected(error), "--json" in args)


def _unexpected(error: Exception) -> RingcastError:
    text = str(error).splitlines()
    first = text[0] if text else ""
    return RingcastError(f"internal error: {type(error).__name__}: {first} (RINGCAST_DEBUG=1 shows where)")


def _fail(error: RingcastError, as_json: bool) -> int:
    import msgspec

    if as_json:
        document: dict[str, Any] = {"error": {"code": error.code, "field": error.field, "message": str(error)}}
        click.echo(msgspec.json.encode(document), err=True)
    else:
        click.echo(f"ringcast-pipeline: {error}", err=True)
    return REFUSED if isinstance(error, PlanRefusedError | StalePlanError) else FAILED


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))
