"""Schemas for the values of a key: which kinds there are, what comes of a value that breaks one, and which
versions may follow."""

from __future__ import annotations

from enum import StrEnum


class SchemaKind(StrEnum):
    """How the definition of a schema is written."""

    JSON_SCHEMA = "json-schema"
    REGEX = "regex"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class SchemaMode(StrEnum):
    """What becomes of a value that breaks the schema of its key.

    ``ENFORCE``: it is refused, whichever way it comes. ``WARN``: it is written, counted and logged. ``OFF``: nobody
    looks.
    """

    ENFORCE = "enforce"
    WARN = "warn"
    OFF = "off"


class SchemaCompatibility(StrEnum):
    """Which schemas may follow as the next version of that of a key.

    ``NONE``: any. ``BACKWARD``: one that reads what keeps to the version before. ``FORWARD``: one whose values that
    version reads. ``FULL``: both. The others: with all versions that are kept.
    """

    NONE = "none"
    BACKWARD = "backward"
    BACKWARD_TRANSITIVE = "backward-transitive"
    FORWARD = "forward"
    FORWARD_TRANSITIVE = "forward-transitive"
    FULL = "full"
    FULL_TRANSITIVE = "full-transitive"

    @property
    def is_backward(self) -> bool:
        """Whether the next version has to read what is there."""
        return self.startswith(("backward", "full"))

    @property
    def is_forward(self) -> bool:
        """Whether what is there has to read the next version."""
        return self.startswith(("forward", "full"))

    @property
    def is_transitive(self) -> bool:
        """Whether all versions count, not the newest alone."""
        return self.endswith("-transitive")
