"""Values are checked against the schema of their key.

A schema is enforced exactly. It has an id that is never used again, and that stands in the heads of all partitions of
the key, which a write reads anyway. In PostgreSQL they are locked while it is set: a write that has locked one
commits before, a later one finds it. SQLite has one writer. A write says which schema its values were checked against
before; where another one is enforced by the time that it has its locks, they are checked then. So checks cost a
transaction nothing as a rule, and no instance writes by what it has read a few seconds ago.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ringcast_wire import SchemaKind, UnavailableError
from ringcast_wire.schemas import SEALED, Problem, ValueSchema, broken, is_sealed, value_schema

from ringcast_config_service.repository.base import WriteRequest


def to_value_schema(kind: str, definition: str) -> ValueSchema:
    """A schema as it is stored, ready to check.

    Raises:
        UnavailableError: a newer build has registered it, of a kind that this one does not know.
    """
    try:
        return value_schema(SchemaKind(kind), definition)
    except ValueError as error:
        raise UnavailableError(f"this instance can't check values against a schema of the kind {kind!r}") from error


def problem_of(schema: ValueSchema, value: str, metadata: Mapping[str, str] | None) -> Problem | None:
    """How a row breaks a schema, or ``None``."""
    if is_sealed(metadata):
        return SEALED
    return None if schema.accepts(value) else schema.problem(value)


class EnforcedSchema(NamedTuple):
    """A schema that a transaction has to check values against."""

    place: str
    version: int
    schema: ValueSchema

    def check(self, request: WriteRequest) -> None:
        """Refuses a request with a row that breaks the schema.

        Raises:
            InvalidInputError: there is one; it names the first.
        """
        for row in request.rows:
            if row.value is not None and (problem := problem_of(self.schema, row.value, row.metadata)) is not None:
                raise broken(self.place, self.version, row.row_id, problem)
