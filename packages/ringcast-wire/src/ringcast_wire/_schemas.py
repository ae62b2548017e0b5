"""Schemas for the values of a key: which kinds there are, and what comes of a value that breaks one."""

from __future__ import annotations

from enum import StrEnum


class SchemaKind(StrEnum):
    """How the definition of a schema is written."""

    JSON_SCHEMA = "json-schema"
    REGEX = "regex"
    AVRO = "avro"


class SchemaMode(StrEnum):
    """What becomes of a value that breaks the schema of its key.

    ``ENFORCE``: it is refused, whichever way it comes. ``WARN``: it is written, counted and logged. ``OFF``: nobody
    looks.
    """

    ENFORCE = "enforce"
    WARN = "warn"
    OFF = "off"
