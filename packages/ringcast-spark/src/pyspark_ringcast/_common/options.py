"""The options of a read or a write, checked once.

Names are Spark's: case does not count, and neither do underscores, so ``rowIds`` and ``row_ids`` are one option.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec
from ringcast_wire import InvalidInputError, NatsLogin, check_reason, check_row_id, limits, names, shown
from ringcast_wire.addresses import service_addresses

from pyspark_ringcast._common.column_options import (
    ValueColumn,
    all_columns,
    chosen_columns,
    parse_name,
    parse_names,
    parse_value_columns,
)
from pyspark_ringcast._common.guards import DEFAULT_MAX_DELETE_SHARE
from pyspark_ringcast._common.offsets import Starting, parse_starting
from pyspark_ringcast._common.since import Since, parse_since

DEFAULT_SERVER: Final = "nats://127.0.0.1:4222"
DEFAULT_SERVICE: Final = "127.0.0.1:7420"
MAX_ROW_IDS: Final = 100_000
MAX_TASKS: Final = 10_000
MAX_REJECTED: Final = 1_000_000

E = TypeVar("E", bound=StrEnum)


class OnChange(StrEnum):
    """What a read gives of a partition that was written to after the snapshot was taken."""

    SNAPSHOT = "snapshot"
    LATEST = "latest"


class Operation(StrEnum):
    """What an append does with a row: write it, or delete the row of its id."""

    UPSERT = "upsert"
    DELETE = "delete"


class Malformed(StrEnum):
    """What a read does with a value that is not the JSON object that ``value_columns`` describes."""

    FAIL = "fail"
    NULL = "null"


class Changes(StrEnum):
    """What a stream gives of a row that was written several times since the last batch."""

    LATEST = "latest"
    EVERY = "every"


class OnGap(StrEnum):
    """What a stream does when changes are gone that it has not read."""

    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Service:
    """Where the config service is, and the files to log in with: paths that hold on each node.

    A file that is not named here is the one that the environment of the process names, if it does.
    """

    address: str = DEFAULT_SERVICE
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    token_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One config key of one store, and how to read or write it. ``login`` is for NATS; it never shows in an error."""

    store: str
    key: str
    servers: tuple[str, ...] = (DEFAULT_SERVER,)
    service: Service = Service()
    login: NatsLogin = NatsLogin()  # noqa: RUF009  # frozen
    timeout_s: float = 30.0
    """How long one request is tried again before it fails."""
    # Reads
    partitions: tuple[int, ...] | None = None
    row_ids: tuple[str, ...] | None = None
    since: Since = Since()  # noqa: RUF009  # frozen
    """Only rows with a version above that of their partition."""
    include_deleted: bool = False
    version_as_of: Since | None = None
    """The revisions to read, instead of those that the partitions have."""
    timestamp_as_of: int | None = None
    """The same by a moment, in ms of Unix time."""
    release_as_of: int | None = None
    """The same by a release: when its last row was published."""
    on_change: OnChange = OnChange.SNAPSHOT
    tasks: int | None = None
    columns: tuple[str, ...] | None = None
    """Those that are wanted, in their order."""
    malformed_values: Malformed = Malformed.FAIL
    # Reads and writes
    id_column: str = "row_id"
    """What the column of row ids is called in the DataFrame."""
    value_columns: tuple[ValueColumn, ...] = ()
    """The columns that make up the value, a JSON object; without them it is the column ``value``."""
    metadata_columns: tuple[str, ...] = ()
    """The columns that are entries of the metadata, in place of the column ``metadata``."""
    key_ring: str = ""
    """File of the key ring that opens and encrypts values, on each node; empty: values are as they are stored."""
    # Streams
    changes: Changes = Changes.LATEST
    starting_offsets: Starting = "earliest"
    starting_timestamp: int | None = None
    """Unix time in milliseconds: a new stream begins with the first change at it or later."""
    read_change_feed: bool = False
    """With what each change was, and when; it gives every change."""
    max_rows_per_trigger: int | None = None
    on_gap: OnGap = OnGap.FAIL
    # Writes
    release: bool = False
    """Whether the rows are staged as a new release, and not written."""
    operation: Operation = Operation.UPSERT
    max_rejected: int = 0
    rejects_path: str | None = None
    counts_path: str | None = None
    max_rows_per_second: int | None = None
    """Of all tasks that write to the key."""
    max_delete_share: float = DEFAULT_MAX_DELETE_SHARE
    """Of the live rows: an overwrite that would delete more deletes nothing."""
    allow_empty: bool = False
    """Whether an overwrite may leave the key without a row."""
    reason: str = ""
    """Why: the history has it with each row that is written."""

    @property
    def place(self) -> str:
        """``store/key``."""
        return f"{self.store}/{self.key}"

    @property
    def is_mapped(self) -> bool:
        """Whether columns have other names, or another meaning, than a read and a write give them."""
        return bool(self.value_columns or self.metadata_columns) or self.id_column != "row_id"

    def read_columns(self) -> list[str]:
        """The names of the columns that a read gives."""
        return list(self.columns) if self.columns is not None else list(all_columns(self))


