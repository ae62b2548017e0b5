"""An outbox record in the form in which a broker takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
from ringcast_wire import RingcastError, decode_event, encode, names

from ringcast_config_service.repository import OutboxRecord

_VERSION_LINE: Final = len(b"NATS/1.0\r\n\r\n")
_FIELD: Final = len(b": \r\n")


class UnpublishableError(Exception):
    """No form of the record is one that the broker takes."""


class Outgoing(NamedTuple):
    """A message, and its bytes with headers, as a server counts them; ``bare``: the changes were left out."""

    payload: bytes
    headers: dict[str, str]
    size: int
    bare: bool


def shape(record: OutboxRecord, headers: dict[str, str], max_payload: int, *, bare: bool = False) -> Outgoing:
    """The message of a record: whole, or with nothing but its revisions where it is too large (or ``bare``).

    A server ends the connection of a client that sends more than ``max_payload`` bytes, headers included, so what does
    not fit must not be sent.

    Raises:
        UnpublishableError: it is too large in any form, or its subject or a header is invalid.
    """
    _check(record, headers)
    extra = header_bytes(headers)
    payload = record.payload
    if not bare and len(payload) + extra <= max_payload:
        return Outgoing(payload, headers, len(payload) + extra, bare=False)
    payload = without_changes(payload)
    if len(payload) + extra > max_payload:
        raise UnpublishableError(f"{len(payload)} bytes and {extra} of headers are over max_payload {max_payload}")
    return Outgoing(payload, headers, len(payload) + extra, bare=True)


def header_bytes(headers: Mapping[str, str]) -> int:
    """What headers add to a message."""
    return _VERSION_LINE + sum(len(name.encode()) + len(value.encode()) + _FIELD for name, value in headers.items())


def is_header_value(value: str) -> bool:
    """Whether a value arrives as it was sent."""
    return value.isascii() and value.isprintable() and value == value.strip()


def _check(record: OutboxRecord, headers: Mapping[str, str]) -> None:
    try:
        names.parse_notify_subject(record.subject)
    except RingcastError as error:
        raise UnpublishableError(str(error)) from error
    for name, value in headers.items():
        if not is_header_value(value):
            raise UnpublishableError(f"header {name} can't be sent: {value!r:.200}")


def without_changes(payload: bytes) -> bytes:
    """The same event with nothing but its revisions: workers fetch its rows."""
    try:
        event = decode_event(payload)
    except RingcastError as error:
        raise UnpublishableError(f"it is too large, and can't be shortened: {error}") from error
    return encode(msgspec.structs.replace(event, changes=None))
