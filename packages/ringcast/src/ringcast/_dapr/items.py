"""How the terms of Dapr map to those of Ringcast, for the clients of the SDK and for the heartbeat agent.

Here is which rows an entry of ``keys`` selects, and how a row becomes a configuration item.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ringcast_wire import EventLog, InvalidInputError, Row, check_row_id, limits, names, shown

METADATA_KEY: Final = "ringcast.key"
METADATA_PARTITION: Final = "ringcast.partition"
METADATA_DELETED: Final = "ringcast.deleted"
OPTIONS: Final = ("worker_id", "mode", "partition_count", "window_s")
"""What ``config_metadata`` of a subscription may set; other names are left to other configuration stores."""

_log = EventLog(logging.getLogger("ringcast.dapr"))


class KeySelector(NamedTuple):
    """One entry of ``keys``: a whole config key, or (``row_id``) one row of it."""

    entry: str
    key: str
    row_id: str | None

    @classmethod
    def parse(cls, entry: object) -> KeySelector:
        """Reads ``blocklist``, a whole config key, or ``blocklist/<row id>``, one row of it.

        Raises:
            InvalidInputError: it is not text, or can't be the name of a key or row.
        """
        if not isinstance(entry, str):
            raise InvalidInputError(f"keys has the entry {shown(entry)}: it must be text", field="keys")
        key, slash, row_id = entry.partition("/")
        names.check_name("keys", key)
        return cls(entry, key, check_row_id(row_id) if slash else None)


@dataclass(slots=True)
class ConfigurationItem:
    """A row in the form in which Dapr's API has it. ``metadata`` has the row's own entries and those of Ringcast."""

    value: str
    version: str
    metadata: Mapping[str, str]


def check_store(store_name: str) -> str:
    """Returns the name if it may be a store's.

    Raises:
        ValueError: it is empty or blank, in the words of the ``dapr`` package.
        InvalidInputError: it is not a valid name.
    """
    if not store_name or not store_name.strip():
        raise ValueError("Config store name cannot be empty to get the configuration")
    return names.check_name("store_name", store_name)


def parse_keys(keys: Sequence[str]) -> list[KeySelector]:
    """Reads ``keys``: ``blocklist`` is a whole config key, ``blocklist/<row id>`` one row of it.

    Raises:
        InvalidInputError: there is none, there are over 1,000, or one is malformed.
    """
    if isinstance(keys, str) or not 1 <= len(keys) <= limits.MAX_BATCH_ROWS:
        count = shown(keys) if isinstance(keys, str) else f"with {len(keys)} entries"
        raise InvalidInputError(f"keys {count} is not a list of 1 to {limits.MAX_BATCH_ROWS} config keys", field="keys")
    return [KeySelector.parse(entry) for entry in dict.fromkeys(keys)]


def item_name(selectors: Sequence[KeySelector], one: KeySelector, row_id: str) -> str:
    """The name of a row in the answer.

    A row that was selected by name has that name. When ``keys`` is one whole config key, its rows have their ids;
    with several entries they are named ``<key>/<row id>``.
    """
    if one.row_id is not None:
        return one.entry
    return row_id if len(selectors) == 1 else f"{one.key}/{row_id}"


def item_of(key: str, partition: int, row: Row) -> ConfigurationItem:
    """A row as an item."""
    return make_item(key, partition, row.value, row.version, row.deleted, row.metadata)


def make_item(
    key: str, partition: int, value: str | None, version: int, deleted: bool, metadata: Mapping[str, str] | None
) -> ConfigurationItem:
    """An item from its parts."""
    own = {
        METADATA_KEY: key,
        METADATA_PARTITION: str(partition),
        METADATA_DELETED: "true" if deleted else "false",
    }
    return ConfigurationItem("" if deleted or value is None else value, str(version), {**(metadata or {}), **own})


def subscription_options(config_metadata: Mapping[str, str] | None) -> dict[str, Any]:
    """The worker settings among ``config_metadata``, still as text."""
    given = config_metadata or {}
    if ignored := sorted(_unknown(given)):
        _log.warning("subscription.metadata_ignored", ignored=",".join(ignored), known=",".join(OPTIONS))
    return {name: given[name] for name in OPTIONS if name in given}


def _unknown(given: Iterable[str]) -> set[str]:
    return set(given) - set(OPTIONS)
