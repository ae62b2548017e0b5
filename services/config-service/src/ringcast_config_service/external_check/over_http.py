"""A server that is asked over HTTP, with JSON."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from ringcast_config_service.endpoints import EndpointLogin, NoAnswerError, post, refused_login, session, wrong_status
from ringcast_config_service.external_check.messages import MAX_ANSWER_BYTES, SERVER, Answer, Question, nonsense

_decoder = msgspec.json.Decoder(Answer)


class HttpServer:
    """The :class:`~.messages.CheckServer` behind a URL."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def ask(self, question: Question, login: EndpointLogin, timeout_s: float) -> Answer:
        async with session(1) as client:
            status, data = await post(
                client,
                self._url,
                login,
                data=msgspec.json.encode(question),
                content_type="application/json",
                server=SERVER,
                timeout_s=timeout_s,
                max_bytes=MAX_ANSWER_BYTES,
            )
        if status in {401, 403}:
            raise NoAnswerError(refused_login(SERVER, status))
        if status != 200:
            raise NoAnswerError(wrong_status(SERVER, status))
        try:
            json.loads(data, object_pairs_hook=_each_once)
            return _decoder.decode(data)
        except (msgspec.DecodeError, ValueError, RecursionError):
            raise nonsense("a JSON object") from None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are there once: who says no and yes has not said yes."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found
