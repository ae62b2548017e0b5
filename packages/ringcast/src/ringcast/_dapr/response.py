"""What the Dapr-shaped clients answer with: the same classes, attributes and behaviour as in the ``dapr`` package.

Their own code, so that a program needs no ``dapr`` at run time; a test holds each signature against that package.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

MetadataTuple = tuple[tuple[str, bytes | str], ...]
MetadataDict = dict[str, list[bytes | str]]


class ItemSource(Protocol):
    """What an item is made from."""

    @property
    def value(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def metadata(self) -> Mapping[str, str]: ...


class DaprResponse:
    """A response with headers. Ringcast has none to tell, so they are empty."""

    def __init__(self, headers: MetadataTuple = ()) -> None:
        self._headers = headers

    @property
    def headers(self) -> MetadataDict:
        """The headers as a dict, name to values."""
        return _as_dict(self._headers)

    @headers.setter
    def headers(self, val: MetadataTuple) -> None:
        self._headers = val

    def get_headers(self, as_dict: bool = False) -> MetadataDict | MetadataTuple:
        """The headers as a dict, or as the tuple that they came as."""
        return _as_dict(self._headers) if as_dict else self._headers


class ConfigurationItem:
    """A row: its value, its version (the partition's revision at its last write, in digits) and its metadata.

    Beside the row's own metadata there are ``ringcast.key``, ``ringcast.partition`` and ``ringcast.deleted``
    (``"true"`` for a row that is gone: its value is empty then).
    """

    def __init__(self, value: str, version: str, metadata: dict[str, str] | None = dict()) -> None:  # noqa: B006, C408
        self._value = value
        self._version = version
        self._metadata = metadata

    def text(self) -> str:
        """The value."""
        value: str | bytes = self._value
        return value.decode() if isinstance(value, bytes) else value

    def json(self) -> dict[str, object]:
        """The value, read as JSON."""
        document: dict[str, object] = json.loads(self.text())
        return document

    @property
    def value(self) -> str:
        """The value."""
        return self._value

    @property
    def version(self) -> str:
        """The version."""
        return self._version

    @property
    def metadata(self) -> dict[str, str] | None:
        """The metadata."""
        return self._metadata


class ConfigurationResponse(DaprResponse):
    """Rows by name."""

    def __init__(self, items: Mapping[str, ItemSource], headers: MetadataTuple = ()) -> None:
        super().__init__(headers)
        self._items = {
            name: ConfigurationItem(item.value, item.version, dict(item.metadata)) for name, item in items.items()
        }

    @property
    def items(self) -> dict[str, ConfigurationItem]:
        """The items, by name."""
        return self._items


def _as_dict(headers: Any) -> MetadataDict:
    found: MetadataDict = {}
    for name, value in headers:
        found.setdefault(name, []).append(value)
    return found
