"""Asks a Prometheus for conditions. Only the answer 1 counts as good; whatever else comes, or nothing, does not."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec
from ringcast_wire import ConditionFailedError, EventLog, InvalidInputError, UnavailableError, shown

from ringcast_config_service.endpoints import (
    EndpointLogin,
    NoAnswerError,
    post,
    read_login,
    refused_login,
    session,
    wrong_status,
)
from ringcast_config_service.promql.settings import PromqlSettings

log = EventLog(logging.getLogger(__name__))

QUERY_S: Final = 2.0
"""How long an answer is waited for: as long as for those of workers, since both belong to one look at a gate."""
MAX_ANSWER_BYTES: Final = 64 * 1024
"""An answer has one number. A larger one is of many series, each with its labels."""
_SERVER: Final = "Prometheus"
_SHOWN_CHARS: Final = 80
_SHOWN_ERROR_CHARS: Final = 200


class Outcome(StrEnum):
    """What came of a question."""

    MET = "met"
    NOT_MET = "not_met"
    NO_DATA = "no_data"
    """No sample, or one that is not a number."""
    WRONG = "wrong"
    """The expression can't be a condition."""
    NO_ANSWER = "no_answer"
    """Prometheus did not answer, or not as one."""


class Answer(NamedTuple):
    """What came of a question, and why it is not 1. ``detail``: for the log alone, it may name hosts and files."""

    outcome: Outcome
    why: str = ""
    detail: str = ""


class _Data(msgspec.Struct, rename="camel"):
    result_type: str = ""
    result: Any = None


class _Reply(msgspec.Struct, rename="camel"):
    status: str
    data: _Data | None = None
    error: str = ""
    warnings: tuple[str, ...] = ()


_decoder = msgspec.json.Decoder(_Reply)


class Conditions:
    """Asks the Prometheus of one instance. ``counts``: questions by outcome."""

    def __init__(self, settings: PromqlSettings, counts: Counter[str]) -> None:
        self._settings = settings
        self._url = f"{settings.url.rstrip('/')}/api/v1/query"
        self._counts = counts
        self._is_silent = False

    async def ask(self, conditions: Sequence[str]) -> list[Answer]:
        """What becomes of each condition, in their order, within :data:`QUERY_S`. Raises nothing of Prometheus."""
        if not conditions:
            return []
        answers = await self._ask(conditions)
        self._counts.update(str(answer.outcome) for answer in answers)
        silent = next((answer for answer in answers if answer.outcome is Outcome.NO_ANSWER), None)
        if silent is not None and not self._is_silent:
            log.warning("prometheus.silent", why=silent.why, error=silent.detail)
        elif silent is None and self._is_silent:
            log.info("prometheus.answers")
        self._is_silent = silent is not None
        return answers

    async def check(self, place: str, conditions: Sequence[str]) -> None:
        """Asks before anything of a release is published. What has no sample yet may have one at the gate.

        Args:
            place: how sentences name the release.
            conditions: of its gate.

        Raises:
            ConditionFailedError: one is not met, or no Prometheus is named.
            InvalidInputError: one can't be a condition.
            UnavailableError: Prometheus does not answer.
        """
        if not self._settings.url:
            raise ConditionFailedError(
                f"{place} can't be published: its gate has PromQL conditions, and the service has no Prometheus "
                "(--prometheus-url)",
                field="promql",
            )
        for number, answer in enumerate(await self.ask(conditions)):
            sentence = sentence_of(number, conditions, answer)
            match answer.outcome:
                case Outcome.NOT_MET:
                    raise ConditionFailedError(f"{place} can't be published: {sentence}", field="promql")
                case Outcome.WRONG:
                    raise InvalidInputError(sentence, field="promql")
                case Outcome.NO_ANSWER:
                    raise UnavailableError(sentence)

    async def _ask(self, conditions: Sequence[str]) -> list[Answer]:
        if not self._settings.url:
            return [Answer(Outcome.NO_ANSWER, "the service has no Prometheus (--prometheus-url)")] * len(conditions)
        try:
            login = await read_login(self._settings.endpoint, _SERVER)
        except NoAnswerError as error:
            return [Answer(Outcome.NO_ANSWER, str(error), error.detail)] * len(conditions)
        async with session(len(conditions)) as client:
            return await asyncio.gather(*(self._one(client, login, condition) for condition in conditions))

    async def _one(self, client: aiohttp.ClientSession, login: EndpointLogin, condition: str) -> Answer:
        form = {"query": condition, "timeout": f"{QUERY_S:g}s"}
        try:
            status, data = await post(
                client,
                self._url,
                login,
                data=form,
                server=_SERVER,
                timeout_s=QUERY_S,
                max_bytes=MAX_ANSWER_BYTES,
            )
        except NoAnswerError as error:
            return Answer(Outcome.NO_ANSWER, str(error), error.detail)
        return to_answer(status, data)


def to_answer(status: int, data: bytes) -> Answer:
    """What an HTTP answer says of the condition."""
    try:
        reply = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        reply = None
    if status in {400, 422} and reply is not None and reply.status == "error":
        return Answer(Outcome.WRONG, f"Prometheus refuses it: {shown(reply.error, _SHOWN_ERROR_CHARS)}")
    if status in {401, 403}:
        return Answer(Outcome.NO_ANSWER, refused_login(_SERVER, status))
    if status != 200:
        return Answer(Outcome.NO_ANSWER, wrong_status(_SERVER, status))
    if reply is None or reply.status != "success" or reply.data is None:
        return Answer(Outcome.NO_ANSWER, "the answer is not that of a Prometheus")
    if reply.warnings:  # such as that a part of the data could not be read
        return Answer(Outcome.NO_ANSWER, f"Prometheus warns: {shown(reply.warnings[0], _SHOWN_ERROR_CHARS)}")
    return _of_result(reply.data.result_type, reply.data.result)


def sentence_of(number: int, conditions: Sequence[str], answer: Answer) -> str:
    """What is wrong with the answer to the condition with this index."""
    name = f"PromQL condition {number + 1}" if len(conditions) > 1 else "PromQL condition"
    said = f"{name} {shown(conditions[number], _SHOWN_CHARS)}"
    return f"{said} is not met: it is 0" if answer.outcome is Outcome.NOT_MET else f"{said}: {answer.why}"


def _of_result(kind: str, result: Any) -> Answer:
    try:
        if kind == "vector":
            if len(result) > 1:
                return Answer(
                    Outcome.WRONG,
                    f"it has {len(result)} samples, and one is allowed: aggregate them, with max() or min()",
                )
            if not result:
                return Answer(Outcome.NO_DATA, "it has no sample")
            pair = result[0]["value"]
        elif kind == "scalar":
            pair = result
        else:
            return Answer(Outcome.WRONG, f"its result is a {shown(kind)}, and one number is allowed")
        number = float(msgspec.convert(pair, tuple[float, str])[1])
    except (LookupError, TypeError, ValueError):
        return Answer(Outcome.NO_ANSWER, "the answer is not that of a Prometheus")
    if number == 1:
        return Answer(Outcome.MET)
    if number == 0:
        return Answer(Outcome.NOT_MET)
    if math.isnan(number):
        return Answer(Outcome.NO_DATA, "its value is not a number (NaN)")
    return Answer(
        Outcome.WRONG, f"its value is {number:g}, and only 1 and 0 are allowed: compare it, as in `… < bool 5`"
    )
