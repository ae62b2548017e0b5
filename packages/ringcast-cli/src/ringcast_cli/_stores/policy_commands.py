"""``ringcast store policy show|set``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import click
from msgspec.structs import asdict
from ringcast_client import StorePolicyInfo
from ringcast_wire import POLICY_RANGES, StorePolicy

from ringcast_cli._common.client import service_client
from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.options import Duration, settings_of, shared_options, shown_duration
from ringcast_cli._common.output import print_json, print_table, visible

F = TypeVar("F", bound=Callable[..., Any])

NONE: Final = "none"
"""In place of a value: the policy is lifted."""
_MS: Final = "_ms"
"""How the name of a policy ends that is a duration."""
_SWITCHES: Final = frozenset(name for name, most in POLICY_RANGES.items() if most == (False, True))
"""Policies that are set or not set, and have no value."""
_HELP: Final = {
    "max_rows": "Live rows of all keys of the store together",
    "max_bytes": "Bytes of these rows: ids, values and metadata",
    "max_row_bytes": "Bytes of each row that is written",
    "max_keys": "Config keys of the store",
    "max_rows_per_second": "Rows a second that an instance of the service takes, for all principals together",
    "burst_rows": "Rows that may come at once after a pause",
    "releases_only": "Rows change only by releases, and every other write is refused",
    "approvals": "Principals other than its author who have to approve a release before it is published",
    "max_release_growth_percent": "Percent by which one release may make a key longer",
    "max_release_shrink_percent": "Percent by which one release may make a key shorter",
    "max_release_change_percent": "Percent of the rows of a key that one release may change or delete",
    "max_release_byte_growth_percent": "Percent by which one release may add to the bytes of a key",
    "max_release_byte_shrink_percent": "Percent of the bytes of a key that one release may take away",
    "max_release_partition_growth_percent": "Percent by which one release may make a partition of a key longer",
    "max_release_partition_shrink_percent": "Percent by which one release may make a partition of a key shorter",
    "release_partition_tolerance_rows": "Rows by which a partition may become longer or shorter in any case",
    "unique_ignoring_case": "A release adds no row whose id differs from another one only by its case",
    "unique_ignoring_outer_space": "The same of white space at both ends",
    "unique_ignoring_unicode_form": "The same of the Unicode form, by NFKC",
    "unique_ignoring_trailing_dot": "The same of one dot at the end",
    "external_check": "A release is published only when the external check of the service allows it",
    "history_retention_ms": "How long revisions are kept once they were replaced, in place of the service's setting",
    "tombstone_retention_ms": "How long tombstones of deleted rows are kept, in place of the service's setting",
}


class _Value(click.ParamType[int | str]):
    """A whole number, or a duration; or ``none``."""

    name = "value"

    def __init__(self, *, duration: bool) -> None:
        self._duration = Duration() if duration else None

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if value == NONE:
            return NONE
        if isinstance(value, int):
            return value
        if self._duration is not None:
            return self._duration.convert(value, param, ctx)
        if not (value.isascii() and value.isdigit()) or len(value) > 18:
            self.fail(f"{value[:40]!r} is no policy: a whole number is needed, or {NONE} to lift it", param, ctx)
        return int(value)


def _policy_options(command: F) -> F:
    for name in reversed(POLICY_RANGES):
        if name in _SWITCHES:
            shown = _shown_name(name)
            command = click.option(f"--{shown}/--no-{shown}", name, default=None, help=f"{_HELP[name]}.")(command)
            continue
        least, most = (_shown(name, value) for value in POLICY_RANGES[name])
        duration = _is_duration(name)
        command = click.option(
            f"--{_shown_name(name)}",
            name,
            type=_Value(duration=duration),
            metavar="DURATION" if duration else "N",
            help=f"{_HELP[name]}: {least} to {most}, or {NONE}.",
        )(command)
    return command


def _is_duration(name: str) -> bool:
    return name.endswith(_MS)


def _shown_name(name: str) -> str:
    return name.removesuffix(_MS).replace("_", "-")


def _shown(name: str, value: int) -> str:
    """A value of a policy, as it is given."""
    if name in _SWITCHES:
        return "yes" if value else "no"
    return shown_duration(value) if _is_duration(name) else str(value)


@click.group()
@shared_options("service", "timeout")
def policy() -> None:
    """Show and change what a store allows."""


@policy.command()
@click.argument("name")
@shared_options("service", "timeout")
@click.pass_context
def show(context: click.Context, name: str) -> None:
    """Show the policies of the store NAME, and how much of them is used."""
    config = settings_of(context)

    async def run() -> StorePolicyInfo:
        async with service_client(config) as client:
            return await client.get_store_policy(name)

    _print_policy(asyncio.run(run()), config)


@policy.command("set")
@click.argument("name")
@_policy_options
@shared_options("service", "timeout")
@click.pass_context
def set_policy(context: click.Context, /, name: str, **given: int | str | None) -> None:
    """Set policies of the store NAME. Those that are not named stay as they are.

    What is there already stays when a policy allows less: it only can't grow.
    """
    config = settings_of(context)
    lift = [name for name, value in given.items() if value is False or value == NONE]
    wanted = {name: value for name, value in given.items() if value is not None and name not in lift}
    if not wanted and not lift:
        raise click.UsageError("a policy to set is needed")

    async def run() -> StorePolicyInfo:
        async with service_client(config) as client:
            return await client.set_store_policy(name, StorePolicy(**cast("Any", wanted)), lift=lift)

    _print_policy(asyncio.run(run()), config)


def _print_policy(info: StorePolicyInfo, config: CliConfig) -> None:
    if config.json:
        print_json(info)
        return
    used = {"max_rows": info.rows, "max_bytes": info.bytes, "max_keys": info.keys}
    click.echo(f"policies of {visible(info.name)}")
    rows = [
        [_shown_name(name), NONE if value is None else _shown(name, value), str(used.get(name, ""))]
        for name, value in asdict(info.policy).items()
    ]
    print_table(["policy", "value", "used"], rows, right=frozenset({1, 2}))
