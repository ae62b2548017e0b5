"""``ringcast agent status|resolve``."""

from __future__ import annotations

import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec
from ringcast_wire import InvalidInputError, ProtocolError, UnavailableError, agent_token, check_row_id, limits, names

from ringcast_cli._common import exit_codes as codes
from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.options import settings_of, shared_options
from ringcast_cli._common.output import note, print_json, print_table, visible

T = TypeVar("T")

_STATUS: Final = "/ringcast/v1/status"
_RESOLVE: Final = "/ringcast/v1/resolve"
_MAX_BYTES: Final = 64 * 1024 * 1024
_MAX_ERROR_BYTES: Final = 4096
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


class _Registered(msgspec.Struct):
    worker_id: str
    pid: int
    store: str
    keys: list[str]
    since_ms: int
    last_pong_s: float | None
    connected: bool


class _Leases(msgspec.Struct):
    lease: str
    held: bool
    socket: str
    workers: list[_Registered]


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
    routing_key: str = "row"
    not_durable_because: str = ""
    partitions_awaited: int = 0
    partitions_unread: int = 0


class _Resolved(msgspec.Struct):
    resolved: list[str]
    not_blocked: list[str]


class _Refusal(msgspec.Struct):
    message: str


class _Status(msgspec.Struct):
    agent_id: str
    pid: int
    version: str
    uptime_s: float
    connected: bool
    stopping: bool
    workers: list[_Worker]
    groups: list[_Group]
    leases: _Leases | None = None
    state: str = "active"


@click.group()
@shared_options("timeout")
def agent() -> None:
    """Show the heartbeat agent of this host, and resolve rows that it blocks."""


@agent.command()
@shared_options("agent", "timeout")
@click.pass_context
def status(context: click.Context) -> None:
    """Show its workers, the workers whose lease it keeps, and the groups of key-shared dispatch with their consumers.

    With --json the document as the agent gives it.
    """
    config = settings_of(context)
    body = _ask(config, _STATUS)
    answer = _decoded(config, body, _Status)
    if config.json:
        print_json(msgspec.Raw(body))
    else:
        _print(answer)


@agent.command()
@click.argument("store")
@click.argument("key")
@click.argument("group")
@click.argument("row_ids", nargs=-1, metavar="[ROW_ID]...")
@click.option("--all", "everything", is_flag=True, help="All blocked rows of the group.")
@click.option("--discard", is_flag=True, help="Give the messages up. Without it they are delivered again.")
@shared_options("agent", "timeout")
@click.pass_context
def resolve(
    context: click.Context,
    store: str,
    key: str,
    group: str,
    row_ids: tuple[str, ...],
    everything: bool,
    discard: bool,
) -> int:
    """Resolve the blocked rows ROW_ID of GROUP: deliver them again, as if they had never failed, or give them up.

    GROUP is a group of key-shared dispatch of KEY in STORE whose poison policy is "block"; `ringcast agent status`
    shows which rows are blocked, and why. The exit code is 1 when one of the rows is not.
    """
    if bool(row_ids) == everything:
        raise click.UsageError("give either a ROW_ID or --all", context)
    config = settings_of(context)
    for row_id in row_ids:
        check_row_id(row_id)
    place = {name: names.check_name(name, value) for name, value in (("store", store), ("key", key), ("group", group))}
    asked: dict[str, Any] = {**place, "discard": discard}
    answer = _Resolved([], [])
    for start in range(0, len(row_ids) or 1, limits.MAX_BATCH_ROWS):
        rows = {"row_ids": row_ids[start : start + limits.MAX_BATCH_ROWS]} if row_ids else {}
        part = _decoded(config, _ask(config, _RESOLVE, msgspec.json.encode(asked | rows)), _Resolved)
        answer.resolved += part.resolved
        answer.not_blocked += part.not_blocked
    if config.json:
        print_json(answer)
    else:
        for row_id in answer.resolved:
            click.echo(f"{visible(row_id)} is {'given up' if discard else 'tried again'}")
        for row_id in answer.not_blocked:
            note(f"ringcast: row {row_id!r} of group {group} is not blocked")
        if everything and not answer.resolved:
            click.echo("no row is blocked")
    return codes.FAILED if answer.not_blocked else codes.OK


def _decoded(config: CliConfig, body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"the server at {config.agent_url} is no agent of this version: {error}") from error


def _ask(config: CliConfig, path: str, body: bytes | None = None) -> bytes:
    headers = _headers(config) | ({"content-type": "application/json"} if body is not None else {})
    request = urllib.request.Request(f"{config.agent_url}{path}", data=body, headers=headers)  # noqa: S310
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=config.timeout_s) as response:
            answer: bytes = response.read(_MAX_BYTES)
            return answer
    except urllib.error.HTTPError as error:
        with error:
            refusal = _refusal(error.read(_MAX_ERROR_BYTES))
        raise UnavailableError(
            f"the agent at {config.agent_url} answers {error.code}: {refusal or error.reason}"
        ) from None
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise UnavailableError(f"the agent at {config.agent_url} does not answer: {reason}") from None


