"""``ringcast agent status``."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from ringcast_wire import InvalidInputError, ProtocolError, UnavailableError

from ringcast_cli._config import CliConfig
from ringcast_cli._options import settings_of, shared_options
from ringcast_cli._output import print_json, print_table

_PATH: Final = "/ringcast/v1/status"
_MAX_BYTES: Final = 64 * 1024 * 1024
_TOKEN: Final = "dapr-api-token"  # noqa: S105  # the name of the header


class _Worker(msgspec.Struct):
    store: str
    key: str
    worker_id: str
    ready: bool
    partitions: int
    rows: int
    staleness_s: float
    subscriptions: int


class _Consumer(msgspec.Struct):
    name: str
    connected: bool
    leaving: bool
    filters: list[str]
    capacity: int
    in_flight: int
    waiting: int


class _Blocked(msgspec.Struct):
    row_id: str
    offset: int
    reason: str


class _Group(msgspec.Struct):
    store: str
    key: str
    group: str
    mode: str
    poison_policy: str
    cursor: int
    last: int
    in_flight: int
    lag: int
    blocked: list[_Blocked]
    consumers: list[_Consumer]


class _Status(msgspec.Struct):
    agent_id: str
    pid: int
    version: str
    uptime_s: float
    connected: bool
    stopping: bool
    workers: list[_Worker]
    groups: list[_Group]


@click.group()
@shared_options("timeout")
def agent() -> None:
    """Look at the heartbeat agent of this host."""


@agent.command()
@shared_options("agent", "timeout")
@click.pass_context
def status(context: click.Context) -> None:
    """Show its workers, and the groups of key-shared dispatch with their consumers.

    With --json the document as the agent gives it.
    """
    config = settings_of(context)
    body = _ask(config)
    try:
        told = msgspec.json.decode(body, type=_Status)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"what answers at {config.agent_url} is no agent of this version: {error}") from error
    if config.json:
        print_json(msgspec.Raw(body))
    else:
        _print(told)


def _ask(config: CliConfig) -> bytes:
    request = urllib.request.Request(f"{config.agent_url}{_PATH}", headers=_headers(config))  # noqa: S310
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=config.timeout_s) as response:
            body: bytes = response.read(_MAX_BYTES)
            return body
    except urllib.error.HTTPError as error:
        with error:
            told = error.read(256).decode(errors="replace").strip()
        raise UnavailableError(
            f"the agent at {config.agent_url} answers {error.code}: {told or error.reason}"
        ) from None
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise UnavailableError(f"the agent at {config.agent_url} does not answer: {reason}") from None


def _headers(config: CliConfig) -> dict[str, str]:
    if not config.agent_token_file:
        return {}
    try:
        return {_TOKEN: Path(config.agent_token_file).read_text().strip()}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"agent_token_file can't be read: {error}", field="agent_token_file") from None


def _print(told: _Status) -> None:
    state = "stopping" if told.stopping else "connected" if told.connected else "not connected to NATS"
    click.echo(f"{told.agent_id}: {state}, up for {told.uptime_s:.0f} s, version {told.version}, pid {told.pid}")
    if not told.workers:
        click.echo("it follows no config key")
        return
    columns = ["worker", "store/key", "ready", "partitions", "rows", "stale for", "subscriptions"]
    print_table(columns, [_worker(each) for each in told.workers], right=frozenset({3, 4, 5, 6}))
    if not told.groups:
        return
    click.echo()
    columns = ["group", "store/key", "mode", "poison", "cursor", "last", "in flight", "lag", "blocked"]
    print_table(columns, [_group(each) for each in told.groups], right=frozenset({4, 5, 6, 7, 8}))
    click.echo()
    columns = ["consumer", "group", "store/key", "state", "in flight", "capacity", "waiting", "filters"]
    rows = [_consumer(group, each) for group in told.groups for each in group.consumers]
    print_table(columns, rows, right=frozenset({4, 5, 6}))
    blocked = [(group, each) for group in told.groups for each in group.blocked]
    if blocked:
        click.echo()
        rows = [[each.row_id, group.group, _place(group), str(each.offset), each.reason] for group, each in blocked]
        print_table(["blocked row", "group", "store/key", "offset", "why"], rows, right=frozenset({3}))


def _place(of: _Worker | _Group) -> str:
    return f"{of.store}/{of.key}"


def _worker(worker: _Worker) -> list[str]:
    numbers = [str(worker.partitions), str(worker.rows), f"{worker.staleness_s:.0f} s", str(worker.subscriptions)]
    return [worker.worker_id, _place(worker), "yes" if worker.ready else "no", *numbers]


def _group(group: _Group) -> list[str]:
    numbers: list[Any] = [group.cursor, group.last, group.in_flight, group.lag, len(group.blocked)]
    return [group.group, _place(group), group.mode, group.poison_policy or "-", *map(str, numbers)]


def _consumer(group: _Group, consumer: _Consumer) -> list[str]:
    state = "leaving" if consumer.leaving else "connected" if consumer.connected else "lost"
    numbers = [str(consumer.in_flight), str(consumer.capacity), str(consumer.waiting)]
    return [consumer.name, group.group, _place(group), state, *numbers, " ".join(consumer.filters) or "every row"]


COMMANDS: Final = {"agent": agent}
