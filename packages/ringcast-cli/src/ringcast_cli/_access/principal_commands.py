"""``ringcast whoami``, ``ringcast token create|revoke``, ``ringcast role grant|revoke|list``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

import click
from ringcast_client import ConfigServiceClient, RoleGrant, WhoAmI
from ringcast_wire import Role
from ringcast_wire.tokens import make_token, token_line

from ringcast_cli._access.worker_token_command import agent, worker
from ringcast_cli._common import exit_codes as codes
from ringcast_cli._common.client import service_client
from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.options import Duration, settings_of, shared_options
from ringcast_cli._common.output import note, print_json, print_table, visible

_STORE: Final = click.argument("store")
_ROLE: Final = click.argument("role_name", metavar="ROLE", type=click.Choice([role.value for role in Role]))
_PRINCIPAL: Final = click.argument("principal")


@click.command()
@shared_options("service", "timeout")
@click.pass_context
def whoami(context: click.Context) -> None:
    """Print the principal of this client, and the roles that count for it."""
    config = settings_of(context)

    async def run() -> WhoAmI:
        async with service_client(config) as client:
            return await client.who_am_i()

    found = asyncio.run(run())
    if config.json:
        print_json(found)
    else:
        click.echo(visible(found.principal))
        for group in found.groups:
            click.echo(f"group\t{visible(group)}")
        if found.expires_at_ms:
            click.echo(f"expires\t{_time(found.expires_at_ms)}")
        for grant in found.roles:
            click.echo(f"{grant.role}\tof {grant.store}")
        if found.unrestricted:
            note("ringcast: no role is granted to anybody: every client may do everything")


@click.group()
@shared_options()
def token() -> None:
    """Make and revoke tokens for clients of the config service."""


@token.command()
@click.argument("name")
@click.option(
    "--expires",
    type=Duration(),
    metavar="DURATION",
    help="How long the token counts, such as 720h; without it, until its line is removed.",
)
@shared_options()
@click.pass_context
def create(context: click.Context, name: str, expires: int | None) -> None:
    """Make a token for the principal NAME, and print it once.

    Give the token to the client (--service-token-file), and add the line to the service's file of tokens (--tokens),
    which it reads again by itself. The line has only a digest of the token. Nothing is sent anywhere.
    """
    config = settings_of(context)
    secret = make_token()
    line = token_line(name, secret, None if expires is None else time.time() + expires / 1000)
    if config.json:
        print_json({"name": name, "token": secret, "line": line})
        return
    click.echo(f"token  {secret}")
    click.echo(f"line   {line}")


@token.command("revoke")
@click.argument("name", required=False)
@click.option("--digest", metavar="HEX", help="The SHA-256 of one token, as the line of the file has it.")
@shared_options("service", "timeout")
@click.pass_context
def revoke_token(context: click.Context, name: str | None, digest: str | None) -> int:
    """Have the tokens of the principal NAME refused, in all instances within 2 s, or the one with a digest.

    Those of NAME are the ones that stand in the service's file now; a line that is added later is another token. A
    token stays revoked: remove its line too. The last token of the last admin of `*` can't be revoked. The exit code
    is 1 when nothing was revoked.
    """
    config = settings_of(context)

    async def run() -> int:
        async with service_client(config) as client:
            return await client.revoke_token(principal=name, digest=digest and digest.removeprefix("sha256:"))

    revoked = asyncio.run(run())
    if config.json:
        print_json({"revoked": revoked})
    else:
        click.echo(f"{revoked} tokens revoked" if revoked else "nothing revoked: they were revoked before")
    return codes.OK if revoked else codes.FAILED


@click.group()
@shared_options("service", "timeout")
def role() -> None:
    """Grant, revoke and list roles: who may do what with which store.

    STORE and PRINCIPAL may be `*`, quoted for the shell: all stores, or every client that is let in. As long as no role
    is granted every client may do everything; the first one has to be admin of `*`.
    """


@role.command()
@_STORE
@_ROLE
@_PRINCIPAL
@shared_options("service", "timeout")
@click.pass_context
def grant(context: click.Context, store: str, role_name: str, principal: str) -> None:
    """Give PRINCIPAL (as `ringcast whoami` prints it) the role for STORE. A role that it has stays."""
    config = settings_of(context)
    granted = _change(config, lambda client: client.grant_role(principal, store, Role(role_name)))
    _print_change(granted, store, role_name, principal, "granted", "it had it before", config)


@role.command()
@_STORE
@_ROLE
@_PRINCIPAL
@shared_options("service", "timeout")
@click.pass_context
def revoke(context: click.Context, store: str, role_name: str, principal: str) -> int:
    """Take the role for STORE away from PRINCIPAL. The exit code is 1 when it did not have it."""
    config = settings_of(context)
    revoked = _change(config, lambda client: client.revoke_role(principal, store, Role(role_name)))
    _print_change(revoked, store, role_name, principal, "revoked", "it did not have it", config)
    return codes.OK if revoked else codes.FAILED


@role.command("list")
@click.argument("store", required=False, default="")
@click.option("--principal", default="", metavar="NAME", help="Only those of this principal.")
@shared_options("service", "timeout")
@click.pass_context
def list_roles(context: click.Context, store: str, principal: str) -> None:
    """List the roles for STORE, or for all stores that you are an admin of; with --json one document a line."""
    config = settings_of(context)

    async def run() -> list[RoleGrant]:
        async with service_client(config) as client:
            return await client.list_roles(store=store, principal=principal)

    found = asyncio.run(run())
    if config.json:
        for each in found:
            print_json(each)
        return
    rows = [[each.store, each.role, each.principal, each.granted_by, _time(each.granted_at_ms)] for each in found]
    print_table(["store", "role", "principal", "granted by", "granted at"], rows)


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")


def _change(config: CliConfig, call: Callable[[ConfigServiceClient], Awaitable[bool]]) -> bool:
    async def run() -> bool:
        async with service_client(config) as client:
            return await call(client)

    return asyncio.run(run())


def _print_change(
    changed: bool, store: str, role_name: str, principal: str, did: str, otherwise: str, config: CliConfig
) -> None:
    if config.json:
        print_json({"store": store, "role": role_name, "principal": principal, "changed": changed})
        return
    end = did if changed else f"not {did}: {otherwise}"
    click.echo(f"{role_name} of {visible(store)} for {visible(principal)}: {end}")


token.add_command(worker)
token.add_command(agent)

COMMANDS: Final = {"whoami": whoami, "token": token, "role": role}
