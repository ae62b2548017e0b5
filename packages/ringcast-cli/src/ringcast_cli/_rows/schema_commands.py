"""``ringcast schema register|check|list|show|mode|validate``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import click
from ringcast_client import SchemaInfo, SchemaReport
from ringcast_wire import InvalidInputError, SchemaCompatibility, SchemaKind, SchemaMode, limits, shown

from ringcast_cli._common import exit_codes as codes
from ringcast_cli._common.client import service_client
from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.options import settings_of, shared_options
from ringcast_cli._common.output import counted, note, print_json, print_table, visible
from ringcast_cli._rows.formats import Parsed
from ringcast_cli._rows.reading import input_of, open_input, reading_options
from ringcast_cli._rows.source import BadLineError, InputError, open_source

_MAX_SET_BYTES: Final = 16 << 20
"""Of a descriptor set, of which most is comments and files that are not needed, as a rule."""
_NAMED: Final = 10
"""Rows that break a schema of which a line says why."""

_kind_option = click.option(
    "--kind",
    "schema_kind",  # a format of a file is a kind too
    type=click.Choice([str(kind) for kind in SchemaKind]),
    default=str(SchemaKind.JSON_SCHEMA),
    show_default=True,
    help="How FILE is written. A regular expression has to match the whole value. With an Avro schema values are in "
    "its JSON encoding; fields with defaults may be left out. With a Protobuf message they are in its JSON form, and "
    "FILE is what `protoc --include_imports --descriptor_set_out=FILE` writes.",
)

_message_option = click.option(
    "--message",
    metavar="NAME",
    help="Of a descriptor set: which message values are, as acme.Rule. Without it FILE is as `ringcast schema show` "
    "prints it.",
)

_compatibility_option = click.option(
    "--compatibility",
    type=click.Choice([str(each) for each in SchemaCompatibility]),
    help="Which schemas may be its versions, this one and those to come [default: as it is, and none for the first].",
)


@click.group()
@shared_options("service", "timeout")
def schema() -> None:
    """Say what the values of a key have to be, and check them."""


@schema.command()
@click.argument("store")
@click.argument("key")
@click.argument("file")
@_kind_option
@_message_option
@click.option(
    "--mode",
    type=click.Choice([str(mode) for mode in SchemaMode]),
    help="What becomes of a value that breaks it [default: as it is, and enforce for the first].",
)
@_compatibility_option
@shared_options("service", "timeout")
@click.pass_context
def register(
    context: click.Context,
    store: str,
    key: str,
    file: str,
    schema_kind: str,
    message: str | None,
    mode: str | None,
    compatibility: str | None,
) -> None:
    """Put the schema in FILE (-: standard input) in force for the values of KEY in STORE.

    From then on every write with a value that breaks it is refused, whichever way it comes. KEY need not be there yet.
    Rows that are there already have to keep to it: if some don't, nothing is changed. Register it with --mode warn
    then, mend the rows that `ringcast schema check` names, and `ringcast schema mode STORE KEY enforce`.

    Each other schema is another version, the same again changes nothing. To go back, register the earlier one again.
    All rows are read, so give --timeout for a key with millions of them.
    """
    config, definition = settings_of(context), _read(context, file, SchemaKind(schema_kind), message)

    async def run() -> SchemaInfo:
        async with service_client(config) as client:
            return await client.register_schema(
                store,
                key,
                definition,
                kind=SchemaKind(schema_kind),
                mode=None if mode is None else SchemaMode(mode),
                compatibility=None if compatibility is None else SchemaCompatibility(compatibility),
            )

    _say(store, asyncio.run(run()), config)


@schema.command()
@click.argument("store")
@click.argument("key")
@click.argument("file", required=False)
@_kind_option
@_message_option
@shared_options("service", "timeout")
@click.pass_context
def check(context: click.Context, store: str, key: str, file: str | None, schema_kind: str, message: str | None) -> int:
    """Say which rows of KEY in STORE break the schema in FILE, by default the newest of KEY. Changes nothing.

    Names the first ten. Says too whether FILE may be the next version, by the compatibility of KEY. The exit code is 3
    if there are such rows, or it may not.
    """
    config = settings_of(context)
    definition = "" if file is None else _read(context, file, SchemaKind(schema_kind), message)

    async def run() -> SchemaReport:
        async with service_client(config) as client:
            return await client.check_schema(store, key, definition, kind=SchemaKind(schema_kind))

    report = asyncio.run(run())
    if config.json:
        print_json(report)
    else:
        for row in report.first:
            where = f"at {row.where}" if row.where else "as a whole"
            rule = f" (rule {row.rule})" if row.rule else ""
            click.echo(visible(f"{shown(row.row_id)} {where}{rule}: {row.reason}: {row.found}"))
        if report.incompatible:
            click.echo(visible(report.incompatible))
        click.echo(f"{counted(report.rows, 'row')} of {store}/{key}: {report.broken} break the schema")
    return codes.SKIPPED if report.broken or report.incompatible else codes.OK


@schema.command("list")
@click.argument("store")
@click.argument("key", required=False)
@shared_options("service", "timeout")
@click.pass_context
def list_schemas(context: click.Context, store: str, key: str | None) -> None:
    """List the keys of STORE that have schemas, or the versions of the schema of KEY."""
    config = settings_of(context)

    async def run() -> list[SchemaInfo]:
        async with service_client(config) as client:
            return await client.schemas(store, key or "")

    found = asyncio.run(run())
    if config.json:
        for each in found:
            print_json(each)
        return
    columns = ["key", "version", "kind", "mode", "compatibility", "registered", "by", "reason"]
    rows = [
        [
            each.key,
            str(each.version),
            str(each.kind),
            _mode(each),
            str(each.compatibility or ""),
            _when(each.registered_at_ms),
            each.author,
            each.reason,
        ]
        for each in found
    ]
    print_table(columns, rows, right=frozenset({1}))


@schema.command()
@click.argument("store")
@click.argument("key")
@click.option("--version", type=click.IntRange(1), metavar="N", help="Which one [default: the newest].")
@shared_options("service", "timeout")
@click.pass_context
def show(context: click.Context, store: str, key: str, version: int | None) -> None:
    """Print the schema of KEY in STORE as it was registered."""
    config = settings_of(context)
    found = asyncio.run(_fetch(config, store, key, version or 0))
    if config.json:
        print_json(found)
        return
    note(f"version {found.version} of {store}/{key}: {found.kind}, {_mode(found)}, by {visible(found.author)}")
    click.echo(found.definition)


@schema.command()
@click.argument("store")
@click.argument("key")
@click.argument("mode", type=click.Choice([str(mode) for mode in SchemaMode]), required=False)
@_compatibility_option
@shared_options("service", "timeout")
@click.pass_context
def mode(context: click.Context, store: str, key: str, mode: str | None, compatibility: str | None) -> None:
    """Set what becomes of values that break the schema of KEY in STORE, and which versions may follow.

    \b
    enforce  they are refused; only if all rows that are there keep to the schema
    warn     they are written, counted and logged
    off      nobody looks

    \b
    --compatibility
    none      any schema may be the next version
    backward  one that reads all values of the version before
    forward   one whose values the version before reads
    full      both
    backward-transitive, forward-transitive, full-transitive: the same with all versions that are kept
    """
    config = settings_of(context)
    if mode is None and compatibility is None:
        raise click.UsageError("one of MODE and --compatibility is needed", context)

    async def run() -> SchemaInfo:
        async with service_client(config) as client:
            wanted = None if compatibility is None else SchemaCompatibility(compatibility)
            return await client.set_schema_mode(
                store, key, None if mode is None else SchemaMode(mode), compatibility=wanted
            )

    _say(store, asyncio.run(run()), config)


@schema.command()
@click.argument("file")
@click.option("--schema", "schema_file", metavar="SCHEMA", help="File with the schema.")
@click.option("--of", "place", metavar="STORE/KEY", help="Or the key whose newest schema the service has.")
@_kind_option
@_message_option
@reading_options
@shared_options("service", "timeout")
@click.pass_context
def validate(
    context: click.Context,
    /,
    file: str,
    schema_file: str | None,
    place: str | None,
    schema_kind: str,
    message: str | None,
    **reading: Any,
) -> int:
    """Check the values of FILE (-: standard input) on this machine, as `ringcast import` would read it.

    Nothing is written. Prints the first ten rows that break the schema; the exit code is 3 if there are any, or a line
    is malformed.
    """
    config = settings_of(context)
    if (schema_file is None) == (place is None):
        raise click.UsageError("one of --schema and --of is needed", context)
    given = input_of(context, file, reading)
    if schema_file is not None:
        kind = SchemaKind(schema_kind)
        wanted = kind, _read(context, schema_file, kind, message)
    else:
        store, slash, key = str(place).partition("/")
        if not slash:
            raise click.BadParameter(f"{place!r} is not STORE/KEY", context, param_hint="--of")
        found = asyncio.run(_fetch(config, store, key, 0))
        wanted = found.kind, found.definition
    with open_input(given) as opened:
        result = _validated(opened.parsed, opened.unit, *wanted)
    if config.json:
        print_json(result._asdict())
    else:
        for line in result.first:
            click.echo(visible(line))
        words = f"{counted(result.rows, 'row')}: {result.broken} break the schema"
        click.echo(words + (f", {result.malformed} malformed" if result.malformed else ""))
    return codes.SKIPPED if result.broken or result.malformed else codes.OK


class _Validated(NamedTuple):
    """What came of the rows of a file; ``first`` has a line for each of the first that are wrong."""

    rows: int
    broken: int
    malformed: int
    first: list[str]


def _validated(parsed: Iterable[Parsed], unit: str, kind: SchemaKind, definition: str) -> _Validated:
    from ringcast_wire.schemas import value_schema  # a large library, which other commands do without

    checks = value_schema(kind, definition)
    rows = broken = malformed = 0
    first: list[str] = []
    for item in parsed:
        if isinstance(item, BadLineError):
            malformed += 1
            said = str(item)
        else:
            line, row = item
            rows += 1
            if row.delete or checks.accepts(row.value):
                continue
            broken += 1
            said = f"{unit} {line}: {shown(row.row_id)} {checks.problem(row.value)}"
        if len(first) < _NAMED:
            first.append(said)
    return _Validated(rows, broken, malformed, first)


async def _fetch(config: CliConfig, store: str, key: str, version: int) -> SchemaInfo:
    async with service_client(config) as client:
        return await client.schema(store, key, version)


def _read(context: click.Context, path: str, kind: SchemaKind, message: str | None) -> str:
    """The text of a schema in a file; of a descriptor set what is needed of it. A regular expression, and what `show`
    prints of a Protobuf schema, come without the end of their line.

    Raises:
        InputError: it can't be read, or is too large.
        UsageError: a message is named, and the schema has none.
    """
    if message is not None and kind is not SchemaKind.PROTOBUF:
        raise click.UsageError(f"--message is for --kind protobuf, not {kind}", context)
    most = limits.MAX_SCHEMA_BYTES if message is None else _MAX_SET_BYTES
    with open_source(path) as source:
        try:
            data = source.file.read(most + 1)
        except OSError as error:
            raise InputError(f"file {source.name} can't be read: {error.strerror}", field="file") from None
        if len(data) > most:
            raise InvalidInputError(
                f"file {source.name} is too large for a schema: {most} bytes are allowed",
                field="file",
            )
    if message is not None:
        from ringcast_wire.schemas import protobuf_definition  # a large library, which other commands do without

        return protobuf_definition(data, message)
    if kind is SchemaKind.PROTOBUF and not data.startswith(b"{"):
        raise InputError(
            f"file {source.name} is not as `ringcast schema show` prints it: of a descriptor set say with --message "
            "which message values are",
            field="file",
        )
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise InputError(f"file {source.name} is not UTF-8", field="file") from None
    return text.rstrip("\r\n") if kind in (SchemaKind.REGEX, SchemaKind.PROTOBUF) else text


def _say(store: str, found: SchemaInfo, config: CliConfig) -> None:
    if config.json:
        print_json(found)
    else:
        mode, compatibility = _mode(found), found.compatibility
        words = mode if compatibility in (None, SchemaCompatibility.NONE) else f"{mode}, {compatibility} compatible"
        click.echo(f"version {found.version} of the schema of {store}/{found.key}: {words}")


def _mode(found: SchemaInfo) -> str:
    return "replaced" if found.mode is None else str(found.mode)


def _when(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


COMMANDS: Final = {"schema": schema}
