"""Schemas of the values of keys as they are stored, and how they change, decided without a database."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

from ringcast_wire import (
    InvalidInputError,
    LimitExceededError,
    RowRule,
    SchemaCompatibility,
    SchemaKind,
    SchemaMode,
    UnavailableError,
    limits,
    shown,
)
from ringcast_wire.schemas import Problem

from ringcast_config_service.repository import audit
from ringcast_config_service.repository.audit import AuditFact
from ringcast_config_service.repository.base import SERVICE, Authorship
from ringcast_config_service.repository.mapping import Record
from ringcast_config_service.repository.packing import unpack_metadata
from ringcast_config_service.repository.value_checks import problem_of, to_value_schema

KNOWN_FROM: Final = 13
"""From which version of the database's schema on a build knows of these schemas, so that it enforces them."""
NEWER_KNOWN_FROM: Final = 16
"""The same of Avro schemas, and of compatibility."""
PROTOBUF_KNOWN_FROM: Final = 17
"""The same of Protobuf schemas."""
MAX_CHANGED_ROWS: Final = 10_000
"""Rows that a transaction looks at which were written since all rows were checked."""
NAMED_ROWS: Final = 10
"""Rows that break a schema of which a report says why."""
_SAID_ROWS: Final = 3
"""The same of an error, which goes in the trailers of a call."""


def new_schema_id() -> int:
    """A random name for a schema."""
    return 1 + secrets.randbelow((1 << 53) - 1)


class InForce(NamedTuple):
    """The schema of a key that is looked at: its id, and what becomes of values that break it."""

    schema_id: int
    version: int
    mode: SchemaMode


@dataclass(frozen=True, slots=True)
class KeySchema:
    """A version of the schema of a key.

    ``mode`` and ``compatibility`` are ``None`` of all but the newest, and ``definition`` is empty in lists. Times
    are Unix time.
    """

    key: str
    version: int
    kind: str
    author: str
    reason: str
    registered_at_ms: int
    mode: SchemaMode | None
    changed_at_ms: int | None
    compatibility: SchemaCompatibility | None
    definition: str


