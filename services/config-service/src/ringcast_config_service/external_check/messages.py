"""What the server is asked and what it answers, over whatever it is reached, and the limits of both."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from ringcast_config_service.endpoints import EndpointLogin, NoAnswerError
from ringcast_config_service.repository import Release

SERVER: Final = "the external check"
MAX_ANSWER_BYTES: Final = 16 * 1024
MAX_NAMED_KEYS: Final = 100
"""Keys of the release that a question has; how many there are it says too."""


class KeyChanges(msgspec.Struct):
    """What a release does to a key. The names are those of the JSON, and of external_check.proto."""

    key: str
    added: int
    changed: int
    deleted: int


class Question(msgspec.Struct):
    """What a release is, and its first keys in the order of their names."""

    store: str
    release: int
    digest: str
    author: str
    reason: str
    rows: int
    bytes: int
    key_count: int
    keys: list[KeyChanges]


class Answer(msgspec.Struct):
    """What the server says. ``digest``: of the release that it means."""

    digest: str
    allow: bool
    reason: str = ""


class CheckServer(Protocol):
    """The way to the server."""

    async def ask(self, question: Question, login: EndpointLogin, timeout_s: float) -> Answer:
        """What it answers.

        Raises:
            NoAnswerError: nothing within ``timeout_s``, too much, or something else.
        """
        ...


def question_of(release: Release) -> Question:
    """What is asked of a release."""
    keys = [KeyChanges(key.name, key.added, key.changed, key.deleted) for key in release.keys[:MAX_NAMED_KEYS]]
    return Question(
        release.store,
        release.number,
        release.digest or "",
        release.author,
        release.reason,
        release.rows,
        release.bytes,
        len(release.keys),
        keys,
    )


def nonsense(wanted: str) -> NoAnswerError:
    """The server has answered with something else than ``wanted``."""
    return NoAnswerError(f"{SERVER} answers with something else than {wanted} with digest and allow")
