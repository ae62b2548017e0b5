"""The command group, and what becomes of errors: one sentence, an exit code, no traceback."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import click
from ringcast_wire import RingcastError

from ringcast_cli._common import exit_codes as codes
from ringcast_cli._common.config import resolve
from ringcast_cli._common.options import shared_options
from ringcast_cli._common.output import visible

_COMMANDS: Final = {
    "up": ("ringcast_cli._local.up_command", "Run NATS and the config service on this machine."),
    "store": ("ringcast_cli._stores.store_commands", "Create, show, change, delete and restore stores."),
    "key": ("ringcast_cli._stores.key_commands", "List, delete and restore the keys of a store."),
    "put": ("ringcast_cli._rows.row_commands", "Write a row."),
    "get": ("ringcast_cli._rows.row_commands", "Print the value of rows."),
    "delete": ("ringcast_cli._rows.row_commands", "Delete a row."),
    "commit": ("ringcast_cli._rows.commit_command", "Write rows of several keys, all or none."),
    "list": ("ringcast_cli._rows.row_commands", "Print the rows of a key."),
    "history": ("ringcast_cli._rows.row_commands", "Print the writes to a key or a row."),
    "diff": ("ringcast_cli._releases.diff_command", "Print what differs between two states of a key."),
    "import": ("ringcast_cli._rows.import_command", "Write many rows from a file."),
    "sync": ("ringcast_cli._rows.sync_command", "Make a key equal to a file, deletions included."),
    "release": ("ringcast_cli._releases.release_commands", "Stage changes of several keys, publish and undo them."),
    "schema": ("ringcast_cli._rows.schema_commands", "Say what the values of a key have to be, and check them."),
    "watch": ("ringcast_cli._rows.watch_command", "Take part as a worker and print each change."),
    "topology": ("ringcast_cli._fleet.topology_command", "Show which worker owns what."),
    "plan": ("ringcast_cli._fleet.plan_command", "Show what moves once workers are gone."),
    "lag": ("ringcast_cli._fleet.lag_command", "Show how far each worker is, and who does not answer."),
    "top": ("ringcast_cli._fleet.top_command", "Show workers, services and agents live, with rates and lags."),
    "why": ("ringcast_cli._diagnosis.why_command", "Show where a row is stuck on its way to its worker."),
    "doctor": ("ringcast_cli._diagnosis.doctor_command", "Check a whole deployment, and say what to do."),
    "drain": ("ringcast_cli._fleet.wishes_commands", "Have a worker give its partitions to others (strategy sticky)."),
    "undrain": ("ringcast_cli._fleet.wishes_commands", "Let a drained worker have partitions again."),
    "pin": ("ringcast_cli._fleet.wishes_commands", "Have a worker own a partition (strategy sticky)."),
    "unpin": ("ringcast_cli._fleet.wishes_commands", "Take a pin back."),
    "pins": ("ringcast_cli._fleet.wishes_commands", "List pins and drains."),
    "balance": ("ringcast_cli._fleet.wishes_commands", "Have workers have equal loads, or as many partitions."),
    "groups": ("ringcast_cli._fleet.group_commands", "Show the positions of groups of consumers, reset them."),
    "agent": (
        "ringcast_cli._fleet.agent_command",
        "Show the heartbeat agent of this host, resolve blocked rows.",
    ),
    "dead-letters": (
        "ringcast_cli._stores.dead_letter_commands",
        "List changes that were given up, replay or discard them.",
    ),
    "cluster": ("ringcast_cli._fleet.cluster_commands", "Show who is there and how busy, drain a process."),
    "meta": ("ringcast_cli._fleet.meta_commands", "Look at a metadata store in NATS KV or etcd."),
    "whoami": ("ringcast_cli._access.principal_commands", "Print the principal and the roles of this client."),
    "role": ("ringcast_cli._access.principal_commands", "Grant, revoke and list roles: who may do what."),
    "token": ("ringcast_cli._access.principal_commands", "Make and revoke tokens for clients of the config service."),
    "keyring": ("ringcast_cli._access.keyring_commands", "Make key rings, which encrypt values, and change keys."),
    "audit": ("ringcast_cli._access.audit_commands", "List, export and verify the audit log."),
    "completion": ("ringcast_cli._local.completion_command", "Print a shell completion script."),
}


class LazyGroup(click.Group):
    """Imports a command when it is called, so that ``ringcast --help`` loads neither gRPC nor NATS."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(_COMMANDS[cmd_name][0])
        command: click.Command = module.COMMANDS[cmd_name]
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            # The reader of standard output has closed it, as `head` does. The interpreter would complain at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return codes.OK
        except KeyboardInterrupt:
            return codes.INTERRUPTED

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import version

    click.echo(f"ringcast {version('ringcast-cli')}")
    context.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done, with remarks, 130 interrupted.",
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Print the version."
)
@shared_options("servers", "service", "key_ring", "timeout")
def cli() -> None:
    """Run, fill, read and watch Ringcast stores."""


def run(args: Sequence[str]) -> int:
    """Runs one command line and returns the exit code."""
    flags: dict[str, Any] = {}
    try:
        result = cli.main(list(args), prog_name="ringcast", standalone_mode=False, obj=flags)
        return result if isinstance(result, int) else codes.OK
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.UsageError as error:
        error.show()
        return codes.USAGE
    except (click.Abort, KeyboardInterrupt):
        return codes.INTERRUPTED
    except click.ClickException as error:
        return _fail(flags, "FAILED", error.format_message())
    except RingcastError as error:
        return _fail(flags, str(error.code), str(error), error.field)
    except Exception as error:
        if os.environ.get("RINGCAST_DEBUG"):
            raise
        return _fail(
            flags, "INTERNAL", f"internal error: {type(error).__name__}: {error} (RINGCAST_DEBUG=1 shows where)"
        )


def _fail(flags: dict[str, Any], code: str, message: str, field: str | None = None) -> int:
    if _wants_json(flags):
        click.echo(json.dumps({"error": {"code": code, "field": field, "message": message}}), err=True)
    else:
        click.echo(f"ringcast: {visible(message)}", err=True)  # it may name what another process has written
    return codes.FAILED


def _wants_json(flags: dict[str, Any]) -> bool:
    try:
        return resolve(flags).json
    except RingcastError:
        return bool(flags.get("json"))