class Seen(NamedTuple):
    """Up to which revisions the rows of a key are known to keep to a schema, by partition.

    An empty history: the key was not there.
    """

    history: str = ""
    heads: Sequence[int] = ()

    def since(self, history: str, heads: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """The partitions that were written since, and from which revision on; ``heads``: (partition, revision) now.

        Raises:
            SchemaRaceError: the revisions are those of another history.
        """
        if self.history not in ("", history):
            raise SchemaRaceError
        known = self.heads if self.history else ()
        found = ((partition, head, known[partition] if known else 0) for partition, head in heads)
        return [(partition, before) for partition, head, before in found if head > before]


class SchemaChange(NamedTuple):
    """What is to become of the schema of a key.

    Another version with this definition, or the newest as it is where there is none; and another mode and
    compatibility, or the same. ``expected``: the version that it was decided for, 0 for none; ``compared``: what its
    definition was found to be.
    """

    key: str
    kind: SchemaKind | None
    definition: str | None
    mode: SchemaMode | None
    expected: int
    compatibility: SchemaCompatibility | None = None
    compared: SchemaCompatibility = SchemaCompatibility.NONE

    def next_compatibility(self, newest: KeySchema | None) -> SchemaCompatibility:
        """What it has to be, and those after it."""
        return self.compatibility or (newest and newest.compatibility) or SchemaCompatibility.NONE


class BrokenRow(NamedTuple):
    """A row that breaks a schema."""

    row_id: str
    problem: Problem


class SchemaRaceError(UnavailableError):
    """What was decided does not fit any more: others have changed the schema, or too many rows, meanwhile."""

    def __init__(self) -> None:
        super().__init__("the rows or the schema of the key changed too often while they were checked: try again")


class SchemaStep(NamedTuple):
    """A change that was decided: the version and mode from now on, and what is different."""

    version: int
    kind: str
    definition: str
    mode: SchemaMode
    compatibility: SchemaCompatibility
    is_new: bool
    changes: bool
    enforces: bool
    """The rows that are there have to keep to it, and were not held to it before."""

    @property
    def known_from(self) -> int:
        """What a build has to know of to hold writes and versions to it."""
        if self.kind == SchemaKind.PROTOBUF:
            return PROTOBUF_KNOWN_FROM
        is_newer = self.kind == SchemaKind.AVRO or self.compatibility is not SchemaCompatibility.NONE
        return NEWER_KNOWN_FROM if is_newer else KNOWN_FROM

    def fact(self, by: Authorship, store: str, key: str) -> AuditFact:
        """What the audit log says of it."""
        action = "RegisterSchema" if self.is_new else "SetSchemaMode"
        details = {"kind": self.kind, "mode": self.mode, "compatibility": self.compatibility}
        return audit.fact(by, action, store, key, outcome="done", version=self.version, **details)

    def checked(self, place: str, records: Iterable[Sequence[str | None]]) -> None:
        """Refuses the change if one of these rows (id, value, stored metadata) breaks the schema.

        Raises:
            InvalidInputError: one does.
        """
        schema = to_value_schema(self.kind, self.definition)
        bad: list[BrokenRow] = []
        for row_id, value, metadata in records:
            assert row_id is not None
            assert value is not None
            if (problem := problem_of(schema, value, unpack_metadata(metadata))) is not None:
                bad.append(BrokenRow(row_id, problem))
        if bad:
            raise rows_break(place, len(bad), bad)


def decide(place: str, newest: KeySchema | None, change: SchemaChange) -> SchemaStep:
    """What a change comes to.

    Raises:
        InvalidInputError: there is no schema to change the mode of, or it can't be compared with others.
        SchemaRaceError: it was decided for another version.
    """
    if (newest.version if newest else 0) != change.expected:
        raise SchemaRaceError
    before = None if newest is None else newest.mode
    mode = change.mode or before or SchemaMode.ENFORCE
    if change.kind is None or change.definition is None:
        if newest is None:
            raise InvalidInputError(f"{place} has no schema: register one (ringcast schema register)", field="key")
        kind, definition, is_new = newest.kind, newest.definition, False
    else:
        kind, definition = change.kind, change.definition
        is_new = newest is None or (newest.kind, newest.definition) != (kind, definition)
    compatibility = change.next_compatibility(newest)
    if is_new and newest is not None and compatibility is not change.compared:
        raise SchemaRaceError
    if kind == SchemaKind.REGEX and compatibility is not SchemaCompatibility.NONE:
        raise InvalidInputError(
            f"compatibility {compatibility} is not possible for {place}: regular expressions are not compared, so "
            "theirs is none",
            field="compatibility",
        )
    version = change.expected + is_new
    enforces = mode is SchemaMode.ENFORCE and (is_new or mode is not before)
    changes = is_new or mode is not before or newest is None or compatibility is not newest.compatibility
    return SchemaStep(version, kind, definition, mode, compatibility, is_new, changes, enforces)


def check_schema_count(place: str, count: int) -> None:
    """Refuses the first schema of one more key than may have one."""
    if count >= limits.MAX_SCHEMA_KEYS:
        raise LimitExceededError(
            f"{place} can't have a schema: {count} other keys of the store have one, the limit is "
            f"{limits.MAX_SCHEMA_KEYS}",
            field="key",
        )


def rows_break(place: str, count: int, bad: Sequence[BrokenRow]) -> InvalidInputError:
    """What a schema is refused with that ``count`` rows break, the first of which are ``bad``."""
    rows = "1 row breaks" if count == 1 else f"{count} rows break"
    named = "; ".join(f"{shown(row.row_id)} {row.problem}" for row in bad[:_SAID_ROWS])
    return InvalidInputError(
        f"{rows} the schema, so it can't be enforced for {place}, nothing is changed: {named}"
        + (" …" if count > min(len(bad), _SAID_ROWS) else "")
        + " (with the mode warn it can be registered, and be enforced when they are mended)",
        field="definition",
        rule=RowRule.SCHEMA,
    )


def to_key_schema(record: Record) -> KeySchema:
    """From the columns of ``schema_columns``."""
    found = KeySchema(*record)
    if found.mode is None:
        return found
    compatibility = SchemaCompatibility(found.compatibility or SchemaCompatibility.NONE)
    return replace(found, mode=SchemaMode(found.mode), compatibility=compatibility)


def to_in_force(records: Iterable[Record]) -> dict[str, InForce]:
    """From the columns of SCHEMAS_IN_FORCE, by key."""
    return {key: InForce(schema_id, version, SchemaMode(mode)) for key, schema_id, version, mode in records}


class SchemaRepository(Protocol):
    """The schemas of the values of keys. A key that has one may not be there yet."""

    async def in_force(self, store: str) -> dict[str, InForce]:
        """The schemas of a store that are looked at, by key."""

    async def definition(self, schema_id: int) -> tuple[str, str] | None:
        """Kind and definition of a schema; ``None`` if it is gone."""

    async def newest(self, store: str, key: str = "") -> list[KeySchema]:
        """The newest version of each key of a store, or of one key, which alone has its definition."""

    async def versions(self, store: str, key: str, version: int = 0) -> list[KeySchema]:
        """The versions of a key that are kept, the newest first, or one of them, which alone has its definition."""

    async def change(self, store: str, change: SchemaChange, seen: Seen | None, by: Authorship = SERVICE) -> KeySchema:
        """Registers a version, or sets the mode. Once it is enforced no instance stores a value that breaks it.

        ``seen``: the rows that were checked before; it looks at those that were written since. ``None``: it may not be
        enforced with this.

        Raises:
            InvalidInputError: a row breaks it that was written since, or there is no schema.
            SchemaRaceError: too many rows were written since, or the schema was changed.
            KeyDeletedError: the key is deleted.
            LimitExceededError: as many keys as may have one have one.
        """
