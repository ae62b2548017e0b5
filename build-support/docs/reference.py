"""Print the pages of the reference that are made from the code, as JSON: name of the page, and its Markdown.

hooks.py runs it with the Python that has our distributions; what builds the site has an environment of its own.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import ringcast_wire
from ringcast_cli._app import cli
from ringcast_config_service.access import RULES
from ringcast_wire import ErrorCode, RingcastError
from ringcast_wire.grpc import STATUS

PROTO = Path(ringcast_wire.__file__).parent / "_proto/config.proto"


def cell(text: object) -> str:
    """Text for a cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def table(heads: list[str], rows: list[list[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *([cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


# --- Commands ---------------------------------------------------------------------------------------------------------


def of_command(command: click.Command, names: tuple[str, ...]) -> Iterator[str]:
    """The section of a command, and those of its subcommands."""
    context = click.Context(command, info_name=" ".join(names))
    yield f"{'#' * min(len(names), 3)} {' '.join(names)}"
    if command.help:
        yield re.sub(r"\n\s*\n", "\n\n", command.help.replace("\b", "").strip()).replace("<", "&lt;")
    yield f"```text\n{command.get_usage(context)}\n```"
    rows: list[list[object]] = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record is not None and "--help" not in parameter.opts:
            variable = parameter.envvar if isinstance(parameter.envvar, str) else ""
            rows.append([f"`{record[0]}`", record[1], f"`{variable}`" if variable else ""])
    if rows:
        yield table(["option", "what it does", "variable"], rows)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from of_command(found, (*names, name))


def commands() -> str:
    return "\n\n".join(["# Options of the commands", *list(of_command(cli, ("ringcast",)))[1:]])


# --- Errors -----------------------------------------------------------------------------------------------------------


def exceptions() -> dict[ErrorCode, type[RingcastError]]:
    """The exception that carries each code."""
    found: dict[ErrorCode, type[RingcastError]] = {}
    classes: list[type[RingcastError]] = [RingcastError]
    while classes:
        current = classes.pop(0)
        found.setdefault(current.code, current)
        classes.extend(current.__subclasses__())
    return found


def errors() -> str:
    by_code = exceptions()
    rows = [
        [f"`{code}`", f"`{kind.__name__}`", f"`{STATUS[code].name}`", (kind.__doc__ or "").split("\n\n")[0]]
        for code in ErrorCode
        for kind in (by_code[code],)
    ]
    head = (
        "# Errors\n\nA call that is refused says why in one sentence, and with a code: in the trailer `ringcast-error` "
        "over gRPC, in the header `Ringcast-Error` over NATS. The clients raise the exception of the code, from "
        "`ringcast_wire`. `ringcast-field` names the input that is to blame."
    )
    return f"{head}\n\n{table(['code', 'exception', 'gRPC status', 'what it says'], rows)}"


# --- RPCs -------------------------------------------------------------------------------------------------------------


def rpc_groups(text: str) -> Iterator[tuple[str, list[re.Match[str]]]]:
    """The comments in the service's definition, each with the calls below it."""
    body = text.partition("service ConfigService {")[2].partition("\n}")[0]
    comment: list[str] = []
    calls: list[re.Match[str]] = []
    for line in body.splitlines():
        if (call := re.match(r"\s*rpc (\w+)\((.*?)\) returns \((.*?)\);", line)) is not None:
            calls.append(call)
        elif line.strip().startswith("//"):
            if calls:
                yield " ".join(comment), calls
                comment, calls = [], []
            comment.append(line.strip().removeprefix("//").strip())
    yield " ".join(comment), calls


def rpcs() -> str:
    text = PROTO.read_text()
    parts = [
        "# RPCs",
        "The methods of `ringcast.config.v1.ConfigService`, and the role that each needs, once roles are granted.",
    ]
    for comment, calls in rpc_groups(text):
        rows: list[list[object]] = [
            [f"`{call[1]}`", f"`{call[2]}`", f"`{call[3]}`", RULES[call[1]].role or "none"] for call in calls
        ]
        parts += [comment.replace("<", "&lt;"), table(["method", "request", "answer", "role"], rows)]
    parts += ["## config.proto", f"```protobuf\n{text}```"]
    return "\n\n".join(parts)


def main() -> None:
    pages: dict[str, Any] = {"commands": commands(), "errors": errors(), "rpcs": rpcs()}
    json.dump(pages, sys.stdout)


if __name__ == "__main__":
    main()
