"""How a record stands in a bucket of NATS KV: its subject, its headers, and what an answer to a read says of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from ringcast_wire._common import names
from ringcast_wire._common.errors import UnavailableError
from ringcast_wire.migrating import said_gone

EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
"""The header by which a write is a compare-and-set: it names what stands there, by :func:`fixed`
(0: nothing ever did)."""
EXPECTED_AMONG: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
"""With that: the subjects, as a pattern, of which the newest has to be what it names, in place of the record's own."""
WRONG_SEQUENCE: Final = frozenset({10071, 10164})
"""Numbers of the errors that say that something else stands there."""
DELETED: Final[Mapping[str, str]] = {"KV-Operation": "DEL"}
"""The headers of a marker: the message that takes the place of an entry that is deleted."""
_OPERATION: Final = "KV-Operation"
_MARKER: Final = "Nats-Marker-Reason"
_DIGITS: Final = 20


class StoredRecord(NamedTuple):
    """A message of a bucket. ``data`` is ``None`` where the entry is gone; ``stored_s``: by the server's clock (Unix).

    ``may_call``: of a registration that is gone, that calls of its worker may have run. ``gone``: of a state that is
    gone, that an operator has said so of its worker, as of this revision of its registration.
    """

    revision: int
    data: bytes | None
    stored_s: float
    may_call: bool
    gone: int | None


def stream_of(bucket: str) -> str:
    """The stream behind a bucket."""
    return f"KV_{bucket}"


def subject_of(bucket: str, key: str) -> str:
    """The subject of a key, or of all keys that match a pattern."""
    return f"$KV.{bucket}.{key}"


def fixed(number: int) -> str:
    """A number as the value of a header, of the same size whatever it is.

    A full bucket takes a record in place of one of the same size, or a larger one. A server keeps the headers, too, so
    their size must not grow with the numbers in them: no lease of such a bucket could be refreshed any more.
    """
    return f"{number:0{_DIGITS}}"


def is_marker(headers: Mapping[str, str]) -> bool:
    """Whether a message stands for an entry that is gone."""
    return _MARKER in headers or headers.get(_OPERATION) in ("DEL", "PURGE")


def read_record(bucket: str, headers: Mapping[str, str], data: bytes) -> tuple[str, StoredRecord]:
    """A message of an answer to a direct read of a bucket: the key, and what stands there.

    Raises:
        KeyError, ValueError: it is none.
    """
    key = headers["Nats-Subject"].removeprefix(subject_of(bucket, ""))
    stored_s = datetime.fromisoformat(headers["Nats-Time-Stamp"]).timestamp()
    gone = is_marker(headers)
    return key, StoredRecord(
        int(headers["Nats-Sequence"]),
        None if gone else data,
        stored_s,
        names.HEADER_MAY_CALL in headers,
        said_gone(headers),
    )


def question(bucket: str, keys: Sequence[str]) -> bytes:
    """A request for the last messages of these keys, or of all that match these patterns: to ``DIRECT.GET``."""
    return json.dumps({"multi_last": [subject_of(bucket, key) for key in keys]}).encode()


class BucketAnswer:
    """What has come of the answer to a :func:`question`: what one server has at one moment. ``what``: for errors.

    Each message names the one before it, so that one that is missing shows.
    """

    def __init__(self, bucket: str, what: str) -> None:
        self.records: dict[str, StoredRecord] = {}
        """By key; markers are among them."""
        self.up_to = 0
        """Of a whole answer: the last message that the server knows of; 0 where it has none of these keys."""
        self._bucket = bucket
        self._what = what
        self._last = "0"

    def take(self, headers: Mapping[str, str], data: bytes) -> bool:
        """Takes the next message in; returns whether the answer is whole.

        Raises:
            UnavailableError: the server refuses, or a message is missing or can't be read.
        """
        try:
            return self._take(headers, data)
        except (KeyError, ValueError) as error:
            raise UnavailableError(f"an answer about {self._what} can't be read: {error!r}") from error

    def _take(self, headers: Mapping[str, str], data: bytes) -> bool:
        status = headers.get("Status")
        if status is None:
            if headers.get("Nats-Last-Sequence") != self._last:
                raise self._incomplete()
            self._last = headers["Nats-Sequence"]
            key, record = read_record(self._bucket, headers, data)
            self.records[key] = record
            return False
        if status == "204" and not data:
            if headers.get("Nats-Last-Sequence") != self._last:
                raise self._incomplete()
            self.up_to = int(headers.get("Nats-UpTo-Sequence", "0"))
            return True
        if status == "404" and not data:
            if self._last != "0" or headers.get("Description") != "No Results":
                raise self._incomplete()
            return True
        raise UnavailableError(f"the {self._what} can't be read: {status} {headers.get('Description', '')}".rstrip())

    def _incomplete(self) -> UnavailableError:
        return UnavailableError(f"an answer about {self._what} is incomplete: try again")
