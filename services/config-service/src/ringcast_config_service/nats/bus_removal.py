"""A deleted store on NATS: its metadata marks it as deleted, and a purge removes all of it."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from datetime import datetime

from nats.js import JetStreamContext
from nats.js.errors import KeyDeletedError, KeyNotFoundError, KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KeyValue
from ringcast_wire import names
from ringcast_wire.buckets import stream_of

from ringcast_config_service.repository import StoreRecord
from ringcast_config_service.repository.mapping import store_deleted


async def mark_deletion(js: JetStreamContext, store: StoreRecord) -> None:
    """Says in the metadata of a store, if there is any, that it is deleted."""
    assert store.deletion is not None
    sentence = str(store_deleted(store.name, store.deletion)).encode()
    try:
        bucket = await js.key_value(names.meta_bucket(store.name))
    except NotFoundError:
        return  # workers get the error that there is no such store
    if await _marked(bucket) != sentence:
        await bucket.put(names.META_DELETED, sentence)


async def clear_deletion(bucket: KeyValue) -> None:
    """Takes that back, once the store is restored."""
    if await _marked(bucket) is not None:
        await bucket.delete(names.META_DELETED)


async def always() -> bool:
    """What :func:`remove_store` removes is of the store in any case."""
    return True


async def remove_store(
    js: JetStreamContext,
    store: str,
    is_there: Callable[[], Awaitable[bool]] = always,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Removes streams and buckets of a store; the metadata first, so that no worker finds half of it.

    Only those that are there when it begins: a store that another instance makes meanwhile under the name keeps its
    own. NATS deletes by name alone, so each stream is compared right before. ``is_there`` says, once it is known which
    ones there are, whether the name is still that of the store to be removed. ``check`` is called right before each
    removal, and may raise.
    """
    of_sticky = (names.owners_bucket, names.wishes_bucket)
    buckets = (names.meta_bucket, names.nodes_bucket, names.groups_bucket, *of_sticky)
    streams = [stream_of(make(store)) for make in buckets] + [names.notify_stream(store), names.dead_stream(store)]
    found = {stream: await _made_at(js, stream) for stream in streams}
    if not await is_there():
        return
    for stream, made_at in found.items():
        if made_at is not None and await _made_at(js, stream) == made_at:
            check()
            with contextlib.suppress(NotFoundError):
                await js.delete_stream(stream)


async def _made_at(js: JetStreamContext, stream: str) -> datetime | None:
    """When a stream was made, by the server's clock: what tells it from another one of its name."""
    try:
        return (await js.stream_info(stream)).created
    except NotFoundError:
        return None


async def clear_wishes(js: JetStreamContext, store: str, key: str, check: Callable[[], None] = lambda: None) -> None:
    """Ends what operators want of a key, where there is something: a key of that name that comes later is another."""
    try:
        bucket = await js.key_value(names.wishes_bucket(store))
        entry = await bucket.get(names.wishes_key(key))
    except (NotFoundError, KeyNotFoundError):
        return  # the store has no such bucket, or nothing is wanted of the key
    check()
    with contextlib.suppress(KeyWrongLastSequenceError):  # it is of another key by now
        await bucket.delete(names.wishes_key(key), last=entry.revision)


async def _marked(bucket: KeyValue) -> bytes | None:
    try:
        return (await bucket.get(names.META_DELETED)).value
    except (KeyNotFoundError, KeyDeletedError):
        return None
