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

log = EventLog(logging.getLogger(__name__))

CHECK_S: Final = 5.0
"""How long an answer is waited for: half of what a call of a client takes by default."""
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
        try:
            async with asyncio.timeout(CHECK_S):  # with the login, which may be on a slow disk
                login = await read_login(self._endpoint, SERVER)
                answer = await self._server.ask(question, login, CHECK_S)
        except TimeoutError:
            raise NoAnswerError(silent(SERVER, CHECK_S)) from None
        if answer.digest != question.digest:
            raise NoAnswerError(f"{SERVER} answers for another release, of the digest {shown(answer.digest)}")
        return answer


def _server(endpoint: Endpoint) -> CheckServer:
    if endpoint.is_grpc:
        parts = urlsplit(endpoint.url)
        return GrpcServer(parts.netloc, tls=parts.scheme == "grpcs")
    return HttpServer(endpoint.url)
