"""Reads the ``.sql`` files beside the code.

``queries.sql`` is a row of blocks: a line ``-- NAME --``, one or more lines of description that begin with ``--``, and
the text. A name in capitals is a statement's, one in small letters a fragment's. Other blocks insert either as
``{name}``. A line that begins with ``----`` is the title of a section. ``schema.sql`` is comments, and statements that
end with ``;``. ``upgrades.sql`` is blocks of such statements.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Final, NamedTuple

_FOLDER: Final = files("ringcast_config_service.repository")
_HEADER: Final = re.compile(r"^-- (\w+) --\n", re.MULTILINE)
_COMMENT: Final = re.compile(r"^\s*--.*\n?", re.MULTILINE)
_TITLE: Final = re.compile(r"^----.*\n?", re.MULTILINE)
INSERTED: Final = re.compile(r"\{(\w+)\}")


class Block(NamedTuple):
    """A statement or a fragment, as it is in the file. A fragment may be empty."""

    name: str
    description: str
    text: str

    @property
    def is_statement(self) -> bool:
        return self.name.isupper()


def read_blocks(*paths: str) -> dict[str, Block]:
    """The blocks of ``queries.sql`` files by name; ``paths`` are below ``repository/``.

    Raises:
        ValueError: a name occurs twice, or a block has no description, or a statement no text.
    """
    found: dict[str, Block] = {}
    for path in paths:
        _, *parts = _HEADER.split(_TITLE.sub("", _read(path)))
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            description = "\n".join(line[2:].strip() for line in body.splitlines() if line.startswith("--"))
            block = Block(name, description, _COMMENT.sub("", body).strip())
            if name in found or not description or (block.is_statement and not block.text):
                raise ValueError(f"{path}: {name} is there twice, or has no description or no text")
            found[name] = block
    return found


def read_schema(path: str) -> list[str]:
    """The statements of a ``schema.sql``, in their order."""
    return _split(_read(path))


def read_upgrades(path: str) -> dict[str, list[str]]:
    """The statements of each block of an ``upgrades.sql``, by its name."""
    return {name: _split(block.text) for name, block in read_blocks(path).items()}


def _split(text: str) -> list[str]:
    statements = (part.strip() for part in _COMMENT.sub("", text).split(";"))
    return [statement for statement in statements if statement]


def insert(text: str, texts: Mapping[str, str]) -> str:
    """``text`` with each ``{name}`` replaced by the text of this name, and what that inserts.

    Raises:
        KeyError: there is no such text.
    """
    return INSERTED.sub(lambda match: insert(texts[match[1]], texts), text)


def _read(path: str) -> str:
    return _FOLDER.joinpath(path).read_text(encoding="utf-8")
