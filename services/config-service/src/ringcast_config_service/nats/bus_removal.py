"""A deleted store on NATS: its metadata marks it as deleted, and a purge removes all of it."""

from __future__ import annotations

import contextlib

from nats.js import JetStreamContext
from nats.js.errors import KeyDeletedError, KeyNotFoundError, NotFoundError
from nats.js.kv import KeyValue
from ringcast_wire import names

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


async def remove_store(js: JetStreamContext, store: str) -> None:
    """Removes streams and buckets of a store; the metadata first, so that no worker finds half of it."""
    of_sticky = (names.owners_bucket, names.wishes_bucket)
    for make in (names.meta_bucket, names.nodes_bucket, names.groups_bucket, *of_sticky):
        bucket = make(store)
        with contextlib.suppress(NotFoundError):
            await js.delete_stream(f"KV_{bucket}")
    for stream in (names.notify_stream(store), names.dead_stream(store)):
        with contextlib.suppress(NotFoundError):
            await js.delete_stream(stream)


async def clear_wishes(js: JetStreamContext, store: str, key: str) -> None:
    """Ends what operators want of a key, where there is something: a key of that name that comes later is another."""
    try:
        bucket = await js.key_value(names.wishes_bucket(store))
        await bucket.get(names.wishes_key(key))
    except (NotFoundError, KeyNotFoundError):
        return  # the store has no such bucket, or nothing is wanted of the key
    await bucket.delete(names.wishes_key(key))


async def _marked(bucket: KeyValue) -> bytes | None:
    try:
        return (await bucket.get(names.META_DELETED)).value
    except (KeyNotFoundError, KeyDeletedError):
        return None