def parse_options(given: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> Options:
    """Reads Spark's options; ``servers``, ``service``, ``key_ring`` and the login at NATS also come from
    ``RINGCAST_<NAME>``.

    Raises:
        InvalidInputError: an option is unknown, missing, malformed or out of range; the message names it, and shows no
            password.
    """
    values = {name: text for name in _FROM_ENVIRONMENT if (text := environ.get(f"RINGCAST_{name.upper()}"))}
    for name, text in _of_path(_of_table(given)).items():
        values[_field(name)] = text
    login = {name: values.pop(name) for name in _LOGIN if name in values}
    files = {name: values.pop(name) for name in SERVICE_FILES if name in values}
    for name in ("store", "key"):
        if not values.get(name):
            why = f"is missing: say which {_WHAT[name]}, as in .option({name!r}, {_EXAMPLE[name]!r})"
            raise _refusal(name, why if given else f"{why}; {_NO_OPTIONS}")
    _settle_streams(values)
    parsed = {name: _PARSERS[name](name, text) for name, text in values.items()}
    service = Service(parsed.pop("service", DEFAULT_SERVICE), **{_of_service(name): files[name] for name in files})
    options = Options(**parsed, service=service, login=_login(login))
    return replace(options, columns=chosen_columns(options))


def with_defaults(given: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """The options, and of those that are not given the defaults. A path stands for store and key."""
    given = _of_table(given)
    there = {_plain(name) for name in given}
    if "path" in there:
        there |= {"store", "key"}
    return {**{name: text for name, text in defaults.items() if _plain(name) not in there}, **given}


def check_option(name: str) -> None:
    """Raises ``InvalidInputError`` if there is no option of that name."""
    _field(name)


def refuse_options_of_streams(given: Iterable[str]) -> None:
    """Raises ``InvalidInputError`` if one of the names is that of an option that only streams have."""
    for name in given:
        if (option := _BY_PLAIN_NAME.get(_plain(name))) in _OF_STREAMS:
            raise InvalidInputError(f"option {option} goes with streams, not with a batch read", field=option)


def _settle_streams(values: dict[str, str]) -> None:
    """Options of streams that stand for others, or go together.

    Raises:
        InvalidInputError: they contradict each other.
    """
    if (fails := values.pop(_FAIL_ON_DATA_LOSS, None)) is not None:
        on_gap = OnGap.FAIL if _boolean(_FAIL_ON_DATA_LOSS, fails) else OnGap.SKIP
        if values.setdefault("on_gap", on_gap).lower() != on_gap:
            raise _refusal(_FAIL_ON_DATA_LOSS, f"is {fails}, which contradicts on_gap, {shown(values['on_gap'])}")
    feed = values.get("read_change_feed", "").lower() == "true"
    if feed and values.setdefault("changes", Changes.EVERY).lower() != Changes.EVERY:
        raise _refusal("changes", f"is {shown(values['changes'])}: a change feed (read_change_feed) gives every change")
    if "starting_timestamp" in values and "starting_offsets" in values:
        raise _refusal("starting_timestamp", "is given, and starting_offsets too: one of them is enough")


def _of_table(given: Mapping[str, str]) -> Mapping[str, str]:
    """Without what ``CREATE TABLE`` adds: each option comes twice, and beside them stand properties of the table."""
    if "provider" not in given:
        return given
    prefix = "option."
    found = {name.removeprefix(prefix): text for name, text in given.items() if name.startswith(prefix)}
    return found if "path" not in given else {**found, "path": given["path"]}


def _of_path(given: Mapping[str, str]) -> Mapping[str, str]:
    """With store and key in place of a path, as in ``load("gateway/blocklist")``.

    Raises:
        InvalidInputError: the path is no such pair, or store or key is given too.
    """
    path = next((text for name, text in given.items() if _plain(name) == "path"), None)
    if path is None:
        return given
    store, slash, key = path.partition("/")
    if not slash or "/" in key:
        raise _refusal(
            "path", f"is {shown(path)}: store and key with a slash between are wanted, as in gateway/blocklist"
        )
    others = {name: text for name, text in given.items() if _plain(name) != "path"}
    for name in others:
        if _plain(name) in ("store", "key"):
            raise _refusal(name, f"is given, and a path too ({shown(path)}): one of them is enough")
    return {**others, "store": store, "key": key}


def _field(name: str) -> str:
    found = _BY_PLAIN_NAME.get(_plain(name))
    if found is None:
        raise InvalidInputError(
            f"option {shown(name)} is unknown: there are {', '.join(sorted(_BY_PLAIN_NAME.values()))}", field=name
        )
    return found


def _of_service(name: str) -> str:
    """The field of :class:`Service` and of ``ServiceLogin`` for an option."""
    return name.removeprefix("service_")


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _refusal(name: str, why: str) -> InvalidInputError:
    return InvalidInputError(f"option {name} {why}", field=name)


def _login(values: dict[str, str]) -> NatsLogin:
    login = msgspec.convert(values, NatsLogin)
    login.check_login()
    return login


def _name(name: str, text: str) -> str:
    return names.check_name(name, text)


def parse_servers(name: str, text: str) -> tuple[str, ...]:
    """Addresses with commas between.

    Raises:
        InvalidInputError: there is none, or one holds a user or password, which the message does not show.
    """
    servers = tuple(part.strip() for part in text.split(",") if part.strip())
    if not servers:
        raise _refusal(name, "is empty: at least one NATS server must be named")
    if any("@" in server for server in servers):
        # Spark shows options in plans and logs; it knows to hide those that are called password, and not an address.
        raise _refusal(name, "must not hold a user or password: there are the options user and password for them")
    return servers


def _service(name: str, text: str) -> str:
    try:
        return ",".join(service_addresses(text))
    except InvalidInputError as error:
        raise InvalidInputError(f"option {error}", field=name) from None


def _partitions(name: str, text: str) -> tuple[int, ...]:
    """``0-3,7`` is 0, 1, 2, 3 and 7."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise _refusal(name, f"has {shown(part)}: numbers and ranges such as 0-3,7 are allowed")
        low, high = int(first), int(last or first)
        if not low <= high < limits.MAX_PARTITIONS:
            raise _refusal(name, f"has {shown(part)}: partitions are 0 to {limits.MAX_PARTITIONS - 1}, lowest first")
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def _row_ids(name: str, text: str) -> tuple[str, ...]:
    """Ids with commas between, or a JSON list for ids that have commas themselves."""
    found: list[str]
    if text.lstrip().startswith("["):
        try:
            found = msgspec.json.decode(text, type=list[str])
        except msgspec.MsgspecError:
            raise _refusal(name, "is not a JSON list of texts") from None
    else:
        found = [part.strip() for part in text.split(",") if part.strip()]
    if not 1 <= len(found) <= MAX_ROW_IDS:
        raise _refusal(name, f"has {len(found)} ids: 1 to {MAX_ROW_IDS} are allowed")
    return tuple(dict.fromkeys(check_row_id(row_id) for row_id in found))


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise _refusal(name, f"is {shown(text)}: true or false is allowed")
    return text.lower() == "true"


def _integer(low: int, high: int) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise _refusal(name, f"is {shown(text)}: a whole number from {low} to {high} is allowed")
        return value

    return parse


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 3600.0:
        raise _refusal(name, f"is {shown(text)}: 0.1 to 3600 seconds are allowed")
    return value


def _timestamp(name: str, text: str) -> int:
    """A date, or a date and a time, of UTC where it names no zone."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise _refusal(name, f"is {shown(text)}: a date or time such as 2026-11-22T10:30:00+01:00 is allowed") from None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    if found > datetime.now(UTC):
        raise _refusal(name, f"is {shown(text)}, which is still to come")
    return round(found.timestamp() * 1_000)


def _share(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise _refusal(name, f"is {shown(text)}: 0 to 1 is allowed")
    return value


def _reason(name: str, text: str) -> str:
    try:
        return check_reason(text)
    except InvalidInputError as error:
        raise InvalidInputError(f"option {error}", field=name) from None


def _new_release(name: str, text: str) -> bool:
    """Only a new one: what others may have looked at, and approved, does not change any more."""
    if text.lower() != "new":
        raise _refusal(
            name,
            f"is {shown(text)}: new is allowed. What is staged can't be changed: stage_release stages several keys as "
            "one release",
        )
    return True


def _choice(kind: type[E]) -> Callable[[str, str], E]:
    def parse(name: str, text: str) -> E:
        try:
            return kind(text.lower())
        except ValueError:
            raise _refusal(name, f"is {shown(text)}: {' or '.join(kind)} is allowed") from None

    return parse


def _text(name: str, text: str) -> str:
    if not text:
        raise _refusal(name, "is empty")
    return text


_PARSERS: Final[dict[str, Callable[[str, str], Any]]] = {
    "store": _name,
    "key": _name,
    "servers": parse_servers,
    "service": _service,
    "timeout_s": _seconds,
    "partitions": _partitions,
    "row_ids": _row_ids,
    "since": parse_since,
    "version_as_of": parse_since,
    "timestamp_as_of": _timestamp,
    "release_as_of": _integer(1, 2**63 - 1),
    "include_deleted": _boolean,
    "on_change": _choice(OnChange),
    "tasks": _integer(1, MAX_TASKS),
    "columns": parse_names,
    "malformed_values": _choice(Malformed),
    "id_column": parse_name,
    "value_columns": parse_value_columns,
    "metadata_columns": parse_names,
    "key_ring": _text,
    "changes": _choice(Changes),
    "starting_offsets": parse_starting,
    "starting_timestamp": _timestamp,
    "read_change_feed": _boolean,
    "max_rows_per_trigger": _integer(1, 2**31 - 1),
    "on_gap": _choice(OnGap),
    "release": _new_release,
    "operation": _choice(Operation),
    "max_rejected": _integer(0, MAX_REJECTED),
    "rejects_path": _text,
    "counts_path": _text,
    "max_rows_per_second": _integer(1, 2**31 - 1),
    "max_delete_share": _share,
    "allow_empty": _boolean,
    "reason": _reason,
}
_LOGIN: Final = NatsLogin.__struct_fields__
_FROM_ENVIRONMENT: Final = ("servers", "service", "key_ring", *_LOGIN)
_FAIL_ON_DATA_LOSS: Final = "fail_on_data_loss"
"""Kafka's and Delta's word for ``on_gap``."""
SERVICE_FILES: Final = ("service_tls_ca_file", "service_tls_cert_file", "service_tls_key_file", "service_token_file")
"""Options whose values are paths; a process that lacks one looks at its environment."""
_BY_PLAIN_NAME: Final = {_plain(name): name for name in (*_PARSERS, _FAIL_ON_DATA_LOSS, *_LOGIN, *SERVICE_FILES)}
_OF_STREAMS: Final = frozenset(
    {
        "changes",
        "starting_offsets",
        "starting_timestamp",
        "read_change_feed",
        "max_rows_per_trigger",
        "on_gap",
        _FAIL_ON_DATA_LOSS,
    }
)
_WHAT: Final = {"store": "store it is about", "key": "config key of the store"}
_EXAMPLE: Final = {"store": "gateway", "key": "blocklist"}
_NO_OPTIONS: Final = (
    "there is no option at all: Spark 4.3 drops those of a table that CREATE TABLE has made; use "
    "CREATE TEMPORARY VIEW, or say WITH (`store` = …, `key` = …) behind the table's name"
)

assert {field.name for field in fields(Options)} == {*_PARSERS, "login"}