def _refusal(body: bytes) -> str:
    """What the agent says, in its own form of an error or as plain text."""
    try:
        return msgspec.json.decode(body, type=_Refusal).message
    except msgspec.MsgspecError:
        return body[:256].decode(errors="replace").strip()


def _headers(config: CliConfig) -> dict[str, str]:
    if config.agent_token_file in ("", agent_token.OFF):
        token = agent_token.find()
        return {_TOKEN: token} if token else {}
    try:
        return {_TOKEN: Path(config.agent_token_file).read_text().strip()}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"agent_token_file can't be read: {error}", field="agent_token_file") from None


def _print(status: _Status) -> None:
    state = "stopping" if status.stopping else "connected" if status.connected else "not connected to NATS"
    if status.state != "active":
        state += f", {status.state}"
    click.echo(
        f"{status.agent_id}: {state}, up for {status.uptime_s:.0f} s, version {status.version}, pid {status.pid}"
    )
    if status.leases is not None:
        _print_leases(status.leases)
    if not status.workers:
        click.echo("it follows no config key")
        return
    columns = ["worker", "store/key", "ready", "partitions", "rows", "stale for", "subscriptions"]
    print_table(columns, [_worker(each) for each in status.workers], right=frozenset({3, 4, 5, 6}))
    if not status.groups:
        return
    click.echo()
    columns = ["group", "store/key", "mode", "routing", "poison", "cursor", "last", "in flight", "lag", "blocked"]
    print_table(columns, [_group(each) for each in status.groups], right=frozenset({5, 6, 7, 8, 9}))
    for each in status.groups:
        title = f"group {each.group} of {_place(each)}"
        if each.not_durable_because:
            click.echo(f"{title} is not durable: {each.not_durable_because}")
        if each.partitions_awaited:
            click.echo(f"{title} waits for {each.partitions_awaited} partitions")
        if each.partitions_unread:
            click.echo(f"{title} still reads what it missed of {each.partitions_unread} partitions")
    click.echo()
    columns = ["consumer", "group", "store/key", "state", "in flight", "capacity", "waiting", "filters"]
    rows = [_consumer(group, each) for group in status.groups for each in group.consumers]
    print_table(columns, rows, right=frozenset({4, 5, 6}))
    blocked = [(group, each) for group in status.groups for each in group.blocked]
    if blocked:
        click.echo()
        rows = [[each.row_id, group.group, _place(group), str(each.offset), each.reason] for group, each in blocked]
        print_table(["blocked row", "group", "store/key", "offset", "why"], rows, right=frozenset({3}))


def _print_leases(leases: _Leases) -> None:
    state = "held" if leases.held else "not held"
    click.echo(f"lease {leases.lease}: {state}, for {len(leases.workers)} workers at {leases.socket}")
    if not leases.workers:
        return
    columns = ["leased worker", "store", "keys", "pid", "since", "last answer"]
    print_table(columns, [_registered(each) for each in leases.workers], right=frozenset({3, 5}))
    click.echo()


def _registered(worker: _Registered) -> list[str]:
    since = datetime.fromtimestamp(worker.since_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    last = "awaited" if worker.last_pong_s is None else f"{worker.last_pong_s:.1f} s"
    return [worker.worker_id, worker.store, ",".join(worker.keys), str(worker.pid), since, last]


def _place(of: _Worker | _Group) -> str:
    return f"{of.store}/{of.key}"


def _worker(worker: _Worker) -> list[str]:
    numbers = [str(worker.partitions), str(worker.rows), f"{worker.staleness_s:.0f} s", str(worker.subscriptions)]
    return [worker.worker_id, _place(worker), "yes" if worker.ready else "no", *numbers]


def _group(group: _Group) -> list[str]:
    settings = [group.mode, group.routing_key, group.poison_policy or "-"]
    numbers: list[Any] = [group.cursor, group.last, group.in_flight, group.lag, len(group.blocked)]
    return [group.group, _place(group), *settings, *map(str, numbers)]


def _consumer(group: _Group, consumer: _Consumer) -> list[str]:
    state = "leaving" if consumer.leaving else "connected" if consumer.connected else "lost"
    numbers = [str(consumer.in_flight), str(consumer.capacity), str(consumer.waiting)]
    return [consumer.name, group.group, _place(group), state, *numbers, " ".join(consumer.filters) or "every row"]


COMMANDS: Final = {"agent": agent}
