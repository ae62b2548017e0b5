"""What is stored as JSON text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ringcast_config_service.repository.base import WriteOutcome

_json = msgspec.json.Encoder()
_outcomes = msgspec.json.Decoder(list[tuple[int, int, int, list[int]]])
_metadata = msgspec.json.Decoder(dict[str, str])


def pack_metadata(metadata: dict[str, str] | None) -> str | None:
    """Metadata as it is stored: JSON text, ``None`` when there is none."""
    return _json.encode(metadata).decode() if metadata else None


def unpack_metadata(text: str | None) -> dict[str, str] | None:
    """The other way."""
    return _metadata.decode(text) if text else None


def pack_ids(ids: Sequence[str]) -> str:
    """Row ids as one parameter of a statement: JSON text."""
    return _json.encode(ids).decode()


def pack_outcomes(outcomes: Iterable[WriteOutcome]) -> str:
    """Outcomes as they are stored: JSON text."""
    return _json.encode([(made.written, made.deleted, made.unchanged, made.versions) for made in outcomes]).decode()


def unpack_outcomes(text: str) -> list[WriteOutcome]:
    """The other way."""
    return [WriteOutcome(*found) for found in _outcomes.decode(text)]
