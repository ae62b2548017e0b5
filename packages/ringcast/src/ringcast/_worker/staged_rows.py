"""Fetches what a release has staged, page by page."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec
from ringcast_wire import NEWEST_WIRE_VERSION, WIRE_VERSION, Backoff, ProtocolError, UnavailableError, names
from ringcast_wire.reports import StagedReply, StagedRequest, decode_staged_reply, encode_staged

from ringcast._bus.requests import FetchClient

_TRIES: Final = 4
"""Of each fetch, where the service does not answer."""


async def staged_page(fetches: FetchClient, store: str, key: str, request: StagedRequest) -> StagedReply:
    """One page, or what is said in its place.

    Raises:
        RingcastError: as of :meth:`FetchClient.request`.
    """
    subject = names.fetch_subject(store, key, names.FETCH_STAGED)
    return decode_staged_reply(await fetches.request(subject, encode_staged(request)))


async def staged_pages(
    fetches: FetchClient, store: str, key: str, release: int, spans: Sequence[int], *, provisional: bool = False
) -> AsyncIterator[StagedReply]:
    """All pages of some partitions, each fetched a few times where the service does not answer.

    Raises:
        RingcastError: as of :meth:`FetchClient.request`.
    """
    request = StagedRequest(WIRE_VERSION, release, list(spans), reads=NEWEST_WIRE_VERSION, provisional=provisional)
    while True:
        reply = await _tried(fetches, store, key, request)
        yield reply
        if not reply.next:
            return
        if reply.next <= request.after:
            raise ProtocolError(f"staged rows behind place {request.after} go on behind place {reply.next}")
        request = msgspec.structs.replace(request, after=reply.next)


async def _tried(fetches: FetchClient, store: str, key: str, request: StagedRequest) -> StagedReply:
    backoff = Backoff(random.random)
    for tries_left in reversed(range(_TRIES)):
        try:
            return await staged_page(fetches, store, key, request)
        except UnavailableError:
            if not tries_left:
                raise
        await asyncio.sleep(backoff.next_s())
    raise AssertionError("unreachable")
