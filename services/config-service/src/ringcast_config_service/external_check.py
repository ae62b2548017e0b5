"""A server of the operator that is asked before a release is published. Only a clear yes of it counts."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

import msgspec
from ringcast_service import setting
from ringcast_wire import ConditionFailedError, EventLog, UnavailableError, shown

from ringcast_config_service.endpoints import Endpoint, NoAnswerError, post, read_login, session
from ringcast_config_service.repository import Release

log = EventLog(logging.getLogger(__name__))

CHECK_S: Final = 5.0
"""How long an answer is waited for: half of what a call of a client takes by default."""
MAX_ANSWER_BYTES: Final = 16 * 1024
MAX_NAMED_KEYS: Final = 100
"""Keys of the release that a question has; how many there are it says too."""
_MAX_REASON_CHARS: Final = 500
_SERVER: Final = "the external check"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalCheckSettings:
    """Releases of stores with the policy ``external_check`` are published where a server is named, and allows it."""

    url: str = setting(
        "",
        "Server that is asked before a release of a store with the policy `external_check` is published.",
        flag="external-check-url",
        metavar="URL",
    )
    token_file: str = setting(
        "", "Token that it is sent, read for each request.", flag="external-check-token", metavar="FILE"
    )
    ca_file: str = setting(
        "",
        "Who has signed its certificate, PEM; none: an authority of the machine.",
        flag="external-check-ca",
        metavar="FILE",
    )

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("external_check", self.url, self.token_file, self.ca_file)


class _Key(msgspec.Struct):
    key: str
    added: int
    changed: int
    deleted: int


class _Question(msgspec.Struct):
    store: str
    release: int
    digest: str
    author: str
    reason: str
    rows: int
    bytes: int
    key_count: int
    keys: list[_Key]


class _Answer(msgspec.Struct):
    digest: str
    allow: bool
    reason: str = ""


_decoder = msgspec.json.Decoder(_Answer)


class ExternalCheck:
    """Asks the server of one instance."""

    def __init__(self, settings: ExternalCheckSettings) -> None:
        self._endpoint = settings.endpoint

    async def check(self, release: Release) -> None:
        """Asks for a staged release, with its keys, whether it may be published.

        Raises:
            ConditionFailedError: the answer is no, or no server is named.
            UnavailableError: there is no answer within :data:`CHECK_S`, or none that makes sense.
        """
        if not self._endpoint.url:
            raise ConditionFailedError(
                f"{release.place} can't be published: its store has the policy external_check, and the service has no "
                "server that it could ask (--external-check-url)",
                field="external_check",
            )
        try:
            answer = await self._ask(release)
        except NoAnswerError as error:
            log.warning(
                "external_check.silent", store=release.store, release=release.number, why=str(error), error=error.detail
            )
            raise UnavailableError(f"{release.place} can't be published: {error}") from error
        log.info("external_check.answered", store=release.store, release=release.number, allow=answer.allow)
        if not answer.allow:
            why = f": {shown(answer.reason, _MAX_REASON_CHARS)}" if answer.reason else ""
            raise ConditionFailedError(
                f"{release.place} can't be published: {_SERVER} refuses it{why}", field="external_check"
            )

    async def _ask(self, release: Release) -> _Answer:
        try:
            async with asyncio.timeout(CHECK_S), session(1) as client:  # with the login, which may be on a slow disk
                status, data = await post(
                    client,
                    self._endpoint.url,
                    await read_login(self._endpoint, _SERVER),
                    data=question(release),
                    content_type="application/json",
                    server=_SERVER,
                    timeout_s=CHECK_S,
                    max_bytes=MAX_ANSWER_BYTES,
                )
        except TimeoutError:
            raise NoAnswerError(f"{_SERVER} does not answer within {CHECK_S:g} s") from None
        return to_answer(release, status, data)


def question(release: Release) -> bytes:
    """What is asked: a JSON object with what the release is, and its first keys in the order of their names."""
    keys = [_Key(key.name, key.added, key.changed, key.deleted) for key in release.keys[:MAX_NAMED_KEYS]]
    return msgspec.json.encode(
        _Question(
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
    )


def to_answer(release: Release, status: int, data: bytes) -> _Answer:
    """What an HTTP answer says of the release.

    Raises:
        NoAnswerError: nothing.
    """
    if status in {401, 403}:
        raise NoAnswerError(f"{_SERVER} does not accept the login of the service (status {status})")
    if status != 200:
        raise NoAnswerError(f"{_SERVER} answers with the status {status}")
    try:
        answer = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NoAnswerError(f"{_SERVER} answers with something else than a JSON object with digest and allow") from None
    if answer.digest != (release.digest or ""):
        raise NoAnswerError(f"{_SERVER} answers for another release, of the digest {shown(answer.digest)}")
    return answer
