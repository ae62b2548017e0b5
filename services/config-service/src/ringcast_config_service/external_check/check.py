"""Asks before a release is published, and turns what comes, or does not, into a yes or a refusal."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from ringcast_wire import ConditionFailedError, EventLog, UnavailableError, shown
from ringcast_wire.metrics import Histogram

from ringcast_config_service.endpoints import Endpoint, NoAnswerError, read_login, silent
from ringcast_config_service.external_check.messages import SERVER, Answer, CheckServer, question_of
from ringcast_config_service.external_check.over_grpc import GrpcServer
from ringcast_config_service.external_check.over_http import HttpServer
from ringcast_config_service.external_check.settings import ExternalCheckSettings
from ringcast_config_service.repository import Release
from ringcast_config_service.repository.release_approvals import has_whole_digest
from ringcast_config_service.turns import Turns

log = EventLog(logging.getLogger(__name__))

CHECK_S: Final = 5.0
"""How long an answer is waited for: half of what a call of a client takes by default."""
_MAX_CHECKS: Final = 32
"""At once; each has a connection of its own."""
_MAX_CHECKS_OF_STORE: Final = 4
"""So that one that publishes again and again leaves room for others."""
_MAX_REASON_CHARS: Final = 500


class Outcome(StrEnum):
    """What came of a check."""

    ALLOWED = "allowed"
    REFUSED = "refused"
    UNANSWERED = "unanswered"
    """No answer that makes sense, or none before the client went away."""


class ExternalCheck:
    """Asks the server of one instance. ``counts``: checks by outcome; ``duration``: how long they took."""

    def __init__(self, settings: ExternalCheckSettings, counts: Counter[str], duration: Histogram) -> None:
        self._endpoint = settings.endpoint
        self._server = _server(self._endpoint)
        self._counts = counts
        self._duration = duration
        self._all = asyncio.Semaphore(_MAX_CHECKS)
        self._of_store = Turns(_MAX_CHECKS_OF_STORE)

    async def check(self, release: Release) -> None:
        """Asks for a staged release, with its keys, whether it may be published.

        Raises:
            ConditionFailedError: the answer is no, no server is named, or the release has no digest.
            UnavailableError: there is no answer within :data:`CHECK_S`, or none that makes sense.
        """
        if not self._endpoint.url:
            raise ConditionFailedError(
                f"{release.place} can't be published: its store has the policy external_check, and the service has no "
                "server that it could ask (--external-check-url)",
                field="external_check",
            )
        if not has_whole_digest(release):
            raise ConditionFailedError(
                f"{release.place} can't be published: an older build of the service has staged it, without the digest "
                f"that {SERVER} is asked with: stage it again",
                field="external_check",
            )
        try:
            answer = await self._measured(release)
        except NoAnswerError as error:
            log.warning(
                "external_check.silent", store=release.store, release=release.number, why=str(error), error=error.detail
            )
            raise UnavailableError(f"{release.place} can't be published: {error}") from error
        log.info("external_check.answered", store=release.store, release=release.number, allow=answer.allow)
        if not answer.allow:
            why = f": {shown(answer.reason, _MAX_REASON_CHARS)}" if answer.reason else ""
            raise ConditionFailedError(
                f"{release.place} can't be published: {SERVER} refuses it{why}", field="external_check"
            )

    async def _measured(self, release: Release) -> Answer:
        started = time.monotonic()
        outcome = Outcome.UNANSWERED
        try:
            answer = await self._ask(release)
            outcome = Outcome.ALLOWED if answer.allow else Outcome.REFUSED
            return answer
        finally:
            self._counts[outcome] += 1
            self._duration.observe(time.monotonic() - started)

    async def _ask(self, release: Release) -> Answer:
        question = question_of(release)
        why = f"{SERVER} is asked about too many releases at once"
        try:
            async with asyncio.timeout(CHECK_S), self._of_store.of(release.store), self._all:
                why = silent(SERVER, CHECK_S)
                login = await read_login(self._endpoint, SERVER)  # which may be on a slow disk
                answer = await self._server.ask(question, login, CHECK_S)
        except TimeoutError:
            raise NoAnswerError(why) from None
        if answer.digest != question.digest:
            other = shown(login.hidden(answer.digest))
            raise NoAnswerError(f"{SERVER} answers for another release, of the digest {other}")
        return Answer(answer.digest, answer.allow, login.hidden(answer.reason))


def _server(endpoint: Endpoint) -> CheckServer:
    if endpoint.is_grpc:
        parts = urlsplit(endpoint.url)
        return GrpcServer(parts.netloc, tls=parts.scheme == "grpcs")
    return HttpServer(endpoint.url)
